"""A worker is slow if its runs take longer than others, and not by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dask_otel.core.pace import is_slow, runs_of, slow_of


@pytest.mark.parametrize(
    ("own", "others", "slow"),
    [
        ([4.0, 4.0], [1.0] * 6, True),
        ([2.0] * 4, [1.0] * 12, True),
        ([1.6] * 16, [1.0] * 48, True),
        # Too few, or not much longer. The longer two of four are often on one worker.
        ([2.0, 2.0], [1.0] * 6, False),
        ([2.4, 1.8], [0.5, 0.4], False),
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


@pytest.mark.parametrize(
    ("means", "slow"),
    [
        ([1.0, 4.0, 1.0, 4.5, 1.0], [3, 1]),
        # Beside a slower one, and beside those that are as fast as the others.
        ([1.0, 8.0, 1.0, 2.5, 1.0], [1, 3]),
        ([1.0, 8.0, 1.0, 1.2, 1.0], [1]),
        # Half of them are slow, but not most; others are slow beside a few that take no time.
        ([1.0, 4.0, 1.0, 4.5], [3, 1]),
        ([4.0, 4.0, 1.0], []),
        ([0.0, 0.0, 1.0, 1.0], []),
    ],
)
def test_slow_workers_are_found_beside_one_another(means: list[float], slow: list[int]) -> None:
    runs = {number: runs_of([mean] * 8) for number, mean in enumerate(means)}
    # One run says nothing, nor does a long one among others.
    runs |= {8: runs_of([99.0]), 9: runs_of([99.0] + [1.0] * 8)} if means[4:] else {}
    found, own, others = slow_of(runs)
    assert found == slow
    if slow:
        assert own[1] == pytest.approx(8 * sum(means[one] for one in slow))
        assert own[1] + others[1] == pytest.approx(8 * sum(means))


@pytest.mark.parametrize(("times", "some"), [(1.0, False), (10.0, True)])
def test_tasks_of_any_length(times: float, some: bool) -> None:
    """Some workers have the longest ones: by chance, or as tasks take longer on one of them."""
    rng = random.Random(0)

    def slow(count: int) -> bool:
        workers = [[rng.expovariate(1.0) for _ in range(rng.randint(2, 30))] for _ in range(count)]
        workers[0] = [one * times for one in workers[0]]
        return bool(slow_of(dict(enumerate(map(runs_of, workers))))[0])

    # Where some are found, the first one suffices.
    assert any(slow(4 + number % 20) for number in range(1000)) is some
