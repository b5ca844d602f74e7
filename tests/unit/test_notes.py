"""Notes of open spans: their export if the scheduler is killed."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from dask_otel import semconv
from dask_otel.core.context import Traceparent
from dask_otel.core.life.notes import FIRST_AT_ONCE, LATER_AT_ONCE, RENEWAL
from dask_otel.core.records import OpenNote, TaskCounts
from dask_otel.core.traces.translate import translate
from dask_otel.core.traces.values import SpanLimits
from tests.unit.driven import Driven


def driven(**limits) -> Driven:
    return Driven(**{"progress_after": None, **limits})


def look(core: Driven) -> list[OpenNote]:
    core.after(0.0)
    return core.lifecycle.notes.take(core.now)


@pytest.mark.parametrize("news", [True, False])
def test_a_span_is_noted_when_it_is_seen_and_then_as_it_grows_old(news):
    """Without anything new there is no new note."""
    core = driven()
    span = core.span()
    core.task(span)
    start, notes = core.now, []
    for _ in range(2000):
        found = look(core)
        assert {(note.start, note.time) for note in found} <= {(start, core.now)}
        notes += found
        if news:
            core.finish(core.task(span))
        core.now += 1.0
    when = [note.time - start for note in notes]
    assert (when[:4], notes[0].counts) == ([0.0, 5.0, 10.0, 15.0][: len(when)], TaskCounts(tasks=1))
    assert (len(when) == 1) != news
    waits = [later - sooner for sooner, later in itertools.pairwise(when)]
    late = [wait - max(RENEWAL, 0.1 * at) for wait, at in zip(waits, when, strict=False)]
    assert [one for one in late if not 0 <= one <= 1] == []


def test_work_that_is_done_is_noted_at_once():
    core = driven()
    task = core.task(core.span())
    look(core)
    core.now += 0.1
    core.finish(task, took=0.05)
    core.after(0.2, "w0")
    (note,) = look(core)
    assert note.counts == TaskCounts(tasks=1, memory=1)
    assert note.start <= (note.first_start or 0.0) <= note.time


def test_ten_thousand_at_once_come_bit_by_bit():
    core = driven()
    for _ in range(FIRST_AT_ONCE + 10):
        core.task(core.span())
    assert [len(look(core)) for _ in range(3)] == [FIRST_AT_ONCE, 10, 0]
    for span in core.lifecycle.open.values():
        core.task(span)
    core.now += RENEWAL
    assert [len(look(core)) for _ in range(2)] == [LATER_AT_ONCE] * 2


def test_what_has_ended_is_not_noted_any_more():
    core = driven()
    span = core.done()
    assert [note.identity for note in look(core)] == [span.identity]
    # This one ends before it is seen.
    core.done()
    core.lifecycle.close(core.now)
    core.now += 2 * RENEWAL
    assert (look(core), core.lifecycle.notes._last) == ([], {})
    # The next generation has a note of its own, also where the clock was set back.
    core.now -= 3600.0
    again = core.lifecycle.span_reopened("s0", span.identity.tags, (), core.now)
    (note,) = look(core)
    assert (note.identity, note.start, note.time) == (again.identity, again.start, core.now)
    # Without work it is withdrawn.
    core.lifecycle.close(core.now)
    assert core.lifecycle.notes.withdrawn == [again.identity]


# ---------------------------------------------------------------------- what a lost span shows


def lost(**changes) -> OpenNote:
    core = driven()
    span = core.span(core.span())
    core.task(span)
    core.finish(core.task(span), took=0.5)
    core.now += 3.0
    (note,) = [n for n in look(core) if n.identity == span.identity]
    return dataclasses.replace(note, **changes)


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
