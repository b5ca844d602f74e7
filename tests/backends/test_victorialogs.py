"""VictoriaLogs: the bridge's log records, and every query in LogsQL of the pages.

The bridge writes the same records into files: the server must have these, each once.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, span

from dask_otel import semconv
from tests.cluster import processes
from tests.cluster.tasks import plugins
from tests.contract.test_pages import Fence, of
from tests.otlp.json_reading import logs_of
from tests.receiver import Log
from tests.waiting import eventually

from .bridge_run import scheduler
from .clients import Entry, VictoriaLogsClient
from .conftest import Start
from .servers import Running, backends, start_collector

pytestmark = [pytest.mark.backend, pytest.mark.cluster]


@dataclass(frozen=True)
class Logged:
    """What one cluster logged."""

    name: str
    started: float
    #: As the bridge wrote them into files.
    records: Sequence[Log]

    @property
    def everything(self) -> str:
        """The query of all of it."""
        return f'{{dask.cluster.name="{self.name}"}}'


def says(text: str) -> None:
    try:
        raise KeyError("row 7")
    except KeyError:
        logging.getLogger("user").exception("%s", text)


def nap(_: str) -> None:
    time.sleep(600)


@pytest.fixture
def client(victorialogs: Running) -> VictoriaLogsClient:
    return VictoriaLogsClient(victorialogs.url)


@pytest.fixture(scope="module", params=["straight", "collector"])
def logged(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    start_shared: Start,
    victorialogs: Running,
) -> Logged:
    """A cluster whose tasks log and whose workers are killed."""
    otlp, folder = f"{victorialogs.url}/insert/opentelemetry", tmp_path_factory.mktemp("dask")
    environment = {
        "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{otlp}/v1/logs",
    }
    if request.param == "collector":
        collector = start_shared(start_collector, backends(logs=otlp))
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc}
    name, started = f"cluster.{uuid.uuid4().hex[:12]}", time.time()
    _work(folder, name, environment)
    records = logs_of((folder / "files").glob("*-logs.jsonl"))
    run = Logged(name, started, records)
    rows = VictoriaLogsClient(victorialogs.url).rows
    eventually(lambda: len(rows(run.everything, started)) >= len(records), what="all")
    return run


def _work(folder: Path, name: str, environment: dict[str, str]) -> None:
    (folder / "files").mkdir()
    variables = {
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_BLRP_SCHEDULE_DELAY": "100",
        "DASK_OTEL__LOGS__LEVEL": "WARNING",
        "DASK_OTEL__FILES__PATH": str(folder / "files"),
        **environment,
    }
    with (
        processes.cluster(folder) as dask,
        scheduler(dask, name, variables),
        Client(dask.address) as client,
    ):
        client.wait_for_workers(2)
        eventually(lambda: all(client.run(plugins).values()))
        with span("nightly"):
            client.submit(says, "wrong row", key="load-1", workers=["a"]).result()
            begun = [client.submit(nap, worker, workers=[worker]) for worker in "ab"]
        eventually(lambda: client.run_on_scheduler(_processing) == [1, 1])
        for worker in dask.processes[1:]:
            worker.kill()
        eventually(lambda: client.run_on_scheduler(_processing) == [])
        client.cancel(begun)


def _processing(dask_scheduler: Any) -> list[int]:
    return [len(ws.processing) for ws in dask_scheduler.workers.values()]


def seen(log: Log) -> tuple[Any, ...]:
    ids = (f"{log.trace_id:032x}", f"{log.span_id:016x}") if log.trace_id else ("", "")
    return log.time_ns, log.body, log.name, str(int(log.severity)), *ids


def stored(entry: Entry) -> tuple[Any, ...]:
    names = ("event_name", "severity_number", "trace_id", "span_id")
    return entry.time_ns, entry.line, *(entry.labels.get(name, "") for name in names)


def check_each_is_there_once(found: Sequence[Entry], wanted: Sequence[Log]) -> None:
    assert Counter(map(stored, found)) == Counter(map(seen, wanted))


def test_each_record_arrives_once_with_all_that_it_has(
    logged: Logged, client: VictoriaLogsClient
) -> None:
    found = client.query(logged.everything, logged.started)
    names = Counter(log.name for log in logged.records)
    wanted = {semconv.SCHEDULER_STARTED: 1, semconv.WORKER_ADDED: 2, semconv.WORKER_REMOVED: 2}
    assert wanted.items() <= names.items()
    assert names[semconv.WORKER_LOG] >= 1
    check_each_is_there_once(found, logged.records)
    resource = logged.records[0].resource
    assert resource[semconv.SERVICE_NAME] == "dask-scheduler"
    entries = {stored(entry): entry.labels for entry in found}
    for log in logged.records:
        labels = entries[seen(log)]
        assert labels["severity_text"] == semconv.SEVERITIES[log.severity]
        assert {key: labels.get(key) for key in resource} == {
            k: str(v) for k, v in resource.items()
        }
        for key, value in log.attributes.items():
            there = labels[key] if isinstance(value, str) else json.loads(labels[key])
            assert there == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("fence", of("logsql"))
def test_a_query_of_the_pages_is_answered(
    fence: Fence, logged: Logged, client: VictoriaLogsClient
) -> None:
    text = fence.text.replace('"}', f'", dask.cluster.name="{logged.name}"}}')
    assert text != fence.text
    removed = [log for log in logged.records if log.name == semconv.WORKER_REMOVED]
    said = [log for log in logged.records if log.body == "wrong row" and log.trace_id]
    assert len(said) == 1
    if "stats" in text:
        reasons = Counter(log.attributes[semconv.WORKER_REMOVAL_REASON] for log in removed)
        (row,) = client.rows(text, logged.started)
        assert {row[semconv.WORKER_REMOVAL_REASON]: int(row["workers"])} == reasons == {"lost": 2}
        return
    wanted = said if semconv.WORKER_LOG in text else removed
    check_each_is_there_once(client.query(text, logged.started), wanted)
