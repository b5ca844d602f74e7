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


def speaks() -> None:
    distributed.print("read", 3, sep="-")
    distributed.warn("old format", DeprecationWarning)


def state(dask_worker: Any) -> list[Any]:
    root = logging.getLogger()
    wrapped = hasattr(logging.Logger.callHandlers, "__wrapped__")
    return [root.level, len(root.handlers), wrapped]


def test_records_arrive_with_the_ids_of_their_task(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, {"logs": {"level": "INFO"}}) as cluster:
        worker = ready(cluster).worker
        with span("nightly"):
            cluster.client.submit(says, "wrong row", key="load-1").result()
        # The root logger was lowered, as nobody has configured it.
        _, log = eventually(lambda: len(lines_of(cluster)) == 2 and lines_of(cluster))
        (nightly,) = cluster.received.wait_for(lambda r: [s for s in r.spans if s.type == "span"])
        assert ((log.trace_id, log.span_id), (log.body, log.severity)) == (
            (nightly.trace_id, nightly.span_id),
            ("wrong row", semconv.ERROR),
        )
        assert nightly.start_ns <= log.time_ns + 50_000_000 <= time.time_ns() + 50_000_000
        assert log.attributes.pop(semconv.EXCEPTION_STACKTRACE).endswith("KeyError: 'row 7'\n")
        assert log.attributes == {
            semconv.WORKER_NAME: str(worker.name),
            semconv.WORKER_ADDRESS: worker.address,
            semconv.LOG_LOGGER: "user",
            semconv.TASK_KEY: "load-1",
            semconv.EXCEPTION_TYPE: "builtins.KeyError",
            semconv.EXCEPTION_MESSAGE: "'row 7'",
        }
        assert cluster.scheduler.get_events(lines.TOPIC) == ()
        # Dask's functions for users, and its own record of a failure.
        cluster.client.submit(speaks).result()
        cluster.client.submit(int, "x", pure=False).exception()
        for logger, severity, said in (
            ("print", semconv.INFO, "read-3"),
            ("py.warnings", semconv.WARN, "old format"),
            ("distributed.worker", semconv.ERROR, "Compute Failed"),
        ):
            eventually(
                lambda logger=logger, severity=severity, said=said: any(
                    said in str(one.body) and one.severity == severity
                    for one in lines_of(cluster, logger)
                )
            )


def test_a_killed_worker_has_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch, {"logs": {"level": "WARNING"}}) as cluster:
        pid = ready(cluster).worker.pid
        cluster.client.submit(says, "the disk is nearly full").result()
        eventually(lambda: lines_of(cluster), what="the line")
        os.kill(pid, signal.SIGKILL)
        log = cluster.said(semconv.WORKER_REMOVED)
        assert log.attributes[semconv.WORKER_REMOVAL_REASON] == "lost"
        last = log.attributes[semconv.WORKER_LAST_LINES]
        assert last[-1].endswith(" s before: ERROR user: the disk is nearly full")
        assert log.body.endswith("The last lines of its log:\n" + "\n".join(last))


def test_off_by_default_and_gone_with_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched(monkeypatch) as cluster:
        before = [*ready(cluster).client.run(state).values()]
        assert before == [[logging.WARNING, 0, False]]
        cluster.client.submit(says, "unheard").result()
        assert lines_of(cluster) == []
        os.kill(cluster.worker.pid, signal.SIGKILL)
        assert cluster.said(semconv.WORKER_REMOVED).body.endswith(
            "Its last lines are not known: otel.logs.level is off."
        )
        eventually(lambda: cluster.scheduler.workers, what="the next worker")
        dask_otel.unregister(cluster.client)
        overrides = {"logs": {"level": "INFO"}}
        assert dask_otel.register(cluster.client, overrides) == "started"
        ready(cluster)
        assert [*cluster.client.run(state).values()] == [[logging.INFO, 0, True]]
        dask_otel.unregister(cluster.client)
        eventually(lambda: [*cluster.client.run(state).values()] == before, what="the plugin to go")
