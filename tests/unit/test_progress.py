"""Signs of life: what a long span shows of itself before it ends."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.core.life.progress import AT_ONCE
from dask_otel.core.records import Progress, TaskCounts
from dask_otel.core.traces.translate import translate
from tests.limits import make_limits
from tests.unit.simulation import Simulation

LIMITS = make_limits(linger=2.0, settle_timeout=10.0, progress_after=60.0, progress_interval=300.0)


def simulation(**changes) -> Simulation:
    return Simulation(dataclasses.replace(LIMITS, **changes))


def signs_of(sim: Simulation) -> list[Progress]:
    return [sign for life in sim.lives for sign in life.signs]


def later(sim: Simulation, times: int, step: float) -> None:
    for _ in range(times):
        sim.advance(step)
        sim.tick()


def long_span(sim: Simulation, hours: float, step: float = 10.0) -> None:
    """One task that runs for so long."""
    task = sim.submit(sim.create(None), "f")
    later(sim, int(hours * 3600 / step), step)
    sim.finish(task, "w0", 1.0, 0.0)


@pytest.mark.parametrize(("after", "hours", "step"), [(60.0, 55 / 3600, 5.0), (None, 24, 60.0)])
def test_a_short_span_shows_nothing_but_itself_nor_does_one_that_is_not_to(after, hours, step):
    sim = simulation(progress_after=after)
    long_span(sim, hours, step=step)
    later(sim, 4, 100.0)
    # Nothing is kept for it but a line that goes when it is due.
    assert (signs_of(sim), len(sim.lifecycle._long.due)) == ([], 0)


def test_a_long_span_shows_its_start_then_what_came_since():
    sim = simulation()
    begin = sim.now
    long_span(sim, 0.25)
    assert [(s.ordinal, s.start - begin, s.stop - begin, s.counts) for s in signs_of(sim)] == [
        (0, 0.0, 0.0, None),
        (1, 0.0, 360.0, TaskCounts(tasks=1)),
        (2, 360.0, 660.0, TaskCounts(tasks=1)),
    ]


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
    sim = simulation(**changes)
    long_span(sim, hours, step)
    assert least <= len(signs_of(sim)) <= most


@given(
    after=st.floats(0, 1000),
    interval=st.floats(1, 1000),
    steps=st.lists(st.floats(0.1, 10_000), max_size=40),
)
def test_signs_never_come_faster_than_they_may(after, interval, steps):
    sim = simulation(progress_after=after, progress_interval=interval)
    sim.submit(sim.create(None), "f")
    start = sim.now
    for step in steps:
        later(sim, 1, step)
    signs = signs_of(sim)
    assert bool(signs) == (start + after <= sim.now and bool(steps))
    for before, sign in itertools.pairwise(signs[1:]):
        assert sign.start == before.stop
        assert sign.stop - before.stop >= max(interval, 0.1 * (before.stop - start)) - 1e-6


def test_ten_thousand_at_once_come_bit_by_bit():
    sim, counts = simulation(), [0]
    for _ in range(100):
        sim.submit(sim.create(None), "f")
    sim.advance(61.0)
    for _ in range(5):
        sim.tick()
        counts.append(len(signs_of(sim)))
    assert counts == [0, AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE, 100, 100]


def test_a_block_that_is_open_for_long_shows_itself_too():
    sim = simulation()
    root = sim.create(None)
    sim.hold(root)
    sim.finish(sim.submit(root, "f"), "w0", 0.1, 0.0)
    later(sim, 1, 61.0)
    assert [sign.ordinal for sign in signs_of(sim)] == [0]


@pytest.mark.parametrize("tags", [(), ("",), (None,), (b"\xff",), ("\ud800",), ("a" * 100_000,)])
def test_nothing_that_can_be_in_a_name_breaks_them(tags):
    sim = simulation()
    long_span(sim, 0.1)
    sign = signs_of(sim)[0]
    who = dataclasses.replace(sign.identity, tags=tags)
    (record,) = translate(dataclasses.replace(sign, identity=who))
    assert 0 < len(record.name.encode().decode()) <= 1024
