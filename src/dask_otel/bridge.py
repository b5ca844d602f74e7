"""The bridge of one scheduler: Dask's facts to the core, the core's records to the pump.

Everything here runs on the scheduler's event loop, in small steps: hooks of Dask, a tick ten
times a second that decides which spans are over, and a hand-over of the metrics at the
export interval. Making exporters, text and protobuf is the pump's, in its own thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from dask_otel._dask import SchedulerAdapter
from dask_otel.core.spans import Limits
from dask_otel.settings import Settings

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger("dask_otel")

#: Seconds between two looks at the spans that are about to end.
TICK: Final = 0.1

#: At close, the longest wait for heartbeats that still owe metrics of finished work.
LAST_WORDS: Final = 1.0


class ErrorBoundary:
    """Where the bridge's own errors end: counted by kind, logged once a kind, swallowed."""

    def __init__(self) -> None:
        #: Errors by kind that have not been exported yet.
        self.counts: dict[str, int] = {}
        self._logged: set[str] = set()

    def failed(self, kind: str) -> None:
        """Take the exception that is being handled."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning(
                "dask-otel: an error in its %s hook was swallowed, and later ones like it will be "
                "without a word; Dask is not affected, telemetry may be incomplete. Please report "
                "it, with this traceback, to the project's issue tracker.",
                kind,
                exc_info=True,
            )


class Bridge:
    """Observes one scheduler and exports what it sees.

    Parameters
    ----------
    scheduler
        A running scheduler.
    settings
        Parsed configuration.

    Notes
    -----
    `start` and `close` are called on the scheduler's event loop, once each.
    """

    def __init__(self, scheduler: Scheduler, settings: Settings) -> None:
        self.settings = settings
        self.boundary = ErrorBoundary()
        spans = settings.spans
        limits = Limits(
            linger=spans.linger,
            settle_timeout=spans.settle_timeout,
            max_groups=spans.max_groups,
            trace_gap=spans.trace_gap,
            max_per_trace=spans.max_per_trace,
            max_exceptions=spans.max_exceptions,
            remember=spans.remember,
            groups=spans.detail == "group",
        )
        self.adapter = SchedulerAdapter(scheduler, limits, self.boundary)
