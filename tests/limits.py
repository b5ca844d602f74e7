"""The shipped defaults for tests and benchmarks, each changed as one needs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.boundary import ErrorBoundary
from dask_otel.core.life.open_span import Limits, TaskLimits
from dask_otel.core.metrics.cardinality import SeriesLimits
from dask_otel.core.metrics.state import MetricState
from dask_otel.scheduler.bridge import limits_of
from dask_otel.settings.keys import Settings


def make_task_limits(slowest: int = 0, ratio: float = 0.0, most: int = 100) -> TaskLimits:
    """Return limits of the spans of tasks; by default, none is among the slowest."""
    return TaskLimits(slowest, ratio, most)


def make_limits(**changes: Any) -> Limits:
    """Return limits of spans; without changes, no task has a span."""
    return replace(limits_of(Settings()), **{"tasks": make_task_limits(), **changes})


def make_series_limits(**changes: Any) -> SeriesLimits:
    """Return limits of series."""
    metrics = Settings().metrics
    defaults = {
        "max_names": metrics.max_names,
        "max_series": metrics.max_series,
        "retire_after_ns": int(metrics.retire_after * 1e9),
        "interval_ns": 60 * 10**9,
    }
    return SeriesLimits(**{**defaults, **changes})


def make_state(start_ns: int, **options: Any) -> MetricState:
    """Return the state of all metrics."""
    return MetricState(start_ns, **{"limits": make_series_limits(), **options})


def make_adapter(scheduler: Any, limits: Limits, boundary: ErrorBoundary) -> SchedulerAdapter:
    """Return an adapter that sends no events."""
    settings = Settings()
    return SchedulerAdapter(
        scheduler,
        limits,
        boundary,
        max_workers=settings.metrics.max_workers,
        propagation=settings.propagation,
        baggage=settings.spans.baggage,
        events=False,
        topics=(),
        level=None,
        put=lambda event, counted: True,
    )
