"""A package of somebody else's with entry points, as pip would install it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_PREFIX = "opentelemetry_"

#: Each function notes that it was called, and the variables of that moment; then it waits for a
#: file that may never come.
WAITING = """
import os, time
from pathlib import Path

HERE = Path(__file__).parent

def wait(*args):
    entered = HERE / "entered.tmp"
    entered.write_text("\\n".join(f"{key}={value}" for key, value in os.environ.items()))
    entered.rename(HERE / "entered")
    while not (HERE / "gate").exists():
        time.sleep(0.01)
"""


def install(folder: Path, name: str, source: str, entries: Mapping[str, str]) -> None:
    """Write a module, and the entry points that name it.

    Parameters
    ----------
    folder
        A folder that is, or will be, on Python's path.
    name
        The module's name.
    source
        The module's text.
    entries
        By group, without ``opentelemetry_``, the entry points: ``"mine = module:function"``.
    """
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = [f"[{_PREFIX}{group}]\n{lines}\n" for group, lines in entries.items()]
    (info / "entry_points.txt").write_text("".join(groups))
