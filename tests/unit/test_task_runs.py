"""Which runs of tasks are kept, and that nothing is lost without being counted."""

from __future__ import annotations

import gc
from collections.abc import Hashable
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel._dask.runs import MAX_PARTS, actions
from dask_otel.core import identity
from dask_otel.core.life import task_runs
from dask_otel.core.life.completion import finish
from dask_otel.core.life.open_span import Group, OpenSpan, TaskLimits
from dask_otel.core.records import (
    Failure,
    FinishedSpan,
    FinishedTask,
    RawRun,
    SpanIdentity,
    TaskRun,
)
from tests.environment import python
from tests.limits import make_limits, make_task_limits
from tests.unit.driven import Driven
from tests.unit.garbage import Colour

T = 1_000_000.0
FAILURE = Failure(T, "k", "load", "tcp://w", "ValueError('no')", '  File "a.py", line 1\n')


class Runs:
    """One open span into which runs are put as the adapter puts them."""

    def __init__(self, limits: TaskLimits, **others: Any) -> None:
        self.limits = limits
        self.all = make_limits(tasks=limits, **others)
        ident = SpanIdentity("d", "d", ("a",), 1, 1, 2, None)
        self.span = OpenSpan(T, (), ident, False)
        self.number = 0

    def group(self, name: str = "load-1") -> Group:
        group = Group(self.span, name, name.partition("-")[0], None, self.limits.floor)
        self.span.groups.append(group)
        return group

    def run(
        self, group: Group, key: Hashable, seconds: float, failure: Failure | None = None
    ) -> RawRun:
        self.number += 1
        group.start = group.start or T
        group.stop = max(group.stop, T + seconds)
        attempt = task_runs.attempt(self.span, key)
        run = TaskRun(seconds, self.number, key, "w", T, T + seconds, attempt, 0.0, 8, "int")
        return tuple(run._replace(failure=failure))

    def succeed(self, group: Group, key: Hashable, seconds: float) -> None:
        run = self.run(group, key, seconds)
        # As in the hot path: most runs are not even looked at.
        if seconds > group.floor or (self.limits.ratio and self.limits.most):
            task_runs.succeeded(group, run, self.limits)

    def fail(self, group: Group, key: Hashable, seconds: float) -> None:
        task_runs.failed(group, self.run(group, key, seconds, FAILURE), self.limits)

    def finish(self) -> FinishedSpan:
        return finish(self.span, Driven(), self.all, True)


def seconds_of(tasks: tuple[FinishedTask, ...]) -> list[float]:
    return [task.run.seconds for task in tasks]


# ------------------------------------------------------------------------ what is kept


@pytest.mark.parametrize(
    ("limits", "runs", "failed", "others", "dropped"),
    [
        # The slowest.
        ((3,), [(0, n, float(n), False) for n in range(9)], [], [8.0, 7.0, 6.0], 0),
        ((3,), [(0, n, 9.0 - n, False) for n in range(9)], [], [9.0, 8.0, 7.0], 0),
        ((2,), [(0, n, 0.0, False) for n in range(5)], [], [0.0, 0.0], 0),
        ((2,), [(0, n, one, False) for n, one in enumerate([5.0, 1.0, 3.0])], [], [5.0, 3.0], 0),
        # Of each group, those that are not exported, too.
        ((1,), [(n % 3, n, float(n), False) for n in range(9)], [], [8.0, 7.0, 6.0], 0),
        ((4, 0.0, 2), [(0, n, float(n), False) for n in range(9)], [], [8.0, 7.0], 0),
        # A key that fails twice failed once; the first ones are kept.
        ((0, 0.0, 1), [(0, n % 2, float(n), True) for n in range(4)], [2.0], [], 1),
        # Those that the sample chose, and the slowest of them count once.
        ((2, 1.0), [(0, n, float(n), False) for n in range(3)], [], [2.0, 1.0, 0.0], 0),
        ((1, 1.0, 4), [(n % 2, n, float(n), False) for n in range(6)], [], [5.0, 4.0, 3.0, 2.0], 2),
        (
            (0, 0.3),
            [(0, n, float(n), False) for n in range(20)],
            [],
            [float(n) for n in reversed(range(20)) if identity.is_sampled(n, 0.3)],
            0,
        ),
        # The failed ones come first, the longest before the others.
        (
            (2, 1.0, 3),
            [(n % 2, n, float(n), n < 2) for n in range(6)],
            [1.0, 0.0],
            [5.0],
            3,
        ),
    ],
)
def test_the_failed_the_slowest_and_the_chosen_are_kept_and_the_others_counted(
    limits: tuple[Any, ...],
    runs: list[tuple[int, int, float, bool]],
    failed: list[float],
    others: list[float],
    dropped: int,
) -> None:
    given = Runs(make_task_limits(*limits), max_groups=2)
    groups = [given.group(f"g{i}-1") for i in range(3)]
    for number, key, seconds, fails in runs:
        (given.fail if fails else given.succeed)(groups[number], key, seconds)
    finished = given.finish()
    found: dict[bool, list[float]] = {True: [], False: []}
    for task in finished.tasks:
        found[task.run.failure is not None].append(task.run.seconds)
    assert (found[True], found[False], finished.dropped_tasks) == (failed, others, dropped)
    assert seconds_of((*finished.tasks,)) == failed + others
    assert len(finished.tasks) == len(failed + others)
    assert finished.weight == 1 + len(finished.groups) + len(finished.tasks)


def test_attempts_are_known_or_absent() -> None:
    span: Any = Runs(make_task_limits()).span
    for key in ["a", "a", *range(task_runs.REPEATED)]:
        task_runs.repeated(span, key)
    assert len(span.runs.repeated) == task_runs.REPEATED
    assert (task_runs.attempt(span, "a"), task_runs.attempt(span, "b")) == (3, None)
    span.unknown = True
    assert task_runs.attempt(span, "a") is None


@pytest.mark.usefixtures("only_new_garbage")
def test_what_is_kept_is_nothing_to_collectors_of_garbage() -> None:
    runs = Runs(make_task_limits(slowest=1))
    group = runs.group()
    runs.succeed(group, "k", 1.5)
    for _ in range(2):
        # The inner tuple first, then the one around it.
        gc.collect()
    assert group.slowest
    assert not gc.is_tracked(group.slowest)


#: By how much the worker's clock is behind.
BEHIND = 100.0


def part(action: str, start: float, seconds: float) -> dict[str, Any]:
    return {"action": action, "start": start, "stop": start + seconds}


#: What a worker did before a run that it says began at T + 4, half a second too early.
ACTIONS: dict[str, tuple[list[dict[str, Any]], float | None, list[Any], float]] = {
    "transfers are shifted as their run, reads by their own clock": (
        [
            part("transfer", T + 2, 0.5),
            part("disk-read", T + 2.8 - BEHIND, 0.25),
            part("disk-write", T + 3, 0.1),
        ],
        BEHIND,
        [("transfer", T + 2.5, 0.5), ("disk-read", pytest.approx(T + 2.8), 0.25)],
        0.55,
    ),
    "a read ends before its run begins": (
        [part("disk-read", T + 4.5 - BEHIND, 0.25)],
        BEHIND,
        [("disk-read", T + 4.25, 0.25)],
        0.25,
    ),
    "at the same time, counted once": (
        [part("transfer", T + at, took) for at, took in ((1.0, 2.5), (1.5, 0.5), (2.5, 0.5))],
        None,
        [("transfer", T + at, took) for at, took in ((1.5, 2.5), (2.0, 0.5), (3.0, 0.5))],
        2.5,
    ),
    "a clock that nobody knows": ([part("disk-read", T + 3, 0.25)], None, [], 0.0),
    "an earlier run, and what ended before it was sent": (
        [part("transfer", T + 1, 0.1), part("compute", T + 2, 0.5), part("transfer", T, 0.1)],
        BEHIND,
        [],
        0.0,
    ),
}


@pytest.mark.parametrize(("before", "offset", "parts", "busy"), ACTIONS.values(), ids=ACTIONS)
def test_what_a_worker_did_before_a_run(
    before: list[dict[str, Any]], offset: float | None, parts: list[Any], busy: float
) -> None:
    startstops = [*before, part("compute", T + 4, 2.0), part("disk-write", T, 1.0)]
    found, seconds = actions(startstops, T + 1, T + 1, T + 4.5, offset)
    assert list(found) == parts
    assert seconds == pytest.approx(busy)
    assert actions([], T + 1, T + 1, T + 4.5, offset) == ((), 0.0)


def test_of_many_transfers_the_longest_are_kept() -> None:
    before = [part("transfer", T + 1 + i / 100, (i % 7 + 1) / 1000) for i in range(100)]
    parts, busy = actions([*before, part("compute", T + 4, 2.0)], T + 1, T + 1, T + 4, None)
    longest = sorted(stop["stop"] - stop["start"] for stop in before)
    assert sorted(seconds for _, _, seconds in parts) == longest[-MAX_PARTS:]
    assert [start for _, start, _ in parts] == sorted(start for _, start, _ in parts)
    assert busy == pytest.approx(sum(longest))


# ---------------------------------------------------------------------------- the keys


class Odd(int):
    def __repr__(self) -> str:
        return "odd"


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


KEYS = st.recursive(
    st.text() | st.binary() | st.integers() | st.floats(allow_nan=False),
    lambda keys: st.lists(keys, max_size=3).map(tuple),
    max_leaves=5,
)


@given(KEYS, KEYS)
def test_different_keys_have_different_texts_and_ids(one: Any, other: Any) -> None:
    if repr(one) == repr(other):
        assert identity.key_text(one) == identity.key_text(other)
    else:
        ids = {identity.task_span_id("d", key, 1) for key in (one, other)}
        texts = {identity.key_text(key) for key in (one, other)}
        # A text may spell what a number or a tuple is: runs' numbers tell these apart.
        assert len(ids) == len(texts)


#: Too deep to be read.
DEEP: Any = reduce(lambda key, _: (key,), range(100_000), ())


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (Unreadable(), "<unreadable>"),
        ((Unreadable(),), "<unreadable>"),
        (DEEP, "<unreadable>"),
        # What arrives elsewhere of a subclass.
        (Colour.RED, "red"),
        (("x", Odd(3), Colour.RED), identity.key_text(("x", 3, "red"))),
        *(("\ud800", None), ("x" * 10**6, None), (b"\xff", None), ((), None)),
    ],
    ids=range(9),
)
def test_any_key_has_an_id(key: Hashable, text: str | None) -> None:
    assert text in (None, identity.key_text(key))
    assert 0 < identity.task_span_id("d", key, 1) < 2**64
    assert identity.is_sampled(key, 1.0)
    assert not identity.is_sampled(key, 0.0)


def test_another_process_decides_alike() -> None:
    code = (
        "from dask_otel.core.identity import is_sampled, task_span_id\n"
        "print([is_sampled(('x', i), 0.3) for i in range(99)], task_span_id('d', ('x', 1), 7))"
    )
    chosen = [identity.is_sampled(("x", i), 0.3) for i in range(99)]
    assert python(code) == f"{chosen} {identity.task_span_id('d', ('x', 1), 7)}"
    assert 10 < sum(chosen) < 50


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_ratio_chooses_what_a_smaller_one_does(key: str, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert identity.is_sampled(key, more) >= identity.is_sampled(key, less)
