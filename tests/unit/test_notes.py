"""Notes of open spans: their export if the scheduler is killed."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel import semconv
from dask_otel.core import identity
from dask_otel.core.context import Traceparent
from dask_otel.core.life.notes import FIRST_AT_ONCE, LATER_AT_ONCE, RENEWAL
from dask_otel.core.records import OpenNote, TaskCounts
from dask_otel.core.traces.translate import translate
from dask_otel.core.traces.values import SpanLimits
from tests.limits import make_limits
from tests.unit.simulation import Simulation

LIMITS = make_limits(linger=2.0, settle_timeout=10.0, progress_after=None, notes=True)


def simulation(**changes) -> Simulation:
    return Simulation(dataclasses.replace(LIMITS, **changes))


def look(sim: Simulation) -> list[OpenNote]:
    sim.tick()
    return sim.lifecycle.notes.take(sim.now)


@pytest.mark.parametrize("news", [True, False])
def test_a_span_is_noted_when_it_is_seen_and_then_as_it_grows_old(news):
    """Without anything new there is no new note."""
    sim = simulation()
    task = sim.submit(sim.create(None), "f")
    start, notes = sim.now, []
    for _ in range(2000):
        found = look(sim)
        assert {(note.start, note.time) for note in found} <= {(start, sim.now)}
        notes += found
        if news:
            sim.finish(sim.submit(task.span, "g"), "w0", 0.01, 0.0)
        sim.advance(1.0)
    when = [note.time - start for note in notes]
    assert (when[:4], notes[0].counts) == ([0.0, 5.0, 10.0, 15.0][: len(when)], TaskCounts(tasks=1))
    assert (len(when) == 1) != news
    waits = [later - sooner for sooner, later in itertools.pairwise(when)]
    late = [wait - max(RENEWAL, 0.1 * at) for wait, at in zip(waits, when, strict=False)]
    assert [one for one in late if not 0 <= one <= 1] == []


def test_work_that_is_done_is_noted_at_once():
    sim = simulation()
    task = sim.submit(sim.create(None), "f")
    look(sim)
    sim.advance(0.1)
    sim.finish(task, "w0", 0.05, 0.0)
    for _ in range(2):
        sim.advance(0.1)
        sim.heartbeat("w0", 0.0, 0)
    (note,) = look(sim)
    assert note.counts == TaskCounts(tasks=1, memory=1)
    assert note.start <= (note.first_start or 0.0) <= note.time


def test_a_span_that_ended_is_not_noted_any_more():
    sim = simulation(linger=0.0, settle_timeout=0.0)
    for _ in range(3):
        sim.finish(sim.submit(sim.create(None), "f"), "w0", 0.01, 0.0)
    # The tick that exports them is before the first look at them.
    assert (look(sim), len(sim.lifecycle.notes._new), len(sim.lifecycle.notes._last)) == ([], 0, 0)


def test_ten_thousand_at_once_come_bit_by_bit():
    sim = simulation()
    for _ in range(FIRST_AT_ONCE + 10):
        sim.submit(sim.create(None), "f")
    assert [len(look(sim)) for _ in range(3)] == [FIRST_AT_ONCE, 10, 0]
    for task in list(sim.tasks.values()):
        sim.submit(task.span, "g")
    sim.advance(RENEWAL)
    assert [len(look(sim)) for _ in range(2)] == [LATER_AT_ONCE] * 2


def test_a_clock_set_back_delays_no_note_for_long():
    sim = simulation()
    task = sim.submit(sim.create(None), "f")
    found = [look(sim)]
    sim.set_clock(-3600.0)
    sim.submit(task.span, "g")
    # As each tick looks.
    assert look(sim) == []
    sim.advance(RENEWAL)
    assert [len(notes) for notes in (*found, look(sim))] == [1, 1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["create", "child", "submit", "finish", "advance", "clock", "again"]),
            st.integers(0, 5),
            st.floats(0.0, 20.0),
        ),
        max_size=60,
    )
)
def test_each_open_span_has_a_note_that_was_true_when_it_was_made(steps):
    sim = simulation()
    noted: set[int] = set()
    for what, which, seconds in steps:
        todo = [t for t in sim.tasks.values() if t.state == "todo"]
        spans = list(sim.spans) or [sim.submit(sim.create(None), "f").span]
        if what in ("create", "child"):
            sim.submit(sim.create(spans[which % len(spans)] if what == "child" else None), "f")
        elif what == "submit":
            # Also of a span that was exported: its next generation.
            sim.submit(spans[which % len(spans)], "g")
        elif what == "finish" and todo:
            sim.finish(todo[which % len(todo)], "w0", 0.0, 0.0)
        elif what == "advance":
            sim.advance(seconds)
        elif what == "clock":
            sim.set_clock(-seconds)
        elif what == "again":
            sim.install_again()
            noted.clear()
        sim.heartbeat("w0", 0.0, 0)
        for note in look(sim):
            life = sim.current[note.identity.dask_id]
            assert (note.identity, note.time) == (life.span.identity, sim.now)
            assert note.counts.tasks >= len(life.outcomes)
            noted.add(note.identity.span_id)
        # Nothing that is open goes without: there are few.
        assert {life.span.identity.span_id for life in sim.current.values()} <= noted
        assert sim.lifecycle.notes._last.keys() == sim.current.keys()


# ---------------------------------------------------------------------- what a lost span shows


def lost(**changes) -> OpenNote:
    sim = simulation()
    task = sim.submit(sim.create(sim.create(None)), "f")
    sim.finish(sim.submit(task.span, "f"), "w0", 0.5, 0.0)
    sim.advance(3.0)
    (note,) = [n for n in look(sim) if n.identity.dask_id == task.span]
    return dataclasses.replace(note, **changes)


def test_a_lost_span_has_the_ids_that_it_would_have_had():
    sim = simulation()
    root = sim.create(None)
    task = sim.submit(sim.create(root), "f")
    sim.advance(1.0)
    notes = {note.identity.dask_id: translate(note)[0] for note in look(sim)}
    sim.advance(1.0)
    sim.close()
    for life in sim.lives:
        span, record = translate(life.finished)[0], notes[life.finished.identity.dask_id]
        same = ("trace_id", "span_id", "parent_span_id", "name", "kind", "start_ns")
        assert [getattr(record, name) for name in same] == [getattr(span, name) for name in same]
        keys = (semconv.SPAN_ID, semconv.SPAN_NAME, semconv.SPAN_TAGS)
        assert [record.attributes[key] for key in keys] == [span.attributes[key] for key in keys]
    assert notes[task.span].parent_span_id == identity.span_id(root)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        (
            {},
            {
                semconv.SPAN_COMPLETE: False,
                semconv.SPAN_RESULT: "error",
                semconv.ERROR_TYPE: "SchedulerLost",
                semconv.TASK_COUNT: 2,
                semconv.TASK_OUTCOME_COUNT.format("memory"): 1,
                # What a span knows only at its end is absent, never 0.
                semconv.SPAN_DASK_ACTIVE_CPU_TIME: None,
                semconv.SPAN_DASK_IDLE_TIME: None,
                semconv.SPAN_OUTPUT_SIZE: None,
                semconv.WORKER_COUNT: None,
                semconv.THREAD_COUNT: None,
                semconv.TASK_GROUP_COUNT: None,
                semconv.SPAN_IDLE: None,
                semconv.SPAN_CAPACITY: None,
            },
        ),
        (
            {"counts": None, "first_start": None},
            {semconv.TASK_COUNT: None, semconv.SPAN_QUEUE_TIME: None},
        ),
        # What its user gave, and its callers.
        (
            {
                "attributes": {"team": "tide", "dask.task.count": 7},
                "callers": (Traceparent(5, 6),),
                "code": ("a.py", 3, "f"),
                "collections": ("Array",),
            },
            {
                "team": "tide",
                semconv.TASK_COUNT: 2,
                semconv.CODE_FILE_PATH: "a.py",
                semconv.COLLECTION_TYPES: ("Array",),
            },
        ),
    ],
)
def test_a_lost_span_is_incomplete_and_says_what_is_known_alone(changes, shown):
    (record,) = translate(lost(**changes))
    assert {key: record.attributes.get(key) for key in shown} == shown
    found = (record.error, record.end_ns - record.start_ns, bool(record.events))
    error = "The scheduler was lost before the span had ended"
    assert found == (error, 3_000_000_000, "first_start" not in changes)
    assert [Traceparent(*link[:2]) for link in record.links] == [*changes.get("callers", ())]


def test_what_must_not_be_shown_is_not_noted_either():
    hidden = SpanLimits(redact=lambda name, text: None, code=False)
    note = lost(attributes={"password": "secret"}, code=("secret.py", 3, "f"))
    (record,) = translate(note, hidden)
    assert "secret" not in repr(record)
