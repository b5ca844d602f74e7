"""A step of a path: what came before a run of a task, when that was, and the run."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from operator import add
from typing import Any, Final, NamedTuple, TypeAlias

from dask_otel.core.path.waiting import Place, Sent, Threads, turn_of, waits
from dask_otel.core.records import TaskRun
from dask_otel.semconv import PATH_PARTS

CLIENT: Final = PATH_PARTS.index("client")
COMPUTE: Final = PATH_PARTS.index("compute")

#: Of the first run that was repeated: when it was sent, and when its worker had a thread for it,
#: each with the cluster's threads then; and when it began. As it was sent, if that is unknown.
Lost: TypeAlias = tuple[float, Threads | None, float, Threads | None, float]

#: When a task was submitted (after a dependency: the end of the step before), and when it was ready
#: first; the first run that was repeated (None for a first run), and when it was ready again (0.0
#: likewise); and the cluster's threads when it was ready first, and when it was last.
Times: TypeAlias = tuple[float, float, Lost | None, float, Threads | None, Threads | None]


#: What a task waited for before it was ready: the step before (None for the span's first), and the
#: times.
Readiness: TypeAlias = tuple[Any, Times]

#: The fields of a `Step` as a plain tuple, which takes a fifth of the instructions.
RawStep: TypeAlias = tuple[Any, ...]

#: A step that may be one of the longest: its seconds on the path, when these began, and the step.
LongStep: TypeAlias = tuple[float, float, RawStep]


@dataclass(slots=True, eq=False, repr=False)
class SpanPath:
    """What is known of the path of an open span."""

    #: When the span began, and the open spans above it, the nearest one first.
    start: float
    above: tuple[SpanPath, ...] = ()
    #: The last step in it or below it.
    last: RawStep | None = field(default=None, kw_only=True)
    #: Until when tasks waited for others that never came: these failed, or both were cancelled.
    vain_until: float = field(default=-inf, kw_only=True)
    #: Whether some of its tasks ended unobserved, or are older than the bridge.
    unknown: bool = field(default=False, kw_only=True)
    #: Whether nobody will ask for its path: it was exported, or is not followed.
    closed: bool = field(default=False, kw_only=True)

    def close(self) -> None:
        """Release its chain."""
        self.closed, self.last = True, None


class Step(NamedTuple):
    """A run that ended, after another one. Its times are the scheduler's; `cut` orders them."""

    #: A `RawStep` or `Folded`, for which `END`, `DEPTH` and `SPAN` are valid, too.
    before: Any
    #: When the scheduler knew of its end.
    end: float
    #: The number of steps since the chain was last folded.
    depth: int
    span: SpanPath
    #: None if it was sent in the moment that the step before ended; also if that is unknown.
    waited: Times | None
    #: Its task group, and the fields of its `TaskRun`.
    group: Any
    run: tuple[Any, ...]
    sent_to: Sent
    place: Place


BEFORE, END, DEPTH, SPAN, RUN = map(Step._fields.index, ("before", "end", "depth", "span", "run"))
# Of a run.
SECONDS, KEY, WORKER, NUMBER, START, STOP, SENT, PARTS, FETCHED = map(
    TaskRun._fields.index,
    ("seconds", "key", "worker", "number", "start", "stop", "sent", "parts", "fetched"),
)


@dataclass(slots=True)
class Share:
    """The steps of one span, and of those below it, in a chain."""

    #: As `cut` returns them.
    parts: list[float] = field(default_factory=lambda: [0.0] * (len(PATH_PARTS) - 1))
    tasks: int = 0
    #: Those that only the client led to: they need none of the tasks before.
    submitted: int = 0
    #: Whether all its steps are known.
    known: bool = True
    #: The longest steps of its own tasks.
    longest: list[LongStep] = field(default_factory=list)

    def add(self, tasks: int, submitted: int, known: bool, *parts: Sequence[float]) -> None:
        """Add the tasks and the parts of other steps."""
        self.tasks += tasks
        self.submitted += submitted
        self.known &= known
        for more in parts:
            self.parts = [*map(add, self.parts, more)]


class Folded(NamedTuple):
    """The older part of a long chain: sums and longest steps by span."""

    shares: dict[SpanPath, Share]
    end: float
    depth: int = 0
    #: Where a step has its span.
    span: None = None


def lost_run(
    place: Place, sent_to: Sent, key: Hashable, sent: float, start: float, stop: float
) -> Lost:
    """Return the first run of a task that is repeated; see `Step` and `turn_of`."""
    threads, how, _ = sent_to
    turn = turn_of(place, how, key, sent, start, stop) or (sent, threads)
    return sent, threads, *turn, start


def cut(step: RawStep, since: float, until: float = inf) -> tuple[float, ...]:
    """Return the seconds of a step's parts, as far as they lie in an interval.

    By `PATH_PARTS`, without the last. ``repeated`` lies between two waits for a thread.
    """
    _, end, _, _, waited, _, run, (threads, how, held), place = step
    sent, fetched, start, stop = run[SENT], run[FETCHED], run[START], run[STOP]
    submitted, ready, repeated, again, first, last = waited or (since, sent, None, 0.0, None, None)
    lost, lost_to, turn, turned, lost_start = repeated or (0.0, None, 0.0, None, 0.0)
    seceded = stop if held is None else start + held
    end = max(since, min(end, until))
    # In order, whatever the clocks said.
    _, submitted, ready, lost, turn, lost_start, again, sent, start, stop = accumulate(
        (since, submitted, ready, lost, turn, lost_start, again, sent, start, stop),
        lambda last, at: last if at < last else min(at, end),
    )
    seceded = min(max(start, seceded), stop)
    began, taken = turn_of(place, how, run[KEY], run[SENT], run[START], run[STOP]) or (sent, None)
    began = sent if began < sent else start if began > start else began
    transfer = fetched if fetched < start - began else start - began
    absent, busy, uneven = map(
        sum,
        zip(
            waits(ready, first, lost, lost_to),
            waits(lost, lost_to, turn, turned),
            waits(again, last, sent, threads),
            waits(sent, threads, began, taken),
            strict=True,
        ),
    )
    return (
        submitted - since,
        ready - submitted,
        absent,
        busy,
        uneven,
        again - lost_start,
        transfer,
        (lost_start - turn) + (start - began) - transfer,
        seceded - start,
        stop - seceded,
        end - stop,
    )
