#!/usr/bin/env python3
"""Two promises that no linter knows, held by what the type checker knows of every expression.

Dask's attributes. Whatever is read of an object of Dask's or Tornado's, whatever the variable is
called, stands in ``dask_otel/_dask/undocumented.py``: either in `UNDOCUMENTED`, which a contract
test compares with a live cluster of the oldest and the newest release, or in `DOCUMENTED`. What
stands there is used. Only the rooms in `INSIDE` use what is undocumented. What is read of a value
without a type is invisible here, so that it is listed, too (`OF_ANYTHING`).

One owner for each state. The slots of an open span and of its groups are written by the file in
`OWNERS`, or by their own methods, and by nobody else.

Exit status: 0 when both hold, 1 when not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mypy import build, nodes, types
from mypy.modulefinder import BuildSource
from mypy.options import Options

from dask_otel._dask import undocumented

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "dask_otel"
FOREIGN = ("distributed.", "dask.", "tornado.")
_DASK = "dask_otel._dask."
#: Classes that share a name with another one.
_NAMES = {
    "distributed.worker_state_machine.TaskState": "Worker.TaskState",
    "distributed.worker_state_machine.WorkerState": "Worker.WorkerState",
}
#: What may use what Dask does not document.
INSIDE = ("dask_otel._dask.", "dask_otel.client.", "dask_otel.worker.")
#: References to other trees: not a part of the one at hand.
_ELSEWHERE = {"node", "info", "type", "unanalyzed_type", "names", "original_def", "target", "var"}

#: (class, attribute): where it is read
Found = Mapping[tuple[str, str], list[str]]

_LIFE = "dask_otel.core.life."
#: Whose slots are owned, and where these classes are.
OWNED = {"OpenSpan", "Group"}
HOME = _LIFE + "open_span"
#: File: the slots that it alone writes.
OWNERS: Mapping[str, frozenset[str]] = {
    _LIFE + "lifecycle": frozenset(
        {"phase", "due", "busy", "holds", "active", "open_children", "quiet_since", "groups"}
    ),
    _LIFE + "tasks": frozenset(
        {
            *("unfinished", "reruns", "failed", "zombies", "workers", "first_start", "last_stop"),
            *("incidents", "dropped_incidents", "counts", "blamed", "start", "stop"),
        }
    ),
    _LIFE + "reports": frozenset({"owing", "awaits", "reporters"}),
    _LIFE + "progress": frozenset({"signs", "last_sign"}),
    _LIFE + "task_runs": frozenset({"runs", "slowest", "floor"}),
    _LIFE + "completion": frozenset({"below"}),
}
#: Methods that change what they belong to.
_CHANGE = frozenset(
    {
        *("append", "add", "appendleft", "clear", "discard", "extend", "insert", "pop"),
        *("popitem", "remove", "setdefault", "update"),
    }
)


class Module(NamedTuple):
    """One module of the package, with the types of its expressions."""

    name: str
    tree: nodes.MypyFile
    types: Mapping[nodes.Expression, types.Type]

    def kinds(self, expression: nodes.Expression) -> Iterator[types.ProperType]:
        """Return what an expression can be."""
        yield from _flat(self.types.get(expression))

    def is_owned(self, expression: nodes.Expression) -> bool:
        """Whether an expression is an object whose slots are owned."""
        return any(
            isinstance(kind, types.Instance)
            and kind.type.name in OWNED
            and kind.type.module_name == HOME
            for kind in self.kinds(expression)
        )


def check() -> list[Module]:
    """Return the modules of the package as the type checker sees them, but for the terminal's."""
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        if "cli" not in path.parts
    ]
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
    found = []
    for name in names:
        tree = result.graph[name].tree
        assert tree is not None, name
        found.append(Module(name, tree, result.types))
    return found


def scan(modules: Iterable[Module]) -> tuple[Found, dict[str, list[str]]]:
    """Return the foreign attributes by class, and those that are read of values without a type."""
    found: dict[tuple[str, str], list[str]] = {}
    untyped: dict[str, list[str]] = {}
    for module in modules:
        for node in _walk(module.tree):
            if not isinstance(node, nodes.MemberExpr):
                continue
            where = f"{module.name}:{node.line}"
            for kind in module.kinds(node.expr):
                if isinstance(kind, types.Instance):
                    if kind.type.fullname.startswith(FOREIGN):
                        owner = _NAMES.get(kind.type.fullname, kind.type.name)
                        found.setdefault((owner, node.name), []).append(where)
                elif isinstance(kind, types.AnyType) and module.name.startswith(_DASK):
                    untyped.setdefault(node.name, []).append(where)
    return found, untyped


def trespasses(modules: Iterable[Module]) -> list[str]:
    """Return who writes to a slot that another file owns, a line each."""
    owner_of = {slot: file for file, slots in OWNERS.items() for slot in slots}
    said = []
    owned = 0
    for module in modules:
        for slot, line in _written(module):
            owned += 1
            owner = owner_of.get(slot, HOME)
            if module.name not in (HOME, owner):
                said.append(f"{module.name}:{line} writes to .{slot}, which {owner} owns")
    if not owned:
        said.append("nobody writes to any slot: the scan itself is broken")
    return said


def _written(module: Module) -> Iterator[tuple[str, int]]:
    for node in _walk(module.tree):
        if isinstance(node, nodes.AssignmentStmt):
            targets = node.lvalues
        elif isinstance(node, nodes.OperatorAssignmentStmt):
            targets = [node.lvalue]
        elif isinstance(node, nodes.DelStmt):
            targets = [node.expr]
        elif (
            isinstance(node, nodes.CallExpr)
            and isinstance(node.callee, nodes.MemberExpr)
            and node.callee.name in _CHANGE
        ):
            targets = [node.callee.expr]
        else:
            continue
        waiting = list(targets)
        while waiting:
            target = waiting.pop()
            if isinstance(target, nodes.TupleExpr):
                waiting += target.items
            elif isinstance(target, nodes.IndexExpr):
                waiting.append(target.base)
            elif isinstance(target, nodes.MemberExpr):
                if module.is_owned(target.expr):
                    yield target.name, node.line
                else:
                    # A part of what a slot holds.
                    waiting.append(target.expr)


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
    for owner, name in sorted(listed.keys() - found.keys() - undocumented.BY_NAME):
        said.append(f"{owner}.{name} is listed, and used nowhere")
    for name, places in sorted(untyped.items()):
        if name not in undocumented.OF_ANYTHING:
            said.append(f".{name} is read of a value without a type ({places[0]})")
    for name in sorted(undocumented.OF_ANYTHING - untyped.keys()):
        said.append(f".{name} is listed in OF_ANYTHING, and read nowhere")
    return said


def main() -> int:
    """Scan, and say what is wrong."""
    modules = check()
    found, untyped = scan(modules)
    if not found:
        print("no attribute of Dask's was found: the scan itself is broken")
        return 1
    said = problems(found, untyped) + trespasses(modules)
    print("\n".join(said) or f"{len(found)} attributes of Dask's and Tornado's, all listed")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
