"""Every query of every panel and every rule, run by a real Prometheus on the bridge's own data."""

from __future__ import annotations

import math

import pytest

from tests.contract import queries
from tests.contract.test_dashboards import PANELS, expressions
from tests.contract.test_rules import ALERTS, RECORDED

from .bridge_run import Run

pytestmark = [pytest.mark.backend, pytest.mark.cluster]

#: Queries that need a day of data: they must be valid, and are tested by promtool.
NEED_A_DAY = {"span: How does its efficiency go on?"}


#: Seconds between the two runs that a panel compares.
BEFORE = 2


def substituted(expression: str, run: Run) -> str:
    """A query as Grafana would send it."""
    values = {
        "$__rate_interval": "1m",
        "$__range_s": "600",
        "$__range": "10m",
        "$cluster": run.name,
        "$root": ".*",
        "$span": ".*",
        "$prefix": ".*",
        "$before": f"{BEFORE}s",
    }
    for name, value in values.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_has_data(name: str, bridge_run: Run) -> None:
    for expression in expressions(PANELS[name]):
        query = substituted(expression, bridge_run)
        # So late that the time before has the whole run, too.
        found = bridge_run.prometheus.query(query, bridge_run.at + BEFORE)
        assert bool(found) != (name in NEED_A_DAY), query
        assert not any(math.isinf(series.value) for series in found), query


@pytest.mark.parametrize("name", [*RECORDED, *ALERTS])
def test_a_rule_is_asked_without_an_error(name: str, bridge_run: Run) -> None:
    expression = {**RECORDED, **ALERTS}[name]["expr"]
    # Without the minimum volume, which a few seconds of work do not have.
    for volume in ("> 60", "> 600", "> 1e9"):
        expression = expression.replace(volume, "> 0")
    found = bridge_run.prometheus.query(expression, bridge_run.at)
    # What is made of recorded series has data once they are there: see the tests of promtool.
    if name in RECORDED and not queries.metrics(expression) & RECORDED.keys():
        ours = [one for one in found if one.labels.get("dask_cluster_name") == bridge_run.name]
        assert ours, expression
