"""Long chains of a path are folded; histories of real Dask are in `simulated`."""

from __future__ import annotations

from collections.abc import Callable
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
from dask_otel.core.path.waiting import AT_ONCE, FREE, NO_WORKER, TAKEN
from dask_otel.core.records import RawRun, TaskRun
from dask_otel.semconv import PATH_PARTS

#: The links of a chain, and their seconds: all differ, and the first one takes the longest.
TOOK = {number: 900.0 - number * 37 % 900 for number in range(900)}


#: The threads of a cluster that are all taken.
BUSY = (0.0, 0.0, 0.0, TAKEN)


def paths_of_a_full_cluster() -> Paths:
    return Paths(lambda stimulus: 0.0, SimpleNamespace(present=BUSY))


def group(span: SpanPath) -> Group:
    return Group(span, "g", "g", None, 0.0)  # type: ignore[arg-type]


def run(key: object, begin: float, end: float) -> RawRun:
    return tuple(TaskRun(end - begin, None, key, "w", begin, end, sent=begin))


def chain(turn: Callable[[int], int]) -> tuple[Paths, list[SpanPath], float]:
    """Tasks that follow one another, in spans by turns; return when the last one ended, too."""
    paths = paths_of_a_full_cluster()
    spans = [SpanPath(0.0) for _ in {*map(turn, TOOK)}]
    groups = [group(span) for span in spans]
    waited: Any = paths.submitted(groups[0], "update-graph", 0.0)
    end = 0.0
    for number, took in TOOK.items():
        stimulus, begin, end = f"task-finished-{number}", end, end + took
        paths.ended(stimulus, end, groups[turn(number)], run(number, begin, end), waited)
        waited = paths.ready(number + 1, stimulus, end, None)
    return paths, spans, end


@pytest.mark.parametrize(
    "turn", [lambda n: 0, lambda n: n % 2, lambda n: n % 50, lambda n: n % 4 // 3]
)
def test_a_long_chain_keeps_its_sums_and_its_longest_links_in_bounded_memory(
    turn: Callable[[int], int],
) -> None:
    paths, spans, end = chain(turn)
    for place, span in enumerate(spans):
        own = sorted([n for n in TOOK if turn(n) == place], key=TOOK.__getitem__)
        found: Any = path_of(span, end)
        assert path_of(span, end) == found, "a question changes nothing"
        (path, longest), seconds = found, sum(TOOK[n] for n in own)
        parts = dict(zip(PATH_PARTS, path.parts, strict=True))
        assert (path.tasks, parts["compute"], sum(path.parts)) == (len(own), seconds, end)
        last = max(own)
        # After its last link, only the client was waited for.
        assert parts["client"] == sum(TOOK[n] for n in range(last + 1, len(TOOK)))
        assert [step.run[2] for step, _ in on_path(longest, end)] == sorted(own[-MAX_LONGEST:])
    early: Any = path_of(spans[0], end - 0.5)
    assert sum(early[0].parts) == end - 0.5, "a step is cut where the question ends"
    held, step = 0, paths._last
    while not isinstance(step, Folded):
        held, step = held + 1, step[BEFORE]
    assert held <= MAX_STEPS
    assert max(len(share.longest) for share in step.shares.values()) <= MAX_LONGEST


def test_spans_beyond_the_limit_are_left_out_of_a_folded_chain_and_not_lied_about() -> None:
    paths, spans, end = chain(lambda n: n % (4 * MAX_SPANS))
    path: Any = path_of(spans[0], end)
    assert sum(path[0].parts) == end
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
@example(
    [(in_order(at), True, True, False, False, False, False, BUSY, BUSY) for at in (0, 10)], 0, 20
)
# One has been free since 3 s.
@example([(in_order(0), True, False, False, False, True, True, BUSY, (3.0, 0.0, 0.0, FREE))], 0, 12)
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
        ended = tuple(TaskRun(0.0, None, "", "w", start, stop, sent=sent, fetched=float(fetched)))
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


def test_work_that_was_not_observed_from_its_beginning_has_no_path() -> None:
    paths, span = paths_of_a_full_cluster(), SpanPath(0.0)
    child, other, above = SpanPath(0.0, (span,)), SpanPath(0.0), SpanPath(0.0)
    paths.ended("one", 1.0, group(child), run("a", 0.0, 1.0))
    ready = paths.ready("b", "one", 1.0, None)
    paths.ended("two", 2.0, group(other), run("b", 1.0, 2.0), ready)
    assert path_of(span, 1.0) is path_of(child, 1.0) is None
    assert path_of(other, 2.0) is not None, "what it waited for is of another span"
    other.above, above.last = (above,), other.last
    assert path_of(above, 2.0) is not None
    above.unknown = True
    assert path_of(above, 2.0) is None, "its own tasks are unknown, those below it are not"
    above.unknown, other.unknown = False, True
    assert path_of(above, 2.0) is path_of(other, 2.0) is None


def test_a_task_that_is_to_run_again_is_asked_for_before_it_is_sent_at_once() -> None:
    paths, span = paths_of_a_full_cluster(), SpanPath(0.0)
    tasks = group(span)
    waited = paths.submitted(tasks, "update-graph", 1.0)
    paths.ended("one", 2.0, tasks, run("a", 1.0, 2.0))
    assert paths.at_once("one") == (span.last, None)
    assert paths.at_once("two") is None
    paths.interrupted("b", waited, (1.0, BUSY, 1.0, BUSY, 1.0))
    assert paths.at_once("one") is None
    assert paths.ready("b", "one", 2.0, None)[0] is span.last
    assert paths.at_once("one") == (span.last, None)


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8))
def test_clocks_that_were_set_leave_a_sum_that_is_the_duration(times: list[float]) -> None:
    first, second, *others = times
    paths = Paths(lambda stimulus: first, SimpleNamespace(present=BUSY))
    span = SpanPath(second)
    tasks = group(span)
    waited = paths.submitted(tasks, "update-graph", others[0])
    paths.ended("one", others[1], tasks, run("a", others[3], others[4]), waited)
    ready = paths.ready("b", "one", others[5], None)
    paths.ended("two", others[0], tasks, run("b", others[4], others[3]), ready)
    stop = max(second, others[1])
    found: Any = path_of(span, stop)
    assert sum(found[0].parts) == pytest.approx(stop - second, abs=1e-6)
    assert min(found[0].parts) >= 0.0
