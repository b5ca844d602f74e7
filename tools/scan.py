#!/usr/bin/env python3
"""Check two promises that no linter knows. Exit status: 0 when both hold, 1 when not.

Dask's attributes. Every attribute that is read of an object of Dask's or Tornado's, by the type
checker's account, is listed in ``dask_otel/_dask/undocumented.py``: in `UNDOCUMENTED`, which a
contract test compares with a live cluster of the oldest and the newest release, or in `DOCUMENTED`.
What is listed is used. Only the rooms in `INSIDE` use undocumented attributes. The type checker
cannot follow a value without a type, so what is read of those in ``_dask`` is listed, too
(`OF_ANYTHING`).

One owner for each state. Each slot of an open span and of its groups is written by one file
(`OWNERS`), or by a method of its own class. This check goes by names: it needs no types.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from mypy import build, types
from mypy.modulefinder import BuildSource
from mypy.options import Options
from mypy.traverser import NameAndMemberCollector

from dask_otel._dask import undocumented
from dask_otel.core.life.open_span import Group, OpenSpan
from dask_otel.core.path.step import SpanPath
from dask_otel.core.records import TaskCounts

PACKAGE = Path(__file__).parents[1] / "src" / "dask_otel"
FOREIGN = ("distributed.", "dask.", "tornado.")
#: Classes that share a name with another one.
_NAMES = {
    "distributed.worker_state_machine.TaskState": "Worker.TaskState",
    "distributed.worker_state_machine.WorkerState": "Worker.WorkerState",
}
#: Packages that may use what Dask does not document.
INSIDE = ("dask_otel._dask.", "dask_otel.client.", "dask_otel.worker.")

#: By class and attribute, the places that read it.
Places = Mapping[tuple[str, str], list[str]]

#: The slots that each file writes. All others belong to `open_span`.
OWNERS = {
    "lifecycle": "phase busy holds active open_children quiet_since groups",
    "outcomes": "unfinished reruns failed zombies workers first_start last_stop retries "
    "dropped_retries tasks memory erred cancelled retried rescheduled blamed start stop",
    "tasks": "requested seceded lost recomputed",
    "ledger": "heartbeats_before work_done worker_peak results came moment",
    "reports": "owing awaits",
    "progress": "signs last_sign",
    "task_runs": "runs slowest floor",
    "blocks": "attributes",
    "computing": "computed by_worker cluster_before cluster_computed new_runs",
    "spans": "partial unknown restriction",
    "following": "last vain_until",
    "completion": "below",
}
#: By file, what holds another class with slots of these names.
OTHERS = {
    ("accounting", "tasks"), ("blocks", "block"), ("completion", "into"), ("generations", "root"),
    ("graphs", "log"), ("recording", "self._hand_over"), ("reports", "known"),
    ("sharing", "root"), ("summaries", "summary.counts"), ("task_runs", "span.runs"),
    ("trace", "trace"),
}  # fmt: skip
#: By file, what it changes beside the owner: for each task, without a call.
SHARED = {
    ("tasks", slot) for slot in ("tasks", "memory", "unfinished", "workers", "came", "moment")
}
#: Methods that change the object they belong to.
_CHANGE = (
    "append", "add", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem",
    "remove", "setdefault", "update",
)  # fmt: skip


def attributes() -> tuple[Places, Places]:
    """Return the attributes read of Dask's objects, and in ``_dask`` those of untyped values."""
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        # `whatif` simulates a cluster, as `lab` does, away from any scheduler.
        if not {"cli", "lab", "whatif"} & {*path.relative_to(PACKAGE).parts}
    ]
    options = Options()
    options.export_types = options.preserve_asts = options.ignore_missing_imports = True
    options.incremental = False
    options.mypy_path = [str(PACKAGE.parent)]
    # Half of the time would go into types that are not needed.
    options.per_module_options = {
        f"{name}.*": {"follow_imports": "skip"} for name in ("pandas", "numpy", "pyarrow", "bokeh")
    }
    result = build.build([BuildSource(None, name) for name in names], options)
    foreign, untyped = defaultdict(list), defaultdict(list)
    for module in names:
        reads = NameAndMemberCollector()
        result.graph[module].tree.accept(reads)
        for node in reads.member_exprs:
            owner = result.types.get(node.expr)
            for kind in types.flatten_nested_unions([owner] if owner else []):
                kind = types.get_proper_type(kind)
                kind = types.get_proper_type(getattr(kind, "upper_bound", kind))
                if isinstance(kind, types.Instance) and kind.type.fullname.startswith(FOREIGN):
                    name = _NAMES.get(kind.type.fullname, kind.type.name)
                    foreign[name, node.name].append(f"{module}:{node.line}")
                elif isinstance(kind, types.AnyType) and module.startswith("dask_otel._dask."):
                    untyped["", node.name].append(f"{module}:{node.line}")
    return foreign, untyped


def unlisted(foreign: Places, untyped: Places) -> Iterator[str]:
    """Yield what differs from the lists of attributes, a line each."""
    tables = (undocumented.UNDOCUMENTED, undocumented.DOCUMENTED)
    inside, anywhere = ({(o, name) for o in table for name in table[o]} for table in tables)
    anywhere |= {("", name) for name in undocumented.OF_ANYTHING}
    found = {**foreign, **untyped}
    for (owner, name), places in sorted(found.items()):
        if (owner, name) in inside:
            outside = [place for place in places if not place.startswith(INSIDE)]
            yield from (f"{owner}.{name} is undocumented, and used at {place}" for place in outside)
        elif (owner, name) not in anywhere:
            yield f"{owner or 'a value without a type'}: .{name} is not listed ({places[0]})"
    for owner, name in sorted((inside | anywhere) - found.keys() - undocumented.BY_NAME):
        yield f"{owner}.{name} is listed, and used nowhere"


def trespasses() -> Iterator[str]:
    """Yield each write to a slot of an open span or a group by a file that does not own it."""
    owner_of = {slot: file for file, slots in OWNERS.items() for slot in slots.split()}
    owned_classes = (OpenSpan, SpanPath, Group, TaskCounts)
    slots = {slot for owned_class in owned_classes for slot in owned_class.__slots__}
    assert owner_of.keys() <= slots, owner_of.keys() - slots
    owned = 0
    for path in sorted(path for room in ("core", "_dask", "scheduler") for path in
                       (PACKAGE / room).rglob("*.py")):  # fmt: skip
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            target: ast.AST | None = None
            if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
                target = node
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _CHANGE:
                target = node.func
            # The outermost slot: what it belongs to is read.
            while isinstance(target, (ast.Attribute, ast.Subscript)):
                holder = ast.unparse(target.value)
                slot = target.attr if isinstance(target, ast.Attribute) else ""
                if slot in slots and holder != "self" and (path.stem, holder) not in OTHERS:
                    owner = owner_of.get(slot, "open_span")
                    owned += path.stem == owner
                    if path.stem != owner and (path.stem, slot) not in SHARED:
                        yield f"{path}:{node.lineno} writes .{slot}, which {owner} owns"
                    break
                target = target.value
    if not owned:
        yield "no owner writes to its slots: the check itself is broken"


def main() -> int:
    """Check both, and print what is wrong."""
    foreign, untyped = attributes()
    wrong = [*unlisted(foreign, untyped), *trespasses()]
    print("\n".join(wrong) or f"{len(foreign)} attributes of Dask's and Tornado's, all listed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
