"""The dashboards are valid for Grafana, ask for what is exported, and can be read and followed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest
import yaml

from dask_otel import semconv
from tests.backends import prometheus_names

from . import queries
from .test_rules import RECORDED

REPOSITORY = Path(__file__).parents[2]
GRAFANA = REPOSITORY / "deploy" / "grafana"
SCHEMAS = REPOSITORY / "tests" / "backends" / "grafana-schema"
PAGES = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((GRAFANA / "dashboards").glob("*.json"))
}
PANELS = {
    f"{page}: {panel['title']}": panel
    for page, dashboard in PAGES.items()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
}
#: What somebody asks who wants a faster workflow (the questions of the announcement of Dask's fine
#: performance metrics), and the panels that answer.
QUESTIONS = {
    "How much time am I losing to GIL contention?": "overview",
    "How much time am I wasting in network transfer?": "overview",
    "More throughput, or better data locality?": "overview",
    "How much time is lost to spilling?": "overview",
    "Would more memory help? (cache hits)": "overview",
    "The event loop is blocked: should I worry?": "overview",
    "Twice the cluster, not twice as fast: where did the inefficiency go?": "overview",
    "Where did the time go?": "overview",
    "Slower than before: where do I spend more time?": "span",
    "A new version of Dask: where do I spend more time?": "span",
}


def schema(kind: str, definition: str | None = None) -> dict[str, Any]:
    text = (SCHEMAS / f"{kind}.jsonschema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded | ({"$ref": f"#/definitions/{definition}"} if definition else {})


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def test_all_four_are_there() -> None:
    assert PAGES.keys() == {"overview", "span", "cluster-and-workers", "exporter-health"}


@pytest.mark.skipif(
    not find_spec("grafana_foundation_sdk"),
    reason="needs the dependency group `dashboards` (Grafana Foundation SDK)",
)
def test_the_files_are_what_the_code_makes() -> None:
    command = [sys.executable, str(REPOSITORY / "tools" / "build_dashboards.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_a_dashboard_is_valid(page: str) -> None:
    jsonschema.validate(PAGES[page], schema("dashboard"))
    ids = [panel["id"] for panel in PAGES[page]["panels"]]
    assert len(set(ids)) == len(ids)
    assert PAGES[page]["schemaVersion"] == 41


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_is_valid(name: str) -> None:
    panel = PANELS[name]
    jsonschema.validate(panel["options"], schema(panel["type"], "Options"))
    if panel["type"] == "timeseries":
        custom = panel["fieldConfig"]["defaults"]["custom"]
        jsonschema.validate(custom, schema("timeseries", "FieldConfig"))
    for target in panel["targets"]:
        jsonschema.validate(target, schema("prometheus"))


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_asks_for_what_is_exported(name: str) -> None:
    exported = queries.exported()
    known = queries.COMMON.union(*exported.values())
    for expression in expressions(PANELS[name]):
        used = queries.metrics(expression)
        assert used, expression
        assert used <= exported.keys() | RECORDED.keys() | queries.PLANNED
        assert queries.labels(expression) <= known


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_can_be_read_and_leads_to_traces(name: str) -> None:
    panel = PANELS[name]
    assert len(panel["description"]) > 30
    assert panel["description"].endswith((".", "exact."))
    links = {link["title"]: unquote(link["url"]) for link in panel["links"]}
    assert links.keys() == {"Traces in Tempo", "Traces in Jaeger"}
    # Without Grafana's variables, what is left is the JSON of Explore.
    for url in [*links.values(), *(unquote(x["url"]) for x in _data_links(panel))]:
        (pane,) = json.loads(url.partition("panes=")[2]).values()
        assert pane["datasource"] in ("${tempo}", "${jaeger}")
        (query,) = pane["queries"]
        assert query["datasource"]["type"] in ("tempo", "jaeger")


def _data_links(panel: dict[str, Any]) -> list[dict[str, Any]]:
    links: list[dict[str, Any]] = panel["fieldConfig"]["defaults"].get("links", [])
    return links


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_has_its_panel(question: str) -> None:
    assert f"{QUESTIONS[question]}: {question}" in PANELS


def test_every_metric_is_on_some_panel() -> None:
    used = {
        name
        for panel in PANELS.values()
        for expression in expressions(panel)
        for name in queries.metrics(expression)
    }
    unused = {
        metric.name
        for metric in semconv.METRICS.values()
        if not prometheus_names.names(metric) & used
    }
    # For queries of one's own.
    assert unused == {
        "dask.span.execute.operations",
        "dask.span.p2p.io",
        "dask.span.p2p.operations",
        "dask.span.custom",
        "dask.cluster.transfer.operations",
        "dask.cluster.spill.io",
        "dask.cluster.spill.operations",
    }


def _variables(page: str) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in PAGES[page]["templating"]["list"]}


@pytest.mark.parametrize("page", PAGES)
def test_every_variable_that_is_used_is_defined(page: str) -> None:
    text = json.dumps(PAGES[page])
    builtin = {"range", "rate_interval", "range_s", "from", "to", "field", "all"}
    for name in ("cluster", "root", "span", "prefix", "before", "datasource", "tempo", "jaeger"):
        used = f'"${name}' in text or f"${{{name}" in text or f"${name}" in text.replace("$__", "")
        assert used == (name in _variables(page)) or name in builtin, name


def test_the_data_sources_lead_to_each_other() -> None:
    file = GRAFANA / "provisioning" / "datasources" / "dask-otel.yaml"
    sources = {
        one["uid"]: one for one in yaml.safe_load(file.read_text(encoding="utf-8"))["datasources"]
    }
    destinations = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert {one["datasourceUid"] for one in destinations} == {"tempo", "jaeger"}
    assert {one["name"] for one in destinations} == {"trace_id"}
    exported = queries.exported()
    for uid in ("tempo", "jaeger"):
        back = sources[uid]["jsonData"]["tracesToMetrics"]
        assert back["datasourceUid"] == "prometheus"
        labels = {tag["value"] for tag in back["tags"]}
        for query in back["queries"]:
            (metric,) = queries.metrics(query["query"])
            assert labels <= exported[metric] | queries.COMMON
    provider = GRAFANA / "provisioning" / "dashboards" / "dask-otel.yaml"
    (provided,) = yaml.safe_load(provider.read_text(encoding="utf-8"))["providers"]
    compose = (REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8")
    assert f"./deploy/grafana/dashboards:{provided['options']['path']}:ro" in compose
