#!/usr/bin/env python3
"""Check that the list of Dask's attributes that the bridge uses is complete and true.

The type checker knows the type of every expression, so it knows every attribute that is read of an
object of Dask's or Tornado's, whatever the variable is called. Each must stand in
``dask_otel/_dask/undocumented.py``: either in `UNDOCUMENTED`, which a contract test compares with
a live cluster of the oldest and the newest release, or in `DOCUMENTED`. What stands there must be
used. Only the rooms in `INSIDE` may use what is undocumented. What is read of a value without a
type is invisible here, so that it is listed, too (`OF_ANYTHING`).

Exit status: 0 when all is well, 1 when something is missing or too much.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from mypy import build, nodes, types
from mypy.modulefinder import BuildSource
from mypy.options import Options

from dask_otel._dask import undocumented

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "dask_otel"
FOREIGN = ("distributed.", "dask.", "tornado.")
#: What may use what Dask does not document.
INSIDE = ("dask_otel._dask.", "dask_otel.client.", "dask_otel.worker.")
#: References to other trees: not a part of the one at hand.
_ELSEWHERE = {"node", "info", "type", "unanalyzed_type", "names", "original_def", "target", "var"}

#: (class, attribute): where it is read
Found = Mapping[tuple[str, str], list[str]]


def modules() -> list[str]:
    """Return the names of all modules of the package that import Dask's."""
    return [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        if "cli" not in path.parts
        and ("distributed" in (text := path.read_text(encoding="utf-8")) or "tornado" in text)
    ]


def scan(names: list[str]) -> tuple[Found, dict[str, list[str]]]:
    """Return the foreign attributes by class, and those that are read of values without a type."""
    options = Options()
    options.export_types = options.preserve_asts = True
    options.incremental = False
    options.ignore_missing_imports = True
    options.mypy_path = [str(PACKAGE.parent)]
    # The types of pandas and pyarrow are not asked for, and take half of the time.
    options.per_module_options = {
        f"{name}.*": {"follow_imports": "skip"} for name in ("pandas", "numpy", "pyarrow", "bokeh")
    }
    result = build.build([BuildSource(None, name) for name in names], options)
    found: dict[tuple[str, str], list[str]] = {}
    untyped: dict[str, list[str]] = {}
    for name in names:
        tree = result.graph[name].tree
        assert tree is not None, name
        for node in _walk(tree):
            if not isinstance(node, nodes.MemberExpr):
                continue
            where = f"{name}:{node.line}"
            for kind in _flat(result.types.get(node.expr)):
                if isinstance(kind, types.Instance):
                    if kind.type.fullname.startswith(FOREIGN):
                        found.setdefault((kind.type.name, node.name), []).append(where)
                elif isinstance(kind, types.AnyType) and name.startswith("dask_otel._dask."):
                    untyped.setdefault(node.name, []).append(where)
    return found, untyped


def _walk(tree: nodes.MypyFile) -> Iterator[nodes.Node]:
    # mypy's own visitors are compiled and take no subclasses from outside.
    waiting: list[object] = [tree]
    seen = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, (list, tuple)):
            waiting.extend(node)
        elif (
            isinstance(node, nodes.Node)
            and not isinstance(node, nodes.TypeInfo)
            and (node is tree or not isinstance(node, nodes.MypyFile))
            and id(node) not in seen
        ):
            seen.add(id(node))
            yield node
            for kind in type(node).__mro__:
                names = set(getattr(kind, "__mypyc_attrs__", ())) - _ELSEWHERE
                waiting += [getattr(node, name, None) for name in names]


def _flat(kind: types.Type | None) -> Iterator[types.ProperType]:
    proper = types.get_proper_type(kind)
    if isinstance(proper, types.UnionType):
        for item in proper.items:
            yield from _flat(item)
    elif isinstance(proper, types.TypeVarType):
        yield from _flat(proper.upper_bound)
    elif proper is not None:
        yield proper


def problems(found: Found, untyped: Mapping[str, list[str]]) -> list[str]:
    """Return what is wrong, a line each."""
    said = []
    listed = {
        (owner, name): inside
        for table, inside in ((undocumented.UNDOCUMENTED, True), (undocumented.DOCUMENTED, False))
        for owner, names in table.items()
        for name in names
    }
    for (owner, name), places in sorted(found.items()):
        inside = listed.get((owner, name))
        if inside is None:
            said.append(f"{owner}.{name} is not listed ({places[0]})")
        elif inside:
            outside = [place for place in places if not place.startswith(INSIDE)]
            said += [f"{owner}.{name} is undocumented, and used at {place}" for place in outside]
    for owner, name in sorted(listed.keys() - found.keys()):
        said.append(f"{owner}.{name} is listed, and used nowhere")
    for name, places in sorted(untyped.items()):
        if name not in undocumented.OF_ANYTHING:
            said.append(f".{name} is read of a value without a type ({places[0]})")
    for name in sorted(undocumented.OF_ANYTHING - untyped.keys()):
        said.append(f".{name} is listed in OF_ANYTHING, and read nowhere")
    return said


def main() -> int:
    """Scan, and say what is wrong."""
    found, untyped = scan(modules())
    if not found:
        print("nothing was found: the scan itself is broken")
        return 1
    said = problems(found, untyped)
    print("\n".join(said) or f"{len(found)} attributes of Dask's and Tornado's, all listed")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
