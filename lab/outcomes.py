"""What became of tasks, from the scheduler's transitions: a second opinion on anybody's counts.

A task of a span is counted once from each submission on, and from a retry if it had been cancelled.
So is one whose result was lost, or that a client retries, if another period had counted it. A lost
result is no work until its task is sent to a worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from distributed.utils import key_split_group

from lab.truth import REPORTED, UNFINISHED, Move

#: Beginnings of Dask's names for a submission, and for a retry by a client.
SUBMISSION, RETRY = "update-graph", "stimulus-retry"


class Outcomes:
    """The tasks of one span: `tell` its moves, and ask at the end of each period."""

    def __init__(self) -> None:
        #: Those of the present period: "todo", "left" in a stimulus that may bring it back, or the
        #: outcome. Those whose results were lost; those that were sent again, with what they were.
        self._tasks: dict[Hashable, str] = {}
        self._lost: set[Hashable] = set()
        self._again: dict[Hashable, str | None] = {}
        self._left_by: dict[Hashable, str] = {}
        #: The groups that had a result in this period, also one that was forgotten.
        self._groups: set[str] = set()
        self._found: Counter[str] = Counter()

    def take(self) -> Counter[str]:
        """Return the period's tasks, and how many had each outcome; the next one begins.

        "unsure" are those that were lost and whose groups had other results: Dask does not tell
        them from results of this period.
        """
        for key in [*self._tasks]:
            self._forget(key)
        self._groups.clear()
        found, self._found = self._found, Counter()
        return found

    def restart(self) -> None:
        """Every task is gone."""
        for key, state in self._tasks.items():
            self._tasks[key] = "left" if state == "todo" else state
        self._lost.clear()

    def tell(self, move: Move) -> None:
        """Follow a task."""
        key, state = move.key, self._tasks.get(move.key)
        if move.finish in UNFINISHED:
            if move.start not in UNFINISHED:
                self._begin(move, state)
            elif move.finish == "processing" and key in self._lost:
                self._lost.remove(key)
                self._again[key] = state
                self._found["unsure"] += state is None and key_split_group(key) in self._groups
                self._set(key, "todo")
            return
        if key in self._lost:
            if move.finish == "erred":
                self._set(key, "erred" if move.own else "blamed")
            if move.finish in ("erred", "forgotten"):
                self._lost.remove(key)
        elif move.start in UNFINISHED:
            # A task that needs more than the memory of its worker fails while it is sent, twice.
            if state != "erred":
                self._end(move)
        elif move.finish == "erred":
            # A lost actor is in memory until then, whatever older releases say.
            self._set(key, "erred" if move.own or "memory" in (state, move.start) else "blamed")
        if move.finish == "forgotten":
            self._forget(key)

    def _begin(self, move: Move, state: str | None) -> None:
        key = move.key
        cancelled = state == "left" and move.stimulus != self._left_by.get(key)
        if move.stimulus.startswith(SUBMISSION) or (cancelled and move.stimulus.startswith(RETRY)):
            self._lost.discard(key)
            self._forget(key)
        elif move.stimulus == self._left_by.get(key) or move.stimulus.startswith(RETRY):
            pass
        else:
            self._lost.add(key)
        if key not in self._lost:
            self._set(key, "todo")

    def _end(self, move: Move) -> None:
        key = move.key
        sent_again, before = key in self._again, self._again.pop(key, None)
        if move.finish != "released":
            ends = {"memory": "memory", "erred": "erred" if move.own else "blamed"}
            self._set(key, ends.get(move.finish, "left"))
        elif move.failed:
            # Nobody wants it any more, since the tasks that waited for it failed before it.
            self._set(key, "blamed")
        elif not sent_again or move.stimulus.startswith(REPORTED):
            self._left_by[key] = move.stimulus
            self._set(key, "left")
        else:
            # It may be sent again.
            self._lost.add(key)
            if before is None:
                del self._tasks[key]
                self._found["tasks"] -= 1
            else:
                self._tasks[key] = before

    def _set(self, key: Hashable, state: str) -> None:
        self._found["tasks"] += key not in self._tasks
        self._tasks[key] = state
        if state == "memory":
            self._groups.add(key_split_group(key))

    def _forget(self, key: Hashable) -> None:
        state = self._tasks.pop(key, None)
        if state is not None:
            self._found["cancelled" if state == "left" else state] += 1


def outcomes(
    moves: Sequence[Move], restarts: Sequence[int], span: str, ends: Sequence[int]
) -> Iterator[Counter[str]]:
    """Yield what became of a span's tasks in each of its periods.

    Parameters
    ----------
    moves, restarts
        See `Truth`.
    ends
        After how many moves each period ended.
    """
    told = Outcomes()
    borders = sorted([*((at, 0) for at in restarts), *((at, 1) for at in ends)])
    since = 0
    for until, is_end in borders:
        for move in moves[since:until]:
            if move.span == span:
                told.tell(move)
        since = until
        if is_end:
            yield told.take()
        else:
            told.restart()
