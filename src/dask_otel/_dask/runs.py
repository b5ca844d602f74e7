"""Runs of tasks: what a worker did before one computed, and runs that end without their times.

The latter were cancelled, rescheduled, or lost with their worker.
Dask sends a task's start and stop only with its result or failure. But each heartbeat lists the
elapsed seconds of all running tasks, even cancelled ones. So such a run counts as work of its span,
and its start is known.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from typing import Any, Final, TypeAlias

from distributed.scheduler import WorkerState

from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import Group, Phase
from dask_otel.core.path.waiting import UNKNOWN
from dask_otel.core.sums import covered

#: Heartbeats to search for a cancelled run: the first one may precede the cancellation; by the
#: second, the run has ended or is listed.
_HEARTBEATS = 2

#: The record of a task that is ready: the task, what it waited for (`Readiness`, if known), when it
#: entered the scheduler's queue (0.0 if it did not, None if unknown), its worker, the account of
#: that (`WorkerTime`, if known), when it was sent there (0.0 if unknown), and how (`Sent`); and by
#: the heartbeats that listed its run, when that began, and when the last one did (None without).
Ready: TypeAlias = list[Any]
TASK, WAITED, QUEUED, WORKER, ACCOUNT, SENT_AT, SENT_TO, SEEN = range(8)
#: In its place.
NOT_READY: Final[tuple[Any, ...]] = (None, None, 0.0, None, None, 0.0, UNKNOWN, None)

#: Most actions of one run; the longest are kept.
MAX_PARTS: Final = 16

#: A worker's actions for a task before it computes, as the path and the spans of tasks show them.
_PARTS: Final = frozenset({"transfer", "disk-read"})

Part: TypeAlias = tuple[str, float, float]


@dataclass(slots=True)
class _Cancelled:
    """A task that was cancelled in processing, and may still run."""

    group: Group
    when: float
    heartbeats: int = 0


class RunsUnderWay:
    """Runs that have not ended, as heartbeats list them.

    Bounded by the threads of the cluster, and by the tasks that were cancelled in processing since
    their worker's second last heartbeat.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        #: The tasks in the scheduler's queue, without a worker, and in processing.
        self.ready: dict[Hashable, Ready] = {}
        #: By worker and key.
        self._cancelled: dict[str, dict[Hashable, _Cancelled]] = {}

    def cancelled(self, key: Hashable, worker: str, group: Group, now: float) -> None:
        """Watch for a cancelled task that no heartbeat has listed yet."""
        self._cancelled.setdefault(worker, {})[key] = _Cancelled(group, now)

    def heartbeat(self, worker: str, executing: Mapping[Hashable, float]) -> None:
        """Read the elapsed seconds of a worker's running tasks, even cancelled ones."""
        if not executing and worker not in self._cancelled:
            return
        began = self._lifecycle.reports.began(worker)
        cancelled = self._cancelled.get(worker, {})
        for key, seconds in executing.items():
            start = began - seconds
            record: Any = self.ready.get(key, NOT_READY)
            ws: WorkerState | None = record[WORKER]
            if ws is not None and ws.address == worker:
                before = record[SEEN]
                # The fastest message is the most accurate.
                record[SEEN] = min(start, before[0]) if before else start, began
            elif (found := cancelled.pop(key, None)) and found.group.span.phase != Phase.EXPORTED:
                when = found.when
                self._lifecycle.outcomes.ran(found.group, worker, start, when, when)
        for key in list(cancelled):
            cancelled[key].heartbeats += 1
            if cancelled[key].heartbeats >= _HEARTBEATS:
                del cancelled[key]
        if not cancelled:
            self._cancelled.pop(worker, None)

    def worker_removed(self, worker: str) -> None:
        """Forget the cancelled tasks of a departed worker."""
        self._cancelled.pop(worker, None)

    def __repr__(self) -> str:
        return f"<RunsUnderWay: {len(self.ready)} ready, {len(self._cancelled)} cancelled>"

    def clear(self) -> None:
        """Forget everything."""
        self.ready.clear()
        self._cancelled.clear()


def actions(
    startstops: Iterable[Mapping[str, Any]],
    sent: float,
    turn: float,
    start: float,
    offset: float | None,
) -> tuple[tuple[Part, ...], float]:
    """Return a worker's longest actions before a run computed, and the time with any of them.

    Of each, action, start and seconds. A transfer is shifted with its run. A disk read has the
    time of the worker's own clock.

    Parameters
    ----------
    startstops
        As the worker reports them. It appends to the list while it knows the task, so earlier runs
        may be in it.
    sent, turn, start
        When the run was sent to the worker, when that had a thread for it, and when it began to
        compute. Actions before its turn took no time from the run.
    offset
        The scheduler's clock minus the worker's; None if unknown.
    """
    last: list[Mapping[str, Any]] = []
    present, computed = last, 0.0
    for startstop in startstops:
        if startstop["action"] == "compute":
            last, present, computed = present, [], startstop["start"]
        else:
            present.append(startstop)
    parts: list[Part] = []
    spent: list[tuple[float, float]] = []
    for startstop in last:
        action = startstop["action"]
        shift = start - computed if action == "transfer" else offset
        took = startstop["stop"] - startstop["start"]
        if action not in _PARTS or shift is None:
            continue
        stop = min(startstop["stop"] + shift, start)
        # An action that ended before the task was sent belongs to an earlier run.
        if 0.0 <= took < inf and stop >= sent:
            began = max(stop - took, sent)
            parts.append((action, began, took))
            spent.append((began, stop))
    if len(parts) > MAX_PARTS:
        parts = sorted(heapq.nlargest(MAX_PARTS, parts, itemgetter(2)), key=itemgetter(1))
    return tuple(parts), covered((max(began, turn), stop) for began, stop in spent)
