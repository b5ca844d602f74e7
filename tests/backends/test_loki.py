"""Loki with deploy/loki/loki.yaml: the bridge's log records, and every query of ours in LogQL.

The bridge writes the same records into files, which are what Loki must have, no more and no less.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from distributed import Client, span
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2

from dask_otel import semconv
from tests.cluster import processes
from tests.contract.test_dashboards import PAGES, PANELS
from tests.contract.test_pages import Fence, of
from tests.otlp.json_reading import from_json
from tests.receiver import Log, decode_logs
from tests.waiting import eventually

from .clients import Entry, LokiClient
from .conftest import Start
from .servers import DEPLOY, Running, backends, start_collector

pytestmark = [pytest.mark.backend, pytest.mark.cluster]

#: Two workflows: characters of a regular expression, and a name that begins with the other's.
ROOT, LONGER = "nightly (eu)", "nightly (eu) old"
ROOTS, REASON = semconv.ROOT_NAMES, semconv.WORKER_REMOVAL_REASON


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


@dataclass
class Logged:
    """What one cluster logged, and the Loki that has it."""

    loki: LokiClient
    name: str
    started: float
    #: As the bridge wrote them into files.
    records: list[Log]

    def asked(self, expression: str, root: str = ".*", cluster: str | None = None) -> list[Entry]:
        """The answer of a query of a dashboard, as Grafana would send it."""
        values = {"cluster": escaped(cluster or self.name), "root": escaped(root)}
        for name, value in values.items():
            expression = expression.replace(f"${{{name}:regex}}", value)
        assert "$" not in expression
        return self.loki.query(expression, self.started)

    def happened(self) -> list[Log]:
        """Events of the cluster that are warnings or worse."""
        of_workers = (semconv.WORKER_LOG, semconv.WORKER_LOG_LEFT_OUT)
        return [
            log
            for log in self.records
            if log.severity >= semconv.WARN and log.name not in of_workers
        ]


def escaped(value: str) -> str:
    """A value as ``${name:regex}`` has it: see ``escapeRegex`` of Grafana's `kbn`."""
    return value if value == ".*" else re.sub(r"[\\^$*+?.()|[\]{}/]", r"\\\g<0>", value)


def seen(log: Log) -> tuple[Any, ...]:
    ids = (f"{log.trace_id:032x}", f"{log.span_id:016x}") if log.trace_id else ("", "")
    return log.time_ns, log.body, log.name, str(int(log.severity)), *ids


def stored(entry: Entry) -> tuple[Any, ...]:
    names = ("event_name", "severity_number", "trace_id", "span_id")
    return entry.time_ns, entry.line, *(entry.labels.get(name, "") for name in names)


def same(found: list[Entry], wanted: list[Log]) -> bool:
    """Whether each is there once, and nothing else."""
    return Counter(map(stored, found)) == Counter(map(seen, wanted))


@pytest.fixture(scope="module", params=("straight", "collector over grpc", "collector over http"))
def logged(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    start_shared: Start,
    loki: Running,
) -> Logged:
    """A cluster whose tasks log and whose workers are killed, by each way to Loki."""
    otlp = f"{loki.url}/otlp"
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    if request.param == "straight":
        environment["OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"] = f"{otlp}/v1/logs"
    else:
        collector = start_shared(start_collector, backends(loki=otlp))
        over_grpc = request.param.endswith("grpc")
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.grpc if over_grpc else collector.http
        if over_grpc:
            del environment["OTEL_EXPORTER_OTLP_PROTOCOL"]
    folder = tmp_path_factory.mktemp("dask")
    run = Logged(LokiClient(loki.url), f"cluster.{uuid.uuid4().hex[:12]}", time.time(), [])
    _work(folder, run.name, environment)
    for path in (folder / "files").glob("*-logs.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            message = logs_service_pb2.ExportLogsServiceRequest()
            from_json(line, message)
            run.records += decode_logs(message)
    everything = f'{{service_name="dask-scheduler"}} | dask_cluster_name="{run.name}"'
    eventually(
        lambda: len(run.loki.query(everything, run.started)) >= len(run.records), 60, "all records"
    )
    return run


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


def test_each_record_arrives_once_with_all_that_it_has(logged: Logged) -> None:
    names = Counter(log.name for log in logged.records)
    wanted = {semconv.SCHEDULER_STARTED: 1, semconv.WORKER_ADDED: 2, semconv.WORKER_REMOVED: 2}
    assert wanted.items() <= names.items()
    assert names[semconv.WORKER_LOG] >= 1
    found = logged.asked('{service_name="dask-scheduler"} | dask_cluster_name=~`${cluster:regex}`')
    assert same(found, logged.records)
    (said,) = [log for log in logged.records if log.body == "wrong row"]
    assert said.trace_id
    for log in logged.records:
        (entry,) = [one for one in found if stored(one) == seen(log)]
        assert entry.labels["severity_text"] == semconv.SEVERITIES[log.severity]
        for key, value in log.attributes.items():
            label = entry.labels[key.replace(".", "_")]
            if isinstance(value, tuple):
                assert json.loads(label) == list(value)
            elif isinstance(value, str):
                assert label == value
            else:
                assert json.loads(label) == value


def test_a_stream_is_of_one_scheduler(logged: Logged) -> None:
    """Loki refuses records that are an hour behind the newest of their stream."""
    found = logged.asked('{service_name="dask-scheduler", service_instance_id=~"Scheduler-.+"}')
    ours = {
        one.labels["service_instance_id"]
        for one in found
        if one.labels["dask_cluster_name"] == logged.name
    }
    assert len(ours) == 1


@pytest.mark.parametrize("page", PAGES)
def test_the_curves_are_marked_where_something_went_wrong(page: str, logged: Logged) -> None:
    (marks,) = [one for one in PAGES[page]["annotations"]["list"] if one["name"] == "What happened"]
    wanted = logged.happened()
    assert len(wanted) >= 2
    assert same(logged.asked(marks["expr"]), wanted)
    every = logged.asked(marks["expr"], cluster=".*")
    assert {stored(one) for one in every} >= {seen(one) for one in wanted}
    # Its dots stand for dots.
    assert logged.asked(marks["expr"], cluster=logged.name.replace("r.", "rx")) == []


_TABLES = [
    (name, target["expr"])
    for name, panel in PANELS.items()
    for target in panel["targets"]
    if target.get("datasource", {}).get("type") == "loki"
]


@pytest.mark.parametrize(("name", "expression"), _TABLES, ids=[name for name, _ in _TABLES])
def test_a_table_says_what_happened(name: str, expression: str, logged: Logged) -> None:
    wanted = logged.happened()
    if name.startswith("span: "):
        wanted = [log for log in wanted if ROOT in log.attributes.get(ROOTS, ())]
        assert [log.attributes[ROOTS] for log in wanted] == [(ROOT,)]
    found = logged.asked(expression, ROOT)
    assert same(found, wanted)
    removed = [one for one in found if one.labels["event_name"] == semconv.WORKER_REMOVED]
    assert len(removed) == (1 if name.startswith("span: ") else 2)
    # Of the labels it makes columns.
    (shown,) = [one for one in PANELS[name]["transformations"] if one["id"] == "filterFieldsByName"]
    columns = {*shown["options"]["include"]["names"]} - {"Time", "Line"}
    assert all(columns <= one.labels.keys() for one in removed)


def test_a_trace_leads_to_its_records_and_back(logged: Logged) -> None:
    text = (DEPLOY / "grafana/provisioning/datasources/dask-otel.yaml").read_text("utf-8")
    sources = {one["uid"]: one for one in yaml.safe_load(text)["datasources"]}
    (said,) = [log for log in logged.records if log.body == "wrong row"]
    wanted = [log for log in logged.records if log.trace_id == said.trace_id]
    assert {log.name for log in wanted} == {semconv.WORKER_LOG, semconv.WORKER_REMOVED}
    query = sources["tempo"]["jsonData"]["tracesToLogsV2"]["query"]
    found = logged.loki.query(
        query.replace("$${__trace.traceId}", f"{said.trace_id:032x}"), logged.started
    )
    assert same(found, wanted)
    fields = sources["loki"]["jsonData"]["derivedFields"]
    assert all(one.labels[field["matcherRegex"]] for one in found for field in fields)


_ASKED: dict[str, Callable[[Log], bool]] = {
    '| event_name="dask.worker.removed"\n': lambda log: log.name == semconv.WORKER_REMOVED,
    '| dask_task_key!=""\n': lambda log: log.body == "wrong row",
}


@pytest.mark.parametrize("fence", of("logql"))
def test_a_query_of_the_pages_is_answered(fence: Fence, logged: Logged) -> None:
    text = fence.text.replace('"} |', f'"}} | dask_cluster_name="{logged.name}" |')
    assert text != fence.text
    if text.startswith("sum"):
        assert logged.loki.count(text) == {frozenset({(REASON.replace(".", "_"), "lost")}): 2}
        return
    (wanted,) = [chosen for end, chosen in _ASKED.items() if fence.text.endswith(end)]
    assert same(logged.loki.query(text, logged.started), [*filter(wanted, logged.records)])
