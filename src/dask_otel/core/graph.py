"""The graph log: what a replay of a span needs, and a line of JSON of it.

The event loop only adds rows: plain tuples of what it has in its hands. Numbers and text are made
later, in a thread. The format is documented in docs/files.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias

from dask_otel import semconv
from dask_otel.core.path.step import (
    KEY,
    NUMBER,
    PARTS,
    SECONDS,
    SENT,
    START,
    STOP,
    WORKER,
)
from dask_otel.core.records import FinishedGraph, GraphLog, RawRun, SpanIdentity, Tags, TaskRun
from dask_otel.core.text import Sanitizer, attribute_text, label_text, span_path
from dask_otel.core.traces.redact import Redact, redacted_tags

#: Increases when the meaning of a field changes.
VERSION: Final = 1
#: The end of the files' names.
SUFFIX: Final = "-graph.jsonl.gz"
#: The most runs of one root, and of all whose lines are not written yet.
MOST_OF_ONE: Final = 100_000
MOST: Final = 1_000_000
#: After so many runs of a root, the limits are checked again.
BLOCK: Final = 1000
#: Entries of a column in one piece of text: more would hold the GIL for long.
_PIECE: Final = 500

_NBYTES: Final = TaskRun._fields.index("nbytes")

#: To which a task is restricted: addresses of workers, hosts, amounts by resource; whether that is
#: only a preference, and whether it is an actor.
Restriction: TypeAlias = tuple[
    tuple[str, ...], tuple[str, ...], tuple[tuple[str, float], ...], bool, bool
]


class Row(NamedTuple):
    """The fields of a row, which is a plain tuple: one run of a task."""

    run: RawRun
    #: See `outcomes` in docs/files.md.
    outcome: str
    #: When it was ready; None if that was in the moment when it was sent.
    ready: float | None
    #: Seconds after its start at which it seceded, if it did.
    seceded: float | None
    #: The number of its group in the log.
    group: int
    before: tuple[Hashable, ...]
    #: Dask's; None if it has none.
    priority: tuple[Any, ...] | None
    #: When the scheduler had made the task of its submission; only in the task's first row.
    submitted: float | None
    restriction: Restriction | None


def graph_line(
    graph: FinishedGraph, breathe: Callable[[], object] = bool, redact: Redact | None = None
) -> Iterator[str]:
    """Yield the line of a graph log in short pieces; the last one ends the line.

    Parameters
    ----------
    graph
        Not changed.
    breathe
        Called after each short step.
    redact
        The operator's function for users' texts.
    """

    def name(tags: Tags) -> str:
        clean = redacted_tags(redact, tags, sanitizer)
        return attribute_text(span_path(clean, sanitizer), sanitizer)

    def prefix(value: str) -> str:
        clean = redacted_tags(redact, (value,), sanitizer, semconv.TASK_PREFIX)
        return attribute_text(clean[0], sanitizer)

    # What it changes is counted with the span.
    sanitizer = Sanitizer()
    span, log = graph.span, graph.log
    numbers = _Numbers(span.start, log)
    columns: dict[str, list[Any]] = {}
    for row in log.rows:
        for column, value in numbers.of(Row._make(row)).items():
            columns.setdefault(column, []).append(value)
        breathe()
    identity = span.identity
    about = {
        "version": VERSION,
        "trace_id": f"{identity.trace_id:032x}",
        "span_id": f"{identity.span_id:016x}",
        "name": name(identity.tags),
        "start": span.start,
        "stop": span.stop,
        "complete": span.complete and not log.left_out,
        "left_out": log.left_out,
        "outside": numbers.outside,
        "spans": [{"id": f"{one.span_id:016x}", "name": name(one.tags)} for one in numbers.spans],
        "prefixes": [*map(prefix, numbers.prefixes)],
        "workers": [
            {
                "name": label_text(one.name, sanitizer),
                "threads": one.threads,
                "came": numbers.time(one.came) if one.came > span.start else None,
                "went": numbers.time(one.went),
                "resources": _amounts(one.resources),
            }
            for one in log.workers
        ],
        "scheduler": {"stealing": log.scheduler[0], "saturation": _finite(log.scheduler[1])},
        "submissions": [numbers.time(submitted) for submitted in numbers.submissions],
        "restrictions": [numbers.restricted(one) for one in numbers.restrictions],
    }
    yield _json(about)[:-1]
    before = ',"runs":{'
    for column, values in columns.items():
        yield f'{before}"{column}":['
        for first in range(0, len(values), _PIECE):
            yield ("," if first else "") + _json(values[first : first + _PIECE])[1:-1]
            breathe()
        before = "],"
    yield "]}}\n" if columns else ',"runs":{}}\n'


class _Numbers:
    """Gives numbers to tasks, spans, prefixes, workers, submissions and restrictions."""

    def __init__(self, start: float, log: GraphLog) -> None:
        self._start, self._workers = start, log.workers
        self.tasks: dict[Hashable, int] = {}
        self.spans: dict[SpanIdentity, int] = {}
        self.prefixes: dict[str, int] = {}
        #: Of each group, the numbers of its prefix and of its span.
        self._groups = [
            (_number(self.prefixes, prefix), _number(self.spans, span))
            for prefix, span in log.groups
        ]
        self.submissions: dict[float, int] = {}
        self.restrictions: dict[Restriction, int] = {}
        #: Of the tasks, by their numbers.
        self._submitted: list[int] = []
        #: Entries of dependencies without a run in the log.
        self.outside = 0
        self._by_name: dict[object, list[int]] = {}
        for number, worker in enumerate(log.workers):
            self._by_name.setdefault(worker.name, []).append(number)

    def time(self, when: float | None) -> float | None:
        """Return a time since the start; None if it is unknown."""
        return _finite(when - self._start) if when else None

    def of(self, row: Row) -> dict[str, Any]:
        """Return the entries of a row."""
        run, count = row.run, len(self.tasks)
        task = _number(self.tasks, run[KEY])
        if task == count:
            first = row.submitted
            self._submitted.append(-1 if first is None else _number(self.submissions, first))
        prefix, span = self._groups[row.group]
        before = [self.tasks[key] for key in row.before if key in self.tasks]
        self.outside += len(row.before) - len(before)
        sent, limit = run[SENT], row.restriction
        seconds = run[SECONDS] or run[STOP] - run[START]
        # Of a run without a result, the times may be unknown.
        known = row.outcome == "m" or run[NUMBER] is not None or seconds > 0.0
        return {
            "task": task,
            "span": span,
            "prefix": prefix,
            "before": sorted(before),
            "submission": self._submitted[task],
            "priority": None if row.priority is None else [*map(_plain, row.priority)],
            "ready": self.time(row.ready),
            "sent": self.time(sent),
            "start": self.time(run[START]) if known else None,
            "seconds": _finite(seconds) if known and seconds >= 0.0 else None,
            "transfer": _busy(run, "transfer"),
            "disk": _busy(run, "disk-read"),
            "nbytes": run[_NBYTES] if type(run[_NBYTES]) is int else None,
            "worker": self._worker(run[WORKER], sent or run[START]),
            "outcome": row.outcome,
            "restriction": -1 if limit is None else _number(self.restrictions, limit),
            "seceded": None if row.seceded is None else _finite(row.seceded),
        }

    def _worker(self, name: object, when: float) -> int:
        """Return the number of the worker that had a name at a time, or -1."""
        numbers = self._by_name.get(name, [])
        there = [number for number in numbers if self._workers[number].came <= when]
        return (there or numbers or [-1])[-1]

    def restricted(self, one: Restriction) -> dict[str, Any]:
        """Return a restriction by the numbers of workers."""
        addresses, hosts, resources, loose, actor = one
        workers = [
            number
            for number, worker in enumerate(self._workers)
            if worker.address in addresses or worker.host in hosts
        ]
        return {
            "workers": workers if addresses or hosts else None,
            "resources": _amounts(resources),
            "loose": loose,
            "actor": actor,
        }


def _number(numbers: dict[Any, int], item: Hashable) -> int:
    return numbers.setdefault(item, len(numbers))


def _finite(seconds: float) -> float | None:
    """Return seconds to the microsecond; None if workers reported nonsense."""
    return round(seconds, 6) if isfinite(seconds) else None


def _plain(number: Any) -> float | None:
    """Return a user's number, which can be of any type, for JSON."""
    return number if type(number) is int else _finite(float(number))


def _amounts(resources: Iterable[tuple[str, float]]) -> dict[str, float | None]:
    return {str(name): _plain(amount) for name, amount in resources}


def _busy(run: RawRun, action: str) -> float:
    """Return the seconds before a run computed with an action of the worker, one or several."""
    busy = until = 0.0
    for kind, began, took in run[PARTS]:
        if kind == action:
            busy += max(0.0, began + took - max(began, until))
            until = max(until, began + took)
    return round(busy, 6)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
