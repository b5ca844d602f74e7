"""A worker is slow if its runs take longer than others, and not by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dask_otel.core.pace import is_slow, runs_of


@pytest.mark.parametrize(
    ("own", "others", "slow"),
    [
        ([4.0, 4.0], [1.0] * 6, True),
        ([2.0] * 4, [1.0] * 12, True),
        ([1.6] * 16, [1.0] * 48, True),
        # Too few, or not much longer.
        ([2.0, 2.0], [1.0] * 6, False),
        ([1.4] * 99, [1.0] * 99, False),
        # One long task; and tasks of two sizes, of which the worker got large ones.
        ([8.0, 1.0, 1.0], [1.0] * 9, False),
        ([0.4, 0.4, 0.2], [0.05, 0.1, 0.2, 0.4, 0.05, 0.1], False),
        # Nothing that takes time.
        ([0.0, 0.0], [0.0, 0.0], False),
    ],
)  # fmt: skip
def test_is_slow(own: Sequence[float], others: Sequence[float], slow: bool) -> None:
    assert is_slow(runs_of(own), runs_of(others)) is slow


@pytest.mark.parametrize(("times", "some"), [(1.0, False), (10.0, True)])
def test_tasks_of_any_length(times: float, some: bool) -> None:
    """Of four workers, the one with the most seconds: by chance, or as its tasks take longer."""
    rng, found = random.Random(0), 0
    for _ in range(1000):
        workers = [[rng.expovariate(1.0) for _ in range(rng.randint(2, 30))] for _ in range(4)]
        workers[0] = [one * times for one in workers[0]]
        most = max(workers, key=sum)
        found += is_slow(runs_of(most), runs_of([n for w in workers if w is not most for n in w]))
    assert bool(found) is some
