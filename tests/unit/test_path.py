"""The rule of a path, on steps that are made up; histories of real Dask are in `simulated`."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dask_otel.core.life.open_span import Group
from dask_otel.core.path.chain import MAX_LONGEST, MAX_SPANS, MAX_STEPS, on_path, path_of, stretch
from dask_otel.core.path.following import Paths
from dask_otel.core.path.step import BEFORE, CLIENT, END, Folded, RawStep, Share, SpanPath, cut
from dask_otel.core.path.waiting import AT_ONCE, BEHIND, FREE, NO_WORKER, TAKEN, turn_of
from dask_otel.core.records import RawRun, TaskRun
from dask_otel.semconv import PATH_PARTS

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
        Paths(lambda stimulus: 0.0, SimpleNamespace(present=BUSY)),
        [SpanPath(start) for _ in range(spans)],
    )
    groups = [group(root) for root in roots]
    waited: Any = paths.submitted(groups[0], "update-graph", 0.0)
    for number in range(length):
        stimulus, begin, end = f"task-finished-{number}", float(number), number + 1.0
        stop = end - 0.25 * (number % 7 == 0)
        paths.ended(stimulus, end, groups[number % spans], run(number, begin, begin, stop), waited)
        waited = paths.ready(number + 1, stimulus, end, None)
    return paths, roots


@pytest.mark.parametrize("spans", [1, 2, 3, 50])
def test_a_long_chain_keeps_its_sums_and_its_longest_links_in_bounded_memory(spans: int) -> None:
    length = 3000
    paths, roots = chain(length, spans)
    for number, root in enumerate(roots):
        found: Any = path_of(root, length - spans + number + 1.0)
        path, longest = found
        assert path_of(root, length - spans + number + 1.0) == found, "a question changes nothing"
        assert path.tasks == length / spans
        assert sum(path.parts) == length - spans + number + 1.0
        elsewhere = path.parts[PATH_PARTS.index("other_span")]
        assert elsewhere == sum(path.parts) - length / spans
        assert path.parts[PATH_PARTS.index("report")] == pytest.approx(length / spans / 28, abs=0.5)
        held = 0
        step: Any = paths._last
        while not isinstance(step, Folded):
            held, step = held + 1, step[BEFORE]
        kept = [len(share.longest) for share in step.shares.values()]
        assert held <= MAX_STEPS
        assert max(kept) <= MAX_LONGEST
        assert len(longest) <= MAX_LONGEST + MAX_STEPS


def test_spans_beyond_the_limit_are_left_out_of_a_folded_chain_and_not_lied_about() -> None:
    paths, roots = chain(1000, 4 * MAX_SPANS)
    path: Any = path_of(roots[0], 1000.0)
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
        repeats = ((lost, first, lost, then, lost), again) if repeated else (None, 0.0)
        waited = (submitted, ready, *repeats, first, first)
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


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8), st.floats(0, 1e3))
def test_clocks_that_were_set_leave_a_sum_that_is_the_duration(
    times: list[float], fetched: float
) -> None:
    first, second, *others = times
    paths, span = Paths(lambda stimulus: first, SimpleNamespace(present=BUSY)), SpanPath(second)
    tasks = group(span)
    waited = paths.submitted(tasks, "update-graph", others[0])
    first_run = run("a", others[2], others[3], others[4], fetched)
    paths.ended("one", others[1], tasks, first_run, waited)
    ready = paths.ready("b", "one", others[5], None)
    paths.ended("two", others[0], tasks, run("b", others[2], others[4], others[3], fetched), ready)
    stop = max(second, others[1])
    found: Any = path_of(span, stop)
    assert sum(found[0].parts) == pytest.approx(stop - second, abs=1e-6)
    assert min(found[0].parts) >= 0.0


def test_work_that_was_not_observed_from_its_beginning_has_no_path() -> None:
    paths, span = Paths(lambda stimulus: 0.0, SimpleNamespace(present=BUSY)), SpanPath(0.0)
    child, other = SpanPath(0.0, (span,)), SpanPath(0.0)
    paths.ended("one", 1.0, group(child), run("a", 0.0, 0.0, 1.0))
    ready = paths.ready("b", "one", 1.0, None)
    paths.ended("two", 2.0, group(other), run("b", 1.0, 1.0, 2.0), ready)
    assert path_of(span, 1.0) is path_of(child, 1.0) is None
    assert path_of(other, 2.0) is not None, "what it waited for is of another span"
    above = SpanPath(0.0)
    other.above, above.last = (above,), other.last
    assert path_of(above, 2.0) is not None
    above.unknown = True
    assert path_of(above, 2.0) is None, "its own tasks are unknown, those below it are not"
    other.unknown = True
    assert path_of(other, 2.0) is None


def test_a_task_that_is_to_run_again_is_asked_for_before_it_is_sent_at_once() -> None:
    paths, span = Paths(lambda stimulus: 1.0, SimpleNamespace(present=BUSY)), SpanPath(0.0)
    tasks = group(span)
    waited = paths.submitted(tasks, "update-graph", 1.0)
    paths.ended("one", 2.0, tasks, run("a", 1.0, 1.0, 2.0))
    assert paths.at_once("one") == (span.last, None)
    assert paths.at_once("two") is None
    paths.interrupted("b", waited, (1.0, BUSY, 1.0, BUSY, 1.0))
    assert paths.at_once("one") is None
    assert paths.ready("b", "one", 2.0, None)[0] is span.last
    assert paths.at_once("one") == (span.last, None)


@pytest.mark.parametrize("slow", [0, 70, 140, 299])
def test_a_folded_chain_of_spans_by_turns_keeps_the_longest_links_of_each(slow: int) -> None:
    paths, spans = (
        Paths(lambda stimulus: 0.0, SimpleNamespace(present=BUSY)),
        [SpanPath(0.0), SpanPath(0.0)],
    )
    groups = [group(span) for span in spans]
    waited: Any = paths.submitted(groups[0], "update-graph", 0.0)
    took, begin = [], 0.0
    for number in range(300):
        took.append(1000.0 if number == slow else 1.0 + number * 37 % 300)
        stimulus, end = str(number), begin + took[-1]
        ended = run(number, begin, begin, end)
        paths.ended(stimulus, end, groups[number % 4 // 3], ended, waited)
        waited = paths.ready(number + 1, stimulus, end, None)
        begin = end
    for turn, span in enumerate(spans):
        found: Any = path_of(span, begin)
        own = [number for number in range(300) if number % 4 // 3 == turn]
        expected = sorted(own, key=took.__getitem__)[-MAX_LONGEST:]
        assert [step.run[2] for step, _ in on_path(found[1], begin)] == sorted(expected)


def test_a_run_waited_for_the_end_before_it_also_since_its_worker_s_clock_was_set_back() -> None:
    # Of each end: its time on the worker's clock, which was set back before the last three.
    times = [("a", 10.0), ("b", 11.0), ("c", 12.0), ("d", 3.0), ("e", 4.0), ("own", 5.0)]
    ends = [(str(at), 100.0 + n, BUSY, key, True) for n, (key, at) in enumerate(times)]
    place: list[object] = [(float, ()), *ends]
    # It took 1.5 seconds, and so it began between d and e.
    assert turn_of(place, BEHIND, "own", 90.0, 103.5, 105.0) == (103.0, BUSY)
