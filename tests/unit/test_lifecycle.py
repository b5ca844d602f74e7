"""The life of a span, one event after the other: the event, then the whole state.

Whole lives, and random ones, are in ``tests/simulated``: `test_lifecycle.py`, `test_histories.py`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from dask_otel.core.life.generations import Generations
from dask_otel.core.life.open_span import OpenSpan, Phase
from dask_otel.core.life.outcomes import MAX_RETRIES
from dask_otel.core.life.reports import Reports
from dask_otel.core.records import Failure, Retry, TaskCounts
from tests.limits import make_limits
from tests.unit.driven import Driven

LINGER = 2.0
SETTLE = 30.0


@pytest.fixture
def core() -> Driven:
    return Driven(linger=LINGER, settle_timeout=SETTLE)


def settle(core: Driven) -> None:
    """Let both workers report, then the linger pass."""
    core.after(0.5, "w0", "w1")
    core.after(0.5, "w0", "w1")
    core.after(LINGER)


# ---------------------------------------------------------------------------- one span


def test_a_span_keeps_its_first_events_and_counts_the_others(core: Driven) -> None:
    span = core.done()
    for number in range(MAX_RETRIES + 3):
        core.lifecycle.outcomes.repeated(span, Retry(core.now, str(number), "error"))
    core.lifecycle.close(core.now)
    (finished,) = core.lifecycle.finished
    assert [int(one.key) for one in finished.retries] == [*range(MAX_RETRIES)]
    assert finished.dropped_retries == 3


def test_a_key_that_fails_twice_is_two_failures_and_the_first_ones_are_kept() -> None:
    core = Driven(max_exceptions=2)
    group = core.lifecycle.add_group(core.span(), "f", "f", None)
    for key in ("a", "a", "b", "c"):
        # Submitted, failed, forgotten, submitted again: that is no retry.
        core.lifecycle.outcomes.added(group, key, core.now)
        failure = Failure(core.now, key, "f", "w0", "KeyError(1)", None)
        core.lifecycle.outcomes.failed(group, key, failure, 0.0, 0.0, core.now)
    core.lifecycle.close(core.now)
    (span,) = core.lifecycle.finished
    assert span.counts == TaskCounts(tasks=4, erred=4)
    assert [one.key for one in span.failures] == ["a", "b"]
    assert span.dropped_failures == 2


def test_a_task_that_was_to_run_again_and_does_not_was_cancelled(core: Driven) -> None:
    group = core.task(core.span())
    core.now += 5.0
    core.lifecycle.outcomes.interrupted(group, "key", "worker_lost", core.now)
    core.lifecycle.outcomes.forgotten(group, "key")
    assert core.lifecycle.outcomes.coming_back == 0
    core.lifecycle.close(core.now + 1.0)
    (span,) = core.lifecycle.finished
    assert span.counts == TaskCounts(tasks=1, cancelled=1)
    assert span.stop == core.now


def test_a_clock_that_is_set_back_delays_no_end(core: Driven) -> None:
    span = core.done()
    core.after(0.0)
    core.now -= 3600
    core.after(0.0)
    # Heartbeats from the future are ignored.
    later = core.done()
    core.after(0.0)
    assert later.phase is Phase.SETTLING
    core.after(SETTLE)
    assert span.phase is Phase.LINGERING
    core.now -= 3600
    core.after(0.0)
    core.after(LINGER)
    first, _ = core.exported
    # What begins before the end of the first one begins with that.
    again = core.lifecycle.span_reopened("s0", ("s0",), (), core.now)
    assert again.start == first.stop


def test_a_run_that_ended_before_its_span_by_a_clock_that_was_set_has_no_length(
    core: Driven,
) -> None:
    group = core.task(core.span())
    core.lifecycle.outcomes.ran(group, "w0", core.now - 5.0, core.now - 3.0, core.now)
    assert (group.start, group.stop) == (core.now, core.now)


def test_a_span_from_before_the_bridge_began_with_the_first_of_its_groups(core: Driven) -> None:
    span, lifecycle = core.span(), core.lifecycle
    for name, began in (("f", core.now - 3.0), ("g", 0.0)):
        group = lifecycle.add_group(span, name, name, None)
        lifecycle.outcomes.taken_in(group, 1, core.now, began)
    assert span.first_start == core.now - 3.0


def test_a_continuation_without_work_was_none(core: Driven) -> None:
    span = core.done()
    core.after(0.5, "w0", "w1")
    core.finish(core.task(span))
    core.after(0.5)
    assert span.phase is Phase.SETTLING, "new work is owed new reports"
    settle(core)
    for _ in range(2):
        again = core.lifecycle.span_reopened("s0", ("s0",), (), core.now)
        assert again.identity.generation == 2
        settle(core)
    assert len(core.exported) == 1
    assert not core.lifecycle.generations._live


# ------------------------------------------------------------------- errors of our own


def test_a_restart_cancels_what_is_unfinished(core: Driven) -> None:
    core.task(core.span())
    core.lifecycle.all_forgotten(core.now)
    core.lifecycle.close(core.now)
    (span,) = core.lifecycle.finished
    assert span.complete
    assert span.counts == TaskCounts(tasks=1, cancelled=1)


def test_repair_takes_over_the_truth(core: Driven) -> None:
    above = core.span()
    span = core.span(above)
    core.task(span)
    # The end of its task was missed.
    core.lifecycle.repair({}, core.now)
    assert (above.phase, span.phase, core.active) == (Phase.SETTLING, Phase.SETTLING, 0)
    core.lifecycle.repair({span.identity.dask_id: 2}, core.now)
    assert (above.phase, above.busy, above.open_children) == (Phase.OPEN, 1, 1)
    assert (span.phase, span.unfinished, core.active) == (Phase.OPEN, 2, 1)


# ---------------------------------------------------------------------------------- cost


def test_a_tick_looks_at_spans_only_where_there_is_news(monkeypatch) -> None:
    core = Driven(linger=0.05, settle_timeout=SETTLE)
    looks: list[OpenSpan] = []
    complete = Reports._complete

    def look(reports: Reports, span: OpenSpan) -> bool:
        looks.append(span)
        return complete(reports, span)

    monkeypatch.setattr(Reports, "_complete", look)
    spans = {w: [core.done(worker=w) for _ in range(30)] for w in ("w0", "w1")}

    def looked(*beats: str) -> list[OpenSpan]:
        looks.clear()
        core.after(0.1, *beats)
        return looks

    assert len(looked()) == 60
    assert looked() == []
    assert looked("w1") == spans["w1"]
    assert looked() == []
    core.lifecycle.reports.worker_removed("w0")
    assert looked() == spans["w0"]
    looked()
    assert not core.lifecycle.open


# -------------------------------------------------------------------------------- memory


@pytest.fixture
def alone() -> Iterator[None]:
    """Let no other thread run, nor a collection of garbage: they allocate, too."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(3600.0)
    gc.disable()
    yield
    gc.enable()
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("only_new_garbage", "alone")
def test_450_short_spans_leave_the_memory_where_it_was_after_150() -> None:
    core, found = Driven(linger=0.05, remember=100), []
    for number in range(1, 451):
        core.done()
        core.after(0.01, "w0")
        core.exported.clear()
        if number in (150, 450):
            # Blocks, not bytes: tracing them takes ten times as long, and a leak is seen in both.
            garbage = sys.getallocatedblocks()
            gc.collect()
            found.append((garbage, sys.getallocatedblocks()))
    (_, before), (garbage, after) = found
    assert len(core.lifecycle.open) < 10
    # Less than a block for six spans, as tables grow; and without a collection few are kept.
    assert after < before + 50
    assert garbage < after + 2 * 450


def test_a_worker_that_only_reported_is_waited_for_but_ran_nothing():
    ident = Generations(make_limits()).first("s", ("s",), (), None)
    span = OpenSpan(0.0, (), ident, False)
    for worker, ran in (("ran", False), ("ran", True), ("ran", False), ("reported", False)):
        span.reported(worker, ran)
    for activity in ("thread-cpu", "executor"):
        span.activities[activity] = 1.5
    assert (span.ran_on, span.execute_seconds) == ({"ran"}, 3.0)
    assert span.workers.keys() == {"ran", "reported"}


def test_a_span_without_an_open_one_above_says_where_its_tree_ran(core: Driven) -> None:
    root = core.done()
    for _ in range(2):
        # The second time, the one above was exported.
        core.done(root, worker="w1")
        for _ in range(2):
            core.after(5.0, "w0", "w1")
    assert [one.ran_on for one in core.exported] == [None, {"w0", "w1"}, {"w1"}]


def test_many_ends_come_bit_by_bit_children_first(core: Driven) -> None:
    root = core.done()
    for _ in range(9):
        core.done(root)
    core.after(0.5, "w0")
    core.now += 10.0
    left = []
    for _ in range(3):
        core.lifecycle.tick(core.now, 4)
        left.append((len(core.lifecycle.open), core.lifecycle.behind))
    assert left == [(6, True), (2, True), (0, False)]
    assert core.lifecycle.finished[-1].identity == root.identity
