"""Whether the cluster had a free thread at each time of a history that is over.

A thread is taken from when a task is sent for it until the scheduler knows of the end, of the task
or of its hold on the thread. A task that was released while it ran holds its thread on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import inf

from dask_otel.lab.executor import Run
from lab.truth import RELEASED, REPORTED, STEP, Truth

#: Heartbeats until an observer knows whether a released task still runs.
UNSETTLED = 3


class Occupancy:
    """The threads of the workers that take tasks, and the tasks that were sent to each."""

    def __init__(
        self, truth: Truth, runs: Sequence[Run], resumed: Sequence[tuple[float, str]]
    ) -> None:
        self._resumed = resumed
        self.threads = {address: one.threads for address, one in truth.workers.items()}
        #: When, after how many moves, where: how many threads, how many more tasks, and which one.
        changes: list[tuple[float, float, str, int | None, int, Hashable]] = [
            (when, moves - 0.5, worker, threads, 0, None)
            for when, moves, worker, threads in truth.taking
        ]
        ran: dict[tuple[str, Hashable], list[Run]] = defaultdict(list)
        for run in runs:
            ran[run.worker, run.key].append(run)
        apart: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
        for number, (when, moves, key) in enumerate(truth.seceded):
            # Several can be in one batch of messages: in its order.
            apart[key].append((when, moves - 0.5 + number / 1e9))
        #: By worker, from when to when nobody knows whether it has a free thread.
        self._unsettled: dict[str, list[tuple[float, float]]] = defaultdict(list)
        places: dict[Hashable, tuple[str, int]] = {}
        for number, move in enumerate(truth.moves):
            place = places.pop(move.key, None) if move.start == "processing" else None
            if place is not None:
                worker, since = place
                end = move.when, float(number)
                left = [one for one in apart[move.key] if since < one[1] < number]
                open_ = [r for r in ran[worker, move.key] if r.start <= move.when < r.stop]
                later = []
                if (move.start, move.finish) in RELEASED:
                    later = [one for one in truth.moves[number + 1 :] if one.key == move.key]
                # Else another task that needed it can have failed. What begins now is its next run.
                again = [(one.finish, one.stimulus) for one in later[:1]] == [
                    ("waiting", move.stimulus)
                ]
                earlier = [r for r in open_ if r.start < move.when - STEP]
                known = again and move.stimulus.startswith(REPORTED) and not earlier
                known |= truth.workers[worker].left <= move.when
                if (move.start, move.finish) in RELEASED and not known:
                    until = max([move.when, *(min(r.stop, r.seceded) for r in open_)])
                    if until > move.when:
                        end = until, inf
                    # A worker with a blocked event loop may begin it after that.
                    anew = min((m.when for m in later if m.finish == "processing"), default=inf)
                    runs_on = [r.stop for r in ran[worker, move.key] if r.start < anew]
                    last = max([until, *(stop for stop in runs_on if stop < inf)])
                    known_at = truth.heartbeat_after(worker, last, UNSETTLED)
                    self._unsettled[worker].append((move.when, known_at))
                when, order = min([end, *left])
                changes.append((when, order, worker, None, -1, move.key))
            if move.finish == "processing" and move.worker is not None:
                places[move.key] = move.worker, number
                changes.append((move.when, float(number), move.worker, None, 1, move.key))
        for key, (worker, since) in places.items():
            changes += [(*one, worker, None, -1, key) for one in apart[key] if since < one[1]]
        threads: dict[str, int] = {}
        open_tasks: dict[str, int] = defaultdict(int)
        #: The moves that sent tasks to workers without a thread for them.
        self.behind: set[int] = set()
        #: By worker and task that left its thread, when that was known, and whether others waited
        #: for it.
        self._freed: dict[tuple[str, Hashable], list[tuple[float, bool]]] = defaultdict(list)
        #: The state of the cluster from each time on.
        self._times, self._states = [-inf], ["no_worker"]
        for when, order, worker, many, more, changed in sorted(changes, key=lambda one: one[:2]):
            if many is not None:
                threads[worker] = many
            open_tasks[worker] += more
            if more > 0 and open_tasks[worker] > threads.get(worker, 0):
                self.behind.add(int(order))
            if more < 0:
                taken = open_tasks[worker] >= threads.get(worker, 0)
                self._freed[worker, changed].append((when, taken))
            taking = [one for one, count in threads.items() if count]
            free = any(threads[one] > open_tasks[one] for one in taking)
            self._times.append(when)
            self._states.append("uneven" if free else "no_thread" if taking else "no_worker")

    def spent(self, begin: float, end: float) -> dict[str, float]:
        """Return the seconds of each state in an interval."""
        spent = dict.fromkeys(("no_worker", "no_thread", "uneven"), 0.0)
        first = bisect_right(self._times, begin) - 1
        for number in range(first, len(self._times)):
            since = max(begin, self._times[number])
            until = min([end, *self._times[number + 1 : number + 2]])
            if since >= end:
                break
            spent[self._states[number]] += max(0.0, until - since)
        return spent

    def awaited(self, run: Run) -> float | None:
        """Return when the scheduler knew that a run had left its thread.

        None if no other one waited for it: some of its worker's threads were free then.
        """
        left = min(run.seceded, run.done)
        found = [
            when if awaited else None
            for when, awaited in self._freed[run.worker, run.key]
            if when >= left - STEP
        ]
        return next(iter(found), inf)

    def resumed(self, worker: str, sent: float, began: float) -> float:
        """Return when a worker took tasks again between two times; `sent` if it always did."""
        return max(
            [t for t, w in self._resumed if w == worker and sent < t <= began + STEP], default=sent
        )

    def unsettled(self, begin: float, end: float, worker: str | None = None) -> float:
        """Return the seconds in an interval for which the state of the cluster is not known."""
        spans = [
            (max(begin, since), min(end, until))
            for one, spans in self._unsettled.items()
            for since, until in spans
            if worker in (None, one)
        ]
        edges = sorted((since, until) for since, until in spans if since < until + STEP)
        seconds, reached = 0.0, begin
        for since, until in edges:
            seconds += max(0.0, until - max(since, reached))
            reached = max(reached, until)
        return seconds
