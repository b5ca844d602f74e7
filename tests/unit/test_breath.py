"""When a thread of ours lets go of the GIL."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from dask_otel.pump import breath
from dask_otel.pump.breath import LONGEST_WORK, PAUSE, WORK, Breath


class Time:
    """A clock that only goes on while somebody works or sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        #: Seconds for which somebody else has the GIL after a breath.
        self.taken = 0.0
        self.breaths: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.breaths.append(self.now)
        self.now += seconds + self.taken

    def work(self, breathe: Breath, seconds: float) -> None:
        """Work in pieces of 10 µs."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.00001
            breathe()

    @property
    def longest(self) -> float:
        """The longest work between the last ten breaths."""
        last = self.breaths[-10:]
        return max(b - a - PAUSE - self.taken for a, b in pairwise(last))


@pytest.mark.parametrize(("taken", "longest"), [(0.0, LONGEST_WORK), (0.001, WORK)])
def test_it_works_longer_where_nobody_wants_the_gil(
    taken: float, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()
    monkeypatch.setattr(breath, "time", SimpleNamespace(perf_counter=time.clock, sleep=time.sleep))
    breathe = Breath()
    for time.taken in (0.0, taken):
        time.work(breathe, 0.1)
    assert time.longest == pytest.approx(longest, abs=0.00002)
