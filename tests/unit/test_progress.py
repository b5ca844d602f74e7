"""Signs of life: what a long span shows of itself before it ends."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel import semconv
from dask_otel.core import identity
from dask_otel.core.life.open_span import Limits
from dask_otel.core.life.progress import AT_ONCE
from dask_otel.core.records import Progress, TaskCounts
from dask_otel.core.traces.translate import translate
from tests.unit.simulation import Simulation

LIMITS = Limits(linger=2.0, settle_timeout=10.0, progress_after=60.0, progress_interval=300.0)


def simulation(**changes) -> Simulation:
    return Simulation(dataclasses.replace(LIMITS, **changes))


def signs_of(sim: Simulation) -> list[Progress]:
    return [sign for life in sim.lives for sign in life.signs]


def long_span(sim: Simulation, hours: float, step: float = 10.0) -> None:
    """One task that runs for so long."""
    task = sim.submit(sim.create(None), "f")
    for _ in range(int(hours * 3600 / step)):
        sim.advance(step)
        sim.tick()
    sim.finish(task, "w0", 1.0, 0.0)


@pytest.mark.parametrize(("after", "hours", "step"), [(60.0, 55 / 3600, 5.0), (None, 24, 60.0)])
def test_a_short_span_shows_nothing_but_itself_nor_does_one_that_is_not_to(after, hours, step):
    sim = simulation(progress_after=after)
    long_span(sim, hours, step=step)
    for _ in range(4):
        sim.advance(100.0)
        sim.tick()
    assert signs_of(sim) == []
    # Nothing is kept for it but a line that goes when it is due.
    assert len(sim.lifecycle._long.due) == 0


def test_a_long_span_shows_its_start_then_what_came_since():
    sim = simulation()
    span_start = sim.now
    long_span(sim, 0.25)
    signs = signs_of(sim)
    assert [(s.ordinal, s.start - span_start, s.stop - span_start, s.counts) for s in signs] == [
        (0, 0.0, 0.0, None),
        (1, 0.0, 360.0, TaskCounts(tasks=1)),
        (2, 360.0, 660.0, TaskCounts(tasks=1)),
    ]


def test_the_number_is_bounded_by_the_age():
    for hours, most in ((24, 46), (7 * 24, 66)):
        sim = simulation()
        long_span(sim, hours, step=60.0)
        assert most - 4 <= len(signs_of(sim)) <= most


@given(
    after=st.floats(0, 1000),
    interval=st.floats(1, 1000),
    steps=st.lists(st.floats(0.1, 10_000), max_size=40),
)
def test_signs_never_come_faster_than_they_may(after, interval, steps):
    sim = simulation(progress_after=after, progress_interval=interval)
    task = sim.submit(sim.create(None), "f")
    start = sim.now
    for step in steps:
        sim.advance(step)
        sim.tick()
    signs = signs_of(sim)
    assert bool(signs) == (start + after <= sim.now and bool(steps))
    for before, sign in itertools.pairwise(signs[1:]):
        assert sign.start == before.stop
        assert sign.stop - before.stop >= max(interval, 0.1 * (before.stop - start)) - 1e-6
    sim.finish(task, "w0", 0.1, 0.0)


def test_ten_thousand_at_once_come_bit_by_bit():
    sim = simulation()
    for _ in range(100):
        sim.submit(sim.create(None), "f")
    sim.advance(61.0)
    counts = []
    for _ in range(5):
        before = len(signs_of(sim))
        sim.tick()
        counts.append(len(signs_of(sim)) - before)
    assert counts == [AT_ONCE, AT_ONCE, AT_ONCE, 100 - 3 * AT_ONCE, 0]


def test_they_count_in_their_trace():
    sim = simulation(max_per_trace=3, progress_after=1.0, progress_interval=1.0)
    long_span(sim, 1.0)
    assert len(signs_of(sim)) == 3


def test_a_block_that_is_open_for_long_shows_itself_too():
    sim = simulation()
    root = sim.create(None)
    task = sim.submit(root, "f")
    sim.hold(root)
    sim.finish(task, "w0", 0.1, 0.0)
    sim.advance(61.0)
    sim.tick()
    assert [sign.ordinal for sign in signs_of(sim)] == [0]


def test_the_spans_are_children_of_the_one_to_come():
    sim = simulation()
    long_span(sim, 0.25)
    for _ in range(3):
        sim.advance(10.0)
        sim.tick()
    (life,) = sim.lives
    assert life.finished is not None
    (span, *_) = translate(life.finished)
    records = [record for sign in life.signs for record in translate(sign)]
    ids = [
        identity.group_span_id("s0", 1, kind, ordinal)
        for kind, ordinal in (("marker", 0), ("progress", 1), ("progress", 2))
    ]
    assert [record.span_id for record in records] == ids
    assert len({span.span_id, *ids}) == 4
    for record in records:
        where = record.trace_id, record.parent_span_id
        assert where == (span.trace_id, span.span_id)
        assert span.start_ns <= record.start_ns < record.end_ns <= span.end_ns
        for key in (semconv.SPAN_ID, semconv.SPAN_ROOT_ID, semconv.SPAN_NAME):
            assert record.attributes[key] == span.attributes[key]
    marker, first, _ = records
    assert (marker.name, first.name) == ("s0 started", "s0 running")
    assert (marker.start_ns, marker.end_ns) == (span.start_ns, span.start_ns + 1)
    # What is not known, or not decided, is absent.
    keys = semconv.SPAN_TYPE, semconv.TASK_COUNT, semconv.SPAN_RESULT, semconv.SPAN_COMPLETE
    found = [[record.attributes.get(key) for key in keys] for record in (marker, first)]
    assert found == [["marker", None, None, None], ["progress", 1, None, None]]


def test_nothing_that_can_be_in_a_name_breaks_them():
    sim = simulation()
    long_span(sim, 0.1)
    sign = signs_of(sim)[0]
    for tags in ((), ("",), (None,), (b"\xff",), ("\ud800",), ("a" * 100_000,)):
        who = dataclasses.replace(sign.identity, tags=tags)
        (record,) = translate(dataclasses.replace(sign, identity=who))
        assert record.name
        record.name.encode()
        assert len(record.name) <= 1024
