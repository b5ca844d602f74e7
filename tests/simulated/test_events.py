"""What happened on a cluster, as the log records say it: each end of a worker in a sentence."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import dask
import pytest
from distributed import Client, span, wait

from dask_otel import semconv
from dask_otel._dask import events, nannies
from dask_otel._wire import uninstall
from dask_otel.core.figures import size
from dask_otel.core.records import Fact
from dask_otel.core.text import Sanitizer
from dask_otel.lab.threads import here
from tests.simulated.bridged import Bridged
from tests.simulated.tasks import boom, nap

WARN, ERROR, INFO = semconv.WARN, semconv.ERROR, semconv.INFO
REASON = semconv.WORKER_REMOVAL_REASON
ONCE = {"distributed.scheduler.allowed-failures": 0}


@pytest.mark.options(workers=1, threads=1, config=ONCE)
def test_a_killed_worker(b: Bridged) -> None:
    with span("nightly"):
        future = b.client.submit(nap, 60)
    time.sleep(2.0)
    b.cluster.kill("w0")
    wait(future)
    assert b.said(semconv.WORKER_ADDED).body == "Worker w0 (lab://w0) joined with 1 thread."
    log = b.said(semconv.WORKER_REMOVED)
    memory = size(log.attributes.pop(semconv.WORKER_MEMORY_USAGE.name))
    assert log.body == (
        "Worker w0 (lab://w0) was lost: its connection dropped without notice. Its process was "
        "killed or crashed, or the network failed. At its last heartbeat, 500 ms before, it held "
        f"{memory}, used 0% of a CPU for each thread and ran `nap` for 1.49 s. It had 1 task to "
        "run: `nap`. 1 task failed for good: more workers died than "
        "distributed.scheduler.allowed-failures. No other worker runs tasks. Its last lines "
        "are unknown: otel.logs.level is off."
    )
    assert log.attributes == {
        semconv.WORKER_NAME: "w0",
        semconv.WORKER_ADDRESS: "lab://w0",
        semconv.WORKER_THREAD_COUNT.name: 1,
        semconv.WORKER_CPU_UTILIZATION.name: 0.0,
        semconv.WORKER_LAST_SEEN_AGE.name: 0.5,
        REASON: "lost",
        semconv.WORKER_REMOVAL_EXPECTED: False,
        semconv.TASK_COUNT: 1,
        semconv.TASK_RUNNING_COUNT: 1,
        semconv.TASK_OUTCOME_COUNT.format("erred"): 1,
        semconv.TASK_PREFIXES: ("nap",),
        semconv.RESULT_LOST_COUNT: 0,
        semconv.DATA_LOST_COUNT: 0,
        semconv.ROOT_NAMES: ("nightly",),
    }
    nightly = b.received.named("nightly")
    assert (log.trace_id, log.span_id) == (nightly.trace_id, nightly.span_id)
    assert log.severity == ERROR, "its task has failed"


@pytest.mark.options(workers=3, threads=1)
def test_the_task_that_several_workers_had_as_they_died(b: Bridged) -> None:
    future = b.client.submit(nap, 60, key="killer-1")
    for _ in range(2):
        time.sleep(1.0)
        b.cluster.kill(b.scheduler.tasks[future.key].processing_on.name)
    time.sleep(events.PATIENCE + 1.0)
    log = b.said(semconv.WORKER_REMOVED)
    assert log.attributes[semconv.TASK_SUSPECTS] == ("killer-1",)
    assert "Suspected: killer-1 (assigned to each of 2 workers that ended)." in log.body


@pytest.mark.parametrize(
    ("deaths", "running", "suspects"),
    [
        ({"a": 1, "b": 1}, "ab", {}),
        ({}, "", {}),
        ({"a": 1, "b": 3, "c": 3, "d": 2}, "", {"bc": 3}),
        # Those that ran, if a heartbeat has said so.
        ({"a": 1, "b": 3, "c": 3, "d": 2}, "abd", {"b": 3}),
        ({"a": 1, "b": 3, "c": 3, "d": 2}, "ad", {"bc": 3}),
    ],
)
def test_who_is_suspected(deaths: dict[str, int], running: str, suspects: dict[str, int]) -> None:
    tasks: list[Any] = [SimpleNamespace(key=key, suspicious=n) for key, n in deaths.items()]
    found = events._suspects(tasks, [task for task in tasks if task.key in running])
    assert found == {
        name: value
        for keys, count in suspects.items()
        for name, value in ((semconv.TASK_SUSPECTS, [*keys]), (Fact.DEATHS, count))
    }


def test_of_running_tasks_the_longest_of_each_prefix_counts() -> None:
    running = [("a", 1.0), ("b", 2.0), ("a", 3.0)]
    tasks: dict[Any, float] = {Mock(**{"group.prefix.name": name}): took for name, took in running}
    assert events._running(tasks) == [("a", 2, 3.0), ("b", 1, 2.0)]


@pytest.mark.options(workers=1)
def test_a_worker_without_a_nanny_that_a_client_restarts_is_not_lost(b: Bridged) -> None:
    b.cluster.restart()
    log = b.said(semconv.WORKER_REMOVED)
    assert (log.attributes[semconv.WORKER_REMOVAL_REASON], log.severity) == ("restarted", INFO)
    assert log.body.startswith("Worker w0 (lab://w0) ended: a client restarted it.")


@pytest.mark.options(workers=2)
def test_the_end_of_a_cluster_waits_for_no_nanny(b: Bridged, monkeypatch: Any) -> None:
    monkeypatch.setattr(events, "PATIENCE", 600.0)
    monkeypatch.setattr(nannies, "_MOMENT", 600.0)
    b.cluster.add_worker("nursed", nanny="lab://nanny")
    b.cluster.kill("nursed")
    time.sleep(1.0)
    ((*_, asking),) = b.bridge.adapter.events._pending.values()
    before = time.time()
    b.client.run_on_scheduler(uninstall)
    assert time.time() - before < 1.0
    assert asking.cancelled()
    log = b.said(semconv.WORKER_REMOVED)
    assert semconv.WORKER_EXIT_CODE not in log.attributes
    assert "Its process was killed or crashed, or the network failed." in log.body


def ends(b: Bridged) -> list[dict[str, Any]]:
    return [log.attributes for log in b.received.logs if log.name == semconv.WORKER_REMOVED]


@pytest.mark.options(workers=1)
def test_a_new_worker_at_the_address_of_one_that_has_gone(b: Bridged) -> None:
    """As with a fixed port: each end is said, with the words about that worker alone."""
    b.client.submit(nap, 60)
    time.sleep(1.0)
    b.cluster.kill("w0")
    del b.cluster._starts["w0"]
    second = b.cluster.add_worker("w0")
    assert b.said(semconv.WORKER_REMOVED).attributes[REASON] == "lost"
    time.sleep(0.5)
    b.cluster.do("w0", second.close_gracefully, False, "bye")
    # A reason is exported without its time, but with its signal.
    for name, reason in (("w1", f"nanny-close-{time.time()}"), ("w2", "signal-15")):
        worker = b.cluster.add_worker(name)
        b.cluster.do(name, partial(worker.close, reason=reason))
    b.cluster.workers.clear()
    time.sleep(events.CLOSING)
    assert [(at[REASON], at.get(semconv.WORKER_CLOSE_REASON)) for at in ends(b)] == [
        ("lost", None), ("requested", "bye"), ("closed", "nanny-close"), ("closed", "signal-15"),
    ]  # fmt: skip


@pytest.mark.options(config={"distributed.scheduler.worker-ttl": "3s"})
@pytest.mark.parametrize("returns", [False, True])
def test_a_worker_without_heartbeats(b: Bridged, returns: bool) -> None:
    # Dask asks its nanny to restart it, and gives it up after half a minute without an answer.
    b.cluster.add_worker("silent", nanny="lab://nanny")
    b.cluster.machines["silent"].stop(7.0 if returns else 600.0)
    overdue = b.said(semconv.WORKER_OVERDUE)
    assert "Worker silent (lab://silent) sent no heartbeat for 6.00 s, longer" in overdue.body
    time.sleep(31.0)
    del b.cluster.workers["silent"]
    log = b.said(semconv.WORKER_REMOVED)
    again = " A heartbeat came after that: too late." * returns
    given_up = "removed by Dask: it had sent no heartbeat for 6.00 s, longer than distributed."
    assert f"was {given_up}scheduler.worker-ttl.{again} At its last heartbeat" in log.body
    assert (log.attributes[REASON], log.attributes[semconv.WORKER_LAST_SEEN_AGE.name]) == (
        "overdue",
        pytest.approx(0.0 if returns else 36.0, abs=0.6),
    )


@pytest.mark.options(workers=2)
def test_clean_ends_are_no_warnings(b: Bridged) -> None:
    """A retired worker, one that leaves with a word, one at the end of its life."""
    assert b.said(semconv.SCHEDULER_STARTED).severity == INFO
    assert b.client.id in b.said(semconv.CLIENT_ADDED).body
    b.client.retire_workers([b.cluster.workers.pop("w0").address])
    assert b.said(semconv.WORKERS_RETIRED).attributes[semconv.WORKER_COUNT] == 1
    worker = b.cluster.workers.pop("w1")
    b.cluster.do("w1", worker.close_gracefully, False, "asked by a test")
    time.sleep(1.0)
    assert b.said(semconv.WORKER_REMOVED).attributes[semconv.WORKER_CLOSE_REASON] == (
        "asked by a test"
    )
    # Its reason comes after Dask has removed it.
    b.cluster.add_worker("short", lifetime=2.0)
    time.sleep(4.0)
    del b.cluster.workers["short"]
    assert "left: its lifetime was over" in b.said(semconv.WORKER_REMOVED).body
    assert "requested" not in b.said(semconv.WORKERS_RETIRED).body
    b.cluster.user("other", Client.close).result()
    assert b.said(semconv.CLIENT_REMOVED).severity == INFO
    assert [at[REASON] for at in ends(b)] == ["requested", "requested", "lifetime"]
    assert [log.name for log in b.received.logs if log.severity > INFO] == []


@pytest.mark.options(workers=1)
def test_paused_and_running_again(b: Bridged) -> None:
    b.cluster.pause("w0", 5.0)
    paused = b.said(semconv.WORKER_PAUSED)
    assert (paused.severity, "its memory is nearly full" in paused.body) == (WARN, True)
    assert "runs tasks again" in b.said(semconv.WORKER_RESUMED).body


@pytest.mark.options(otel={"logs": {"topics": ["mine"]}})
def test_graphs_clients_and_own_topics(b: Bridged) -> None:
    for topic, message in [("mine", {"rows": 5}), ("other", {"rows": 6}), ("mine", "second")]:
        b.client.log_event(topic, message)
    with pytest.raises(Exception, match="deserialization"):
        b.client.get(_Refused(), "x")
    assert b.client.id in b.said(semconv.GRAPH_FAILED).body
    texts = [log.body for log in b.received.logs if log.name == semconv.TOPIC_MESSAGE]
    assert texts == ['{"rows": 5}', "second"]


class _Refused(dict):  # type: ignore[type-arg]
    """A graph that can't be unpickled on the scheduler."""

    def __reduce__(self) -> Any:
        return boom, ()


def test_what_dask_logs_rarely(b: Bridged) -> None:
    """The messages are those of Dask's sources; they are hard to provoke."""
    with span("nightly"):
        future = b.client.submit(nap, 60)
    time.sleep(0.1)
    (address, *_) = b.scheduler.workers
    keys = [future.key, "gone"]
    for topic, message in [
        ("scheduler", {"action": "no-workers-timeout-exceeded", "keys": keys}),
        ("worker-fail-hard", {"worker": address, "exception_text": "KeyError('x')"}),
    ]:
        b.scheduler.log_event(topic, message)
    log = b.said(semconv.NO_WORKER)
    assert log.body.startswith("2 tasks failed: no suitable worker was")
    assert log.attributes[semconv.ROOT_NAMES] == ("nightly",)
    assert log.trace_id is not None
    assert "KeyError('x')" in b.said(semconv.WORKER_FAILED).body


@pytest.mark.options(workers=1)
def test_hostile_messages_hurt_nothing(b: Bridged) -> None:
    (worker,) = b.scheduler.workers
    for topic, message in [
        ("all", {"action": "remove-worker", "worker": worker}),
        ("all", {"action": "remove-worker", "worker": [1]}),
        ("all", {"action": ["remove-worker"]}),
        ("worker-restart-memory", {"worker": worker, "pid": 1, "rss": 5}),
        ("worker-restart-memory", {"worker": {}, "rss": "x"}),
        ("stealing", ["confirm"]),
        (worker, {"action": "closing-worker"}),
        ("scheduler", {"action": "worker-ttl-timed-out", "workers": ["x"]}),
    ]:
        b.client.log_event(topic, message)
    b.client.submit(nap, 3).result()
    names = {log.name for log in b.received.logs}
    assert not names & {semconv.WORKER_REMOVED, semconv.WORKER_TERMINATED}


@pytest.mark.options(otel={"logs": {"events": False}})
def test_switched_off(b: Bridged) -> None:
    b.client.submit(nap, 3).result()
    assert b.bridge.adapter.events._workers == {}
    assert b.received.logs == []


@pytest.mark.options(threads=1)
def test_stolen_tasks_are_summed_up(b: Bridged) -> None:
    loaded, _ = b.scheduler.workers
    busy = b.client.map(nap, [0.2] * 40, workers=[loaded], allow_other_workers=True, pure=False)
    wait(busy)
    moved = [one for _, one in b.scheduler.get_events("stealing") if one[0] == "confirm"]
    assert moved
    time.sleep(events.STEALS - 10)
    assert semconv.TASKS_STOLEN not in [log.name for log in b.received.logs]
    time.sleep(15)
    stolen = b.said(semconv.TASKS_STOLEN)
    about = (stolen.attributes[semconv.TASK_COUNT], stolen.severity)
    assert about == (len(moved), semconv.DEBUG)


@pytest.mark.filterwarnings("ignore:Dask annotations")
def test_a_shuffle_that_fails(b: Bridged, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    dataframe = pytest.importorskip("distributed.shuffle._shuffle")

    def broken(*args: Any, **kwargs: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr(dataframe.DataFrameShuffleRun, "_shard_partition", broken)
    frame = dask.datasets.timeseries("2000-01-01", "2000-01-05", freq="1h", partition_freq="1D")
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        assert b.client.compute(frame.shuffle("id")).exception() is not None
    log = b.said(semconv.P2P_FAILED)
    assert (log.severity, log.attributes[semconv.ROOT_NAMES]) == (ERROR, ("default",))
    assert log.attributes[semconv.P2P_ID] in log.body


def test_an_error_in_the_scheduler_itself(b: Bridged, monkeypatch: pytest.MonkeyPatch) -> None:
    table = b.scheduler._TRANSITIONS_TABLE
    whole = table["processing", "memory"]

    def transition(scheduler: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "doomed":
            raise AssertionError("the state is wrong")
        return whole(scheduler, key, *args, **kwargs)

    monkeypatch.setitem(table, ("processing", "memory"), transition)
    with span("nightly"):
        future = b.client.submit(nap, 0, key="doomed")
    log = b.said(semconv.TRANSITION_FAILED)
    said = [semconv.TASK_KEY, semconv.TASK_FINISH, semconv.ROOT_NAMES]
    assert [log.attributes[name] for name in said] == ["doomed", "memory", ("nightly",)]
    assert (log.severity, future.done()) == (ERROR, False)
    assert log.trace_id is not None


@pytest.mark.options(otel={"logs": {"topics": ["mine"]}}, unreconciled="a tag is hostile")
def test_changed_values_of_spans_and_events_are_all_counted(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their threads change values at the same time."""
    found: Counter[Sanitizer] = Counter()

    def count(sanitizer: Sanitizer, kind: str) -> None:
        before = sanitizer.counts
        known = before.get(kind, 0)
        if here() is not None:
            # Another thread has its turn.
            time.sleep(0.01)
        before[kind] = known + 1
        found[sanitizer] += kind == "nul"

    monkeypatch.setattr(Sanitizer, "count", count)
    for number in range(20):
        with span(f"a\0{number}"):
            b.client.submit(nap, 0.05, key=f"nap-{number}").result()
        for _ in range(5):
            b.client.log_event("mine", "a\0b")
            time.sleep(0.02)
    b.exported()
    # Others are made for one value, and nobody reads them.
    kept = [count for count in found.values() if count > 1]
    changed = b.received.last(semconv.OTEL_SANITIZED.name)
    assert changed[((semconv.OTEL_KIND, "nul"),)] == sum(kept) > 100
