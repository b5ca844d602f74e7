"""Loki with deploy/loki/loki.yaml: the bridge's log records, and every query of ours in LogQL.

The bridge writes the same records into files, which are what Loki must have, no more and no less.
Loki is started by the user: see docs/backends.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import yaml

from dask_otel import semconv
from tests.contract.test_dashboards import PAGES, PANELS
from tests.contract.test_pages import Fence, of
from tests.receiver import Log
from tests.waiting import eventually

from .clients import Entry, LokiClient
from .conftest import Start
from .logs_run import ROOT, WAYS, Logged, check_each_arrived_once, run_logging, same, seen, stored
from .servers import DEPLOY, Running

pytestmark = [pytest.mark.backend, pytest.mark.cluster]

ROOTS, REASON = semconv.ROOT_NAMES, semconv.WORKER_REMOVAL_REASON


@dataclass(frozen=True)
class InLoki(Logged):
    """What one cluster logged, and the Loki that has it."""

    loki: LokiClient

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


@pytest.fixture(scope="module", params=WAYS)
def logged(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    start_shared: Start,
    loki: Running,
) -> InLoki:
    folder, client = tmp_path_factory.mktemp("dask"), LokiClient(loki.url)
    run = run_logging(request.param, f"{loki.url}/otlp", folder, start_shared)
    everything = f'{{service_name="dask-scheduler"}} | dask_cluster_name="{run.name}"'
    eventually(
        lambda: len(client.query(everything, run.started)) >= len(run.records), 60, "all records"
    )
    return InLoki(**vars(run), loki=client)


def test_each_record_arrives_once_with_all_that_it_has(logged: InLoki) -> None:
    found = logged.asked('{service_name="dask-scheduler"} | dask_cluster_name=~`${cluster:regex}`')
    check_each_arrived_once(found, logged, lambda key: key.replace(".", "_"))


def test_a_stream_is_of_one_scheduler(logged: InLoki) -> None:
    """Loki refuses records that are an hour behind the newest of their stream."""
    found = logged.asked('{service_name="dask-scheduler", service_instance_id=~"Scheduler-.+"}')
    ours = {
        one.labels["service_instance_id"]
        for one in found
        if one.labels["dask_cluster_name"] == logged.name
    }
    assert len(ours) == 1


@pytest.mark.parametrize("page", PAGES)
def test_the_curves_are_marked_where_something_went_wrong(page: str, logged: InLoki) -> None:
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
def test_a_table_says_what_happened(name: str, expression: str, logged: InLoki) -> None:
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


def test_a_trace_leads_to_its_records_and_back(logged: InLoki) -> None:
    text = (DEPLOY / "grafana/provisioning/datasources/dask-otel.yaml").read_text("utf-8")
    sources = {one["uid"]: one for one in yaml.safe_load(text)["datasources"]}
    trace_id = logged.said.trace_id
    wanted = [log for log in logged.records if log.trace_id == trace_id]
    assert {log.name for log in wanted} == {semconv.WORKER_LOG, semconv.WORKER_REMOVED}
    query = sources["tempo"]["jsonData"]["tracesToLogsV2"]["query"]
    found = logged.loki.query(
        query.replace("$${__trace.traceId}", f"{trace_id:032x}"), logged.started
    )
    assert same(found, wanted)
    fields = sources["loki"]["jsonData"]["derivedFields"]
    assert all(one.labels[field["matcherRegex"]] for one in found for field in fields)


_ASKED: dict[str, Callable[[Log], bool]] = {
    '| event_name="dask.worker.removed"\n': lambda log: log.name == semconv.WORKER_REMOVED,
    '| dask_task_key!=""\n': lambda log: log.body == "wrong row",
}


@pytest.mark.parametrize("fence", of("logql"))
def test_a_query_of_the_pages_is_answered(fence: Fence, logged: InLoki) -> None:
    text = fence.text.replace('"} |', f'"}} | dask_cluster_name="{logged.name}" |')
    assert text != fence.text
    if text.startswith("sum"):
        assert logged.loki.count(text) == {frozenset({(REASON.replace(".", "_"), "lost")}): 2}
        return
    (wanted,) = [chosen for end, chosen in _ASKED.items() if fence.text.endswith(end)]
    assert same(logged.loki.query(text, logged.started), [*filter(wanted, logged.records)])
