"""Long chains of a path are folded; histories of real Dask are in `simulated`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dask_otel.core.life.open_span import Group
from dask_otel.core.path.chain import MAX_LONGEST, MAX_SPANS, MAX_STEPS, on_path, path_of
from dask_otel.core.path.following import Paths
from dask_otel.core.path.step import BEFORE, Folded, SpanPath
from dask_otel.core.path.waiting import TAKEN
from dask_otel.core.records import RawRun, TaskRun
from dask_otel.semconv import PATH_PARTS

#: The links of a chain, and their seconds: all differ, and the first one takes the longest.
TOOK = {number: 900.0 - number * 37 % 900 for number in range(900)}


def paths_of_a_full_cluster() -> Paths:
    return Paths(lambda stimulus: 0.0, SimpleNamespace(present=(0.0, 0.0, 0.0, TAKEN)))


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
