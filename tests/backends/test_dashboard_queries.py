"""Every query of every panel and every rule, run by a real Prometheus on the bridge's own data."""

from __future__ import annotations

import math
import re
from pathlib import Path
from statistics import fmean

import pytest

from tests.contract import queries
from tests.contract.test_dashboards import PAGES, PANELS, expressions
from tests.contract.test_pages import Fence, of
from tests.contract.test_rules import ALERTS, RECORDED
from tests.waiting import eventually

from .bridge_run import Run
from .clients import PrometheusClient, Series
from .conftest import Start
from .servers import start_prometheus

pytestmark = [pytest.mark.backend, pytest.mark.cluster]

#: Queries that need a day of data: they must be valid, and are tested by promtool.
NEED_A_DAY = {"span: How does its efficiency go on?"}
#: A rule that needs hours of data; it is tested by promtool, too.
NEEDS_HOURS = "cluster:dask_results_kept:min2h"
#: Alerts do not fire within some seconds: see `test_the_firing_alerts_are_listed`.
NEED_ALERTS = {"overview: Which alerts fire now?"}
#: These have data only where the bridge has lost something or met an error.
NEED_TROUBLE = {
    "exporter-health: When was something lost, and why?",
    "exporter-health: When did it meet errors of its own?",
    # Without a spool.
    "exporter-health: What waits in the spool?",
    "exporter-health: How full is the spool?",
    "exporter-health: Its spool",
}

#: These have data only where workers have a GPU.
NEED_GPUS = {
    "cluster-and-workers: Are the GPUs busy?",
    "cluster-and-workers: How full are the GPUs?",
    "cluster-and-workers: What is in the GPUs' memory?",
}

#: The label is there once it is asked for: see `test_cost.py`.
NEED_TEAMS = {"overview: Which teams cost the most?"}

#: Seconds between the two runs that a panel compares.
BEFORE = 2

#: The first screen's shares of the time that is accounted for.
PARTS = ("Computing", "Off the CPU", "Moving data", "Other", "Idle", "Unused", "Wasted")
SHARES = {
    target["legendFormat"]: target["expr"]
    for target in PANELS["overview: Where did the thread-time go?"]["targets"]
}


def substituted(expression: str, run: Run, root: str = ".*") -> str:
    """A query as Grafana would send it."""
    values = {
        "offset $__range": f"offset {BEFORE}s",
        "$__rate_interval": "1m",
        "$__interval": "5s",
        "$__range": "10m",
        "$cluster": run.name,
        "${root:regex}": root,
        "$span": ".*",
        "$prefix": ".*",
        "$before": f"{BEFORE}s",
        "$price": "0.05",
    }
    for name, value in values.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def asked(run: Run, expression: str, root: str = ".*") -> list[Series]:
    # So late that the time before has the whole run, too.
    return run.prometheus.query(substituted(expression, run, root), run.at + BEFORE)


def column(run: Run, panel: str, title: str, label: str, root: str = ".*") -> dict[str, float]:
    """What a table shows in a column, by the label of its rows."""
    (organize,) = [
        one["options"] for one in PANELS[panel]["transformations"] if one["id"] == "organize"
    ]
    (name,) = [name for name, shown in organize["renameByName"].items() if shown == title]
    (target,) = [
        one for one in PANELS[panel]["targets"] if name in (f"Value #{one['refId']}", "Value")
    ]
    return {one.labels[label]: one.value for one in asked(run, target["expr"], root)}


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_has_data(name: str, bridge_run: Run) -> None:
    without_data = NEED_A_DAY | NEED_ALERTS | NEED_TROUBLE | NEED_TEAMS | NEED_GPUS
    for expression in expressions(PANELS[name]):
        if name == "overview: What should I do next?":
            # Without the limits, which a few seconds of work may not reach.
            for limit in ("> 0.5", "> 0.95", "> 0.1", "> 0.05", "> 0.25"):
                expression = expression.replace(f") {limit}", ") > -1")
        found = asked(bridge_run, expression)
        if name == "cluster-and-workers: What does the memory monitor spill?":
            # The monitor looks now and then: what tasks spilled themselves may be all.
            spilled = bridge_run.query("dask_cluster_spill_time_seconds_total")
            assert bool(found) <= any(one.value > 0 for one in spilled), expression
            continue
        # Nor did Dask book any submission on another span.
        collided = "dask_span_collided_total" in expression and "or 0 *" not in expression
        absent = name in without_data or collided
        assert bool(found) != absent, expression
        assert not any(math.isinf(one.value) or math.isnan(one.value) for one in found), expression


@pytest.mark.parametrize("fence", of("promql"))
def test_a_query_of_the_pages_has_data(fence: Fence, bridge_run: Run) -> None:
    # The server has no past of a week or a month.
    found = bridge_run.prometheus.query(re.sub(r" offset \dd", "", fence.text), bridge_run.at)
    assert found
    assert all(math.isfinite(one.value) for one in found)


def test_the_first_row_adds_up(bridge_run: Run) -> None:
    """Every second that Dask has accounted for is in one part, and only in one."""
    assert tuple(SHARES) == PARTS
    shares = {}
    for title, expression in SHARES.items():
        (one,) = asked(bridge_run, expression)
        shares[title] = one.value
    assert sum(shares.values()) == pytest.approx(1, abs=1e-9)
    # Work of every kind was done: a part that takes nothing would be one that nobody can see.
    assert all(shares[title] > 0 for title in PARTS), shares


def test_the_parts_have_the_activities_that_they_say(bridge_run: Run) -> None:
    """Against the counters themselves, asked without the matchers of the dashboard."""
    seconds = {
        one.labels["dask_activity"]: one.value
        for one in bridge_run.query("dask_cluster_time_seconds_total")
    }
    everything = sum(seconds.values())
    for title, activity in (("Computing", "thread-cpu"), ("Idle", "idle"), ("Unused", "unused")):
        (one,) = asked(bridge_run, SHARES[title])
        assert one.value == pytest.approx(seconds[activity] / everything, abs=0.05), title


_RUNS, _ENDS = (
    ("overview: Which workflows cost the most?", "dask_span_root_name", ".*"),
    ("span: How did its spans end, and how long did they take?", "dask_span_name", "nightly"),
)
_PARTS = ("load", "compute", "meter", "spill", "shuffle", "again")
_NIGHTLY = ("nightly", *(f"nightly/{name}" for name in _PARTS))


@pytest.mark.parametrize(
    ("table", "title", "shown"),
    [
        (_RUNS, "Runs", {"nightly": 1, "broken": 1, "default": 1}),
        (_RUNS, "Failed", {"nightly": 0, "broken": 1, "default": 0}),
        (_ENDS, "Ended", dict.fromkeys(_NIGHTLY, 1)),
        (_ENDS, "Success", dict.fromkeys(_NIGHTLY, 1)),
        (_ENDS, "Failed", dict.fromkeys(_NIGHTLY, 0)),
    ],
)
def test_runs_and_ends_of_spans_are_counted_one_by_one(
    table: tuple[str, str, str], title: str, shown: dict[str, float], bridge_run: Run
) -> None:
    panel, label, root = table
    assert column(bridge_run, panel, title, label, root=root) == shown


def test_a_run_takes_as_long_as_its_root(bridge_run: Run) -> None:
    """Spans inside of it, which are shorter, are not among the runs."""
    expression = expressions(PANELS["span: How long do its runs take?"])[-1]
    (mean,) = asked(bridge_run, expression, root="nightly")
    seconds = bridge_run.query("dask_span_duration_seconds_sum", dask_span_name="nightly")
    (alone,) = [one.value for one in seconds]
    assert mean.value == pytest.approx(alone)
    every = bridge_run.query("dask_span_duration_seconds_sum", dask_span_root_name="nightly")
    assert mean.value != pytest.approx(sum(one.value for one in every) / len(every), rel=0.01)


@pytest.mark.parametrize(
    ("panel", "root", "label", "shown", "hidden"),
    [
        # A root's is that of the tree, and the spans below it are shown apart from it.
        (
            "span: How long do its spans wait for their first task?", "nightly", "dask_span_name",
            {"nightly", "nightly/load"}, {"broken", "default"},
        ),
        # Tasks of other workflows are not shown.
        (
            "span: How long is one task?", "broken", "dask_task_prefix", {"fail"},
            {"double", "spin", "meter", "block", "len", "abs"},
        ),
    ],
)  # fmt: skip
def test_a_page_shows_what_belongs_to_its_workflow(
    panel: str, root: str, label: str, shown: set[str], hidden: set[str], bridge_run: Run
) -> None:
    (expression,) = expressions(PANELS[panel])
    found = {one.labels[label] for one in asked(bridge_run, expression, root=root)}
    assert shown <= found
    assert not found & hidden


def test_an_event_loop_is_judged_by_the_time_that_has_data(bridge_run: Run) -> None:
    """Some seconds of work are not the whole of the ten minutes that are shown."""
    (expression,) = expressions(PANELS["exporter-health: Its event loop"])
    often = expression.replace("$__rate_interval", "4s").replace("$__interval", "1s")
    (shown,) = asked(bridge_run, often)
    counter = bridge_run.selector("dask_otel_loop_time_seconds_total")
    # Prometheus evaluates a subquery at whole multiples of its step.
    end = float(int(bridge_run.at + BEFORE))
    (rates,) = bridge_run.prometheus.query_range(f"sum(rate({counter}[4s]))", end - 600, end, 1.0)
    values = [value for _, value in rates.points]
    assert len(values) < 100
    assert shown.value == pytest.approx(fmean(values), rel=0.1)


RULES = """
groups:
  - name: test
    interval: 200ms
    rules:
      - alert: DaskClusterIdle
        expr: label_replace(vector(0.7), "dask_cluster_name", "prod", "", "")
        labels: {severity: warning}
      - alert: DaskTimeLost
        expr: label_replace(vector(0.7), "dask_cluster_name", "prod", "", "")
        for: 1h
      - alert: DaskRunsFail
        expr: label_replace(vector(0.7), "dask_cluster_name", "prod", "", "")
        labels: {severity: critical, dask_span_root_name: import}
      - alert: DaskSpanIdle
        expr: label_replace(vector(0.7), "dask_cluster_name", "prod", "", "")
        labels: {severity: info}
      - alert: SomebodyElses
        expr: label_replace(vector(1), "dask_cluster_name", "prod", "", "")
"""


def test_the_firing_alerts_are_listed(start: Start, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULES, encoding="utf-8")
    config = tmp_path / "prometheus.yml"
    config.write_text("rule_files: [rules.yml]\n", encoding="utf-8")
    client = PrometheusClient(start(start_prometheus, config).url)
    asked_for = [
        expression.replace("$cluster", ".*")
        for expression in expressions(PANELS["overview: Which alerts fire now?"])
    ]
    since = eventually(lambda: found if len(found := client.query(asked_for[0])) == 3 else None)
    (now,) = client.query("time()")
    assert all(now.value - 60 < firing.value / 1000 <= now.value for firing in since)
    # The worst first.
    ranks = {one.labels["alertname"]: one.value for one in client.query(asked_for[1])}
    assert ranks == {"DaskRunsFail": 3, "DaskClusterIdle": 2, "DaskSpanIdle": 1}
    marked = {}
    for name, page in PAGES.items():
        (annotation,) = [
            one for one in page["annotations"]["list"] if one["datasource"]["type"] == "prometheus"
        ]
        asked_here = annotation["expr"].replace("$cluster", "prod").replace("${root:regex}", "etl")
        marked[name] = {one.labels["alertname"] for one in client.query(asked_here)}
    # Neither what is only worth a look nor, on the page of a workflow, the alerts of another.
    assert marked.pop("span") == {"DaskClusterIdle"}
    assert all(names == {"DaskClusterIdle", "DaskRunsFail"} for names in marked.values())


@pytest.mark.parametrize("name", [*RECORDED, *ALERTS])
def test_a_rule_is_asked_without_an_error(name: str, bridge_run: Run) -> None:
    expression = {**RECORDED, **ALERTS}[name]["expr"]
    # Without the minimum volume, which a few seconds of work do not have.
    for volume in ("> 60", "> 600", "> 1e9"):
        expression = expression.replace(volume, "> 0")
    found = bridge_run.prometheus.query(expression, bridge_run.at)
    # What is made of recorded series has data once they are there: see the tests of promtool.
    if name == NEEDS_HOURS:
        assert not found
    elif name in RECORDED and not queries.metrics(expression) & RECORDED.keys():
        ours = [one for one in found if one.labels.get("dask_cluster_name") == bridge_run.name]
        assert ours, expression
