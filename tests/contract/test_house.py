"""The house stays one in which a newcomer finds things: its map, its names, and no circles."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "dask_otel"
MAP = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
FOLDERS = sorted({path.parent for path in PACKAGE.rglob("*.py")})


def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports anywhere, also only for the type checker."""
    paths = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        targets: list[str] = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: relative imports are not followed here"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                # A module of a package, or a name of a module.
                targets += [
                    name if name.removeprefix("dask_otel.") in paths else str(node.module)
                    for name in names
                ]
        found[module] = {target.removeprefix("dask_otel.") for target in targets} & paths.keys()
        found[module].discard(module)
    return found


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules that import each other, directly or not."""
    reached = {module: {*imported} for module, imported in graph.items()}
    for between in graph:
        for seen in reached.values():
            if between in seen:
                seen |= reached[between]
    found = (
        frozenset(other for other in seen if module in reached[other])
        for module, seen in reached.items()
    )
    return {circle for circle in found if circle}


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set[str]()}
    assert circles(graph) == {frozenset("abc")}


def test_no_files_import_each_other() -> None:
    graph = imports()
    assert len(graph) > 100
    assert "core.life.open_span" in graph["core.life.task_runs"]
    assert circles(graph) == set()


def test_a_file_is_found_by_its_name() -> None:
    count = Counter(path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    assert {name: files for name, files in count.items() if files > 2} == {}


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
