#!/usr/bin/env python3
"""Build the wheel and the sdist, and try them in empty environments (``make dist``).

Both are checked as the package index would (metadata, README), then the wheel is installed into an
empty environment on each Python asked for, the sdist on the first of them, and ``smoke.py`` runs
there. ``--pythons all`` is every minor version that the classifiers of ``pyproject.toml`` name;
those that this machine does not have are named and left out. Exit status 1 where anything failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DIST = REPOSITORY / "dist"
SMOKE = REPOSITORY / "tools" / "smoke.py"
#: For one command. Nothing here takes as long, but a registry can hang.
LIMIT = 600.0


def classifiers() -> list[str]:
    """Every Python that the package says it is for."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)


def find_python(minor: str) -> str | None:
    """A Python of this version that runs; pyenv has commands for those that it does not have."""
    if minor == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    candidates = [shutil.which(f"python{minor}")]
    for root in filter(None, (os.environ.get("PYENV_ROOT"), Path.home() / ".pyenv")):
        folders = sorted(Path(root, "versions").glob(f"{minor}.*"), reverse=True)
        candidates += [str(folder / "bin" / "python") for folder in folders]
    script = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    for path in filter(None, candidates):
        with suppress(OSError):
            done = subprocess.run([path, "-c", script], capture_output=True, text=True, timeout=60)
            if done.returncode == 0 and done.stdout.strip() == minor:
                return path
    return None


def clean_environment() -> dict[str, str]:
    """The environment without what would change Python, Dask or OpenTelemetry."""
    unwanted = ("PYTHON", "DASK_", "OTEL_", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def run(*command: str, cwd: Path = REPOSITORY) -> str:
    """Run a command and return its output; all of it is in the error where it failed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=clean_environment(),
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


def check_recipe(version: str) -> None:
    """conda-forge's build tool accepts the recipe; it refuses fields that it does not know."""
    from rattler_build import Stage0Recipe

    variants = Stage0Recipe.from_file(str(REPOSITORY / "recipe" / "recipe.yaml")).render()
    made = [variant.recipe.to_dict()["package"] for variant in variants]
    if made != [{"name": "dask-otel", "version": version}]:
        raise SystemExit(f"recipe/recipe.yaml makes {made}, not dask-otel {version}")


def try_out(python: str, archive: Path, version: str) -> str:
    """Install the archive into an empty environment, and run the smoke test there."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dask-otel-dist-") as folder:
        place = Path(folder)
        run(python, "-m", "venv", str(place / "venv"))
        inside = str(place / "venv" / "bin" / "python")
        run(inside, "-m", "pip", "install", "--quiet", str(archive), cwd=place)
        run(inside, "-m", "pip", "check", cwd=place)
        script = shutil.copy(SMOKE, place)
        output = run(inside, script, version, str(REPOSITORY / "deploy"), cwd=place)
    return f"{archive.name}: {output.strip().splitlines()[-1]}; {time.monotonic() - started:.0f} s"


def main() -> int:
    """Build, check and try; print what was tried and what was not."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--pythons",
        default="this",
        help="this (the Python that runs this, the default), all, or versions such as 3.10,3.13",
    )
    asked = parser.parse_args().pythons
    this = f"{sys.version_info[0]}.{sys.version_info[1]}"
    minors = {"this": [this], "all": classifiers()}.get(asked) or asked.split(",")
    wheel, sdist = build()
    check_contents(wheel, sdist)
    version = wheel.name.split("-")[1]
    check_recipe(version)
    print(f"built {wheel.name} ({wheel.stat().st_size:,} bytes), {sdist.name}", flush=True)
    found = {minor: find_python(minor) for minor in minors}
    pythons = [python for python in found.values() if python is not None]
    for number, python in enumerate(pythons):
        for archive in (wheel, sdist) if not number else (wheel,):
            print(try_out(python, archive, version), flush=True)
    missing = [minor for minor, python in found.items() if python is None]
    if missing:
        print(f"not tried, because this machine does not have it: Python {', '.join(missing)}")
    # Versions that were asked for by name must be there.
    return 0 if pythons and (asked == "all" or not missing) else 1


if __name__ == "__main__":
    sys.exit(main())
