#!/usr/bin/env python3
"""Build the wheel and the sdist, and try them in empty environments (``make dist``).

Both are checked as the package index would (metadata, README), then each is installed into an empty
environment, and ``smoke.py`` runs there. Exit status 1 where anything failed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DIST = REPOSITORY / "dist"
SMOKE = REPOSITORY / "tools" / "smoke.py"
#: For one command. Nothing here takes as long, but a registry can hang.
LIMIT = 600.0


def run(*command: str, cwd: Path = REPOSITORY) -> str:
    """Run a command and return its output; all of it is in the error where it failed."""
    # What would change Python, Dask or OpenTelemetry.
    unwanted = ("PYTHON", "DASK_", "OTEL_", "VIRTUAL_ENV")
    done = subprocess.run(
        command,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if not name.startswith(unwanted)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def build() -> tuple[Path, Path]:
    """Build both into ``dist/``, the wheel from the sdist, and check their metadata."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(DIST))
    (wheel,) = DIST.glob("*.whl")
    (sdist,) = DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Nothing is in them that the repository does not keep; the wheel is the package alone."""
    # Also files that were not added yet: hatch takes them.
    kept = set(run("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines())
    with tarfile.open(sdist) as archive:
        names = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    if strange := names - kept - {"PKG-INFO"}:
        raise SystemExit(f"{sdist.name} has files that are not the repository's: {strange}")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    if strange := {top for top in tops if top != "dask_otel" and not top.endswith(".dist-info")}:
        raise SystemExit(f"{wheel.name} installs more than its package: {strange}")


def check_readme(wheel: Path) -> None:
    """The index shows the README without the repository: its links and pictures are whole."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        shown = archive.read(name).decode()
    links = re.findall(r"\]\(([^)\s]+)\)", shown)
    strange = [one for one in links if not one.startswith("https://") or "$" in one]
    if strange or not links:
        raise SystemExit(f"{wheel.name}: the README leads nowhere on the package index: {strange}")


def check_recipe(version: str) -> None:
    """conda-forge's build tool accepts the recipe; it refuses fields that it does not know."""
    from rattler_build import Stage0Recipe

    variants = Stage0Recipe.from_file(str(REPOSITORY / "recipe" / "recipe.yaml")).render()
    made = [variant.recipe.to_dict()["package"] for variant in variants]
    if made != [{"name": "dask-otel", "version": version}]:
        raise SystemExit(f"recipe/recipe.yaml makes {made}, not dask-otel {version}")


def try_out(archive: Path, version: str) -> str:
    """Install the archive into an empty environment, and run the smoke test there."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dask-otel-dist-") as folder:
        place = Path(folder)
        run(sys.executable, "-m", "venv", str(place / "venv"))
        inside = str(place / "venv" / "bin" / "python")
        run(inside, "-m", "pip", "install", "--quiet", str(archive), cwd=place)
        run(inside, "-m", "pip", "check", cwd=place)
        script = shutil.copy(SMOKE, place)
        output = run(inside, script, version, str(REPOSITORY / "deploy"), cwd=place)
    return f"{archive.name}: {output.strip().splitlines()[-1]}; {time.monotonic() - started:.0f} s"


def main() -> None:
    """Build, check and try; print what was tried."""
    wheel, sdist = build()
    check_contents(wheel, sdist)
    check_readme(wheel)
    version = wheel.name.split("-")[1]
    check_recipe(version)
    print(f"built {wheel.name} ({wheel.stat().st_size:,} bytes), {sdist.name}", flush=True)
    for archive in (wheel, sdist):
        print(try_out(archive, version), flush=True)


if __name__ == "__main__":
    main()
