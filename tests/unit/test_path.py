"""The rule of a path, on steps that are made up; histories of real Dask are in `simulated`."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dask_otel.core.life.open_span import Group, OpenSpan
from dask_otel.core.life.task_runs import failed, finish_tasks
from dask_otel.core.path import chain as chains
from dask_otel.core.path.chain import MAX_LONGEST, MAX_SPANS, MAX_STEPS, on_path, path_of, stretch
from dask_otel.core.path.following import Paths
from dask_otel.core.path.step import BEFORE, CLIENT, END, Folded, RawStep, Share, SpanPath, cut
from dask_otel.core.path.waiting import (
    AT_ONCE,
    BEHIND,
    BEHIND_RELEASED,
    FREE,
    MAX_ENDS,
    NO_WORKER,
    TAKEN,
    Turn,
    turn_of,
    waits,
)
from dask_otel.core.records import Failure, RawRun, SpanIdentity, TaskRun
from dask_otel.semconv import PATH_PARTS
from tests.limits import make_task_limits

#: The threads of a cluster that are all taken, and of one that has had a free one since 3 s.
BUSY = (0.0, 0.0, 0.0, TAKEN)
FREED = (3.0, 0.0, 0.0, FREE)


def run(
    key: Any, sent: float, start: float, stop: float, fetched: float = 0.0, number: Any = None
) -> RawRun:
    times = {"seconds": stop - start, "start": start, "stop": stop, "sent": sent}
    return tuple(TaskRun(number=number, key=key, worker="w", fetched=fetched, **times))


def group(span: SpanPath) -> Group:
    return Group(span, "g", "g", None, 0.0)  # type: ignore[arg-type]


def chain(length: int, spans: int, start: float = 0.0) -> tuple[Paths, list[SpanPath]]:
    """Tasks of 1 s that follow one another, in spans by turns."""
    paths, roots = (
        Paths(lambda stimulus: 0.0, lambda: BUSY),
        [SpanPath(start) for _ in range(spans)],
    )
    groups = [group(root) for root in roots]
    paths.submitted(0, groups[0], "update-graph", 0.0)
    for number in range(length):
        stimulus, begin, end = f"task-finished-{number}", float(number), number + 1.0
        stop = end - 0.25 * (number % 7 == 0)
        paths.ended(stimulus, end, groups[number % spans], run(number, begin, begin, stop))
        assert paths.ready(number + 1, stimulus, end)
    return paths, roots


@pytest.mark.parametrize("spans", [1, 2, 3, 50])
def test_a_long_chain_keeps_its_sums_and_its_longest_links_in_bounded_memory(spans: int) -> None:
    length = 3000
    paths, roots = chain(length, spans)
    for number, root in enumerate(roots):
        found = path_of(root, length - spans + number + 1.0)
        assert found is not None
        path, longest = found
        assert path_of(root, length - spans + number + 1.0) == found, "a question changes nothing"
        assert path.tasks == length / spans
        assert sum(path.parts) == length - spans + number + 1.0
        elsewhere = path.parts[PATH_PARTS.index("other_span")]
        assert elsewhere == sum(path.parts) - length / spans
        assert path.parts[PATH_PARTS.index("report")] == pytest.approx(length / spans / 28, abs=0.5)
        held, step = 0, paths._last
        while not isinstance(step, Folded):
            assert step is not None
            held, step = held + 1, step[BEFORE]
        kept = [len(share.longest) for share in step.shares.values()]
        assert held <= MAX_STEPS
        assert max(kept) <= MAX_LONGEST
        assert len(longest) <= MAX_LONGEST + MAX_STEPS


def test_spans_beyond_the_limit_are_left_out_of_a_folded_chain_and_not_lied_about() -> None:
    paths, roots = chain(1000, 4 * MAX_SPANS)
    path = path_of(roots[0], 1000.0)
    assert path is not None
    assert sum(path[0].parts) == 1000.0
    assert isinstance(paths._folded, Folded)
    assert len(paths._folded.shares) <= MAX_SPANS


TIMES = st.lists(st.integers(0, 9).map(float), min_size=10, max_size=10)
#: The cluster's threads at some times.
THREADS = st.sampled_from(
    [BUSY, (2.0, 1.0, 1.0, FREE), (5.0, 2.0, 2.0, NO_WORKER), (7.0, 4.0, 2.0, TAKEN), None]
)


def in_order(begin: int) -> list[float]:
    return [*map(float, range(begin, begin + 10))]


@given(
    st.lists(st.tuples(TIMES, *[st.booleans()] * 6, THREADS, THREADS), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 12),
)
@example([(in_order(0), True, True, False, False, False, False, BUSY, BUSY)], 0, 12)
@example([(in_order(0), True, False, False, False, True, True, BUSY, FREED)], 0, 12)
@example(
    [(in_order(at), True, False, False, True, False, False, BUSY, BUSY) for at in (0, 10)], 0, 20
)
@example(
    [(in_order(at), True, False, False, False, False, False, BUSY, BUSY) for at in (0, 10)], 0, 20
)
def test_the_sums_of_links_are_those_of_their_cuts(
    links: list[tuple[Any, ...]], begin: int, until: int
) -> None:
    last: RawStep | None = None
    expected, since, submitted_alone = [0.0] * 11, float(begin), 0
    for times, ordered, repeated, fetched, at_once, behind, secedes, first, then in links:
        ordered_times = sorted(times) if ordered else times
        submitted, ready, lost, again, sent, turn, start, seceded, stop, end = ordered_times
        repeats = (lost, again) if repeated else (0.0, 0.0)
        waited = (submitted, ready, *repeats, first, first, first)
        if at_once and last is not None:
            waited = None
        ended = run("", sent, start, stop, float(fetched))
        held = seceded - start if secedes else None
        place = (turn, then) if behind else None
        last = (last, end, 1, None, waited, None, ended, (then, AT_ONCE, held), place)
        parts = cut(last, since, float(until))
        assert sum(parts) == max(0.0, min(end, until) - since)
        assert min(parts) >= 0.0
        before = -inf if last[BEFORE] is None else last[BEFORE][END]
        submitted_alone += before >= begin and parts[CLIENT] > 0.0
        expected = [a + b for a, b in zip(expected, parts, strict=True)]
        since = max(float(begin), end)
    none, parts, joined, others, found, known = stretch(last, float(begin), -inf, float(until))
    share = Share()
    cuts = [cut(link, max(at, begin), until) for at, link in others]
    share.add(len(found), joined, known, parts, *cuts)
    assert (share.parts, share.tasks, share.known, none) == (expected, len(links), True, None)
    alone = sum(
        at >= begin and one[CLIENT] > 0.0 for (at, _), one in zip(others, cuts, strict=True)
    )
    assert joined + alone == submitted_alone


def test_a_folded_chain_keeps_its_longest_links_with_their_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths, span = Paths(lambda stimulus: 0.0, lambda: BUSY), SpanPath(0.0)
    cuts = []
    monkeypatch.setattr(chains, "cut", lambda *args: cuts.append(args) or cut(*args))
    paths.submitted(0, tasks := group(span), "update-graph", 0.0)
    end = 0.0
    for number in range(1000):
        begin, end = end, end + (40.0 if number % 100 == 7 else 1.0)
        stimulus = f"task-finished-{end}"
        begin += 0.25
        one = run(number, begin, begin, end)
        paths.ended(stimulus, end, tasks, one, sent_to=(BUSY, AT_ONCE, None))
        assert paths.ready(number + 1, stimulus, end)
    assert len(cuts) <= 1, "the others are in order, and summed as they are"
    found = path_of(span, end)
    assert found is not None
    assert len(cuts) <= 1, "those to export are cut in their thread"
    longest = {s.run[2]: cuts for s, cuts in on_path(found[1], end) if sum(cuts) > 1.0}
    assert [*longest] == [*range(7, 1000, 100)]
    parts = dict.fromkeys(PATH_PARTS[:-1], 0.0) | {"no_thread": 0.25, "compute": 39.75}
    assert all(one == tuple(parts.values()) for one in longest.values())


def test_links_that_ended_before_their_span_began_are_no_part_of_it() -> None:
    _, (root,) = chain(80, 1, start=50.5)
    found = path_of(root, 80.0)
    assert found is not None
    assert sum(found[0].parts) == sum(sum(parts) for _, parts in on_path(found[1], 80.0)) == 29.5
    assert not found[0].parts[PATH_PARTS.index("other_span")]


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8), st.floats(0, 1e3))
def test_clocks_that_were_set_leave_a_sum_that_is_the_duration(
    times: list[float], fetched: float
) -> None:
    first, second, *others = times
    paths, span = Paths(lambda stimulus: first, lambda: BUSY), SpanPath(second)
    tasks = group(span)
    paths.submitted("a", tasks, "update-graph", others[0])
    paths.ended("one", others[1], tasks, run("a", others[2], others[3], others[4], fetched))
    paths.ready("b", "one", others[5])
    paths.ended("two", others[0], tasks, run("b", others[2], others[4], others[3], fetched))
    stop = max(second, others[1])
    found = path_of(span, stop)
    assert found is not None
    assert sum(found[0].parts) == pytest.approx(stop - second, abs=1e-6)
    assert min(found[0].parts) >= 0.0


def test_work_that_was_not_observed_from_its_beginning_has_no_path() -> None:
    paths, span = Paths(lambda stimulus: 0.0, lambda: BUSY), SpanPath(0.0)
    child, other = SpanPath(0.0, (span,)), SpanPath(0.0)
    paths.ended("one", 1.0, group(child), run("a", 0.0, 0.0, 1.0))
    paths.ready("b", "one", 1.0)
    paths.ended("two", 2.0, group(other), run("b", 1.0, 1.0, 2.0))
    assert path_of(span, 1.0) is path_of(child, 1.0) is None
    assert path_of(other, 2.0) is not None, "what it waited for is of another span"
    above = SpanPath(0.0)
    other.above, above.last = (above,), other.last
    assert path_of(above, 2.0) is not None
    above.unknown = True
    assert path_of(above, 2.0) is None, "its own tasks are unknown, those below it are not"
    other.unknown = True
    assert path_of(other, 2.0) is None


def test_a_run_that_is_lost_twice_is_repeated_since_the_first_was_sent() -> None:
    paths, span = Paths(lambda stimulus: 1.0, lambda: BUSY), SpanPath(0.0)
    tasks = group(span)
    paths.submitted("a", tasks, "update-graph", 2.0)
    for sent in (3.0, 6.0):
        paths.interrupted("a", sent, BUSY)
        assert not paths.ready("a", "a worker is lost", sent + 1.0)
        paths.ready_again("a", sent + 1.0, span)
    paths.ended("one", 10.0, tasks, run("a", 7.5, 8.0, 9.0))
    found = path_of(span, 10.0)
    assert found is not None
    parts = dict(zip(PATH_PARTS, found[0].parts, strict=True))
    assert {part: seconds for part, seconds in parts.items() if seconds} == {
        "client": 1.0, "scheduler": 1.0, "no_thread": 1.5, "repeated": 4.0,
        "starting": 0.5, "compute": 1.0, "report": 1.0,
    }  # fmt: skip


def test_a_task_that_is_to_run_again_is_asked_for_before_it_is_sent_at_once() -> None:
    paths, span = Paths(lambda stimulus: 1.0, lambda: BUSY), SpanPath(0.0)
    tasks = group(span)
    paths.submitted("b", tasks, "update-graph", 1.0)
    paths.ended("one", 2.0, tasks, run("a", 1.0, 1.0, 2.0))
    assert paths.at_once("one") == span.last
    assert paths.at_once("two") is None
    paths.interrupted("b", 1.0, BUSY)
    assert paths.at_once("one") is None
    assert paths.ready("b", "one", 2.0)
    assert paths.at_once("one") == span.last


def test_the_tasks_on_the_path_are_exported_beside_the_others_and_each_once() -> None:
    span = OpenSpan(0.0, (), SpanIdentity("d", "d", ("a",), 1, 1, 2, None), False)
    tasks, limits = Group(span, "g-1", "g", None, 0.0), make_task_limits(slowest=1, most=3)
    span.add(tasks)
    tasks.slowest = (run("9", 0.0, 0.0, 3.0, number=9),)
    paths = Paths(lambda stimulus: 0.0, lambda: BUSY)
    paths.submitted("0", tasks, "update-graph", 0.0)
    for number, seconds in enumerate([1.0, 0.25, 0.5]):
        key, begin, end = str(number), float(number), number + seconds
        one = run(key, begin, begin, end, number=number)
        if number == 2:
            one = (*one[:-1], Failure(2.0, "2", "g", "w", "E()", None))
            failed(tasks, one, limits)
        paths.ended(key, end, tasks, one)
        paths.ready(str(number + 1), key, end)
    known = path_of(span, 2.5)
    assert known is not None
    shown, dropped = finish_tasks(span, {tasks: 1}, limits, known[1], 2.5)
    assert len(shown) == len([*shown])
    found = [(task.run.key, task.path and task.path.before) for task in shown]
    assert found == [("2", ("0", 0)), ("9", None), ("0", None)]
    assert [task.path is not None for task in shown] == [True, False, True]
    assert [task.run.failure is not None for task in shown] == [True, False, False]
    assert dropped == 0


@pytest.mark.parametrize("slow", [0, 70, 140, 299])
def test_a_folded_chain_of_spans_by_turns_keeps_the_longest_links_of_each(slow: int) -> None:
    paths, spans = Paths(lambda stimulus: 0.0, lambda: BUSY), [SpanPath(0.0), SpanPath(0.0)]
    groups = [group(span) for span in spans]
    paths.submitted(0, groups[0], "update-graph", 0.0)
    took, begin = [], 0.0
    for number in range(300):
        took.append(1000.0 if number == slow else 1.0 + number * 37 % 300)
        stimulus, end = str(number), begin + took[-1]
        paths.ended(stimulus, end, groups[number % 4 // 3], run(number, begin, begin, end))
        assert paths.ready(number + 1, stimulus, end)
        begin = end
    for turn, span in enumerate(spans):
        found = path_of(span, begin)
        assert found is not None
        own = [number for number in range(300) if number % 4 // 3 == turn]
        expected = sorted(own, key=took.__getitem__)[-MAX_LONGEST:]
        assert [step.run[2] for step, _ in on_path(found[1], begin)] == sorted(expected)


def test_the_seconds_of_a_wait_are_those_of_the_cluster_state() -> None:
    none, taken, free = (0.0, 0.0, 0.0, NO_WORKER), (1.0, 1.0, 0.0, TAKEN), (3.0, 1.0, 0.0, FREE)
    later, gone = (7.0, 1.0, 4.0, TAKEN), (15.0, 1.0, 4.0, NO_WORKER)
    assert waits(0.5, none, 2.0, taken) == (0.5, 1.0, 0.0)
    assert waits(2.0, taken, 5.0, free) == (0.0, 1.0, 2.0)
    assert waits(0.0, none, 20.0, gone) == (6.0, 10.0, 4.0)
    assert waits(4.0, free, 6.0, free) == (0.0, 0.0, 2.0)
    assert waits(8.0, later, 9.0, None) == (0.0, 1.0, 0.0), "unknown"
    assert waits(9.0, free, 9.0, free) == (0.0, 0.0, 0.0)


def turn(
    how: int,
    sent: float,
    start: float,
    *ends: tuple[float, float] | tuple[float, float, str],
    pauses: Any = (),
) -> Turn | None:
    """The turn of a run on a worker whose clock is 100 s ahead; it took a second."""
    stop = start + 1.0
    others = [(str(noticed), at, BUSY, *(key or ["o"])) for noticed, at, *key in ends]
    own, later = (str(stop + 100.0), stop, FREED, "own"), ("0.0", stop, BUSY, "own")
    return turn_of([(float, pauses), *others, own, later], how, "own", sent, start, stop)


def test_a_task_has_its_turn_when_the_last_one_before_it_ended() -> None:
    ends = (103.0, 3.0), (106.0, 6.0)
    assert turn(BEHIND, 1.0, 4.0, *ends) == (3.0, BUSY)
    assert turn(BEHIND, 1.0, 6.0, *ends) == (6.0, BUSY)
    assert turn(AT_ONCE, 1.0, 4.0, *ends) is None
    assert turn(BEHIND, 1.0, 2.0, *ends) is None, "no other one ended"
    assert turn(BEHIND_RELEASED, 1.0, 2.0, *ends) == (2.0, FREED)
    assert turn(BEHIND_RELEASED, 1.0, 4.0, *ends) == (3.0, BUSY)
    own = (101.5, 1.5), (102.0, 2.0, "own"), *ends
    assert turn(BEHIND, 1.0, 2.0, *own) == (1.5, BUSY), "not when it seceded itself"
    many = [(103.0 + 0.01 * number, 3.0) for number in range(MAX_ENDS)]
    assert turn(BEHIND, 1.0, 2.0, *many) == (3.0, BUSY), "it began as soon as it could"
    assert turn(BEHIND, 1.0, 2.0, *many[1:]) is None, "none is missing"
    assert turn_of(None, BEHIND, "own", 1.0, 2.0, 3.0) is None
    assert turn_of((1.5, BUSY), BEHIND, "own", 1.0, 2.0, 3.0) == (1.5, BUSY)


def test_tasks_on_a_paused_worker_have_their_turn_after_the_pause() -> None:
    going, over = (5.0, inf, FREED), (5.0, 8.0, FREED)
    end = (103.0, 3.0)
    assert turn(BEHIND, 1.0, 3.0, end, pauses=[going]) == (3.0, BUSY), "it began before"
    assert turn(AT_ONCE, 4.5, 8.0, end, pauses=[over]) == (8.0, FREED)
    assert turn(AT_ONCE, 4.5, 7.9, end, pauses=[over]) == (8.0, FREED), "the message took a while"
    assert turn(AT_ONCE, 4.5, 5.1, end, pauses=[over]) is None, "it began before"
    again = (8.5, 8.7, BUSY)
    assert turn(AT_ONCE, 4.5, 8.0, end, pauses=[over, again]) == (8.0, FREED), "paused meanwhile"
    assert turn(BEHIND, 1.0, 3.0, end, pauses=[over]) == (3.0, BUSY)
    assert turn(AT_ONCE, 9.0, 9.5, end, pauses=[over]) is None, "sent later"
