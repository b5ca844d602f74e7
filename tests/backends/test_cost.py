"""Money by team and by cluster: the recipe of docs/cost-per-team.md, by a real Prometheus."""

from __future__ import annotations

import re
import textwrap

import pytest
from distributed import Client, span

from tests.cluster import processes
from tests.cluster.tasks import nap
from tests.contract.test_dashboards import PANELS, expressions
from tests.waiting import eventually

from .bridge_run import Run, new_run, scheduler
from .clients import PrometheusClient
from .servers import REPOSITORY, Running
from .test_dashboard_queries import asked, column

pytestmark = [pytest.mark.backend, pytest.mark.cluster]

PRICE = 0.05
TEAMS = "overview: Which teams cost the most?"
CLUSTERS = "overview: Which clusters cost the most?"


def executed(dask_scheduler: object) -> dict[str, float]:
    """Seconds of threads that Dask itself has for the spans of each team; runs on the scheduler."""
    found: dict[str, float] = {}
    for one in dask_scheduler.extensions["spans"].spans.values():  # type: ignore[attr-defined]
        teams = [tag.partition(":")[2] for tag in one.name if tag.startswith("team:")]
        team = teams[0] if teams else "_EMPTY"
        for key, value in one._cumulative_worker_metrics.items():
            if key[0] == "execute" and key[-1] == "seconds":
                found[team] = found.get(team, 0.0) + value
    return found


@pytest.fixture(scope="module")
def run(prometheus: Running, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two teams and one who says nothing, of which one leaves three of four threads idle."""
    run = new_run(PrometheusClient(prometheus.url))
    environment = {
        "DASK_OTEL__METRICS__TAG_ATTRIBUTES": '["team"]',
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{prometheus.http}/v1/metrics",
    }
    folder = tmp_path_factory.mktemp("dask")
    with (
        processes.cluster(folder) as dask,
        scheduler(dask, run.name, environment),
        Client(dask.address) as client,
    ):
        client.wait_for_workers(2)
        run.instance = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.id)
        # Keys of their own: work of one name that lives belongs to the span that had it first.
        with span("etl", "team:risk"), span("train"):
            client.submit(nap, 2.0, key="train").result()
        with span("report", "team:sales"):
            client.gather(client.map(nap, [0.9, 0.91, 0.92, 0.93], key="report"))
        with span("adhoc"):
            client.submit(nap, 0.2, key="adhoc").result()

        def complete() -> bool:
            truth = client.run_on_scheduler(executed)
            assert truth.keys() == {"risk", "sales", "_EMPTY"}
            worked = {
                team: time - seconds(run, "dask_span_idle_time_seconds_total")[team]
                for team, time in seconds(run, "dask_span_capacity_time_seconds_total").items()
            }
            assert worked == pytest.approx(truth, rel=1e-6)
            return True

        eventually(complete, what="Prometheus has everything")
        run.await_export()
    return run


def seconds(run: Run, metric: str) -> dict[str, float]:
    """The counter itself, by team."""
    found = run.prometheus.query(f"sum by (dask_tag_team) ({run.selector(metric)})", run.at or None)
    return {one.labels["dask_tag_team"]: one.value for one in found}


def test_money_is_thread_hours_times_the_price(run: Run) -> None:
    hours, cost, idle_cost, idle = (
        column(run, TEAMS, title, "dask_tag_team")
        for title in ("Thread-hours", "Cost", "Idle cost", "Idle")
    )
    assert hours.keys() == {"risk", "sales", "_EMPTY"}
    assert cost == pytest.approx({team: value * PRICE for team, value in hours.items()})
    # `increase` goes on for at most half an interval after the last of at least three samples.
    for team, counted in seconds(run, "dask_span_capacity_time_seconds_total").items():
        assert 0.99 * counted <= hours[team] * 3600 <= 1.5 * counted, team
    # One of four threads worked.
    assert 0.5 < idle["risk"] == pytest.approx(idle_cost["risk"] / cost["risk"])


def test_unused_money_is_the_cluster_s(run: Run) -> None:
    (cost,) = expressions(PANELS["overview: Cost"])
    idle, unused, _ = expressions(PANELS["overview: What was paid for nothing?"])
    for title, expression in (("Cost", cost), ("Unused cost", unused), ("Idle cost", idle)):
        (value,) = column(run, CLUSTERS, title, "dask_cluster_name").values()
        assert [one.value for one in asked(run, expression)] == pytest.approx([value])


def test_the_queries_of_the_page_are_right(run: Run) -> None:
    """Each has data, and what is shared out is what there was."""
    page = (REPOSITORY / "docs" / "cost-per-team.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```promql\n(.*?)```", page, re.DOTALL)
    answers = []
    for block in blocks:
        # Only this run's: other tests use the same server.
        own = f'dask_cluster_name="{run.name}"'
        query = textwrap.dedent(block).replace("[30d]", "[10m]").replace("{", f"{{{own}, ")
        query = re.sub(r"(dask_\w+_total)\[", rf"\1{{{own}}}[", query)
        found = run.prometheus.query(query, run.at)
        assert found, query
        answers.append({one.labels.get("dask_tag_team", "cluster"): one.value for one in found})
    hours, money, idle, unused, shared = answers
    assert money == pytest.approx({team: value * PRICE for team, value in hours.items()})
    assert idle.keys() <= money.keys()
    assert (shared.keys(), sum(shared.values())) == (money.keys(), pytest.approx(unused["cluster"]))
