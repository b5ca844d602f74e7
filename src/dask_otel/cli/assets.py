"""``dask-otel assets``: writes the dashboards, rules and configurations of ``deploy/``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import dask_otel
from dask_otel.cli import terminal
from dask_otel.cli.command import Command
from dask_otel.cli.terminal import Failed

COMMAND: Final = Command(
    help="write dashboards, rules and configurations into a folder",
    description="""\
Write out the files that come with the package: Grafana dashboards and their provisioning, alert
and recording rules, configurations of the Collector, Prometheus, Alertmanager, Tempo, Jaeger and
Loki, and files for Kubernetes and batch systems.
""",
    epilog="""\
An existing file with other content is kept, and its name is printed; --force replaces it.

exit codes: 0 all files are in place, 1 a file was kept or cannot be written,
2 wrong arguments
""",
    arguments={
        "folder": {"type": Path, "metavar": "DIR", "help": "the folder; created if it is missing"},
        "--force": {"action": "store_true", "help": "replace files that differ"},
    },
)


def source() -> Path:
    """Return the folder with the files: in the installed package, or ``deploy`` in a checkout.

    Raises
    ------
    FileNotFoundError
        If the package lacks them.
    """
    package = Path(dask_otel.__file__).parent
    for folder in (package / "_deploy", package.parents[1] / "deploy"):
        if (folder / "grafana" / "dashboards").is_dir():
            return folder
    raise FileNotFoundError(f"{package} lacks the files: it was packaged without them")


def assets() -> dict[Path, bytes]:
    """Return the files' contents by their path below the folder."""
    top = source()
    return {
        path.relative_to(top): path.read_bytes()
        for path in sorted(top.rglob("*"))
        # Installers compile .py files.
        if path.is_file() and "__pycache__" not in path.parts
    }


def run(arguments: argparse.Namespace) -> None:
    """Write the files."""
    folder: Path = arguments.folder
    files = assets()
    kept = [
        str(name)
        for name, content in files.items()
        if not arguments.force
        and (folder / name).exists()
        and (folder / name).read_bytes() != content
    ]
    for name in files.keys() - {Path(name) for name in kept}:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(files[name])
    terminal.tell(f"{len(files) - len(kept)} files are in {folder}")
    if kept:
        raise Failed(f"kept, because they differ: {', '.join(kept)}; --force replaces them")
