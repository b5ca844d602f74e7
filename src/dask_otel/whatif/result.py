"""The result of replays: the run as it was, and each experiment."""

from __future__ import annotations

from dataclasses import dataclass


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
        The number of threads; None if it changed during the replay.
    """

    name: str
    seconds: float
    thread_hours: float
    idle: float
    threads: int | None = None


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
    """

    span: str
    recorded: float
    replayed: Replayed | None
    experiments: tuple[Replayed, ...] = ()
    assumptions: tuple[str, ...] = ()
    refused: str | None = None

    @property
    def error(self) -> float | None:
        """The share by which the replay as it was is longer or shorter than the recorded run.

        It is the error of each experiment, too. None if nothing was replayed.
        """
        if self.replayed is None or not self.recorded:
            return None
        return abs(self.replayed.seconds / self.recorded - 1)
