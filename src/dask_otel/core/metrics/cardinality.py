"""How many names and series may live, what replaces those beyond, and which may retire.

Span names, prefixes and activities are free text of users. Each metric keeps at most so
many series and all of them together so many span names; what comes beyond is booked under
``_OTHER``, so that every sum stays right. A series gives its place back when it retires.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dask_otel import semconv
from dask_otel.semconv import Metric

_SECOND_NS: Final = 1_000_000_000

#: A series is exported at least that long after its last change, whatever was configured:
#: backends look a few minutes back and scrapers pause.
MIN_RETIRE_AFTER_NS: Final = 15 * 60 * _SECOND_NS

#: Labels that hold free text or come and go: only series with one of them retire. Labels
#: of a few fixed values (a state, a reason) are the bridge's own.
_FREE_LABELS: Final = frozenset(
    {
        semconv.SPAN,
        semconv.TASK_PREFIX,
        semconv.ACTIVITY,
        semconv.P2P_STAGE,
        semconv.UNIT,
        semconv.WORKER_NAME,
    }
)
#: Labels that a folded series loses. The unit is not among them: numbers of different
#: units don't add up.
_FOLDED_LABELS: Final = frozenset(
    {*semconv.SPAN_KEYS, *_FREE_LABELS} - {semconv.UNIT, semconv.SPAN}
)
#: Places that only folded series get, so that the cap holds with them.
_RESERVED: Final = 8


@dataclass(frozen=True, slots=True)
class SeriesLimits:
    """Limits of the metric state, as configured."""

    #: Distinct span names over all metrics, `_OTHER` not counted.
    max_names: int = 200
    #: Series of one metric, those of `_OTHER` counted.
    max_series: int = 2000
    #: Never taken shorter than `MIN_RETIRE_AFTER_NS`.
    retire_after_ns: int = 3600 * _SECOND_NS
    #: The export interval: how far back a zero point may lie.
    interval_ns: int = 60 * _SECOND_NS


class NameSlots:
    """The span names in use, each with the number of its series."""

    __slots__ = ("_limit", "_series")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._series: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._series)

    def admits(self, name: str) -> bool:
        """Return whether a series of this name may be born."""
        return name == semconv.FOLDED or name in self._series or len(self) < self._limit

    def acquire(self, name: str) -> None:
        """Count one more series of this name."""
        if name != semconv.FOLDED:
            self._series[name] = self._series.get(name, 0) + 1

    def release(self, name: str) -> None:
        """Count one series less; the last one gives the place back."""
        left = self._series.get(name, 0) - 1
        if left > 0:
            self._series[name] = left
        else:
            self._series.pop(name, None)


def label_keys(metric: Metric, tag_labels: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the attribute keys of a metric's points.

    The span label stands for `semconv.SPAN_KEYS` and the labels made of tags.
    """
    span_keys = semconv.SPAN_KEYS + tag_labels
    keys: list[str] = []
    for label in metric.labels:
        keys.extend(span_keys if label == semconv.SPAN else (label,))
    return tuple(keys)


def may_retire(metric: Metric) -> bool:
    """Return whether series of this metric retire; those of fixed labels stay for ever."""
    return not _FREE_LABELS.isdisjoint(metric.labels)


def folded(keys: tuple[str, ...], values: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the label values that may replace those of a series beyond the cap.

    First the free text is folded and the rest kept, then everything. With each comes the
    number of places that must be left for it, so that the last one always has one.
    """
    kept = [
        semconv.FOLDED if key in _FOLDED_LABELS or key.startswith(semconv.TAG) else value
        for key, value in zip(keys, values, strict=True)
    ]
    yield tuple(kept), 1
    yield (semconv.FOLDED,) * len(keys), 0


def ordinary_places(max_series: int) -> int:
    """Return how many series of one metric need not be folded."""
    return max_series - max(1, min(_RESERVED, max_series // 2))
