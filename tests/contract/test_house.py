"""The house stays one in which a newcomer finds things: a guide for its sizes, and its map."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "dask_otel"
MAP = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
FOLDERS = sorted({path.parent for path in PACKAGE.rglob("*.py")})

#: Modules in a folder; at the top, where what is private or public of the whole package stands.
MOST_FILES, MOST_AT_THE_TOP = 16, 8
#: Lines of a module. `semconv` is a table.
MOST_LINES, EXCEPTED = 500, {"semconv.py"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_folder_can_be_taken_in_at_a_glance(folder: Path) -> None:
    modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= (MOST_AT_THE_TOP if folder == PACKAGE else MOST_FILES), modules


def test_a_module_has_one_job() -> None:
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
        if path.name not in EXCEPTED
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_room_says_what_it_is_for(folder: Path) -> None:
    assert (folder / "__init__.py").read_text(encoding="utf-8").startswith('"""')


def test_the_map_shows_every_room_and_nothing_that_is_not_there() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert {room for room in rooms if f"`{room}/`" not in MAP} == set()
    # Paths such as `core/life/lifecycle` or _dask/tasks, anywhere on the map.
    named = set(re.findall(rf"\b(?:{'|'.join(rooms)})(?:/[a-z_]+)+", MAP))
    assert len(named) > 20
    missing = {
        name
        for name in named
        if not (PACKAGE / name).is_dir() and not (PACKAGE / f"{name}.py").is_file()
    }
    assert missing == set()
