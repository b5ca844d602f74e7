"""The house stays one in which a newcomer finds things: its map and its names."""

from __future__ import annotations

import re
from collections import Counter

from tests.environment import REPOSITORY

PACKAGE = REPOSITORY / "src" / "dask_otel"
MAP = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_a_file_is_found_by_its_name() -> None:
    count = Counter(path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    assert {name: files for name, files in count.items() if files > 2} == {}


def test_a_room_says_what_it_is_for() -> None:
    rooms = {path.parent / "__init__.py" for path in PACKAGE.rglob("*.py")}
    assert [one for one in rooms if not one.read_text(encoding="utf-8").startswith('"""')] == []


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
