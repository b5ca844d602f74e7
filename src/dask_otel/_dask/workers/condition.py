"""How a scheduler's workers do, for ``dask-otel doctor``: plain data, read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from distributed.metrics import time
from distributed.scheduler import heartbeat_interval

from dask_otel.core.life.clock_offsets import ClockOffsets

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Workers that are told of one by one.
MOST: Final = 500


def workers_condition(scheduler: Scheduler, clocks: ClockOffsets | None) -> dict[str, Any]:
    """Return how many workers there are, how often they report, and their clocks.

    Parameters
    ----------
    scheduler
        Belongs to this event loop.
    clocks
        What the bridge knows of their clocks; None without one.
    """
    now = time()
    workers = scheduler.workers
    return {
        "count": len(workers),
        "heartbeat_interval": float(heartbeat_interval(len(workers))),
        "workers": [
            {
                "address": state.address,
                "name": str(state.name),
                "last_seen_age": max(0.0, now - state.last_seen),
                "clock": None if clocks is None else list(clocks.bounds(state.address)),
            }
            for state in list(workers.values())[:MOST]
        ],
    }
