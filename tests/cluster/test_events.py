"""What happened on real clusters, as the log records say it: each end of a worker in a sentence."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, span

from dask_otel import semconv
from dask_otel._dask import events, nannies
from dask_otel.core.records import Fact
from tests.receiver import Log, Receiver, receiver
from tests.waiting import eventually

pytestmark = pytest.mark.unreconciled("it looks at events, not at numbers")

WARN, ERROR, INFO = semconv.WARN, semconv.ERROR, semconv.INFO
REASON = semconv.WORKER_REMOVAL_REASON


class Watched:
    """A cluster of real processes with the bridge, and what it says."""

    def __init__(self, cluster: LocalCluster, client: Client, received: Receiver) -> None:
        self.cluster, self.client, self.received = cluster, client, received

    @property
    def scheduler(self) -> Any:
        return self.cluster.scheduler

    @property
    def worker(self) -> Any:
        """The only worker."""
        (ws,) = self.scheduler.workers.values()
        return ws

    def said(self, name: str) -> Log:
        """Wait for the event of that name, and return the last one."""

        def found() -> Log | None:
            logs = [log for log in self.received.logs if log.name == name]
            return logs[-1] if logs else None

        return eventually(found, 60, f"{name}; got {self.names}")

    @property
    def names(self) -> list[str]:
        return [log.name for log in self.received.logs]

    def begun(self, function: Callable[..., Any], *args: Any, seconds: float = 1.2) -> Any:
        """Submit a task, and wait until heartbeats have listed it for a while."""
        future = self.client.submit(function, *args, pure=False)
        eventually(lambda: max([0, *self.worker.executing.values()]) >= seconds, 60, "it runs")
        return future


@contextmanager
def watched(
    monkeypatch: pytest.MonkeyPatch, otel: dict[str, Any] | None = None, **config: Any
) -> Iterator[Watched]:
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0",
               "silence_logs": False, "memory_limit": "500 MB"}  # fmt: skip
    options |= {key: config.pop(key) for key in options.keys() & config.keys()}
    with receiver("http/protobuf") as received:
        received.keeps = frozenset({"logs", "traces"})
        for key, value in {**received.environ, "OTEL_BLRP_SCHEDULE_DELAY": "20"}.items():
            monkeypatch.setenv(key, value)
        settings = {
            "distributed.scheduler.preload": ["dask_otel.preload"],
            "otel": dask.config.merge(dask.config.get("otel", {}), otel or {}),
            **{key.replace("__", "."): value for key, value in config.items()},
        }
        with dask.config.set(settings), LocalCluster(**options) as cluster, Client(cluster) as one:
            bridge = cluster.scheduler.plugins["dask-otel"].bridge
            eventually(lambda: bridge.wired is not None, what="exporters")
            yield Watched(cluster, one, received)
            errors = bridge.boundary._counts
        assert not errors


def nap(seconds: float) -> None:
    time.sleep(seconds)


def leave(code: int = 1) -> None:
    time.sleep(2)
    if code < 0:
        # It reaches another thread.
        os.kill(os.getpid(), -code)
        time.sleep(600)
    os._exit(code)


def hog() -> None:
    taken = []
    while True:
        taken.append(os.urandom(20_000_000))
        time.sleep(0.1)


def test_a_killed_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, distributed__scheduler__allowed_failures=0) as cluster:
        added = cluster.said(semconv.WORKER_ADDED)
        assert "joined with 1 thread. Its memory limit is 476.8 MiB." in added.body
        ws = cluster.worker
        with span("nightly"):
            future = cluster.begun(nap, 60)
        os.kill(ws.pid, signal.SIGKILL)
        log = cluster.said(semconv.WORKER_REMOVED)
        assert log.severity == ERROR, "its task has failed"
        assert f"Worker {ws.name} ({ws.address}) was lost: its connection broke without" in log.body
        assert "ran `nap` for 1." in log.body or "ran `nap` for 2." in log.body
        assert "Its nanny reported no kill for memory." in log.body
        assert "It had 1 task to run: `nap`. 1 task failed for good" in log.body
        assert "guess" not in log.body
        assert log.attributes[REASON] == "lost"
        assert log.attributes[semconv.WORKER_REMOVAL_EXPECTED] is False
        assert log.attributes[semconv.TASK_PREFIXES] == ("nap",)
        assert log.attributes[semconv.ROOT_NAMES] == ("nightly",)
        assert log.attributes[semconv.WORKER_MEMORY_USAGE.name] > 10_000_000
        spans = cluster.received.wait_for(
            lambda r: [s for s in r.spans if s.attributes.get("dask.span.name") == "nightly"]
        )
        assert (log.trace_id, log.span_id) == (spans[0].trace_id, spans[0].span_id)
        del future


def test_a_worker_that_its_nanny_ends_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, distributed__worker__memory__terminate=0.8) as cluster:
        ws = cluster.worker
        future = cluster.client.submit(hog, pure=False)
        word = cluster.said(semconv.WORKER_TERMINATED)
        log = cluster.said(semconv.WORKER_REMOVED)
        assert "is being ended by its nanny for memory" in word.body
        assert log.attributes[REASON] == "memory"
        assert (
            f"Worker {ws.name} ({ws.address}) was killed by its nanny, since its process held "
        ) in log.body
        assert " of 476.8 MiB." in log.body
        rss = log.attributes[semconv.WORKER_NANNY_MEMORY]
        assert rss == word.attributes[semconv.WORKER_NANNY_MEMORY] > 0.8 * ws.memory_limit
        assert "It had 1 task to run: `hog`." in log.body
        assert log.severity == WARN
        future.cancel()


def test_a_task_that_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch) as cluster:
        future = cluster.begun(leave, seconds=0.1)
        log = cluster.said(semconv.WORKER_REMOVED)
        assert "was lost" in log.body
        assert "ran `leave` for " in log.body
        assert "It had 1 task to run: `leave`. No other worker runs tasks." in log.body
        future.cancel()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (3, "ended itself, with exit code 3."),
        (-signal.SIGKILL, "was killed with SIGKILL: by the kernel as memory ran out"),
        (-signal.SIGSEGV, "crashed with SIGSEGV"),
    ],
    ids=["exit", "kill", "crash"],
)
def test_how_a_process_ended(monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    """The nanny knows, and says it as soon as it is asked."""
    monkeypatch.setattr(events, "PATIENCE", 600.0)
    # The next worker lives on.
    once = {"distributed__scheduler__allowed_failures": 0}
    with watched(monkeypatch, n_workers=2, **once) as cluster:
        future = cluster.client.submit(leave, code, pure=False)
        log = cluster.said(semconv.WORKER_REMOVED)
        assert f"was lost: its connection dropped without notice. Its process {said}" in log.body
        assert log.attributes[semconv.WORKER_EXIT_CODE] == code
        assert "Suspected" not in log.body
        future.cancel()


def test_the_task_that_several_workers_had_as_they_died(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, n_workers=2) as cluster:
        future = cluster.client.submit(leave, key="killer-1")

        def twice() -> list[Log]:
            logs = [log for log in cluster.received.logs if log.name == semconv.WORKER_REMOVED]
            return [log for log in logs if semconv.TASK_SUSPECTS in log.attributes]

        log = eventually(twice, 60, "a second death")[0]
        assert log.attributes[semconv.TASK_SUSPECTS] == ("killer-1",)
        assert "Suspected: killer-1 (to run on each of 2 workers that ended)." in log.body
        future.cancel()


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


def test_the_end_of_a_cluster_waits_for_no_nanny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PATIENCE", 600.0)
    monkeypatch.setattr(events, "CLOSING", 600.0)
    monkeypatch.setattr(nannies, "_MOMENT", 600.0)
    with watched(monkeypatch) as cluster:
        os.kill(cluster.worker.pid, signal.SIGKILL)
        pending = cluster.scheduler.plugins["dask-otel"].bridge.adapter.events._pending
        ((*_, asking),) = eventually(lambda: list(pending.values()), what="the question")
    assert asking.cancelled()
    log = cluster.said(semconv.WORKER_REMOVED)
    assert semconv.WORKER_EXIT_CODE not in log.attributes
    assert "Its process was killed or crashed, or the network failed." in log.body


def test_a_new_worker_at_the_address_of_one_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a fixed port: each end is said, with the words about that worker alone."""
    said: list[Any] = []
    scheduler = SimpleNamespace(workers={}, clients={}, tasks={}, running=set())
    made = events.ClusterEvents(
        scheduler,  # type: ignore[arg-type]
        SimpleNamespace(open={}),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        lambda event, _: said.append(event) is None,
        True,
        (),
        None,
    )
    monkeypatch.setattr(events, "memory_of", lambda _: None)
    gone = {"action": "remove-worker", "worker": "tcp://a:1", "processing-tasks": ["x"],
            "expected": False, "lost-computed-tasks": (), "lost-scattered-tasks": ()}  # fmt: skip
    for name in ("first", "second"):
        ws: Any = SimpleNamespace(
            name=name, address="tcp://a:1", nthreads=1, last_seen=0.0, memory_limit=0,
            metrics={}, executing={}, nanny=None, pid=1,
        )  # fmt: skip
        made.worker_added(ws, 0.0)
        if name == "second":
            made.log_event(ws.address, {"action": "closing-worker", "reason": "bye"}, 0.0)
        made.log_event("all", gone, 0.0)
        # Of a client.
        made.log_event(ws.address, {"action": "worker-status-change", "status": "paused"}, 0.0)
    made.tick(events.CLOSING)
    ends = [event.facts for event in said if event.name == semconv.WORKER_REMOVED]
    assert [(end[semconv.WORKER_NAME], end[REASON]) for end in ends] == [
        ("first", "lost"),
        ("second", "closed"),
    ]


@pytest.mark.parametrize("returns", [False, True])
def test_a_worker_without_heartbeats(monkeypatch: pytest.MonkeyPatch, returns: bool) -> None:
    with watched(monkeypatch, distributed__scheduler__worker_ttl="3s") as cluster:
        ws = cluster.worker
        os.kill(ws.pid, signal.SIGSTOP)
        overdue = cluster.said(semconv.WORKER_OVERDUE)
        assert "sent no heartbeat for " in overdue.body
        if returns:
            os.kill(ws.pid, signal.SIGCONT)
        log = cluster.said(semconv.WORKER_REMOVED)
        assert log.attributes[REASON] == "overdue"
        assert "was given up, since it had sent no heartbeat for " in log.body
        age = semconv.WORKER_LAST_SEEN_AGE.name
        # The nanny may have been quicker than the heartbeat.
        again = log.attributes[age] < overdue.attributes[age]
        assert ("A heartbeat came after that, too late." in log.body) == again
        assert returns or not again


def test_clean_ends_are_no_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart, a retired worker, a client that goes, the end: each is said, as information."""
    with watched(monkeypatch) as cluster:
        assert cluster.said(semconv.SCHEDULER_STARTED).severity == INFO
        assert cluster.client.id in cluster.said(semconv.CLIENT_ADDED).body
        ws = cluster.worker
        cluster.client.restart_workers([ws.address])
        log = cluster.said(semconv.WORKER_REMOVED)
        assert (log.attributes[REASON], log.severity) == ("restarted", INFO)
        cluster.client.retire_workers([cluster.worker.address])
        assert cluster.said(semconv.WORKERS_RETIRED).attributes[semconv.WORKER_COUNT] == 1
        eventually(lambda: cluster.names.count(semconv.WORKER_REMOVED) == 2)
        log = cluster.said(semconv.WORKER_REMOVED)
        assert (log.attributes[REASON], log.severity) == ("requested", INFO)
        received = cluster.received
    assert [log.name for log in received.logs if log.severity > INFO] == []
    assert received.logs[-1].name == semconv.SCHEDULER_CLOSING


def test_a_worker_that_leaves_by_itself_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reason comes after Dask has removed it."""
    with watched(monkeypatch, distributed__worker__lifetime__duration="2s") as cluster:
        log = cluster.said(semconv.WORKER_REMOVED)
        assert (log.attributes[REASON], log.severity) == ("lifetime", INFO)
        assert "left, since its lifetime was over" in log.body
        assert "requested" not in cluster.said(semconv.WORKERS_RETIRED).body
    with watched(monkeypatch) as cluster:
        cluster.client.run(close_gracefully, wait=False)
        log = cluster.said(semconv.WORKER_REMOVED)
        assert (log.attributes[REASON], log.severity) == ("requested", INFO)
        assert log.attributes[semconv.WORKER_CLOSE_REASON] == "told by a test"


async def close_gracefully(dask_worker: Any) -> None:
    await dask_worker.close_gracefully(reason="told by a test")


def test_paused_and_running_again(monkeypatch: pytest.MonkeyPatch) -> None:
    never = {f"distributed__worker__memory__{part}": False for part in ("spill", "target")}
    with watched(monkeypatch, distributed__worker__memory__pause=0.5, **never) as cluster:
        future = cluster.client.submit(bytearray, 250_000_000, pure=False)
        paused = cluster.said(semconv.WORKER_PAUSED)
        assert paused.severity == WARN
        assert "paused, as its memory is nearly full" in paused.body
        del future
        assert "runs tasks again" in cluster.said(semconv.WORKER_RESUMED).body


def test_graphs_clients_and_own_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, {"logs": {"topics": ["mine"]}}) as cluster:
        cluster.client.log_event("mine", {"rows": 5})
        cluster.client.log_event("other", {"rows": 6})
        cluster.client.log_event("mine", "second")
        eventually(lambda: cluster.names.count(semconv.TOPIC_MESSAGE) == 2)
        texts = [log.body for log in cluster.received.logs if log.name == semconv.TOPIC_MESSAGE]
        assert texts == ['{"rows": 5}', "second"]
        with pytest.raises(Exception, match="deserialization"):
            cluster.client.get(_Refused(), "x")
        assert cluster.client.id in cluster.said(semconv.GRAPH_FAILED).body


class _Refused(dict):  # type: ignore[type-arg]
    """A graph that can't be unpickled on the scheduler."""

    def __reduce__(self) -> Any:
        return _raise, ()


def _raise() -> None:
    raise RuntimeError("boom")


def test_what_dask_logs_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages are those of Dask's sources; they are hard to provoke."""
    with watched(monkeypatch) as cluster, span("nightly"):
        future = cluster.begun(nap, 60, seconds=0.1)
        ws = cluster.worker
        for topic, message in [
            (
                "transitions",
                {
                    "action": "scheduler-transition-failed",
                    "key": future.key,
                    "start": "a",
                    "finish": "b",
                    "transition_log": ["long"],
                },
            ),
            ("p2p", {"action": "p2p-failed", "shuffle": "abc", "stimulus": "s"}),
            (
                "scheduler",
                {"action": "no-workers-timeout-exceeded", "keys": [future.key, "gone"]},
            ),
            ("worker-fail-hard", {"worker": ws.address, "exception_text": "KeyError('x')"}),
            ("stealing", ("confirm", "k", "s", ws.address, "t", 1)),
        ]:
            cluster.client.run_on_scheduler(_log, topic, message)
        log = cluster.said(semconv.TRANSITION_FAILED)
        assert log.attributes[semconv.TASK_KEY] == future.key
        assert "pass from a to b" in log.body
        assert "long" not in log.body
        assert log.trace_id == cluster.said(semconv.NO_WORKER).trace_id is not None
        assert cluster.said(semconv.NO_WORKER).body.startswith("2 tasks failed: no worker could")
        assert cluster.said(semconv.P2P_FAILED).attributes == {semconv.P2P_ID: "abc"}
        assert "KeyError('x')" in cluster.said(semconv.WORKER_FAILED).body
        assert semconv.TASKS_STOLEN not in cluster.names
        future.cancel()
    stolen = cluster.said(semconv.TASKS_STOLEN)
    assert (stolen.attributes[semconv.TASK_COUNT], stolen.severity) == (1, semconv.DEBUG)


def _log(topic: str, message: Any, dask_scheduler: Any) -> None:
    dask_scheduler.log_event(topic, message)


def test_hostile_messages_hurt_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch) as cluster:
        worker = cluster.worker.address
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
            cluster.client.log_event(topic, message)
        cluster.client.submit(nap, 0).result()
        assert semconv.WORKER_REMOVED not in cluster.names
        assert semconv.WORKER_TERMINATED not in cluster.names


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, otel={"logs": {"events": False}}) as cluster:
        cluster.client.submit(nap, 0).result()
        received = cluster.received
        assert cluster.scheduler.plugins["dask-otel"].bridge.adapter.events._workers == {}
    assert received.logs == []


def test_stolen_tasks_are_summed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, n_workers=2) as cluster:
        loaded, _ = cluster.scheduler.workers
        busy = cluster.client.map(
            nap, [0.2] * 40, workers=[loaded], allow_other_workers=True, pure=False
        )
        cluster.client.gather(busy)
        moved = [one for _, one in cluster.scheduler.get_events("stealing") if one[0] == "confirm"]
        assert moved
    stolen = cluster.said(semconv.TASKS_STOLEN)
    assert stolen.attributes[semconv.TASK_COUNT] == len(moved)


def test_a_shuffle_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas, dataframe = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    pytest.importorskip("pyarrow")
    with (
        watched(monkeypatch, n_workers=2) as cluster,
        dask.config.set({"dataframe.shuffle.method": "p2p"}),
    ):
        cluster.client.run(_break_shuffles)
        meta = pandas.DataFrame({"x": [1], "y": [1]})
        frame = dataframe.from_map(_partition, range(4), meta=meta)
        assert cluster.client.compute(frame.shuffle("x")).exception() is not None
        log = cluster.said(semconv.P2P_FAILED)
        assert log.severity == ERROR
        assert log.attributes[semconv.P2P_ID] in log.body
        assert log.attributes[semconv.ROOT_NAMES] == ("default",)


def _partition(number: int) -> Any:
    import pandas

    return pandas.DataFrame({"x": [number], "y": [number]})


def _break_shuffles() -> None:
    from distributed.shuffle._shuffle import DataFrameShuffleRun

    def broken(*args: Any, **kwargs: Any) -> None:
        raise ValueError("no")

    DataFrameShuffleRun._shard_partition = broken  # type: ignore[method-assign, assignment]


def test_an_error_in_the_scheduler_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch) as cluster:
        table = cluster.scheduler._TRANSITIONS_TABLE
        whole = table["processing", "memory"]

        def transition(scheduler: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            if key == "doomed":
                raise AssertionError("the state is wrong")
            return whole(scheduler, key, *args, **kwargs)

        monkeypatch.setitem(table, ("processing", "memory"), transition)
        with span("nightly"):
            future = cluster.client.submit(nap, 0, key="doomed")
        log = cluster.said(semconv.TRANSITION_FAILED)
        assert not future.done()
        assert log.severity == ERROR
        assert (log.attributes[semconv.TASK_KEY], log.attributes[semconv.TASK_FINISH]) == (
            "doomed",
            "memory",
        )
        assert log.attributes[semconv.ROOT_NAMES] == ("nightly",)
        assert log.trace_id is not None
