"""What the accounting says in the situations that make Dask's own idle figure untrue."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from dask_otel.core.idle.accounting import Accounting
from dask_otel.core.idle.sharing import IdleSharing
from dask_otel.core.idle.worker import WINDOW, RecentMinimum
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


SCENARIOS: dict[str, tuple[Callable[[], Cluster], dict[str, float]]] = {}


def scenario(**expected: float) -> Callable[[Callable[[], Cluster]], Callable[[], Cluster]]:
    def register(function: Callable[[], Cluster]) -> Callable[[], Cluster]:
        SCENARIOS[function.__name__] = (function, expected)
        return function

    return register


@scenario(idle=0.0, lost=0.0, excess=0.0)
def many_short_tasks() -> Cluster:
    cluster = cluster_of(4)
    for _ in range(200):
        cluster.submit(Task(duration=0.05))
    return cluster


@scenario(idle=0.0, lost=0.0, excess=0.0)
def thousands_of_tiny_tasks() -> Cluster:
    cluster = cluster_of(4)
    for _ in range(3000):
        cluster.submit(Task(duration=0.002))
    return cluster


@scenario(lost=0.0, excess=0.0)
def failing_tasks_that_are_retried() -> Cluster:
    cluster = cluster_of(4)
    for i in range(7):
        cluster.submit(Task(duration=0.3 + i / 10, fails=True))
    return cluster


@scenario(lost=0.0, excess=0.0)
def failing_tasks_of_unknown_length() -> Cluster:
    cluster = cluster_of(4)
    for i in range(7):
        cluster.submit(Task(duration=0.3 + i / 10, fails=True, tells=False))
    return cluster


@scenario(excess=0.0)
def failures_whose_heartbeat_was_dropped() -> Cluster:
    cluster = cluster_of(2, fates=["ok", "dropped"])
    for _ in range(20):
        cluster.submit(Task(duration=0.3, fails=True))
    return cluster


@scenario(excess=3.0, lost=0.0)
def failure_that_seceded_and_is_retried_while_heartbeats_are_late() -> Cluster:
    """Both runs end before any cut of the first one arrives."""
    cluster = Cluster(interval=0.3)
    latencies = itertools.chain([0.001] * 7, itertools.cycle([3.0, *[0.001] * 8]))
    cluster.add_worker(Worker("w", 1, latencies=latencies))
    cluster.submit(Task(at=1.0, duration=2.0, fails=True, secede=0.5))
    return cluster


@scenario(lost=3.0, idle=15.0, excess=0.0)
def worker_killed_after_3_seconds() -> Cluster:
    cluster = cluster_of(2, 2)
    cluster.submit(Task(duration=6.0))
    cluster.call(3.0, lambda: cluster.kill(cluster.workers[0]))
    return cluster


@scenario(lost=2.8, idle=1.3, unused=13.0)
def worker_killed_after_a_second_run_seceded_that_no_heartbeat_told_of() -> Cluster:
    """What the last cut lists is the first run of the key: the second's seconds are lost, too."""
    cluster = Cluster()
    latencies = itertools.chain([0.001] * 3, itertools.repeat(3.0))
    worker = cluster.add_worker(Worker("w", 1, latencies=latencies))
    cluster.submit(Task(duration=2.0, secede=1.4, fails=True))
    cluster.call(3.5, lambda: cluster.kill(worker))
    cluster.call(10.0, lambda: cluster.add_worker(Worker("v", 1)))
    return cluster


@scenario(idle=3.1, lost=0.0, excess=0.0)
def cancelled_task_that_runs_on() -> Cluster:
    cluster = cluster_of(2)
    cluster.submit(Task(duration=8.0, cancel=3.1))
    return cluster


@scenario(excess=0.0)
def heartbeats_dropped() -> Cluster:
    cluster = cluster_of(2, fates=["ok", "ok", "dropped"])
    for _ in range(20):
        cluster.submit(Task(duration=0.8))
    return cluster


@scenario(excess=4.0, lost=0.0, idle=10.0)
def seceded_task() -> Cluster:
    cluster = cluster_of(2)
    cluster.submit(Task(duration=6.0, secede=2.0))
    return cluster


@scenario(excess=4000.0, idle=5.0, lost=0.0)
def users_book_4000_seconds() -> Cluster:
    cluster = cluster_of(2)
    cluster.submit(Task(duration=5.0, extra=4000.0))
    return cluster


@scenario(idle=8.0, lost=0.0, excess=0.0)
def cut_between_end_and_seconds() -> Cluster:
    cluster = cluster_of(2)
    cluster.submit(Task(duration=8.0, cut_in_gap=True))
    return cluster


@scenario(idle=8.0, lost=0.0, excess=0.0)
def cut_between_end_and_seconds_of_a_task_never_listed() -> Cluster:
    """As with a task that holds the GIL: its worker sends nothing until it ends."""
    cluster = Cluster()
    fates = itertools.chain(["skipped"] * 15, itertools.repeat("ok"))
    cluster.add_worker(Worker("w", 2, fates=fates))
    cluster.submit(Task(duration=8.0, cut_in_gap=True))
    return cluster


@scenario(idle=12.0, lost=0.0, excess=0.0)
def task_that_waits_for_its_input() -> Cluster:
    cluster = cluster_of(2)
    cluster.submit(Task(duration=2.0, wait=5.0))
    return cluster


@scenario(lost=0.0, excess=0.0)
def stolen_tasks() -> Cluster:
    cluster = cluster_of(1, 1)
    for i in range(8):
        cluster.submit(Task(duration=1.0, steal=0.5 * i if i % 2 else None))
    return cluster


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    build, expected = SCENARIOS[name]
    cluster = build()
    before = 0.0
    while cluster.now < 25.0:
        totals = cluster.run(cluster.now + 0.25)
        over = totals.idle + totals.unused - cluster.truth.idle - cluster.truth.unused
        assert over <= CLOSE, cluster.now
        assert totals.idle >= before
        before = totals.idle
    assert_true(cluster, totals)
    for quantity, value in expected.items():
        assert getattr(totals, quantity) == pytest.approx(value, abs=CLOSE), quantity


def test_a_tenant_without_work_gets_no_idle_and_two_with_work_share_it() -> None:
    cluster = cluster_of(2, 2)
    cluster.submit(Task(duration=4.0, span="a"))
    cluster.submit(Task(at=2.0, duration=1.0, span="b", worker=1))
    totals = cluster.run(6.0)
    # 3 threads idle for 2 s, then 2 for 1 s between the two, then 3 for 1 s.
    assert totals.span_idle["a"] == pytest.approx(6.0 + 1.0 + 3.0, abs=CLOSE)
    assert totals.span_idle["b"] == pytest.approx(1.0, abs=CLOSE)
    assert totals.span_capacity["a"] == pytest.approx(10.0 + 4.0, abs=CLOSE)


def test_late_seconds_of_an_inactive_span_are_in_its_capacity() -> None:
    accounting = Accounting(0.0)
    accounting.worker_added("w", 1, 0.0)
    accounting.span_active("a", "a", 0.0)
    accounting.task_assigned("w", "x", "a", 0.0)
    accounting.task_released("w", "x", 1.0)
    accounting.span_inactive("a", 1.0)
    exported(accounting, 2.0)
    accounting.heartbeat("w", {}, {"a": 3.0}, 3.0)
    step = exported(accounting, 3.0)
    assert step.span_reported == pytest.approx({"a": 3.0})
    assert step.idle == step.in_flight == 0.0


@pytest.mark.parametrize("step", [-100.0, -1.0, 1.0, 100.0])
def test_a_worker_whose_clock_is_set_makes_no_phantom_idle(step: float) -> None:
    """Elapsed seconds and the delay both come from its wall clock."""
    accounting, totals = Accounting(0.0), Totals()
    accounting.worker_added("w", 2, 0.0, 0.001)
    accounting.span_active("a", "a", 0.0)
    accounting.task_assigned("w", "x", "a", 0.0)
    for second in range(1, 60):
        shift = step if second > 20 else 0.0
        elapsed, delay = second + shift, 0.001 - shift
        accounting.heartbeat("w", {"x": elapsed}, {}, second + 0.001, delay)
        totals.add(exported(accounting, second + 0.001))
        totals.check()
        assert totals.idle <= second + 0.01
    accounting.task_done("w", "x", 60.0 + step, 60.0)
    accounting.span_inactive("a", 60.0)
    for second in (60.5, 61.0, 61.5, 62.0):
        seconds = {"a": 60.0} if second == 60.5 else {}
        accounting.heartbeat("w", {}, seconds, second, 0.001 - step)
    totals.add(exported(accounting, 62.0))
    totals.check()
    assert totals.idle == pytest.approx(60.0, abs=0.02)


@pytest.mark.parametrize("step", [-7200.0, 7200.0])
def test_where_a_clock_is_set_by_hours_idle_comes_as_soon_as_ever(step: float) -> None:
    """A task that waits for its input on a worker: only a cut tells that its thread is idle."""
    accounting, totals = Accounting(0.0), Totals()
    accounting.worker_added("w", 2, 0.0, 0.001)
    accounting.span_active("a", "a", 0.0)
    accounting.task_assigned("w", "x", "a", 0.0)
    for second in range(1, 60):
        # There and back again: each way of the two is the one that looks late.
        shift = step if 20 < second <= 40 else 0.0
        accounting.heartbeat("w", {}, {}, second + 0.001, 0.001 - shift)
        totals.add(exported(accounting, second + 0.001))
        totals.check()
        assert 2 * (second - 3) <= totals.idle <= 2 * second + 0.01


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


def test_workers_come_and_go() -> None:
    cluster = Cluster()
    for i in range(6):
        cluster.submit(Task(duration=2.0, worker=i))
    for i in range(4):
        worker = Worker(f"w{i}", 1)
        cluster.call(3.0 + i, lambda w=worker: cluster.add_worker(w))
        cluster.call(20.0 + i, lambda w=worker: cluster.kill(w))
    totals = cluster.run(40.0)
    assert exported(cluster.accounting, 41.0).capacity == 0.0
    assert totals.capacity == pytest.approx(4 * 17.0)
    assert_true(cluster, totals)


def with_a_task() -> Accounting:
    """One thread, which has a task since the beginning."""
    accounting = Accounting(0.0)
    accounting.worker_added("w", 1, 0.0)
    accounting.span_active("a", "a", 0.0)
    accounting.task_assigned("w", "x", "a", 0.0)
    return accounting


def test_seconds_that_come_before_the_end_is_told_pay_for_it() -> None:
    """Heartbeats and ends come on two connections, in any order."""
    accounting, totals = Accounting(0.0), Totals()
    accounting.worker_added("w", 1, 0.0)
    accounting.span_active("a", "a", 0.0)
    accounting.heartbeat("w", {}, {}, 0.5)
    accounting.task_assigned("w", "x", "a", 0.6)
    accounting.heartbeat("w", {}, {"a": 0.3}, 1.0)
    accounting.task_done("w", "x", 0.3, 1.001)
    for now in (1.5, 2.0, 2.5):
        accounting.heartbeat("w", {}, {}, now)
    totals.add(exported(accounting, 2.5))
    assert totals.lost == totals.excess == totals.in_flight == 0.0
    assert totals.idle == pytest.approx(2.2)


def test_what_came_ahead_of_its_end_is_not_lost_with_the_worker() -> None:
    """The last heartbeat is cut when its task has ended and nobody has been told."""
    accounting, totals = with_a_task(), Totals()
    accounting.heartbeat("w", {}, {"a": 0.5}, 0.7)
    accounting.task_done("w", "x", 0.5, 0.701)
    accounting.worker_removed("w", 1.0)
    totals.add(exported(accounting, 1.0))
    totals.check()
    assert totals.lost == 0.0
    assert totals.idle == pytest.approx(0.5)


def test_what_vanished_is_lost_once_with_the_worker() -> None:
    accounting, totals = with_a_task(), Totals()
    accounting.heartbeat("w", {"x": 0.4}, {}, 0.5)
    accounting.heartbeat("w", {}, {}, 1.0)
    accounting.task_done("w", "x", 0.5, 1.001)
    accounting.worker_removed("w", 1.5)
    totals.add(exported(accounting, 1.5))
    totals.check()
    assert totals.lost == pytest.approx(0.5)
    assert totals.idle == pytest.approx(1.0)


def test_a_late_heartbeat_that_is_older_than_two_runs_of_a_key_loses_none() -> None:
    """Both ends are told before the cut is known, which lists the first run."""
    accounting, totals = Accounting(0.0), Totals()
    accounting.worker_added("w", 1, 0.0, 0.0)
    accounting.span_active("a", "a", 0.0)
    accounting.task_assigned("w", "x", "a", 0.0)
    accounting.heartbeat("w", {"x": 0.5}, {}, 0.5, 0.0)
    for ended in (1.0, 2.0):
        accounting.task_done("w", "x", 1.0, ended)
        accounting.task_assigned("w", "x", "a", ended)
    for at, executing, seconds in (
        (0.7, {"x": 0.7}, {}),
        (0.9, {"x": 0.9}, {}),
        (1.4, {"x": 0.4}, {"a": 1.0}),
        (2.4, {"x": 0.4}, {"a": 1.0}),
    ):
        now = max(2.1, at)
        accounting.heartbeat("w", executing, seconds, now, now - at)
        totals.add(exported(accounting, now))
        totals.check()
    assert totals.reported == 2.0
    assert totals.idle == totals.lost == 0.0
    assert totals.excess == pytest.approx(0.0)
    assert totals.in_flight == pytest.approx(0.4)


def test_seceded_seconds_that_come_before_the_end_is_told_are_excess_once() -> None:
    accounting, totals = with_a_task(), Totals()
    accounting.task_seceded("w", "x", 0.2, 0.2)
    accounting.heartbeat("w", {"x": 0.5}, {}, 0.5)
    accounting.heartbeat("w", {}, {"a": 0.9}, 1.0)
    accounting.task_done("w", "x", 0.9, 1.001)
    accounting.heartbeat("w", {}, {}, 1.5)
    totals.add(exported(accounting, 1.5))
    totals.check()
    assert totals.excess == pytest.approx(0.7)
    assert totals.idle == pytest.approx(1.3)


def test_two_cuts_in_a_row_between_end_and_seconds_make_no_idle() -> None:
    """What the first one held back is not free for the second to book."""
    accounting, totals = Accounting(0.0), Totals()
    accounting.worker_added("w", 1, 0.0)
    accounting.span_active("a", "a", 0.0)
    for key in "xy":
        accounting.task_assigned("w", key, "a", 0.0)
    for key, now, seconds in (("x", 1.0, {}), ("y", 2.0, {"a": 0.99})):
        accounting.heartbeat("w", {}, seconds, now)
        accounting.task_done("w", key, 0.99, now + 0.001)
        totals.add(exported(accounting, now + 0.002))
        assert totals.idle <= 0.02
    accounting.heartbeat("w", {}, {"a": 0.99}, 3.0)
    totals.add(exported(accounting, 3.0))
    assert totals.idle == pytest.approx(1.02)
    assert totals.in_flight == pytest.approx(0.0)


def test_late_idle_goes_to_who_was_active_when_it_passed() -> None:
    sharing = IdleSharing(0.0)
    sharing.activate("a", "a", 0.0)
    a = sharing.spans["a"]
    sharing.activate("b", "b", 1.0)
    sharing.book_late(2.0, since=2.0, spans=[a])
    assert taken(sharing, 2.0) == (2.0, 0.0, {"a": 1.0, "b": 1.0})
    sharing.deactivate("a", 3.0)
    sharing.book_late(2.0, since=2.0, spans=[a])
    assert taken(sharing, 3.0) == (2.0, 0.0, {"a": 2.0})
    sharing.deactivate("b", 4.0)
    sharing.book_late(2.0, since=4.0, spans=[a])
    assert taken(sharing, 4.0) == (0.0, 2.0, {})


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


def test_recent_minimum_forgets_after_two_windows() -> None:
    recent = RecentMinimum()
    assert recent.observe(5.0, 0.0) == 5.0
    assert recent.observe(3.0, 1.0) == 3.0
    assert recent.observe(4.0, WINDOW + 1.0) == 3.0
    assert recent.observe(6.0, 2 * WINDOW + 2.0) == 4.0
    assert recent.observe(7.0, 9 * WINDOW) == 7.0
