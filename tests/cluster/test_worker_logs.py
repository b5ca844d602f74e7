"""What workers and tasks log on real clusters, as it arrives: with ids, bounded, and to the end."""

from __future__ import annotations

import logging
import time
from typing import Any

import distributed
import pytest
from distributed import span

import dask_otel
from dask_otel import semconv
from dask_otel.core.events import lines
from tests.cluster.conftest import Bridged, Start
from tests.cluster.tasks import plugins
from tests.receiver import Log, Receiver
from tests.waiting import eventually

pytestmark = [
    pytest.mark.unreconciled("it looks at log records, not at numbers"),
    # One process of the tests starts the server that forks workers.
    pytest.mark.xdist_group("processes"),
]


def logs_of(received: Receiver, name: str, logger: str = "user") -> list[Log]:
    """Return the records of that name: of workers, those of a logger."""
    wanted = logger if name == semconv.WORKER_LOG else None
    found = [log for log in received.logs if log.name == name]
    return [log for log in found if log.attributes.get(semconv.LOG_LOGGER) == wanted]


def ready(bridged: Bridged) -> None:
    """Wait until the plugin is on the worker."""
    eventually(lambda: all(bridged.client.run(plugins).values()), what="the plugin")


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


def test_records_arrive_with_the_ids_of_their_task_while_they_are_wanted(start: Start) -> None:
    options = {"n_workers": 1, "processes": True, "environ": {"OTEL_BLRP_SCHEDULE_DELAY": "20"}}
    with start(**options) as cluster:
        cluster.received.keeps = frozenset({"logs", "traces"})
        ready(cluster)
        # Off by default.
        before = [*cluster.client.run(state).values()]
        assert before == [[logging.WARNING, 0, False]]
        cluster.client.submit(says, "unheard").result()
        dask_otel.unregister(cluster.client)
        overrides = {"logs": {"level": "INFO"}}
        assert dask_otel.register(cluster.client, overrides) == "started"
        ready(cluster)
        assert [*cluster.client.run(state).values()] == [[logging.INFO, 0, True]]
        (worker,) = cluster.scheduler.workers.values()
        with span("nightly"):
            cluster.client.submit(says, "wrong row", key="load-1").result()
        # The root logger was lowered, as nobody has configured it.
        eventually(lambda: len(logs_of(cluster.received, semconv.WORKER_LOG)) == 2)
        _, log = logs_of(cluster.received, semconv.WORKER_LOG)
        nightly = cluster.received.named("nightly")
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
                    for one in logs_of(cluster.received, semconv.WORKER_LOG, logger)
                )
            )
        dask_otel.unregister(cluster.client)
        eventually(lambda: [*cluster.client.run(state).values()] == before, what="the plugin to go")
