"""Caps on names and series, the replacements beyond a cap, and the rules for retirement.

Span names, prefixes and activities are users' free text. Each metric has a limited number of
series, and all metrics together have a limited number of span names. Values beyond a cap are booked
under ``_OTHER``, so that every sum stays right. A series frees its place when it retires.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from dask_otel import semconv

#: Labels with free text or changing values: only series with one of them retire. The other
#: labels have a few fixed values of the bridge (a state, a reason).
FREE_LABELS: Final = frozenset(
    {
        semconv.SPAN,
        semconv.TASK_PREFIX,
        semconv.ACTIVITY,
        semconv.P2P_STAGE,
        semconv.UNIT,
        semconv.WORKER_NAME,
    }
)
#: Labels that a folded series loses. Not the unit: numbers of different units can't be summed.
_FOLDED_LABELS: Final = frozenset({*semconv.SPAN_KEYS, *FREE_LABELS} - {semconv.UNIT, semconv.SPAN})
#: Places reserved for folded series, so that the cap includes them.
_RESERVED: Final = 8


@dataclass(frozen=True, slots=True)
class SeriesLimits:
    """Limits of the metric state, as configured."""

    #: Distinct span names of all metrics, without `_OTHER`.
    max_names: int
    #: Series of one metric, including those of `_OTHER`.
    max_series: int
    #: How long a series is exported after its last change.
    retire_after_ns: int
    #: The export interval, which limits the age of a zero point.
    interval_ns: int

    @property
    def ordinary_series(self) -> int:
        """The number of a metric's series that are not folded."""
        return self.max_series - max(1, min(_RESERVED, self.max_series // 2))


class NameSlots(Counter[str]):
    """The used names, each with the number of its series."""

    def admits(self, name: str, limit: int) -> bool:
        """Return whether a new series may have this name."""
        return name == semconv.FOLDED or name in self or len(self) < limit

    def acquire(self, name: str) -> None:
        """Add a series of this name."""
        if name != semconv.FOLDED:
            self[name] += 1

    def release(self, name: str) -> None:
        """Remove a series of this name; the last one frees the place."""
        if self[name] > 1:
            self[name] -= 1
        else:
            del self[name]


def folded(
    keys: tuple[str, ...], values: tuple[str, ...]
) -> tuple[tuple[tuple[str, ...], int], tuple[tuple[str, ...], int]]:
    """Return the label values that may replace those of a series beyond the cap.

    The first one folds only the free text, the second one everything. Each has the number of places
    that must stay free, so that the last one always has a place.
    """
    kept = [
        semconv.FOLDED if key in _FOLDED_LABELS or key.startswith(semconv.TAG) else value
        for key, value in zip(keys, values, strict=True)
    ]
    return (tuple(kept), 1), ((semconv.FOLDED,) * len(keys), 0)
