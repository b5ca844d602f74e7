"""Metric states for tests: one export of a state, as a receiver sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dask_otel.core.metrics.batch import Distribution
from dask_otel.core.metrics.state import MetricState

S = 1_000_000_000
START = 1_700_000_000 * S


def collect(state: MetricState, seconds: float = 60, ok: bool = True) -> dict[str, Any]:
    """Return one export, accepted or not: its points by metric."""
    records = list(state.collect(START + int(seconds * S)))
    state.settled(ok)
    return {record.name: record.points for record in records}


def shown(state: MetricState, seconds: float = 60, ok: bool = True) -> dict[str, Any]:
    """Return one export as {metric: {label values: value}}, without zero points."""
    return {
        name: {tuple(point.attributes.values()): point.value for point in points}
        for name, points in collect(state, seconds, ok).items()
    }


def durations(seconds: Iterable[float]) -> Distribution:
    """Return a distribution of these durations."""
    made = Distribution()
    made.add(*seconds)
    return made
