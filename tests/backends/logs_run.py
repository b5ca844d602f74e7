"""A cluster that logs, and the records that its bridge wrote into files: what a server must have.

No more and no less than these, by each way to the server.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client, span
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2

from dask_otel import semconv
from tests.cluster import processes
from tests.otlp.json_reading import from_json
from tests.receiver import Log, decode_logs
from tests.waiting import eventually

from .clients import Entry
from .conftest import Start
from .servers import backends, start_collector

WAYS = ("straight", "collector")

#: Two workflows: characters of a regular expression, and a name that begins with the other's.
ROOT, LONGER = "nightly (eu)", "nightly (eu) old"


@dataclass(frozen=True)
class Logged:
    """What one cluster logged."""

    name: str
    started: float
    #: As the bridge wrote them into files.
    records: Sequence[Log]

    @property
    def said(self) -> Log:
        """The exception that a task logged."""
        (found,) = [log for log in self.records if log.body == "wrong row"]
        return found


def says(text: str) -> None:
    try:
        raise KeyError("row 7")
    except KeyError:
        logging.getLogger("user").exception("%s", text)


def nap() -> None:
    time.sleep(600)


def doze() -> None:
    """The same; Dask would count two spans' tasks of one function to the first span."""
    time.sleep(600)


def run_logging(way: str, otlp: str, folder: Path, start: Start) -> Logged:
    """A cluster whose tasks log and whose workers are killed, by one of `WAYS` to `otlp`."""
    if way == "straight":
        environment = {
            "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": f"{otlp}/v1/logs",
        }
    else:
        collector = start(start_collector, backends(logs=otlp))
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc}
    name, started = f"cluster.{uuid.uuid4().hex[:12]}", time.time()
    _work(folder, name, environment)
    records: list[Log] = []
    for path in (folder / "files").glob("*-logs.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            message = logs_service_pb2.ExportLogsServiceRequest()
            from_json(line, message)
            records += decode_logs(message)
    return Logged(name, started, records)


def _work(folder: Path, name: str, environment: dict[str, str]) -> None:
    (folder / "files").mkdir()
    with processes.cluster(folder) as dask:
        scheduler = dask.start_scheduler(
            "--preload",
            "dask_otel.preload",
            env={
                "OTEL_TRACES_EXPORTER": "none",
                "OTEL_METRICS_EXPORTER": "none",
                "OTEL_BLRP_SCHEDULE_DELAY": "100",
                "DASK_OTEL__CLUSTER_NAME": name,
                "DASK_OTEL__LOGS__LEVEL": "WARNING",
                "DASK_OTEL__FILES__PATH": str(folder / "files"),
                **environment,
            },
        )
        workers = [dask.start_worker(worker) for worker in "ab"]
        with Client(dask.address) as client:
            client.wait_for_workers(2)
            eventually(lambda: [*client.run(_has_plugin).values()] == [True, True])
            with span(ROOT):
                client.submit(says, "wrong row", key="load-1", workers=["a"]).result()
                begun = [client.submit(nap, workers=["a"])]
            with span(LONGER):
                begun.append(client.submit(doze, workers=["b"]))
            eventually(lambda: client.run_on_scheduler(_processing) == [1, 1])
            for worker in workers:
                worker.kill()
            eventually(lambda: client.run_on_scheduler(_processing) == [])
            client.cancel(begun)
        assert scheduler.terminate() == 0


def _has_plugin(dask_worker: Any) -> bool:
    return "dask-otel" in dask_worker.plugins


def _processing(dask_scheduler: Any) -> list[int]:
    return [len(ws.processing) for ws in dask_scheduler.workers.values()]


def seen(log: Log) -> tuple[Any, ...]:
    ids = (f"{log.trace_id:032x}", f"{log.span_id:016x}") if log.trace_id else ("", "")
    return log.time_ns, log.body, log.name, str(int(log.severity)), *ids


def stored(entry: Entry) -> tuple[Any, ...]:
    names = ("event_name", "severity_number", "trace_id", "span_id")
    return entry.time_ns, entry.line, *(entry.labels.get(name, "") for name in names)


def same(found: Sequence[Entry], wanted: Sequence[Log]) -> bool:
    """Whether each is there once, and nothing else."""
    return Counter(map(stored, found)) == Counter(map(seen, wanted))


def check_each_arrived_once(
    found: list[Entry], logged: Logged, label: Callable[[str], str]
) -> None:
    """Whether `found` is all that was logged, with its attributes; `label` makes labels of keys."""
    names = Counter(log.name for log in logged.records)
    wanted = {semconv.SCHEDULER_STARTED: 1, semconv.WORKER_ADDED: 2, semconv.WORKER_REMOVED: 2}
    assert wanted.items() <= names.items()
    assert names[semconv.WORKER_LOG] >= 1
    assert logged.said.trace_id
    assert same(found, logged.records)
    for log in logged.records:
        (entry,) = [one for one in found if stored(one) == seen(log)]
        assert entry.labels["severity_text"] == semconv.SEVERITIES[log.severity]
        for key, value in log.attributes.items():
            there = entry.labels[label(key)]
            if isinstance(value, tuple):
                assert json.loads(there) == list(value)
            elif isinstance(value, str):
                assert there == value
            else:
                assert json.loads(there) == value
