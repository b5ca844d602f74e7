"""The result of replays: the run as it was, and each experiment."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Final, NamedTuple

#: Beyond the knee of a curve, less than this share of each further thread shortens the run.
_USED: Final = 0.5


class Knee(NamedTuple):
    """The end of the useful part of a curve of durations over threads."""

    #: Beyond so many threads, less than half of each further one shortens the run.
    threads: int
    #: The largest share of the duration that each further one saves there; 0 if it saves nothing.
    saved: float


@dataclass(frozen=True)
class Replayed:
    """One replay of a run.

    Attributes
    ----------
    name
        The change in words; ``as it was`` for the replay without one.
    seconds
        From the start to the end of the span.
    thread_hours
        The hours of all threads meanwhile.
    idle
        The share of them in which no task ran.
    threads
        The number of threads that the experiment sets; None if it leaves the workers as they were.
        Of the run as it was, the number that it had; None if workers came or went.
    spread
        The seconds between the shortest and the longest of the replays that only have other orders
        of what Dask leaves to chance. Of these, `seconds` is the median.
    """

    name: str
    seconds: float
    thread_hours: float
    idle: float
    threads: int | None = None
    spread: float = 0.0


@dataclass(frozen=True)
class WhatIf:
    """A recorded run and its replays.

    Attributes
    ----------
    span
        The full name of the span.
    recorded
        Its duration in seconds, as recorded.
    replayed
        The replay of the run as it was; None if it was not replayed.
    experiments
        The replays with a change, in the order of the experiments; empty if `refused`.
    assumptions
        What the replays assume: whole sentences.
    refused
        Why there is no answer, in one sentence; None if there is one.
    stuck
        Why some experiments have none: a sentence for each, since their replays did not end.
    """

    span: str
    recorded: float
    replayed: Replayed | None
    experiments: tuple[Replayed, ...] = ()
    assumptions: tuple[str, ...] = ()
    refused: str | None = None
    stuck: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """The largest error of a replay; None if nothing was replayed."""
        return self.error_of(*self.experiments)

    def error_of(self, *tried: Replayed) -> float | None:
        """Return the share of its duration by which a replay may be wrong.

        It is the difference of the replay as it was from the recorded run, or the spread by chance
        of that replay or of `tried`, if it is more.
        """
        if self.replayed is None or not self.recorded:
            return None
        by_chance = (one.spread / one.seconds for one in (self.replayed, *tried))
        return max(abs(self.replayed.seconds / self.recorded - 1), *by_chance)

    @property
    def curve(self) -> list[Replayed]:
        """The run as it was, and the experiments with other workers, the fewest threads first.

        Of several with as many threads, it has the fastest, or the run as it was.
        """
        known = sorted(self.experiments, key=lambda one: -one.seconds)
        found = {one.threads: one for one in [*known, self.replayed] if one and one.threads}
        return [found[threads] for threads in sorted(found)]

    @property
    def knee(self) -> Knee | None:
        """The knee of the curve; None if more than half of the last further threads was of use.

        It has the smallest number of threads from which on each further step of the curve uses less
        than half of its threads to shorten the run.
        """
        found, most = None, 0.0
        points = [(one.threads or 0, one.seconds) for one in self.curve]
        for (fewer, before), (more, after) in reversed([*pairwise(points)]):
            if log(before / after) >= _USED * log(more / fewer):
                break
            most = max(most, (1 - after / before) / (more - fewer))
            found = Knee(fewer, most)
        return found
