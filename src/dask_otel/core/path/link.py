"""A link of a path: one run of a task, from the end of the link before it to its own end."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import add
from typing import Any, Final, NamedTuple, TypeAlias

from dask_otel.semconv import PATH_PARTS

CLIENT: Final = PATH_PARTS.index("client")
NO_THREAD: Final = PATH_PARTS.index("no_thread")
COMPUTE: Final = PATH_PARTS.index("compute")

#: When a task was submitted (after a dependency: the end of the link before), when it was ready
#: first, when it was sent to the first worker whose run was repeated, and when it was ready again
#: (both 0.0 for a first run).
Waited: TypeAlias = tuple[float, float, float, float]

#: What a task waited for before it was ready: the link before (None for the span's first), and the
#: times.
Readiness: TypeAlias = tuple[Any, Waited]

#: The fields of a `Link` as a plain tuple, which takes a fifth of the instructions.
RawLink: TypeAlias = tuple[Any, ...]

#: A link that may be one of the longest: its seconds on the path, when these began, and the link.
LongLink: TypeAlias = tuple[float, float, RawLink]

#: The longest transfers and disk reads of a run (action, start, seconds), and the time with any.
Fetched: TypeAlias = tuple[tuple[tuple[str, float, float], ...], float]
NOT_FETCHED: Final[Fetched] = ((), 0.0)


@dataclass(slots=True, eq=False)
class SpanPath:
    """What is known of the path of an open span."""

    #: When the span began, and the open spans above it, the nearest one first.
    start: float
    above: tuple[SpanPath, ...] = ()
    #: The last link in it or below it.
    last: RawLink | None = field(default=None, kw_only=True)
    #: Whether some of its tasks ended unobserved, or are older than the bridge.
    unknown: bool = field(default=False, kw_only=True)
    #: Whether nobody will ask for its path: it was exported, or is not followed.
    closed: bool = field(default=False, kw_only=True)

    def close(self) -> None:
        """Release its chain."""
        self.closed, self.last = True, None


class Link(NamedTuple):
    """A run that ended. Its times are the scheduler's; `cut` puts them in order."""

    #: A `RawLink` or `Folded`, for which `END`, `DEPTH` and `SPAN` are valid, too.
    before: Any
    #: When the scheduler knew of its end.
    end: float
    #: The number of links since the chain was last folded.
    depth: int
    span: SpanPath
    #: None if it was sent in the moment that the link before ended; also if that is unknown.
    waited: Waited | None
    #: When it was sent to the worker, and the transfers and disk reads after that.
    sent: float
    fetched: Fetched
    #: When it computed.
    start: float
    stop: float
    #: Its task group; see `TaskRun` for the others.
    group: Any
    key: Hashable
    #: None for a run without a result.
    number: int | None
    worker: object


BEFORE: Final = Link._fields.index("before")
END: Final = Link._fields.index("end")
DEPTH: Final = Link._fields.index("depth")
SPAN: Final = Link._fields.index("span")
KEY: Final = Link._fields.index("key")
NUMBER: Final = Link._fields.index("number")


@dataclass(slots=True)
class Share:
    """The links of one span, and of those below it, in a chain."""

    #: As `cut` returns them.
    parts: list[float] = field(default_factory=lambda: [0.0] * (len(PATH_PARTS) - 1))
    tasks: int = 0
    #: Whether all its links are known.
    known: bool = True
    #: The longest links of its own tasks.
    longest: list[LongLink] = field(default_factory=list)

    def add(self, tasks: int, known: bool, *parts: Sequence[float]) -> None:
        """Add the tasks and the parts of other links."""
        self.tasks += tasks
        self.known &= known
        for more in parts:
            self.parts = [*map(add, self.parts, more)]


class Folded(NamedTuple):
    """The older part of a long chain: sums and longest links by span."""

    shares: dict[SpanPath, Share]
    end: float
    depth: int = 0
    #: Where a link has its span.
    span: None = None


def cut(link: RawLink, since: float, until: float = inf) -> tuple[float, ...]:
    """Return the seconds of a link's parts, as far as they lie in an interval.

    By `PATH_PARTS`, without the last. ``repeated`` lies within ``no_thread``.
    """
    _, end, _, _, waited, sent, fetched, start, stop, _, _, _, _ = link
    submitted, ready, lost, again = waited or (since, sent, 0.0, 0.0)
    end = until if end > until else end
    end = since if end < since else end
    # In order, whatever the clocks said.
    submitted = since if submitted < since else end if submitted > end else submitted
    ready = submitted if ready < submitted else end if ready > end else ready
    lost = ready if lost < ready else end if lost > end else lost
    again = lost if again < lost else end if again > end else again
    sent = again if sent < again else end if sent > end else sent
    start = sent if start < sent else end if start > end else start
    stop = start if stop < start else end if stop > end else stop
    transfer = fetched[1] if fetched[1] < start - sent else start - sent
    return (
        submitted - since,
        ready - submitted,
        (lost - ready) + (sent - again),
        again - lost,
        transfer,
        (start - sent) - transfer,
        stop - start,
        end - stop,
    )
