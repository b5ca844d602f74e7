"""What the accounting says in the situations that make Dask's own idle figure untrue."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dask_otel.core.idle.accounting import Accounting
from dask_otel.core.idle.sharing import IdleSharing
from dask_otel.core.life.clock_offsets import WorkerOffset
from tests.unit.cluster_model import Cluster, Task, Totals, Worker, exported, taken

#: Seconds: some messages of 1 ms each, on a few threads.
CLOSE = 0.02


def cluster_of(*threads: int, fates: list[str] | None = None) -> Cluster:
    cluster = Cluster()
    for i, count in enumerate(threads):
        cluster.add_worker(
            Worker(f"w{i}", count, clock=3.0 * i, fates=itertools.cycle(fates or ["ok"]))
        )
    return cluster


def assert_true(cluster: Cluster, totals: Totals, within: float = CLOSE) -> None:
    truth = cluster.truth
    for name in ("reported", "idle", "unused", "lost", "excess"):
        assert getattr(totals, name) == pytest.approx(getattr(truth, name), abs=within), name
    assert totals.in_flight == pytest.approx(0.0, abs=1e-9)


def test_one_long_task_on_two_threads_makes_one_idle_second_a_second() -> None:
    cluster = cluster_of(2)
    cluster.submit(Task(duration=12.0))
    before = 0.0
    for tenth in range(1, 121):
        totals = cluster.run(tenth / 10)
        assert 0.099 <= totals.idle - before <= 0.103
        before = totals.idle
    totals = cluster.run(15.0)
    assert totals.idle == pytest.approx(12.0, abs=CLOSE)
    assert_true(cluster, totals)


#: Threads of each worker, fates of heartbeats in turn, tasks, and totals to be exact.
SCENARIOS: dict[str, tuple[tuple[int, ...], list[str], list[dict[str, Any]], dict[str, float]]] = {
    "many short tasks": (
        (4,), ["ok"], [{"duration": 0.05}] * 200, {"idle": 0.0, "lost": 0.0, "excess": 0.0}
    ),
    "thousands of tiny tasks": (
        (4,), ["ok"], [{"duration": 0.002}] * 3000, {"idle": 0.0, "lost": 0.0, "excess": 0.0}
    ),
    "failing tasks that are retried": (
        (4,), ["ok"], [{"duration": 0.3 + i / 10, "fails": True} for i in range(7)],
        {"lost": 0.0, "excess": 0.0},
    ),
    "failing tasks of unknown length": (
        (4,), ["ok"],
        [{"duration": 0.3 + i / 10, "fails": True, "known": False} for i in range(7)],
        {"lost": 0.0, "excess": 0.0},
    ),
    "failures whose heartbeat was dropped": (
        (2,), ["ok", "dropped"], [{"duration": 0.3, "fails": True}] * 20, {"excess": 0.0}
    ),
    "cancelled task that runs on": (
        (2,), ["ok"], [{"duration": 8.0, "cancel": 3.1}],
        {"idle": 3.1, "lost": 0.0, "excess": 0.0},
    ),
    "heartbeats dropped": (
        (2,), ["ok", "ok", "dropped"], [{"duration": 0.8}] * 20, {"excess": 0.0}
    ),
    "seceded task": (
        (2,), ["ok"], [{"duration": 6.0, "secede": 2.0}],
        {"excess": 4.0, "lost": 0.0, "idle": 10.0},
    ),
    "users book 4000 seconds": (
        (2,), ["ok"], [{"duration": 5.0, "extra": 4000.0}],
        {"excess": 4000.0, "idle": 5.0, "lost": 0.0},
    ),
    "cut between end and seconds": (
        (2,), ["ok"], [{"duration": 8.0, "cut_in_gap": True}],
        {"idle": 8.0, "lost": 0.0, "excess": 0.0},
    ),
    # As with a task that holds the GIL: its worker sends nothing until it ends.
    "cut between end and seconds of a task never listed": (
        (2,), [*["skipped"] * 15, *["ok"] * 100], [{"duration": 8.0, "cut_in_gap": True}],
        {"idle": 8.0, "lost": 0.0, "excess": 0.0},
    ),
    "task that waits for its input": (
        (2,), ["ok"], [{"duration": 2.0, "wait": 5.0}], {"idle": 12.0, "lost": 0.0, "excess": 0.0}
    ),
    "stolen tasks": (
        (1, 1), ["ok"],
        [{"duration": 1.0, "steal": 0.5 * i if i % 2 else None} for i in range(8)],
        {"lost": 0.0, "excess": 0.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    threads, fates, tasks, expected = SCENARIOS[name]
    cluster = cluster_of(*threads, fates=fates)
    for task in tasks:
        cluster.submit(Task(**task))
    follow(cluster, expected)


def follow(cluster: Cluster, expected: dict[str, float]) -> None:
    """Idle is never ahead of the truth, nor taken back, and all is true in the end."""
    before = 0.0
    while cluster.now < 25.0:
        totals = cluster.run(cluster.now + 0.25)
        over = totals.idle + totals.unused - cluster.truth.idle - cluster.truth.unused
        assert over <= CLOSE, cluster.now
        assert totals.idle >= before
        before = totals.idle
    assert_true(cluster, totals)
    assert {name: getattr(totals, name) for name in expected} == pytest.approx(expected, abs=CLOSE)


def test_a_failure_that_seceded_and_is_retried_while_heartbeats_are_late() -> None:
    """Both runs end before any cut of the first one arrives."""
    cluster = Cluster(interval=0.3)
    latencies = itertools.chain([0.001] * 7, itertools.cycle([3.0, *[0.001] * 8]))
    cluster.add_worker(Worker("w", 1, latencies=latencies))
    cluster.submit(Task(at=1.0, duration=2.0, fails=True, secede=0.5))
    follow(cluster, {"excess": 3.0, "lost": 0.0})


def test_a_worker_killed_after_3_seconds() -> None:
    cluster = cluster_of(2, 2)
    cluster.submit(Task(duration=6.0))
    cluster.call(3.0, lambda: cluster.kill(cluster.workers[0]))
    follow(cluster, {"lost": 3.0, "idle": 15.0, "excess": 0.0})


def test_a_worker_killed_after_a_second_run_seceded_that_no_heartbeat_listed() -> None:
    """What the last cut lists is the first run of the key: the second's seconds are lost, too."""
    cluster = Cluster()
    latencies = itertools.chain([0.001] * 3, itertools.repeat(3.0))
    worker = cluster.add_worker(Worker("w", 1, latencies=latencies))
    cluster.submit(Task(duration=2.0, secede=1.4, fails=True))
    cluster.call(3.5, lambda: cluster.kill(worker))
    cluster.call(10.0, lambda: cluster.add_worker(Worker("v", 1)))
    follow(cluster, {"lost": 2.8, "idle": 1.3, "unused": 13.0})


def test_a_tenant_without_work_gets_no_idle_and_two_with_work_share_it() -> None:
    cluster = cluster_of(2, 2)
    cluster.submit(Task(duration=4.0, span="a"))
    cluster.submit(Task(at=2.0, duration=1.0, span="b", worker=1))
    totals = cluster.run(6.0)
    # 3 threads idle for 2 s, then 2 for 1 s between the two, then 3 for 1 s.
    assert totals.span_idle["a"] == pytest.approx(6.0 + 1.0 + 3.0, abs=CLOSE)
    assert totals.span_idle["b"] == pytest.approx(1.0, abs=CLOSE)
    assert totals.span_capacity["a"] == pytest.approx(10.0 + 4.0, abs=CLOSE)


class Stepped:
    """A worker with two threads, one task of the scheduler's, and a clock that is set at times."""

    def __init__(self) -> None:
        self.accounting, self.totals, self.offset = Accounting(0.0), Totals(), WorkerOffset()
        self.accounting.worker_added("w", 2, 0.0)
        self.accounting.span_active("a", "a", 0.0)
        self.accounting.task_assigned("w", "x", "a", 0.0)

    def beat(self, second: float, shift: float, executing: dict[str, float]) -> None:
        """A heartbeat arrives after a millisecond, as the worker's clock has it."""
        now = second + 0.001
        travelled = self.offset.heartbeat(now, 0.001 - shift, 0.002)
        self.accounting.heartbeat("w", executing, {}, now, travelled)
        self.totals.add(exported(self.accounting, now))
        self.totals.check()
        assert self.totals.idle <= 2 * second + 0.01


@pytest.mark.parametrize("step", [-100.0, -1.0, 1.0, 100.0])
def test_a_worker_whose_clock_is_set_makes_no_phantom_idle(step: float) -> None:
    """Elapsed seconds and the delay both come from its wall clock."""
    worker = Stepped()
    for second in range(1, 60):
        shift = step if second > 20 else 0.0
        worker.beat(second, shift, {"x": second + shift})
        assert worker.totals.idle <= second + 0.01
    accounting, totals = worker.accounting, worker.totals
    accounting.task_done("w", "x", 60.0 + step, 60.0)
    accounting.span_inactive("a", 60.0)
    accounting.heartbeat("w", {}, {"a": 60.0}, 60.5)
    for second in (61.0, 61.5, 62.0):
        accounting.heartbeat("w", {}, {}, second)
    totals.add(exported(accounting, 62.0))
    totals.check()
    assert totals.idle == pytest.approx(60.0, abs=0.02)


@pytest.mark.parametrize("step", [-7200.0, -2.0, 2.0, 7200.0])
def test_where_a_clock_is_set_by_hours_idle_comes_as_soon_as_ever(step: float) -> None:
    """A task that waits for its input on a worker: only a cut tells that its thread is idle."""
    worker = Stepped()
    for second in range(1, 60):
        # There and back again: each way of the two is the one that looks late.
        worker.beat(second, step if 20 < second <= 40 else 0.0, {})
        assert 2 * (second - 3) <= worker.totals.idle


def test_a_task_that_ends_fails_or_is_cancelled_makes_no_jump() -> None:
    for change in ({}, {"fails": True}, {"cancel": 9.0}):
        cluster = cluster_of(4)
        cluster.submit(Task(duration=10.0, **change))
        before = 0.0
        while cluster.now < 30.0:
            totals = cluster.run(cluster.now + 0.1)
            free = totals.idle + totals.unused
            # Of four threads one settles as late as two heartbeats.
            assert free - before <= 0.4 + 1.0 + CLOSE
            before = free


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
    # What the first one held back is not free for the second to book.
    "a cut between end and seconds makes no idle": (GAPS[:4], {"idle": 0.0}),
    "nor does a second one": (GAPS[:6], {"idle": 0.0}),
    "idle is what is left after them": (GAPS, {"idle": 1.02, "in_flight": 0.0}),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str) -> None:
    calls, expected = SCRIPTS[name]
    accounting, totals = Accounting(0.0), Totals()
    accounting.worker_added("w", 1, 0.0)
    accounting.span_active("a", "a", 0.0)
    for call, *given in calls:
        of_worker = () if call == "span_inactive" else ("w",)
        getattr(accounting, call)(*of_worker, *given)
        now = given[2] if call == "heartbeat" else given[-1]
        totals.add(exported(accounting, now))
        totals.check()
        assert totals.idle <= expected["idle"] + CLOSE
    assert {key: getattr(totals, key) for key in expected} == pytest.approx(expected, abs=CLOSE)
    assert totals.span_capacity["a"] == pytest.approx(totals.reported + totals.idle)


def test_late_idle_goes_to_who_was_active_when_it_passed() -> None:
    sharing = IdleSharing(0.0)
    sharing.activate("a", "a", 0.0)
    a = sharing.spans["a"]
    sharing.activate("b", "b", 1.0)
    sharing.book_late(2.0, since=2.0, spans=[a])
    assert taken(sharing) == (2.0, 0.0, {"a": 1.0, "b": 1.0})
    sharing.deactivate("a", 3.0)
    sharing.book_late(2.0, since=2.0, spans=[a])
    assert taken(sharing) == (2.0, 0.0, {"a": 2.0})
    sharing.deactivate("b", 4.0)
    sharing.book_late(2.0, since=4.0, spans=[a])
    assert taken(sharing) == (0.0, 2.0, {})


def test_late_idle_of_a_time_without_work_is_unused() -> None:
    """That a released task did not hold a thread is known two cuts later; then work has ended."""
    accounting = Accounting(0.0)
    accounting.worker_added("w", 2, 0.0)
    accounting.span_active("s", "s", 0.0)
    for key in ("runs", "released"):
        accounting.task_assigned("w", key, "s", 0.0)
    accounting.task_released("w", "released", 0.0)
    accounting.task_done("w", "runs", 0.2, 0.2)
    accounting.span_inactive("s", 0.2)
    accounting.heartbeat("w", {}, {"s": 0.2}, 1.0)
    accounting.heartbeat("w", {}, {}, 2.0)
    step = exported(accounting, 2.0)
    assert (step.idle, step.unused) == pytest.approx((0.2, 3.6))
    assert step.span_idle == pytest.approx({"s": 0.2})


def test_a_task_that_was_stolen_at_once_leaves_no_span_on_its_first_worker() -> None:
    accounting = Accounting(0.0)
    for worker in ("a", "b"):
        accounting.worker_added(worker, 2, 0.0)
    accounting.span_active("s", "s", 1.0)
    accounting.task_assigned("a", "k", "s", 1.0)
    # Where the clock is coarse, both have the same time.
    accounting.task_stolen("k", "a", "b", 1.0)
    accounting.heartbeat("a", {}, {}, 2.0)
    assert not accounting._workers["a"].recent_spans


def test_weeks_of_running_cost_no_precision() -> None:
    accounting, totals, now = Accounting(0.0), Totals(), 0.0
    accounting.worker_added("w", 1000, now)
    accounting.span_active("a", "a", now)
    for i in range(2000):
        now = i * 1000.3
        accounting.task_assigned("w", i, "a", now)
        accounting.task_done("w", i, 0.25, now + 0.25)
        accounting.heartbeat("w", {}, {"a": 0.25}, now + 0.5)
        totals.add(exported(accounting, now + 1.0))
    totals.check()
    assert totals.excess == pytest.approx(0.0, abs=1e-4)
    assert totals.idle == pytest.approx((now + 1.0) * 1000 - 2000 * 0.25, rel=1e-9)


def test_memory_is_bounded_by_what_is_open() -> None:
    accounting = Accounting(0.0)
    accounting.worker_added("w", 2, 0.0)
    for i in range(1000):
        span, now = f"span-{i}", float(i)
        accounting.span_active("root", span, now)
        accounting.task_assigned("w", i, span, now)
        accounting.task_seceded("w", i, 0.1, now + 0.1)
        if i % 2:
            accounting.task_done("w", i, 0.5, now + 0.5)
        else:
            accounting.task_released("w", i, now + 0.5)
        accounting.span_inactive(span, now + 0.5)
        accounting.heartbeat("w", {}, {span: 0.5}, now + 0.9)
        exported(accounting, now + 0.9)
    account = accounting._workers["w"]
    tasks = account.tasks
    held = [getattr(tasks, name) for name in type(tasks).__slots__]
    assert not any(value for value in held if isinstance(value, dict | list))
    assert not account.recent_spans
    assert not accounting._spans
    assert not accounting._sharing._roots
