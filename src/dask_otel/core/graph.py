"""The graph log: what a replay of a span needs, and a line of JSON of it.

The event loop only keeps what it has in its hands: the runs, and the tasks of each submission. They
are put together later, in a thread, which makes numbers and text of them. The format is documented
in docs/files.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from heapq import merge
from math import isfinite
from operator import attrgetter
from typing import Any, Final, NamedTuple

from dask_otel import semconv
from dask_otel.core.path.step import (
    KEY,
    SENT,
    STOP,
)
from dask_otel.core.records import (
    FinishedGraph,
    GraphLog,
    GraphPart,
    RawRun,
    Restriction,
    Submission,
    TaskRun,
)
from dask_otel.core.sums import covered
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

#: Of a hash, what decides where an object is in a set, after the first nine collisions, too.
_BITS: Final = (1 << 48) - 1

#: No number of a log is larger.
LARGEST: Final = 1e15

#: In place of the numbers of a name's workers.
_NONE: Final = [-1]


class Row(NamedTuple):
    """A run of a task: an entry of each column, as docs/files.md describes them."""

    task: int
    prefix: int
    group: int
    before: Sequence[int]
    submission: int
    priority: Sequence[float] | None
    sent: float | None
    start: float | None
    seconds: float | None
    fetched: float | None
    transfer: float | None
    disk: float | None
    nbytes: int | None
    worker: int
    outcome: str
    restriction: int
    seceded: float | None
    hash: int | None = None


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
    columns: list[list[Any]] = [[] for _ in Row._fields]
    for run, part, task in with_tasks(log, breathe):
        if task is None:
            left_out += 1
            continue
        for column, value in zip(columns, numbers.of(run, part, *task), strict=True):
            column.append(value)
        breathe()
    identity = span.identity
    places = {
        one.address: place
        for place, one in enumerate(sorted(log.workers, key=attrgetter("address")))
    }
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
        "prefixes": [*map(prefix, numbers.prefixes)],
        "workers": [
            {
                "name": label_text(one.name, sanitizer),
                "threads": one.threads,
                "resources": _amounts(one.resources.items()),
                "came": numbers.time(one.came) if one.came > span.start else None,
                "went": numbers.time(one.went),
                "hash": one.hash & _BITS,
                "seen": numbers.time(log.seen.get(one.address)),
                "place": places[one.address],
            }
            for one in log.workers
        ],
        "durations": numbers.durations,
        "longest": numbers.longest,
        "scheduler": {**log.scheduler, "bandwidth": numbers.bandwidth, "made": numbers.made},
        "submissions": [numbers.time(submitted) for submitted in numbers.submissions],
        "restrictions": [numbers.restricted(one) for one in numbers.restrictions],
    }
    yield _json(about)[:-1]
    before = ',"runs":{'
    for name, column in zip(Row._fields, columns, strict=True):
        yield f'{before}"{name}":['
        for first in range(0, len(column), _PIECE):
            yield ("," if first else "") + _json(column[first : first + _PIECE])[1:-1]
            breathe()
        before = "],"
    yield "]}}\n"


def with_tasks(
    log: GraphLog, breathe: Callable[[], object]
) -> Iterator[tuple[RawRun, GraphPart, tuple[Submission, Collection[Hashable]] | None]]:
    """Yield the runs in the order in which they were sent to workers.

    Each with its submission and the keys of what it needs; None if no submission has the task.
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
    later = sorted(every.values(), key=lambda one: one.at)[::-1]
    tasks: dict[Hashable, tuple[Submission, Collection[Hashable]]] = {}
    for run, part in merge(*pieces, key=_sent):
        # The last resort is for a clock that was set back.
        while later and (later[-1].at <= run[SENT] or run[KEY] not in tasks):
            last = later.pop()
            needs = {}
            for key, its in zip(*last.needs, strict=True):
                needs[key] = its
                breathe()
            for key, priority in last.priorities.items():
                # Else a client submitted the same task again while it was there.
                if key not in tasks or tasks[key][0].priorities[key] != priority:
                    tasks[key] = last, needs.get(key, ())
                breathe()
        yield run, part, tasks.get(run[KEY])


def _sent(row: tuple[RawRun, GraphPart]) -> tuple[float, float]:
    """Return the order of a run: after those that it needs, even if workers' clocks differ."""
    return row[0][SENT], row[0][STOP]


class _Numbers:
    """Gives numbers to tasks, prefixes, groups, workers, submissions and restrictions."""

    def __init__(self, start: float, log: GraphLog) -> None:
        self._start, self._workers, self._seceded = start, log.workers, log.seceded
        self.tasks: dict[Hashable, int] = {}
        self.prefixes: dict[str, int] = {}
        #: What Dask expected at the start: by prefix, the seconds of a task, if it knew any, and
        #: those of the longest run that it had seen; and the bytes a second between workers.
        self.durations: list[float | None] = []
        self.longest: list[float | None] = []
        self.bandwidth: float | None = None
        #: How many tasks it had sent to workers by then.
        self.made: int | None = None
        #: By the identity of the lists of their submissions.
        self.groups: dict[int, int] = {}
        self.submissions: dict[float, int] = {}
        self.restrictions: dict[Restriction, int] = {}
        #: Entries of dependencies without a run in the log.
        self.outside = 0
        self._by_name: dict[object, list[int]] = {}
        for number, worker in enumerate(log.workers):
            self._by_name.setdefault(worker.name, []).append(number)

    def time(self, when: float | None) -> float | None:
        """Return a time since the start; None if it is unknown."""
        return _finite(when - self._start) if when else None

    def of(self, run: RawRun, part: GraphPart, of: Submission, needs: Collection[Hashable]) -> Row:
        """Return the entries of a run of a submitted task."""
        it, outcome = TaskRun._make(run), part.outcome
        number, sent = _number(self.tasks, it.key), it.sent
        prefix = _number(self.prefixes, part.prefix)
        if prefix == len(self.durations):
            first = part.submissions[0]
            expected = {name: pair for name, *pair in first.durations}
            average, longest = expected.get(part.prefix, (-1.0, -1.0))
            self.durations.append(_known(average))
            self.longest.append(_known(longest))
            self.bandwidth = self.bandwidth or _known(first.bandwidth)
            # 0 of a new scheduler, for example.
            self.made = first.made if self.made is None else self.made
        limit = of.limits.get(it.key)
        before = [self.tasks[one] for one in needs if one in self.tasks]
        self.outside += len(needs) - len(before)
        seconds = it.seconds or it.stop - it.start
        # Of a run without a result, the times may be unknown.
        known = outcome == "m" or it.number is not None or seconds > 0.0
        priority, seceded = of.priorities[it.key], self._seceded.get((it.key, sent))
        fetched = [at for action, at, _ in it.parts or () if action == "transfer"]
        return Row(
            number,
            prefix,
            _number(self.groups, id(part.submissions)),
            before,
            _number(self.submissions, of.at),
            None if priority is None else [*map(_plain, priority)],
            self.time(sent),
            self.time(it.start) if known else None,
            _finite(seconds) if known and seconds >= 0.0 else None,
            self.time(min(fetched, default=None)),
            _busy(it.parts, "transfer"),
            _busy(it.parts, "disk-read"),
            it.nbytes if type(it.nbytes) is int and it.nbytes >= 0 else None,
            self._worker(it.worker, sent or it.start),
            outcome,
            -1 if limit is None else _number(self.restrictions, limit),
            None if seceded is None else _finite(seceded),
            hash(it.key) & _BITS,
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


def _known(expected: float) -> float | None:
    return _finite(expected) if expected >= 0.0 else None


def _amounts(resources: Iterable[tuple[Any, Any]]) -> dict[str, float]:
    return {str(name): _plain(amount) for name, amount in resources}


def _plain(number: Any) -> float:
    """Return a user's number, which can be of any type and infinite, for JSON."""
    value = number if type(number) is int else round(float(number), 6)
    return max(-LARGEST, min(LARGEST, value))


def _busy(parts: Iterable[tuple[str, float, float]] | None, action: str) -> float | None:
    """Return the seconds with an action of the worker, one or several at once."""
    return _finite(covered((at, at + took) for kind, at, took in parts or () if kind == action))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
