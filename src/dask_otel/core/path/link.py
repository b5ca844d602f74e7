"""A link of a path: one run of a task, from the end of the link before it to its own end."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from dask_otel.semconv import PATH_PARTS

CLIENT: Final = PATH_PARTS.index("client")
NO_THREAD: Final = PATH_PARTS.index("no_thread")
COMPUTE: Final = PATH_PARTS.index("compute")

#: What a task waited for before it was ready, as a plain tuple, because every task has one:
#: the link before (None for the span's first), when it was submitted (0.0 after a dependency),
#: when it was ready first, when it was sent to the first worker whose run was repeated, and when it
#: was ready again (both 0.0 for a first run).
Readiness: TypeAlias = "tuple[Link | Folded | None, float, float, float, float]"


@dataclass(slots=True, eq=False)
class SpanPath:
    """What is known of the path of an open span."""

    #: When the span began, and the open span above it.
    start: float
    parent: SpanPath | None
    #: The last link in it or below it.
    last: Link | None = None
    #: Whether some of its tasks ended unobserved.
    partial: bool = False
    #: Whether it was exported: nobody will ask for its path again.
    exported: bool = False


class Link(NamedTuple):
    """A run that ended. Its times are the scheduler's, and are put in order by `cut`."""

    #: None if unknown.
    readiness: Readiness | None
    span: SpanPath
    #: When it was sent to the worker, and seconds of transfers and disk reads after that.
    sent: float
    transfer: float
    #: When it computed, and when the scheduler knew.
    start: float
    stop: float
    end: float
    #: The number of links since the chain was last folded.
    depth: int
    #: Its task group.
    group: Any
    key: Hashable
    #: See `TaskRun`.
    number: int | None = None
    worker: object = None
    nbytes: int | None = None
    type: str | None = None
    actions: tuple[tuple[str, float, float], ...] = ()


class OnPath(NamedTuple):
    """A link of a path, without those before it."""

    parts: tuple[float, ...]
    link: Link

    @property
    def seconds(self) -> float:
        """Its share of the path."""
        return sum(self.parts)


@dataclass(slots=True)
class Share:
    """The links of one span, and of those below it, in a chain."""

    parts: list[float]
    tasks: int = 0
    #: Whether all its links are known.
    known: bool = True
    #: The longest links of its own tasks.
    longest: tuple[OnPath, ...] = ()


@dataclass(slots=True, eq=False)
class Folded:
    """The older part of a long chain: sums and longest links by span."""

    end: float
    shares: dict[SpanPath, Share]
    depth: int = 0


def cut(link: Link, since: float, until: float = inf) -> tuple[float, ...]:
    """Return the seconds of a link's parts, as far as they lie in an interval.

    By `PATH_PARTS`, without the last. ``repeated`` lies within ``no_thread``.
    """
    readiness = link.readiness or (None, 0.0, 0.0, 0.0, 0.0)
    before, submitted, ready, lost, again = readiness
    if before is not None and before.end > since:
        since = before.end
    until = max(since, min(link.end, until))
    times = [since]
    for time in (submitted, ready, lost, again, link.sent, link.start, link.stop, until):
        # In order, whatever the clocks said.
        times.append(min(max(time, times[-1]), until))
    _, submitted, ready, lost, again, sent, start, stop, _ = times
    transfer = min(link.transfer, start - sent)
    return (
        submitted - since,
        ready - submitted,
        (lost - ready) + (sent - again),
        again - lost,
        transfer,
        (start - sent) - transfer,
        stop - start,
        until - stop,
    )
