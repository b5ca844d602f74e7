"""Signs of life: what a long span shows of itself before it ends."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.core.life.progress import AT_ONCE
from dask_otel.core.records import Progress, TaskCounts
from tests.unit.driven import Driven


def driven(**limits) -> Driven:
    return Driven(**{"progress_after": 60.0, "progress_interval": 300.0, **limits})


def later(core: Driven, times: int, step: float) -> list[Progress]:
    """Let time pass; return the signs of life so far."""
    for _ in range(times):
        core.after(step)
    return core.lifecycle.progress


def long_span(core: Driven, hours: float, step: float = 10.0) -> list[Progress]:
    """One task that runs for so long."""
    task = core.task(core.span())
    signs = later(core, int(hours * 3600 / step), step)
    core.finish(task)
    return signs


@pytest.mark.parametrize(
    ("changes", "hours", "step", "most", "least"),
    [
        # Their number is bounded by the age.
        ({}, 24, 60.0, 46, 42),
        ({}, 7 * 24, 60.0, 66, 62),
        # They count in their trace.
        ({"max_per_trace": 3, "progress_after": 1.0, "progress_interval": 1.0}, 1, 10.0, 3, 3),
    ],
)
def test_the_number_is_bounded(changes, hours, step, most, least):
    assert least <= len(long_span(driven(**changes), hours, step)) <= most


@given(
    after=st.floats(0, 1000),
    interval=st.floats(1, 1000),
    steps=st.lists(st.floats(0.1, 10_000), max_size=40),
)
def test_signs_never_come_faster_than_they_may(after, interval, steps):
    core = driven(progress_after=after, progress_interval=interval)
    core.task(core.span())
    start = core.now
    for step in steps:
        core.after(step)
    signs = core.lifecycle.progress
    assert bool(signs) == (start + after <= core.now and bool(steps))
    # The first one shows the start alone, the others what came since.
    assert [(sign.ordinal, sign.counts) for sign in signs] == [
        (number, TaskCounts(tasks=1) if number else None) for number in range(len(signs))
    ]
    assert {time for sign in signs[:2] for time in (sign.start, signs[0].stop)} <= {start}
    for before, sign in itertools.pairwise(signs[1:]):
        assert sign.start == before.stop
        assert sign.stop - before.stop >= max(interval, 0.1 * (before.stop - start)) - 1e-6


def test_ten_thousand_at_once_come_bit_by_bit():
    core = driven()
    for _ in range(100):
        core.task(core.span())
    core.now += 61.0
    counts = [len(later(core, 1, 0.0)) for _ in range(5)]
    assert counts == [AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE, 100, 100]
    # Nor does one end before it begins, if the clock is set back.
    core.now -= 3600.0
    signs = later(core, 4, 150.0)
    assert len(signs) > 100
    assert all(sign.start <= sign.stop for sign in signs)


def test_a_span_whose_work_is_done_shows_no_sign():
    core = driven(linger=0.0, settle_timeout=1000.0)
    core.done()
    assert later(core, 9, 10.0) == []
    assert core.lifecycle.open
