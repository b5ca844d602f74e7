"""Runs whose end tells nothing: cancelled, rescheduled, or lost with their worker.

Dask sends a task's start and stop with its result or failure, and with nothing else. But each
heartbeat says for how long the tasks have been running that its worker executes, cancelled ones
included: what was seen so is work of its span, with a start that is known.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import Group, Phase, Run

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

#: Heartbeats for which a cancelled run is looked for: the first may have been cut before it was
#: cancelled; with the second it has ended, or is listed.
_HEARTBEATS = 2


class Seen(NamedTuple):
    """A run that a heartbeat listed, on the scheduler's clock."""

    start: float
    #: When it was seen last.
    last: float


@dataclass(slots=True)
class _Cancelled:
    """A task that was cancelled in processing, and may still run."""

    group: Group
    when: float
    heartbeats: int = 0


class RunsUnderWay:
    """What heartbeats say of runs that have not ended.

    Parameters
    ----------
    lifecycle
        Told of cancelled runs that are seen.

    Notes
    -----
    Bounded by the threads of the cluster, and by the tasks that were cancelled in processing since
    their worker's last heartbeat but one.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        #: By key. Whoever has it at hand need not ask here while it is empty.
        self.seen: dict[Hashable, Seen] = {}
        self._cancelled: dict[str, dict[Hashable, _Cancelled]] = {}

    def ended(self, key: Hashable) -> Seen | None:
        """A task left processing: return its run, if it was seen, and forget it."""
        return self.seen.pop(key, None)

    def cancelled(self, key: Hashable, worker: str, group: Group, now: float) -> None:
        """A task was cancelled that no heartbeat has listed: the next one may."""
        self._cancelled.setdefault(worker, {})[key] = _Cancelled(group, now)

    def heartbeat(
        self,
        worker: str,
        executing: Mapping[Hashable, float],
        assigned: Mapping[Hashable, WorkerState],
    ) -> None:
        """A worker tells for how long it has been executing its tasks.

        Parameters
        ----------
        executing
            Seconds by key.
        assigned
            Where the tasks in processing were sent: anything else that runs was cancelled.
        """
        began = self._lifecycle.reports.began(worker)
        cancelled = self._cancelled.get(worker, {})
        for key, seconds in executing.items():
            start = began - seconds
            ws = assigned.get(key)
            if ws is not None and ws.address == worker:
                before = self.seen.get(key)
                # Of all messages the one that was quickest came closest to the truth.
                self.seen[key] = Seen(min(start, before.start) if before else start, began)
            elif key in cancelled:
                self._ran(cancelled.pop(key), worker, start)
        self._count_heartbeat(worker, cancelled)

    def worker_removed(self, worker: str) -> None:
        """A worker is gone: nothing more will be heard of what it ran."""
        self._cancelled.pop(worker, None)

    def clear(self) -> None:
        """Forget everything."""
        self.seen.clear()
        self._cancelled.clear()

    def _ran(self, cancelled: _Cancelled, worker: str, start: float) -> None:
        span = cancelled.group.span
        if span.phase is not Phase.EXPORTED:
            run = Run(worker, start, cancelled.when)
            self._lifecycle.tasks.ran(cancelled.group, run, cancelled.when)

    def _count_heartbeat(self, worker: str, cancelled: dict[Hashable, _Cancelled]) -> None:
        for key in list(cancelled):
            cancelled[key].heartbeats += 1
            if cancelled[key].heartbeats >= _HEARTBEATS:
                del cancelled[key]
        if not cancelled:
            self._cancelled.pop(worker, None)
