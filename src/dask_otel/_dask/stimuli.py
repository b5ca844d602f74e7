"""The ids of Dask's stimuli, as far as they decide something: all that is read of them is here."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

#: How a run ended without a result: it failed, the task asked to run again (`Reschedule`), a thief
#: left before the run began, or the worker was lost, or told to stop.
Interruption: TypeAlias = Literal["error", "rescheduled", "stolen", "worker_lost"]

_INTERRUPTIONS: Final[tuple[tuple[str, Interruption], ...]] = (
    ("task-erred", "error"),
    ("reschedule", "rescheduled"),
    ("steal", "stolen"),
)

#: Beginnings of the ids of a worker's messages that a run has ended. Another id may repeat the
#: message of a run with another number.
ENDS: Final = ("task-finished", "task-erred")

#: Beginning of the id of a client's submission, and its length: a comparison of slices takes a
#: fifth of the instructions of `startswith`.
SUBMISSION: Final = "update-graph"
LENGTH: Final = len(SUBMISSION)

#: Beginning of the id of ``Client.retry``.
RETRY: Final = "stimulus-retry"


def interruption(stimulus_id: str) -> Interruption:
    """Return how a run ended that gave no result."""
    for beginning, how in _INTERRUPTIONS:
        if stimulus_id.startswith(beginning):
            return how
    return "worker_lost"


def stimulus_time(stimulus_id: str) -> float | None:
    """Return when a worker made the message of a run's end, by its own clock.

    Dask writes the time into the message's id. None for a repeated message, which has another id.
    """
    what, _, clock = stimulus_id.rpartition("-")
    if what not in ENDS:
        return None
    try:
        return float(clock)
    except ValueError:
        return None
