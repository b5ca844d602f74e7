"""When a thread of ours lets go of the GIL."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from dask_otel.pump import breath
from dask_otel.pump.breath import LONGEST_WORK, PAUSE, WORK, Breath


@pytest.mark.parametrize(("taken", "longest"), [(0.0, LONGEST_WORK), (0.001, WORK)])
def test_it_works_longer_where_nobody_wants_the_gil(
    taken: float, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has the GIL for some seconds after each breath but the first ones."""
    now, breaths = 0.0, list[float]()

    def sleep(seconds: float) -> None:
        nonlocal now
        breaths.append(now)
        now += seconds + (taken if len(breaths) > 100 else 0.0)

    monkeypatch.setattr(breath, "time", SimpleNamespace(perf_counter=lambda: now, sleep=sleep))
    breathe = Breath()
    for _ in range(20_000):
        now += 0.00001
        breathe()
    work = [b - a - PAUSE - taken for a, b in pairwise(breaths[-10:])]
    assert max(work) == pytest.approx(longest, abs=0.00002)
