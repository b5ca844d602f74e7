"""The graph log: what a replay of a span needs, and a line of JSON of it.

The event loop only keeps what it has in its hands: the runs, and the tasks of each submission. They
are put together later, in a thread, which makes numbers and text of them. The format is documented
in docs/files.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import merge
from math import isfinite
from typing import Any, Final, TypeAlias

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
from dask_otel.core.records import (
    FinishedGraph,
    GraphLog,
    GraphPart,
    RawRun,
    Restriction,
    SpanIdentity,
    TaskRun,
)
from dask_otel.core.text import Sanitizer, attribute_text, label_text
from dask_otel.core.traces.redact import Redact, redacted_name, redacted_tags

#: Increases when the meaning of a field changes.
VERSION: Final = 1
#: The end of the files' names.
SUFFIX: Final = "-graph.jsonl.gz"
#: The most runs of one root, and of all whose lines are not written yet.
MOST_OF_ONE: Final = 100_000
MOST: Final = 1_000_000
#: After so many runs of a root, the limits are checked again.
BLOCK: Final = 1000
#: Runs to sort, and entries of a column in a piece of text: more would hold the GIL for long.
_PIECE: Final = 500

#: Of the runs, in the order of `_Numbers.of`.
_COLUMNS: Final = (
    "task", "span", "prefix", "before", "submission", "priority", "ready", "sent", "start",
    "seconds", "transfer", "disk", "nbytes", "worker", "outcome", "restriction", "seceded",
)  # fmt: skip
#: In place of the numbers of a name's workers.
_NONE: Final = [-1]
_NBYTES: Final = TaskRun._fields.index("nbytes")
_QUEUED: Final = TaskRun._fields.index("queued")


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

    def prefix(value: str) -> str:
        clean = redacted_tags(redact, (value,), sanitizer, semconv.TASK_PREFIX)
        return attribute_text(clean[0], sanitizer)

    # What it changes is counted with the span.
    sanitizer = Sanitizer()
    span, log = graph.span, graph.log
    numbers, left_out = _Numbers(span.start, log), log.left_out
    columns: list[list[Any]] = [[] for _ in _COLUMNS]
    for run, part, task in with_tasks(log, breathe):
        if task is None:
            left_out += 1
            continue
        for column, value in zip(columns, numbers.of(run, part, task), strict=True):
            column.append(value)
        breathe()
    identity = span.identity
    about = {
        "version": VERSION,
        "trace_id": f"{identity.trace_id:032x}",
        "span_id": f"{identity.span_id:016x}",
        "name": redacted_name(redact, identity.tags, sanitizer),
        "start": span.start,
        "stop": span.stop,
        "complete": span.complete and not left_out,
        "left_out": left_out,
        "outside": numbers.outside,
        "spans": [
            {"id": f"{one.span_id:016x}", "name": redacted_name(redact, one.tags, sanitizer)}
            for one in numbers.spans
        ],
        "prefixes": [*map(prefix, numbers.prefixes)],
        "workers": [
            {
                "name": label_text(one.name, sanitizer),
                "threads": one.threads,
                "resources": _amounts(one.resources.items()),
                "came": numbers.time(one.came) if one.came > span.start else None,
                "went": numbers.time(one.went),
            }
            for one in log.workers
        ],
        "scheduler": {"stealing": log.scheduler[0], "saturation": _finite(log.scheduler[1])},
        "submissions": [numbers.time(submitted) for submitted in numbers.submissions],
        "restrictions": [numbers.restricted(one) for one in numbers.restrictions],
    }
    yield _json(about)[:-1]
    before = ',"runs":{'
    for name, column in zip(_COLUMNS, columns, strict=True):
        yield f'{before}"{name}":['
        for first in range(0, len(column), _PIECE):
            yield ("," if first else "") + _json(column[first : first + _PIECE])[1:-1]
            breathe()
        before = "],"
    yield "]}}\n"


#: When a task was submitted, what it needs, its priority, and its restriction.
_Task: TypeAlias = tuple[float, list[Hashable], tuple[Any, ...] | None, Restriction | None]


def with_tasks(
    log: GraphLog, breathe: Callable[[], object]
) -> Iterator[tuple[RawRun, GraphPart, _Task | None]]:
    """Yield the runs in the order in which they were sent to workers, with their tasks.

    The task is None if no submission has it.
    """
    rows = []
    for part in log.parts:
        for run in part.rows:
            rows.append((run, part))
            breathe()
    pieces = []
    for first in range(0, len(rows), _PIECE):
        pieces.append(sorted(rows[first : first + _PIECE], key=_sent))
        breathe()
    every = {id(one): one for part in log.parts for one in part.submissions}
    later = sorted(every.values(), key=lambda one: -one[0])
    tasks: dict[Hashable, _Task] = {}
    for run, part in merge(*pieces, key=_sent):
        # The last resort is for a clock that was set back.
        while later and (later[-1][0] <= run[SENT] or run[KEY] not in tasks):
            at, keys, priorities, pairs, limits = later.pop()
            needs: dict[Hashable, list[Hashable]] = {}
            for key, one in pairs:
                needs.setdefault(key, []).append(one)
                breathe()
            for key, priority in zip(keys, priorities, strict=True):
                # Else a client submitted the same task again while it was there.
                if key not in tasks or tasks[key][2] != priority:
                    tasks[key] = at, needs.get(key, []), priority, limits.get(key)
                breathe()
        yield run, part, tasks.get(run[KEY])


def _sent(row: tuple[RawRun, GraphPart]) -> tuple[float, float]:
    """Return the order of a run: after those that it needs, even if workers' clocks differ."""
    return row[0][SENT], row[0][STOP]


class _Numbers:
    """Gives numbers to tasks, spans, prefixes, workers, submissions and restrictions."""

    def __init__(self, start: float, log: GraphLog) -> None:
        self._start, self._workers, self._seceded = start, log.workers, log.seceded
        self.tasks: dict[Hashable, int] = {}
        self.spans: dict[SpanIdentity, int] = {}
        self.prefixes: dict[str, int] = {}
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

    def of(self, run: RawRun, part: GraphPart, task: _Task) -> tuple[Any, ...]:
        """Return the entries of a run of a task."""
        (at, needs, priority, limit), key = task, run[KEY]
        number = _number(self.tasks, key)
        if number == len(self._submitted):
            self._submitted.append(_number(self.submissions, at))
        before = sorted([self.tasks[key] for key in needs if key in self.tasks])
        self.outside += len(needs) - len(before)
        outcome, queued, seceded = part.outcome, run[_QUEUED], self._seceded.get((key, run[SENT]))
        sent, parts, nbytes = run[SENT], run[PARTS], run[_NBYTES]
        seconds = run[SECONDS] or run[STOP] - run[START]
        # Of a run without a result, the times may be unknown.
        known = outcome == "m" or run[NUMBER] is not None or seconds > 0.0
        # In the order of `_COLUMNS`.
        return (
            number,
            _number(self.spans, part.span),
            _number(self.prefixes, part.prefix),
            before,
            self._submitted[number],
            None if priority is None else [*map(_plain, priority)],
            self.time(sent - queued) if queued else None,
            self.time(sent),
            self.time(run[START]) if known else None,
            _finite(seconds) if known and seconds >= 0.0 else None,
            _busy(parts, "transfer") if parts else 0,
            _busy(parts, "disk-read") if parts else 0,
            nbytes if type(nbytes) is int else None,
            self._worker(run[WORKER], sent or run[START]),
            outcome,
            -1 if limit is None else _number(self.restrictions, limit),
            None if seceded is None else _finite(seceded),
        )

    def _worker(self, name: object, when: float) -> int:
        """Return the number of the worker that had a name at a time, or -1."""
        numbers = self._by_name.get(name, _NONE)
        if len(numbers) > 1:
            there = [number for number in numbers if self._workers[number].came <= when]
            numbers = there or numbers
        return numbers[-1]

    def restricted(self, one: Restriction) -> dict[str, Any]:
        """Return a restriction by the numbers of workers."""
        addresses, hosts, resources, loose = one
        workers = [
            number
            for number, worker in enumerate(self._workers)
            if worker.address in addresses or worker.host in hosts
        ]
        return {
            "workers": workers if addresses or hosts else None,
            "resources": _amounts(resources),
            "loose": loose,
        }


def _number(numbers: dict[Any, int], item: Hashable) -> int:
    return numbers.setdefault(item, len(numbers))


def _finite(seconds: float) -> float | None:
    """Return seconds to the microsecond; None if workers reported nonsense."""
    return round(seconds, 6) if isfinite(seconds) else None


def _amounts(resources: Iterable[tuple[Any, Any]]) -> dict[str, float | None]:
    return {str(name): _plain(amount) for name, amount in resources}


def _plain(number: Any) -> float | None:
    """Return a user's number, which can be of any type, for JSON."""
    return number if type(number) is int else _finite(float(number))


def _busy(parts: Iterable[tuple[str, float, float]], action: str) -> float | None:
    """Return the seconds with an action of the worker, one or several at once."""
    busy = until = 0.0
    for kind, began, took in parts:
        if kind == action:
            busy += max(0.0, began + took - max(began, until))
            until = max(until, began + took)
    return _finite(busy)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
