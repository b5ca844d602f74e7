"""The dashboards are valid for Grafana, ask for what is exported, and can be read and followed."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import dask.config
import distributed
import jsonschema
import pytest
import yaml

from dask_otel import semconv
from dask_otel.report.meanings import ALIKE, HEX, MEANINGS, PART_TITLES, PARTS, PATH, colour_of
from tests.backends import prometheus_names
from tests.environment import REPOSITORY

from . import dashboard_rules as rules
from . import queries
from .dashboard_rules import expressions, panels

# The libraries that build them are imported by one process.
pytestmark = pytest.mark.xdist_group("dashboards")

GRAFANA = REPOSITORY / "deploy" / "grafana"
SCHEMAS = REPOSITORY / "tests" / "backends" / "grafana-schema"

PAGES = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((GRAFANA / "dashboards").glob("*.json"))
}
PANELS = {
    f"{page}: {panel['title']}": panel
    for page, dashboard in PAGES.items()
    for panel in panels(dashboard)
}
#: The definition of a cell's options by their type: all together, several would fit.
CELLS = {
    "auto": "TableAutoCellOptions",
    "color-text": "TableColorTextCellOptions",
    "gauge": "TableBarGaugeCellOptions",
}
#: What somebody asks who wants a faster workflow.
QUESTIONS = (
    "overview: Off the CPU: GIL, I/O, GPU",
    "overview: Does the network cost time?",
    "overview: More throughput, or better data locality?",
    "overview: How much does spilling cost?",
    "overview: Would more memory help? (cache hits)",
    "overview: The event loop is blocked: should I worry?",
    "overview: Twice the cluster, not twice as fast: where is the rest?",
    "overview: Where did the time go?",
    "span: Slower than before: where do I spend more time?",
    "span: A new version of Dask: where do I spend more time?",
)


@cache
def schema(kind: str, definition: str | None = None) -> jsonschema.Draft7Validator:
    """Return the validator, once: to check the schema itself takes longer than what it is for."""
    text = (SCHEMAS / f"{kind}.jsonschema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    # What is anything in Grafana's own definitions is an object in the schemas made of them.
    for one, key in (("MatcherConfig", "options"), ("DynamicConfigValue", "value")):
        if one in loaded["definitions"]:
            loaded["definitions"][one]["properties"][key].pop("type", None)
    jsonschema.Draft7Validator.check_schema(loaded)
    found = loaded | ({"$ref": f"#/definitions/{definition}"} if definition else {})
    return jsonschema.Draft7Validator(found)


def test_all_four_are_there() -> None:
    assert PAGES.keys() == {"overview", "span", "cluster-and-workers", "exporter-health"}
    # The questions of the announcement of Dask's fine performance metrics are answered.
    assert {*QUESTIONS} <= PANELS.keys()


@pytest.mark.parametrize("page", PAGES)
def test_a_dashboard_is_valid(page: str) -> None:
    schema("dashboard").validate(PAGES[page])
    rows = [panel for panel in PAGES[page]["panels"] if panel["type"] == "row"]
    ids = [panel["id"] for panel in [*rows, *panels(PAGES[page])]]
    assert (len(set(ids)), PAGES[page]["schemaVersion"]) == (len(ids), 41)


def test_shares_of_workers_of_one_name_are_not_added_up() -> None:
    """Two clusters can have a worker of the same name, as `LocalCluster` counts them."""
    asked = [expr for panel in PANELS.values() for expr in expressions(panel)]
    assert not [expr for expr in asked if re.search(r"sum[^(]*\([^)]*\) \(\w+_ratio\b", expr)]


def test_each_panel_is_valid_and_asks_for_what_is_exported() -> None:
    for name, panel in PANELS.items():
        schema(panel["type"], "Options").validate(panel["options"])
        if panel["type"] == "timeseries":
            custom = panel["fieldConfig"]["defaults"]["custom"]
            schema("timeseries", "FieldConfig").validate(custom)
        for override in panel["fieldConfig"]["overrides"]:
            for one in override["properties"]:
                if one["id"] == "custom.cellOptions":
                    schema("table", CELLS[one["value"]["type"]]).validate(one["value"])
        for target in panel["targets"]:
            schema(target["datasource"]["type"]).validate(target)
        assert [queries.unknown(one) for one in expressions(panel) if queries.unknown(one)] == [], (
            name
        )


@pytest.mark.parametrize("page", PAGES)
def test_links_fit_their_target_and_explore_can_read_those_to_it(page: str) -> None:
    assert [*rules.links_fit_their_target(PAGES)] == []
    urls = [unquote(url) for _, url in rules.links(PAGES[page]) if url.startswith("/explore")]
    assert urls
    for url in urls:
        # Without Grafana's variables, what is left is the JSON of Explore.
        (pane,) = json.loads(url.partition("panes=")[2]).values()
        (query,) = pane["queries"]
        assert pane["datasource"] == f"${{{query['datasource']['type']}}}"


# ------------------------------------------------------------------- what answers at a glance


def test_a_dashboard_answers_at_a_glance() -> None:
    for name, panel in PANELS.items():
        kind = panel["type"]
        faults = [rule for rule, kinds in rules.RULES.items() if kind in kinds and rule(panel)]
        asked = [
            (pattern, one)
            for pattern, kinds in rules.FORBIDDEN.items()
            for one in expressions(panel)
            if kind in (kinds or kind) and re.search(pattern, one, re.DOTALL)
        ]
        assert (faults, asked) == ([], []), name


def test_every_activity_of_dask_has_its_colour() -> None:
    """What the installed Dask meters, by its source, has a meaning in the table of colours."""
    written = re.compile(r'(?<!>>> with )context_meter\.meter\(\s*"([^"]+)"')
    root = Path(distributed.__file__).parent
    metered = {
        name
        for path in root.rglob("*.py")
        if "tests" not in path.relative_to(root).parts
        for name in written.findall(path.read_text("utf-8"))
    }
    assert {"thread-cpu", "disk-read", "network"} <= metered
    known = "|".join(name for one in (*MEANINGS.values(),) for name in one.names)
    alike = {name for names in ALIKE.values() for name in names}
    # What background threads of a shuffle do is drawn in the colours of the palette.
    left = {name for name in metered - alike - {"process"} if not re.fullmatch(known, name)}
    assert left == set()


def test_the_lines_of_memory_are_those_of_dask() -> None:
    panel = PANELS["cluster-and-workers: How full is each worker's memory?"]
    text = Path(distributed.__file__).with_name("distributed.yaml").read_text(encoding="utf-8")
    memory = dask.config.get("distributed.worker.memory", config=yaml.safe_load(text))
    drawn = [value for value, _ in rules.steps(panel) if value is not None]
    assert (drawn, rules.defaults(panel)["custom"]["thresholdsStyle"]["mode"]) == (
        [memory["target"], memory["pause"], memory["terminate"]],
        "dashed",
    )


#: What the first screen of *Overview* answers, and where.
FIRST_SCREEN = {
    "what it cost": {"Thread-time", "Cost"},
    "what bounded the runs": {"What bounded the runs?", "What should I do next?"},
    "what failed": {"Failed runs", "Which runs failed lately, and why?", "Which alerts fire now?"},
    "whether the telemetry is complete": {"Telemetry lost", "Last export"},
    "where the time went": {"Where did the thread-time go?"},
}


def test_the_first_screen_answers_what_matters_and_few_panels_are_open() -> None:
    """A window of 1080 px shows 24 units of height; a person has to scroll to the rest."""
    shown = [one for one in PAGES["overview"]["panels"] if one["type"] != "row"]
    first = {one["title"] for one in shown if one["gridPos"]["y"] + one["gridPos"]["h"] <= 24}
    assert first == set().union(*FIRST_SCREEN.values())
    assert len(shown) <= 24


@pytest.mark.parametrize("page", ["overview", "span"])
def test_who_holds_the_memory_has_a_closed_row(page: str) -> None:
    rows = {one["title"]: one for one in PAGES[page]["panels"] if one["type"] == "row"}
    shown = rows["Who holds the memory?"]
    expressions = [one["expr"] for panel in shown["panels"] for one in panel["targets"]]
    assert shown["collapsed"]
    assert any("dask_span_memory_usage_bytes" in one for one in expressions)


def test_each_part_of_the_time_has_a_limit_an_advice_and_a_runbook() -> None:
    panel = PANELS["overview: Where did the thread-time go?"]
    runbooks = {link["title"].partition("Runbook ")[2] for link in panel["links"]}
    assert [one["legendFormat"] for one in panel["targets"]] == [one.title for one in PARTS]
    for part in PARTS:
        assert f"{part.title}: {part.advice}" in panel["description"]
        assert part.alert in runbooks
        own = rules.properties(panel, f"/{part.title}$/")["thresholds"]["steps"]
        # No rule says how much computing or overhead is right.
        assert (len(own) == 2) == (part.title not in ("Computing", "Other"))


def test_names_have_the_colours_of_the_report() -> None:
    """There, no opposite meanings share one: see `test_report.py`."""
    coloured = [one for one in PANELS.values() if rules.colour_of(one, "idle")]
    assert len(coloured) > 10
    names = ("succeeded", "failed", "memory-read", "managed", "spilled", "waiting", "processing")
    for name in (*PATH.values(), *PART_TITLES, *names):
        shown = {rules.colour_of(panel, name) for panel in coloured}
        assert {HEX.get(colour, colour) for colour in shown} == {colour_of(name)}, name


def test_every_metric_is_on_some_panel() -> None:
    used = set().union(*(queries.metrics(x) for one in PANELS.values() for x in expressions(one)))
    # For queries of one's own.
    assert {
        one.name for one in semconv.METRICS.values() if not prometheus_names.names(one) & used
    } == {
        "dask.span.execute.operations",
        "dask.span.p2p.io",
        "dask.span.p2p.operations",
        "dask.task.lost",
        "dask.cluster.transfer.operations",
        "dask.cluster.spill.io",
        "dask.cluster.spill.operations",
        "dask.event_loop.cpu.time",
        "dask.event_loop.starved.time",
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_variable_that_is_used_is_defined_and_one_value_in_a_pattern_escaped(
    page: str,
) -> None:
    """Grafana escapes by itself only where several can be chosen: `nightly (eu)` found nothing."""
    text = json.dumps(PAGES[page])
    builtin = {"range", "rate_interval", "interval", "from", "to", "field", "value", "all"}
    names = ("cluster", "root", "span", "prefix", "before", "price", "datasource")
    for name in (*names, "tempo", "jaeger", "loki"):
        used = f'"${name}' in text or f"${{{name}" in text or f"${name}" in text.replace("$__", "")
        assert used == (name in rules.variables(PAGES[page])) or name in builtin, name
    for name, variable in rules.variables(PAGES[page]).items():
        matchers = re.findall(rf"=~([\"`])\$\{{?{name}\b(:\w+)?", text.replace('\\"', '"'))
        if variable.get("multi"):
            assert matchers
        else:
            assert set(matchers) <= {("`", ":regex")}, name


def test_the_data_sources_lead_to_each_other() -> None:
    file = GRAFANA / "provisioning" / "datasources" / "dask-otel.yaml"
    sources = {
        one["uid"]: one for one in yaml.safe_load(file.read_text(encoding="utf-8"))["datasources"]
    }
    exemplars = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    fields = sources["loki"]["jsonData"]["derivedFields"]
    assert {one["name"] for one in exemplars} == {"trace_id"}
    assert {(one["matcherType"], one["matcherRegex"]) for one in fields} == {("label", "trace_id")}
    for uid in ("tempo", "jaeger"):
        for leading in (exemplars, fields):
            assert uid in {one["datasourceUid"] for one in leading}
        back, logs = (sources[uid]["jsonData"][f"tracesTo{x}"] for x in ("Metrics", "LogsV2"))
        assert (back["datasourceUid"], logs["datasourceUid"]) == ("prometheus", "loki")
        assert 'trace_id="$${__trace.traceId}"' in logs["query"]
        labels = ", ".join(tag["value"] for tag in back["tags"])
        for query in back["queries"]:
            (metric,) = queries.metrics(query["query"])
            assert queries.unknown(f"sum by ({labels}) ({metric})") == set()
    provider = GRAFANA / "provisioning" / "dashboards" / "dask-otel.yaml"
    (provided,) = yaml.safe_load(provider.read_text(encoding="utf-8"))["providers"]
    compose = (REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8")
    assert f"./deploy/grafana/dashboards:{provided['options']['path']}:ro" in compose


@pytest.mark.parametrize("page", PAGES)
def test_what_happened_is_marked_on_every_page(page: str) -> None:
    """An annotation of the events that are warnings, by names that exist."""
    (marks,) = [one for one in PAGES[page]["annotations"]["list"] if one["name"] == "What happened"]
    assert (marks["datasource"], marks["expr"]) == (
        {"type": "loki", "uid": "${loki}"},
        marks["target"]["expr"],
    )
    attributes = {one.replace(".", "_") for kinds in semconv.LOG_EVENTS.values() for one in kinds}
    known = attributes | {"event_name", "severity_number", "severity_text", "dask_cluster_name"}
    asked = [marks["expr"]] + [
        target["expr"]
        for panel in panels(PAGES[page])
        for target in panel["targets"]
        if target["datasource"]["type"] == "loki"
    ]
    assert len(asked) == (2 if page in ("overview", "span") else 1)
    for expression in asked:
        _, _, stages = expression.partition("}")
        fields = re.findall(r"\| (\w+)\s*(?:=~|!~|>=|=)", stages)
        assert set(fields) <= known
        (left_out,) = re.findall(r'event_name!~"([^"]+)"', expression)
        assert re.fullmatch(left_out, semconv.WORKER_LOG)
        assert re.fullmatch(left_out, semconv.WORKER_LOG_LEFT_OUT)
        assert not re.fullmatch(left_out, semconv.WORKER_REMOVED)
