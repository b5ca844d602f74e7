"""Interprets the ids of Dask's stimuli; no other module does."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

#: How a run ended without a result: it failed, the task rescheduled itself (`Reschedule`), a thief
#: left before the run began, or the worker was lost or stopped.
Interruption: TypeAlias = Literal["error", "rescheduled", "stolen", "worker_lost"]

_INTERRUPTIONS: Final[tuple[tuple[str, Interruption], ...]] = (
    ("task-erred", "error"),
    ("execute-unknown-error", "error"),
    ("reschedule", "rescheduled"),
    ("steal", "stolen"),
)

#: Beginnings of the ids of a worker's messages about a thread that became free. The first two are
#: of the end of a run with times; no other stimulus has their first letter. A message with another
#: id may be repeated from a run with another number.
ENDS: Final = (
    "task-finished",
    "task-erred",
    "execute-unknown-error",
    "reschedule",
    "secede",
    "worker-client-secede",
)
END: Final = "t"

#: Prefix of the id of a client's submission, and its length: comparing slices takes a fifth of the
#: instructions of `startswith`.
SUBMISSION: Final = "update-graph"
LENGTH: Final = len(SUBMISSION)

#: Prefix of the id of ``Client.retry``.
RETRY: Final = "stimulus-retry"


def submission_time(stimulus_id: str) -> float:
    """Return when the scheduler received a submission; 0.0 if unknown.

    Dask writes this time into the id before it makes tasks of the graph.
    """
    try:
        return float(stimulus_id[LENGTH + 1 :])
    except ValueError:
        return 0.0


def interruption(stimulus_id: str) -> Interruption:
    """Return how a run without a result ended."""
    for beginning, how in _INTERRUPTIONS:
        if stimulus_id.startswith(beginning):
            return how
    return "worker_lost"


def stimulus_time(stimulus_id: str) -> float | None:
    """Return when a worker noticed that a run ended or seceded, by the worker's clock.

    Dask writes this time into the message's id. None for a repeated message, which has another id.
    """
    what, _, clock = stimulus_id.rpartition("-")
    if what not in ENDS:
        return None
    try:
        return float(clock)
    except ValueError:
        return None
