"""Runs that end without their times: cancelled, rescheduled, or lost with their worker.

Dask sends a task's start and stop only with its result or failure. But each heartbeat lists the
elapsed seconds of all running tasks, even cancelled ones. So such a run counts as work of its span,
and its start is known.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import Group, Phase, Run
from dask_otel.core.path.link import RawLink

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

#: Heartbeats to search for a cancelled run: the first one may precede the cancellation; by the
#: second, the run has ended or is listed.
_HEARTBEATS = 2

#: The worker of a task in processing, when the task was sent to it (0.0 if unknown), and the link
#: before it on a path if that was at once.
Assignment: TypeAlias = "tuple[WorkerState, float, RawLink | None]"
#: In its place.
NOT_ASSIGNED: Final = (None, 0.0, None)


class Seen(NamedTuple):
    """A run that a heartbeat listed, on the scheduler's clock."""

    start: float
    #: The time of its last listing.
    last: float


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
        #: The tasks in processing.
        self.assigned: dict[Hashable, Assignment] = {}
        #: Listed runs by key; removed when the task leaves processing.
        self.seen: dict[Hashable, Seen] = {}
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
            ws, _, _ = self.assigned.get(key, NOT_ASSIGNED)
            if ws is not None and ws.address == worker:
                before = self.seen.get(key)
                # The fastest message is the most accurate.
                self.seen[key] = Seen(min(start, before.start) if before else start, began)
            elif (found := cancelled.pop(key, None)) and found.group.span.phase != Phase.EXPORTED:
                run = Run(worker, start, found.when)
                self._lifecycle.tasks.ran(found.group, run, found.when)
        for key in list(cancelled):
            cancelled[key].heartbeats += 1
            if cancelled[key].heartbeats >= _HEARTBEATS:
                del cancelled[key]
        if not cancelled:
            self._cancelled.pop(worker, None)

    def worker_removed(self, worker: str) -> None:
        """Forget the cancelled tasks of a departed worker."""
        self._cancelled.pop(worker, None)

    def clear(self) -> None:
        """Forget everything."""
        for table in (self.assigned, self.seen, self._cancelled):
            table.clear()
