"""Thread-seconds, call by call, and in any order: the exact sums, and those that must close.

Real Dask, where the truth of each thread is known, is in ``tests/simulated/test_idle.py``,
``test_histories.py`` and ``test_late_heartbeats.py``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dask_otel.core.idle.accounting import Accounting, Increments
from dask_otel.core.idle.worker import WorkerTime
from dask_otel.core.life.clock_offsets import UNKNOWN_OFFSET
from dask_otel.core.path.waiting import MAX_ENDS, TAKEN

#: Seconds: some messages of 1 ms each, on a few threads.
CLOSE = 0.02


class Totals:
    """Sums of all increments."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.span_idle: Counter[str] = Counter()
        self.span_capacity: Counter[str] = Counter()

    def add(self, step: Increments) -> None:
        """Add an export, and check what must hold for each one."""
        for name in ("capacity", "idle", "unused", "lost", "excess", "in_flight"):
            value = getattr(step, name)
            assert value >= 0.0, (name, value)
            self.sums[name] += value
        self.sums["reported"] += sum(step.span_reported.values())
        # No increment.
        self.sums["in_flight"] = step.in_flight
        assert min([*step.span_idle.values(), *step.span_reported.values()], default=0.0) >= 0.0
        self.span_idle.update(step.span_idle)
        self.span_capacity.update(step.span_idle)
        self.span_capacity.update(step.span_reported)

    def check(self) -> None:
        """The closed sums, to 1e-6 relative."""
        now = self.sums
        left = sum(now[name] for name in ("reported", "idle", "unused", "lost", "in_flight"))
        assert left == pytest.approx(now["capacity"] + now["excess"], rel=1e-6, abs=1e-6)
        assert self.span_idle.total() == pytest.approx(now["idle"], rel=1e-6, abs=1e-6)


def exported(accounting: Accounting, now: float) -> Increments:
    """Close an interval and settle it at once; the product does so in steps."""
    closed = accounting.begin_export(now)
    accounting.settle()
    return closed


def tell(accounting: Accounting, call: str, *arguments: Any) -> None:
    """Call a method of these arguments, the last of which is the time."""
    worker, *others, now = arguments
    if call == "task_assigned":
        accounting.task_assigned(accounting.workers.get(worker), *others, lambda: now)
    elif call == "task_done":
        accounting.task_done(accounting.workers.get(worker), *others, now)
    else:
        getattr(accounting, call)(*arguments)


#: Two cuts in a row between the end of a task and its seconds.
GAPS: list[tuple[Any, ...]] = [
    ("task_assigned", "x", "a", 0.0),
    ("task_assigned", "y", "a", 0.0),
    ("heartbeat", {}, {}, 1.0),
    ("task_done", "x", 0.99, 1.001),
    ("heartbeat", {}, {"a": 0.99}, 2.0),
    ("task_done", "y", 0.99, 2.001),
    ("heartbeat", {}, {"a": 0.99}, 3.0),
]

#: One worker with one thread: its events as calls, and the totals after the last one.
SCRIPTS: dict[str, tuple[list[tuple[Any, ...]], dict[str, float]]] = {
    # Heartbeats and ends come on two connections, in any order.
    "seconds that come before the end is known pay for it": (
        [
            ("heartbeat", {}, {}, 0.5),
            ("task_assigned", "x", "a", 0.6),
            ("heartbeat", {}, {"a": 0.3}, 1.0),
            ("task_done", "x", 0.3, 1.001),
            *[("heartbeat", {}, {}, now) for now in (1.5, 2.0, 2.5)],
        ],
        {"lost": 0.0, "excess": 0.0, "in_flight": 0.0, "idle": 2.2},
    ),
    # The last heartbeat comes after its task has ended, and before the report of that end.
    "what came ahead of its end is not lost with the worker": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("heartbeat", {}, {"a": 0.5}, 0.7),
            ("task_done", "x", 0.5, 0.701),
            ("worker_removed", 1.0),
        ],
        {"lost": 0.0, "idle": 0.5},
    ),
    "what vanished is lost once with the worker": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("heartbeat", {"x": 0.4}, {}, 0.5),
            ("heartbeat", {}, {}, 1.0),
            ("task_done", "x", 0.5, 1.001),
            ("worker_removed", 1.5),
        ],
        {"lost": 0.5, "idle": 1.0},
    ),
    # Both ends are known before the cut is, which lists the first run.
    "a late heartbeat that is older than two runs of a key loses none": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("heartbeat", {"x": 0.5}, {}, 0.5),
            ("task_done", "x", 1.0, 1.0),
            ("task_assigned", "x", "a", 1.0),
            ("task_done", "x", 1.0, 2.0),
            ("task_assigned", "x", "a", 2.0),
            ("heartbeat", {"x": 0.7}, {}, 2.1, 2.1 - 0.7),
            ("heartbeat", {"x": 0.9}, {}, 2.1, 2.1 - 0.9),
            ("heartbeat", {"x": 0.4}, {"a": 1.0}, 2.1, 2.1 - 1.4),
            ("heartbeat", {"x": 0.4}, {"a": 1.0}, 2.4),
        ],
        {"reported": 2.0, "idle": 0.0, "lost": 0.0, "excess": 0.0, "in_flight": 0.4},
    ),
    "seceded seconds that come before the end is known are excess once": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("task_seceded", "x", 0.2, 0.2),
            ("heartbeat", {"x": 0.5}, {}, 0.5),
            ("heartbeat", {}, {"a": 0.9}, 1.0),
            ("task_done", "x", 0.9, 1.001),
            ("heartbeat", {}, {}, 1.5),
        ],
        {"excess": 0.7, "idle": 1.3},
    ),
    # As of a run that failed, and whose message has no times.
    "an end of unknown length holds idle back until its seconds come": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("task_done", "x", None, 0.9),
            ("heartbeat", {}, {}, 1.0),
            ("heartbeat", {}, {"a": 0.9}, 2.0),
        ],
        {"idle": 1.1, "lost": 0.0, "excess": 0.0, "in_flight": 0.0},
    ),
    # By a clock that was set forward, and back again; it had run for half a second.
    "a guess of the elapsed seconds makes no excess": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("task_done", "x", 0.5, 0.5),
            ("task_assigned", "y", "a", 0.5),
            ("heartbeat", {"y": 20.5}, {"a": 0.5}, 1.0),
            ("task_done", "y", 0.7, 1.2),
            *[("heartbeat", {}, {"a": seconds}, now) for seconds, now in ((0.7, 1.5), (0.0, 2.0))],
        ],
        {"excess": 0.0, "idle": 0.8, "lost": 0.0, "in_flight": 0.0},
    ),
    # The message has the seconds of the code; the worker noticed the end later, and meters that.
    "an end that waited for a blocked event loop holds idle back until its seconds come": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("task_done", "x", 0.5, 3.0),
            ("heartbeat", {}, {}, 3.0),
            ("heartbeat", {}, {"a": 3.0}, 3.5),
        ],
        {"idle": 0.5, "lost": 0.0, "excess": 0.0, "in_flight": 0.0},
    ),
    "a worker takes what its last heartbeat listed with it, even if the code was shorter": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("heartbeat", {"x": 3.0}, {}, 3.0),
            ("task_done", "x", 0.5, 3.1),
            ("worker_removed", 3.1),
        ],
        {"idle": 0.1, "lost": 3.0, "in_flight": 0.0},
    ),
    "a heartbeat with what it had listed can be lost, even if the code was shorter": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("heartbeat", {"x": 3.0}, {}, 3.0),
            ("task_done", "x", 0.5, 3.1),
            *[("heartbeat", {}, {}, now) for now in (3.5, 4.0, 4.5)],
        ],
        {"idle": 1.5, "lost": 3.0, "excess": 0.0, "in_flight": 0.0},
    ),
    "a task that seceded was on its own until its worker noticed its end": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("heartbeat", {"x": 3.0}, {}, 3.0),
            ("task_seceded", "x", 0.2, 3.0),
            ("task_done", "x", 0.5, 3.1),
            ("heartbeat", {}, {"a": 3.0}, 3.5),
        ],
        {"idle": 3.3, "lost": 0.0, "excess": 2.8, "in_flight": 0.0},
    ),
    # Seconds of a span that is not active any more.
    "late seconds are in the capacity of their span": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("task_released", "x", 1.0),
            ("span_inactive", "a", 1.0),
            ("heartbeat", {}, {"a": 3.0}, 3.0),
        ],
        {"reported": 3.0, "idle": 0.0, "in_flight": 0.0},
    ),
    # It may have begun until each heartbeat.
    "a released task that never ran leaves idle seconds while its span is active": (
        [
            ("heartbeat", {}, {}, 0.5),
            ("task_assigned", "x", "a", 0.5),
            ("task_released", "x", 0.9),
            ("heartbeat", {}, {}, 1.0),
            ("span_inactive", "a", 1.3),
            *[("heartbeat", {}, {}, now) for now in (1.5, 2.0, 2.5, 3.0)],
        ],
        {"idle": 1.3, "unused": 1.7, "lost": 0.0, "in_flight": 0.0},
    ),
    # What the first one held back is not free for the second to book.
    "a cut between end and seconds makes no idle": (GAPS[:4], {"idle": 0.0}),
    "nor does a second one": (GAPS[:6], {"idle": 0.0}),
    "idle is what is left after them": (GAPS, {"idle": 1.02, "in_flight": 0.0}),
    # Both runs end before any cut of the first one arrives, at once with those of the second.
    "a failure that seceded and is retried while heartbeats are late": (
        [
            ("task_assigned", "x", "a", 0.0),
            *[("heartbeat", {"x": now}, {}, now) for now in (0.2, 0.5)],
            ("task_seceded", "x", 0.5, 0.5),
            ("heartbeat", {"x": 0.8}, {}, 0.8),
            ("task_done", "x", 2.0, 2.0),
            ("task_assigned", "x", "a", 2.0),
            ("task_seceded", "x", 0.5, 2.5),
            ("task_done", "x", 2.0, 4.0),
            *[("heartbeat", {"x": ran}, {}, 4.1, 4.1 - ran) for ran in (1.1, 1.4, 1.7)],
            ("heartbeat", {"x": 0.3}, {"a": 2.0}, 4.1, 1.8),
            *[("heartbeat", {"x": ran}, {}, 4.1, 2.1 - ran) for ran in (0.6, 0.9, 1.2, 1.5)],
            ("heartbeat", {"x": 1.8}, {}, 6.8, 3.0),
            ("heartbeat", {}, {"a": 2.0}, 6.8, 2.7),
            *[("heartbeat", {}, {}, 6.8, late) for late in (2.4, 1.5, 0.6)],
            *[("heartbeat", {}, {}, now) for now in (7.0, 7.5, 8.0)],
        ],
        {"reported": 4.0, "excess": 3.0, "idle": 7.0, "lost": 0.0, "in_flight": 0.0},
    ),
    # The last cut lists the first run of the key.
    "a second run that seceded and that no heartbeat listed is lost, too": (
        [
            ("task_assigned", "x", "a", 0.0),
            *[("heartbeat", {"x": now}, {}, now) for now in (0.5, 1.0)],
            ("task_seceded", "x", 1.4, 1.4),
            ("task_done", "x", 2.0, 2.0),
            ("task_assigned", "x", "a", 2.0),
            ("task_seceded", "x", 1.4, 3.4),
            ("task_released", "x", 3.5),
            ("worker_removed", 3.5),
        ],
        {"lost": 2.8, "idle": 0.7},
    ),
    # By its length it began after the cut, but its end had waited for a blocked event loop.
    "an end that a late heartbeat may not know holds idle back until its seconds come": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("task_done", "x", 0.1, 3.1),
            ("heartbeat", {}, {}, 3.1, 0.3),
            ("heartbeat", {}, {"a": 3.1}, 3.5),
        ],
        {"idle": 0.4, "lost": 0.0, "excess": 0.0, "in_flight": 0.0},
    ),
    # The released run had ended, of an unknown length; the end of the last one waited.
    "seconds of a released run do not pay for another one for certain": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("task_assigned", "y", "a", 0.0),
            ("task_released", "x", 0.125),
            ("heartbeat", {"x": 0.5}, {}, 0.5),
            ("heartbeat", {"y": 0.25}, {"a": 0.75}, 1.0),
            ("task_assigned", "z", "a", 1.0),
            ("task_done", "y", 0.375, 1.125),
            ("task_done", "z", 0.25, 3.0),
            ("heartbeat", {}, {"a": 0.375}, 3.0),
            ("heartbeat", {}, {"a": 1.875}, 3.5),
        ],
        {"idle": 0.5, "lost": 0.0, "excess": 0.0, "in_flight": 0.0},
    ),
    # What is more than a worker's threads had time for is the debt of an earlier cut.
    "seceded seconds are excess once, if a late heartbeat has those of an end after it": (
        [
            ("task_assigned", "x", "a", 1.0),
            ("task_seceded", "x", 0.0, 1.0),
            ("task_done", "x", 0.5, 1.5),
            ("heartbeat", {}, {"a": 0.5}, 5.0, 4.2),
            ("heartbeat", {}, {}, 5.5),
        ],
        {"idle": 5.5, "lost": 0.0, "excess": 0.5, "in_flight": 0.0},
    ),
    # Their worker's event loop was blocked, and sent its heartbeat first.
    "seceded seconds are excess once, if a heartbeat lists more tasks than threads before": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("task_assigned", "y", "a", 0.0),
            ("heartbeat", {"x": 3.0, "y": 3.0}, {}, 3.0),
            ("task_seceded", "x", 0.0, 3.0),
            ("task_seceded", "y", 0.5, 3.0),
            ("heartbeat", {"x": 3.5, "y": 3.5}, {}, 3.5),
            *[("task_done", key, 4.0, 4.0) for key in "xy"],
            ("heartbeat", {}, {"a": 8.0}, 4.5),
        ],
        {"excess": 7.5, "idle": 4.0, "lost": 0.0, "in_flight": 0.0},
    ),
    # The scheduler's was.
    "seceded seconds are excess once, if the seconds of another task come before": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("task_assigned", "y", "a", 0.0),
            ("heartbeat", {"x": 2.9}, {"a": 2.0}, 3.0, 0.1),
            ("task_seceded", "x", 0.5, 3.0),
            ("task_done", "y", 2.0, 3.0),
            ("task_done", "x", 3.2, 3.2),
            ("heartbeat", {}, {"a": 3.2}, 3.5),
            ("heartbeat", {}, {}, 4.0),
        ],
        {"excess": 2.7, "idle": 1.5, "lost": 0.0, "in_flight": 0.0},
    ),
    # By a clock that was set back by 0.3 s. It began at 0.9.
    "a guess of the elapsed seconds makes no excess of a task that has seceded": (
        [
            ("task_assigned", "x", "a", 0.9),
            ("heartbeat", {"x": -0.2}, {}, 1.0),
            ("task_seceded", "x", 0.1, 1.0),
            ("heartbeat", {"x": 0.3}, {}, 1.5),
            ("task_done", "x", 0.5, 1.7),
            ("heartbeat", {}, {"a": 0.8}, 2.0),
        ],
        {"idle": 1.9, "lost": 0.0, "excess": 0.7, "in_flight": 0.0},
    ),
    # Its second run has taken as long as it was assigned, but for the floats of clocks.
    "a run that was released and had ended is lost with its worker, too": (
        [
            ("task_assigned", "x", "a", 0.1),
            ("task_released", "x", 0.2),
            ("task_assigned", "x", "a", 0.4),
            ("task_done", "x", 0.1 + 1e-9, 0.5),
            ("worker_removed", 0.7),
        ],
        {"lost": 0.4, "idle": 0.3},
    ),
    "what vanished may have run until its worker's last heartbeat": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("heartbeat", {"x": 0.5}, {}, 0.5),
            ("heartbeat", {}, {}, 3.0),
            ("task_released", "x", 3.0),
            ("worker_removed", 3.0),
        ],
        {"lost": 3.0, "idle": 0.0, "in_flight": 0.0},
    ),
    # The worker's event loop was blocked when the first span ended, and the second one began.
    "late idle is shared by the time for which spans were active": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("task_done", "x", 0.5, 2.7),
            ("span_inactive", "a", 2.7),
            ("span_active", "b", "b", 2.7),
            ("task_assigned", "y", "b", 2.7),
            ("heartbeat", {"y": 0.3}, {"a": 0.5}, 3.0),
            ("heartbeat", {"y": 0.4}, {"b": 0.4}, 3.5),
            ("heartbeat", {"y": 0.4}, {"b": 0.5}, 4.0),
        ],
        {"idle": 2.2, "idle of a": 2.2 * 2.7 / 3.0, "idle of b": 2.2 * 0.3 / 3.0},
    ),
    # While the shares of closed intervals are settled.
    "idle is shared among roots, and then among their spans": (
        [
            ("span_active", "r", "b", 1.0),
            ("span_active", "r", "c", 3.0),
            ("span_inactive", "a", 7.0),
            # It is active again in the interval in which it ended.
            ("heartbeat", {}, {}, 8.0),
            ("span_inactive", "b", 9.0),
            ("span_active", "r", "b", 9.0),
            ("span_inactive", "b", 10.0),
            ("span_inactive", "c", 10.0),
            ("heartbeat", {}, {}, 12.0),
        ],
        {"idle": 10.0, "unused": 2.0, "idle of a": 4.0, "idle of b": 3.5, "idle of c": 2.5},
    ),
    "idle that a worker leaves is of the time when there was work": (
        [
            ("task_assigned", "x", "a", 0.0),
            ("task_released", "x", 0.4),
            ("span_inactive", "a", 0.4),
            ("heartbeat", {}, {}, 1.0),
            ("worker_removed", 1.0),
        ],
        {"idle": 0.4, "unused": 0.6, "in_flight": 0.0},
    ),
}


@pytest.mark.parametrize("each", [True, False], ids=["many intervals", "one"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, each: bool) -> None:
    calls, expected = SCRIPTS[name]
    accounting, totals = Accounting(0.0, float, float), Totals()
    accounting.worker_added("w", 1, 0.0)
    accounting.span_active("a", "a", 0.0)
    closed = []
    for call, *arguments in calls:
        of_worker = () if call.startswith("span_") else ("w",)
        tell(accounting, call, *of_worker, *arguments)
        now = arguments[2] if call == "heartbeat" else arguments[-1]
        if each:
            # Its shares are settled as the next interval ends.
            closed.append(accounting.begin_export(now))
    closed += accounting.begin_export(now), exported(accounting, now)
    for step in closed:
        totals.add(step)
        totals.check()
        assert totals.sums["idle"] <= expected["idle"] + CLOSE
    found = totals.sums | {f"idle of {span}": idle for span, idle in totals.span_idle.items()}
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=CLOSE)


def test_of_each_worker_the_first_tasks_are_the_oldest() -> None:
    accounting = Accounting(0.0, float, float)
    assert not [*accounting.oldest(5)]
    for worker in "uvw":
        accounting.worker_added(worker, 1, 0.0)
        for i in range(0 if worker == "u" else 4):
            tell(accounting, "task_assigned", worker, f"{worker}{i}", None, float(i))
    tell(accounting, "task_done", "v", "v0", 0.5, 5.0)
    assert [*accounting.oldest(5)] == ["v1", "v2", "w0", "w1"]
    assert [*accounting.oldest(2)] == ["v1", "w0"]
    assert len([*accounting.oldest(30)]) == 7


def test_memory_is_bounded_by_what_is_open() -> None:
    accounting = Accounting(0.0, float, float)
    accounting.worker_added("w", 2, 0.0)
    for i in range(1000):
        span, now = f"span-{i}", float(i)
        accounting.span_active("root", span, now)
        tell(accounting, "task_assigned", "w", i, span, now)
        accounting.task_seceded("w", i, 0.1, now + 0.1)
        if i % 2:
            tell(accounting, "task_done", "w", i, 0.5, now + 0.5)
        else:
            accounting.task_released("w", i, now + 0.5)
        accounting.span_inactive(span, now + 0.5)
        accounting.heartbeat("w", {}, {span: 0.5}, now + 0.9)
        exported(accounting, now + 0.9)
    account = accounting.workers["w"]
    tasks = account.tasks
    held = [getattr(tasks, name) for name in type(tasks).__slots__]
    assert not any(value for value in held if isinstance(value, dict | list))
    assert repr(tasks) == "<WorkerTasks: 0 processing, 0 ended>"
    assert not account.recent_spans
    assert not accounting._spans
    assert not accounting._sharing._trees


# ------------------------------------------------------------------------------- noise

workers = st.sampled_from("uvw")
keys = st.sampled_from([1, "x", ("y", 2), ("z", 0)])
spans = st.sampled_from("abc")
optional = st.one_of(st.none(), st.floats(-1.0, 9.0))
calls = st.one_of(
    st.tuples(st.just("worker_added"), workers, st.integers(0, 4)),
    st.tuples(st.just("worker_removed"), workers),
    st.tuples(st.just("task_assigned"), workers, keys, st.one_of(st.none(), spans)),
    st.tuples(st.just("task_done"), workers, keys, optional),
    st.tuples(st.just("task_released"), workers, keys),
    st.tuples(st.just("task_stolen"), keys, workers, workers),
    st.tuples(st.just("task_seceded"), workers, keys, optional),
    st.tuples(st.just("span_active"), st.sampled_from("rs"), spans),
    st.tuples(st.just("span_inactive"), spans),
)
beats = st.tuples(
    workers,
    st.dictionaries(keys, st.floats(-1.0, 9.0)),
    st.dictionaries(spans, st.floats(allow_nan=True, allow_infinity=True)),
    st.floats(0.0, 9.0),
)


@given(st.lists(st.tuples(st.floats(-0.5, 3.0), st.one_of(calls, beats)), max_size=60))
@example(
    [
        (0.0, ("worker_added", "u", 0)),
        (0.0, ("task_done", "u", 1, -1.0)),
        (0.0, ("worker_added", "u", 0)),
    ]
)
def test_no_order_of_events_breaks_the_sums(events: list) -> None:
    """Whatever comes, in any order and with a clock that steps back, the sums are closed."""
    accounting, totals, now = Accounting(0.0, float, float), Totals(), 0.0
    for passed, event in events:
        now += passed
        if event[0] in ("u", "v", "w"):
            worker, executing, reported, travelled = event
            accounting.heartbeat(worker, executing, reported, now, travelled)
        else:
            tell(accounting, *event, now)
        totals.add(exported(accounting, now))
        totals.check()


def test_a_worker_keeps_a_bounded_number_of_ends() -> None:
    worker, kept = WorkerTime(1, 0.0, 0.0, float, UNKNOWN_OFFSET), []
    for second in range(10 * MAX_ENDS):
        kept.append((str(second), float(second), (0.0, 0.0, 0.0, TAKEN), second))
        before = worker.ends
        before.append(kept[-1])
        copied = [*before]
        worker.begin_interval(0.0, ())
        assert before == copied, "runs keep it"
        assert len(worker.ends) <= 2 * MAX_ENDS
        assert worker.ends[1:][-MAX_ENDS:] == kept[-MAX_ENDS:]
