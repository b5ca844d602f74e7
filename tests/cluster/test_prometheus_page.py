"""The scheduler's own /metrics page, scraped as a Prometheus would."""

from __future__ import annotations

import logging
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, span
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import dask_otel
from dask_otel._prometheus.page import MetricPage
from dask_otel.core import identity
from tests.backends.prometheus_names import fine_metrics
from tests.cluster.conftest import QUICK, Bridged, Start
from tests.cluster.truth import own_values, text_keys
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ON = {"metrics": {"prometheus": True}}
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}


PREFIX = "/dask/cluster"
RESOURCE_LABELS = ("dask_cluster_name", "service_version")


def get(scheduler: Any, path: str, headers: dict[str, str] | None = None) -> tuple[str, str]:
    """Return a page of the scheduler's HTTP server, and its content type."""
    url = f"http://127.0.0.1:{scheduler.http_server.port}{path}"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {})) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def scrape(scheduler: Any, path: str = "/metrics") -> dict[tuple[Any, ...], float]:
    """Return the present value of every series on a page."""
    found: dict[tuple[Any, ...], float] = {}
    for family in parse_text(get(scheduler, path)[0]):
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in found, "a series that came twice makes Prometheus refuse the page"
            found[key] = sample.value
    return found


def status(scheduler: Any, path: str) -> int:
    try:
        get(scheduler, path)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return 200


def is_ours(key: tuple[Any, ...]) -> bool:
    return key[0].startswith(("dask_span_", "dask_cluster_", "dask_task_", "dask_otel_"))


def double(x: int) -> int:
    return 2 * x


def work(client: Client, name: str) -> str:
    with span(name) as span_id:
        futures = client.map(double, range(20), pure=False)
        assert client.submit(sum, futures).result() == 380
    return str(span_id)


@pytest.mark.options(ON, scheduler_kwargs={"http_prefix": PREFIX})
def test_has_dasks_own_numbers_and_those_that_go_out_over_otlp(bridged: Bridged) -> None:
    span_id = work(bridged.client, "page")
    scheduler = bridged.scheduler
    page_of_ours = f"{PREFIX}/metrics/otel"
    eventually(lambda: status(scheduler, page_of_ours) == 200)

    def reconciled() -> bool:
        truth = text_keys(bridged.client.run_on_scheduler(own_values))
        for path in (f"{PREFIX}/metrics", page_of_ours):
            assert fine_metrics(scrape(scheduler, path)) == pytest.approx(truth)
        return any(key[:2] == ("page", "execute") for key in truth)

    eventually(reconciled, what="everything is on the page")
    received = bridged.exported()
    page = scrape(scheduler, f"{PREFIX}/metrics")
    over_otlp = {
        tuple((label.replace(".", "_"), text) for label, text in labels): value
        for labels, value in received.last("dask.task.finished").items()
    }
    assert over_otlp == {
        tuple(label for label in labels if label[0] not in RESOURCE_LABELS): value
        for (name, *labels), value in page.items()
        if name == "dask_task_finished_total"
    }
    # Every series that went out over OTLP is here, too.
    for metric in {point.metric for point in received.points}:
        assert any(key[0].startswith(metric.replace(".", "_")) for key in page), metric
    # Dask's own series are there as they were.
    assert ("dask_scheduler_clients",) in page
    text, kind = get(scheduler, page_of_ours, OPENMETRICS)
    assert kind.startswith("application/openmetrics-text; version=")
    exemplars = [
        s.exemplar.labels for f in parse_openmetrics(text) for s in f.samples
        if s.exemplar and s.labels["dask_span_name"] == "page"
    ]  # fmt: skip
    assert {(e["trace_id"], e["span_id"]) for e in exemplars} == {
        (f"{identity.trace_id(span_id):032x}", f"{identity.span_id(span_id):016x}")
    }
    assert get(scheduler, f"{PREFIX}/metrics")[1].startswith("text/plain; version=0.0.4")
    assert status(scheduler, "/metrics/otel") == 404


@pytest.mark.unreconciled("nothing comes over OTLP")
def test_two_schedulers_in_one_process_have_their_own_and_take_them_away() -> None:
    options: dict[str, Any] = {
        "n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0",
    }  # fmt: skip
    environment = {
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
    }
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"distributed.comm.timeouts.connect": "10s"}))
        clients = [
            stack.enter_context(Client(stack.enter_context(LocalCluster(**options))))
            for _ in range(2)
        ]
        schedulers = [client.cluster.scheduler for client in clients]
        rules = [len(s.http_application.default_router.rules) for s in schedulers]
        for number, client in enumerate(clients):
            config = {
                **QUICK, **ON, "environment": environment, "cluster-name": f"number-{number}",
            }  # fmt: skip
            assert dask_otel.register(client, config) == "started"
            work(client, f"span-{number}")

        def apart() -> bool:
            for number, scheduler in enumerate(schedulers):
                for path in ("/metrics", "/metrics/otel"):
                    ours = [dict(key[1:]) for key in scrape(scheduler, path) if is_ours(key)]
                    names = {of["dask_span_name"] for of in ours if "dask_span_name" in of}
                    assert (names, {of["dask_cluster_name"] for of in ours}) == (
                        {f"span-{number}"},
                        {f"number-{number}"},
                    )
            return True

        eventually(apart, what="each scheduler has its own series")
        # The pages of workers, in the same process, have none.
        for scheduler in schedulers:
            (worker,) = scheduler.workers.values()
            port = worker.services["dashboard"]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                assert "dask_span_" not in answer.read().decode()
        assert dask_otel.unregister(clients[0]) == "stopped"
        assert not [key for key in scrape(schedulers[0]) if is_ours(key)]
        assert status(schedulers[0], "/metrics/otel") == 404
        assert [key for key in scrape(schedulers[1]) if is_ours(key)]
        # And the bridge can come back.
        assert dask_otel.register(clients[0], config) == "started"
        eventually(lambda: status(schedulers[0], "/metrics/otel") == 200)
        for client in clients:
            assert dask_otel.unregister(client) == "stopped"
        assert [len(s.http_application.default_router.rules) for s in schedulers] == rules


@pytest.mark.unreconciled("nothing comes over OTLP")
def test_our_error_leaves_dasks_page_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with start(ON, {"OTEL_METRICS_EXPORTER": "none"}) as bridged:
        eventually(lambda: status(bridged.scheduler, "/metrics/otel") == 200)

        def broken(*_: Any, **__: Any) -> bytes:
            raise RuntimeError("broken by the test")

        monkeypatch.setattr(MetricPage, "render", broken)
        page = scrape(bridged.scheduler)
        assert ("dask_scheduler_clients",) in page
        assert not [key for key in page if is_ours(key)]
    assert "its metrics page hook" in caplog.text


@pytest.mark.unreconciled("no bridge runs")
def test_without_prometheus_client_one_clear_error(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "dask_otel._prometheus.page", raising=False)
    with caplog.at_level(logging.ERROR, "distributed.dask_otel"), start(ON) as bridged:
        eventually(lambda: "dask-otel" not in bridged.scheduler.plugins)
        assert work(bridged.client, "goes on")
    (record,) = [r for r in caplog.records if r.name == "distributed.dask_otel"]
    assert [
        x
        for x in ("otel.metrics.prometheus is true", "install dask-otel[prometheus]")
        if x not in record.getMessage()
    ] == []


def test_without_dasks_page_the_rest_goes_on(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    routes = {"distributed.scheduler.http.routes": ["distributed.http.health"]}
    with (
        dask.config.set(routes),
        caplog.at_level(logging.ERROR, "distributed.dask_otel"),
        start(ON) as bridged,
    ):
        work(bridged.client, "goes on")
        bridged.exported()
        assert status(bridged.scheduler, "/metrics/otel") == 404
    (record,) = [r for r in caplog.records if r.name == "distributed.dask_otel"]
    assert "has no /metrics page" in record.getMessage()
