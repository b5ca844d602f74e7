"""A peer: the bridge that one would write in an afternoon, on top of Dask's properties.

Each second it would ask all spans for ``cumulative_worker_metrics``. It is here to be compared
with, not to be used.
"""

from __future__ import annotations

from collections import Counter
from typing import Any


def poll(scheduler: Any) -> Counter[tuple[str, ...]]:
    """Sum up what Dask knows of all spans."""
    sums: Counter[tuple[str, ...]] = Counter()
    for span in list(scheduler.extensions["spans"].spans.values()):
        for key, value in span.cumulative_worker_metrics.items():
            sums[(".".join(span.name), *map(str, key))] += value
    return sums
