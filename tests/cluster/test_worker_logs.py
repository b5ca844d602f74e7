"""What workers and tasks log on real clusters, as it arrives: with ids, bounded, and to the end."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any

import distributed
import pytest
from distributed import span

import dask_otel
from dask_otel import semconv
from dask_otel.core.events import lines
from tests.cluster.test_events import Watched, watched
from tests.receiver import Log
from tests.waiting import eventually

pytestmark = pytest.mark.unreconciled("it looks at log records, not at numbers")

WARNING = {"logs": {"level": "WARNING"}}


def lines_of(cluster: Watched, logger: str = "user") -> list[Log]:
    return [
        log
        for log in cluster.received.logs
        if log.name == semconv.WORKER_LOG and log.attributes[semconv.LOG_LOGGER] == logger
    ]


def ready(cluster: Watched) -> Watched:
    """Wait until the plugin is on the worker."""
    eventually(lambda: [*cluster.client.run(_has_plugin).values()] == [True], what="the plugin")
    return cluster


def _has_plugin(dask_worker: Any) -> bool:
    return "dask-otel" in dask_worker.plugins


def says(text: str) -> None:
    logging.getLogger("user").info("quiet")
    try:
        raise KeyError("row 7")
    except KeyError:
        logging.getLogger("user").exception("%s", text)


def leaves(text: str) -> None:
    logging.getLogger("user").warning("%s", text)
    time.sleep(1)
    os._exit(1)


def storms(count: int) -> float:
    log, began = logging.getLogger("user"), time.perf_counter()
    for number in range(count):
        log.warning("line %d", number)
    return time.perf_counter() - began


def speaks() -> None:
    distributed.print("read", 3, sep="-")
    distributed.warn("old format", DeprecationWarning)


def state(dask_worker: Any) -> list[Any]:
    root = logging.getLogger()
    wrapped = hasattr(logging.Logger.callHandlers, "__wrapped__")
    return [root.level, len(root.handlers), wrapped]


def test_a_record_arrives_with_the_ids_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, WARNING) as cluster:
        worker = ready(cluster).worker
        with span("nightly"):
            future = cluster.client.submit(says, "wrong row", key="load-1")
        future.result()
        (log,) = eventually(lambda: lines_of(cluster), what="the record")
        (nightly,) = cluster.received.wait_for(
            lambda r: [s for s in r.spans if s.attributes.get("dask.span.type") == "span"]
        )
        assert (log.trace_id, log.span_id) == (nightly.trace_id, nightly.span_id)
        assert (log.body, log.severity) == ("wrong row", semconv.ERROR)
        assert nightly.start_ns <= log.time_ns + 50_000_000 <= time.time_ns() + 50_000_000
        stack = log.attributes.pop(semconv.EXCEPTION_STACKTRACE)
        assert stack.endswith("KeyError: 'row 7'\n")
        assert log.attributes == {
            semconv.WORKER_NAME: str(worker.name),
            semconv.WORKER_ADDRESS: worker.address,
            semconv.LOG_LOGGER: "user",
            semconv.TASK_KEY: "load-1",
            semconv.EXCEPTION_TYPE: "builtins.KeyError",
            semconv.EXCEPTION_MESSAGE: "'row 7'",
        }
        assert cluster.scheduler.get_events(lines.TOPIC) == ()


def test_print_and_warn_and_dasks_own_records(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, {"logs": {"level": "INFO"}}) as cluster:
        ready(cluster).client.submit(speaks).result()
        cluster.client.submit(says, "x").result()
        (printed,) = eventually(lambda: lines_of(cluster, "print"))
        (warned,) = eventually(lambda: lines_of(cluster, "py.warnings"))
        assert (printed.body, printed.severity) == ("read-3", semconv.INFO)
        assert (warned.body, warned.severity) == ("old format", semconv.WARN)
        # The root logger was lowered, as nobody has configured it.
        eventually(lambda: [log.body for log in lines_of(cluster)] == ["quiet", "x"])
        cluster.client.submit(int, "x", pure=False).exception()
        eventually(
            lambda: any(
                "Compute Failed" in str(x.body) for x in lines_of(cluster, "distributed.worker")
            ),
            what="Dask's own record",
        )


def test_a_storm_is_bounded_and_every_record_is_accounted_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with watched(monkeypatch, WARNING) as cluster:
        arrived: list[int] = []
        bridge = cluster.scheduler.plugins["dask-otel"].bridge
        reading = bridge.adapter.events.lines
        read = reading.read

        def counting(topic: str, message: Any, now: float) -> Any:
            if topic == lines.TOPIC:
                arrived.append(len(message[lines.BLOB]))
            return read(topic, message, now)

        monkeypatch.setattr(reading, "read", counting)
        began = time.monotonic()
        ready(cluster).client.submit(storms, 10_000).result()

        def left_out() -> int:
            said = [one for one in cluster.received.logs if one.name == semconv.WORKER_LOG_LEFT_OUT]
            return sum(one.attributes[semconv.LOG_LEFT_OUT_COUNT] for one in said)

        eventually(lambda: len(lines_of(cluster)) + left_out() >= 10_000, 30, "all of the storm")
        assert len(lines_of(cluster)) + left_out() == 10_000
        assert left_out() > 5000
        assert len(arrived) <= 7 + time.monotonic() - began
        assert max(arrived) <= lines.MOST_BYTES + 2
        assert cluster.scheduler.get_events(lines.TOPIC) == ()
    assert bridge.wired.counts()[semconv.OTEL_DROPPED.name, "logs", "over_limit"] == left_out()


def test_what_the_queue_has_no_room_for_is_said_when_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BLRP_MAX_QUEUE_SIZE", "10")
    with watched(monkeypatch, WARNING) as cluster:
        received = ready(cluster).received
        received.answer, received.retry_after = 503, 1
        bridge = cluster.scheduler.plugins["dask-otel"].bridge
        dropped = semconv.OTEL_DROPPED.name, "logs", "queue_full"
        # Five at once, which take half of the queue, and the others a second later. An event of the
        # start may still be in the queue.
        cluster.client.submit(storms, 60).result()
        eventually(lambda: bridge.wired.pump.counts().get(dropped, 0) >= 55, what="a full queue")
        lost = bridge.wired.pump.counts()[dropped]
        # Events of the cluster have room.
        retired = {"action": "retire-workers", "retired": ["a"], "could-not-retire": []}
        cluster.scheduler.log_event("all", retired)
        # It is time to say it, but there is no room.
        time.sleep(1.5)
        assert bridge.adapter.events.lines.unsaid
        received.answer = None
        said = cluster.said(semconv.WORKER_LOG_LEFT_OUT)
        assert said.attributes[semconv.LOG_LEFT_OUT_COUNT] == lost
        assert [log.body for log in lines_of(cluster)] == [f"line {n}" for n in range(60 - lost)]
        cluster.said(semconv.WORKERS_RETIRED)
    # Neither what was tried in vain, nor anything else.
    assert bridge.wired.pump.counts()[dropped] == lost


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_a_killed_worker_has_last_lines(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    with watched(monkeypatch, WARNING) as cluster:
        pid = ready(cluster).worker.pid
        future = cluster.client.submit(leaves, "the disk is nearly full", pure=False)
        eventually(lambda: lines_of(cluster), what="the line")
        if end == "kill":
            os.kill(pid, signal.SIGKILL)
        log = cluster.said(semconv.WORKER_REMOVED)
        assert log.attributes[semconv.WORKER_REMOVAL_REASON] == "lost"
        last = log.attributes[semconv.WORKER_LAST_LINES]
        assert last[-1].endswith(" s before: WARN user: the disk is nearly full")
        assert log.body.endswith("The last lines of its log:\n" + "\n".join(last))
        future.cancel()


def test_off_by_default_and_gone_with_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    # A task that ends its worker is not to end the next one, too.
    with watched(monkeypatch, distributed__scheduler__allowed_failures=0) as cluster:
        before = [*ready(cluster).client.run(state).values()]
        assert before == [[logging.WARNING, 0, False]]
        cluster.client.submit(says, "unheard").result()
        assert lines_of(cluster) == []
        future = cluster.client.submit(leaves, "x", pure=False)
        assert cluster.said(semconv.WORKER_REMOVED).body.endswith(
            "Its last lines are not known: otel.logs.level is off."
        )
        future.cancel()
        eventually(lambda: cluster.scheduler.workers, what="the next worker")
        dask_otel.unregister(cluster.client)
        overrides = {"logs": {"level": "INFO"}}
        assert dask_otel.register(cluster.client, overrides) == "started"
        ready(cluster)
        assert [*cluster.client.run(state).values()] == [[logging.INFO, 0, True]]
        dask_otel.unregister(cluster.client)
        eventually(lambda: [*cluster.client.run(state).values()] == before, what="the plugin to go")
