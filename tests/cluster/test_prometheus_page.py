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
from prometheus_client.parser import text_string_to_metric_families as parse_text

import dask_otel
from dask_otel._prometheus.page import MetricPage
from tests.backends.prometheus_names import fine_metrics
from tests.cluster.conftest import QUICK, Start
from tests.cluster.truth import own_values, text_keys
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ON = {"metrics": {"prometheus": True}}
PREFIX = "/dask/cluster"


def get(scheduler: Any, path: str) -> str:
    """Return a page of the scheduler's HTTP server."""
    url = f"http://127.0.0.1:{scheduler.http_server.port}{path}"
    with urllib.request.urlopen(url) as answer:
        return str(answer.read(), "utf-8")


def scrape(scheduler: Any, path: str = "/metrics") -> dict[tuple[Any, ...], float]:
    """Return the present value of every series on a page."""
    found: dict[tuple[Any, ...], float] = {}
    for family in parse_text(get(scheduler, path)):
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


def work(client: Client, name: str) -> bool:
    with span(name):
        futures = client.map(double, range(20), pure=False)
        assert client.submit(sum, futures).result() == 380
    return True


@pytest.mark.unreconciled("nothing comes over OTLP")
def test_two_schedulers_in_one_process_have_their_own_and_take_them_away() -> None:
    options: dict[str, Any] = {
        "n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0",
        "scheduler_kwargs": {"dashboard": False},
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
                truth = text_keys(clients[number].run_on_scheduler(own_values))
                for path in ("/metrics", "/metrics/otel"):
                    assert fine_metrics(scrape(scheduler, path)) == pytest.approx(truth)
                    ours = [dict(key[1:]) for key in scrape(scheduler, path) if is_ours(key)]
                    names = {of["dask_span_name"] for of in ours if "dask_span_name" in of}
                    assert (names, {of["dask_cluster_name"] for of in ours}) == (
                        {f"span-{number}"},
                        {f"number-{number}"},
                    )
            return True

        eventually(apart, what="each scheduler has its own series, with Dask's values")
        assert dask_otel.unregister(clients[0]) == "stopped"
        assert not [key for key in scrape(schedulers[0]) if is_ours(key)]
        assert status(schedulers[0], "/metrics/otel") == 404
        assert [key for key in scrape(schedulers[1]) if is_ours(key)]
        assert dask_otel.unregister(clients[1]) == "stopped"
        assert [len(s.http_application.default_router.rules) for s in schedulers] == rules


@pytest.mark.unreconciled("nothing comes over OTLP")
def test_our_error_leaves_dasks_page_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prefixed = {"scheduler_kwargs": {"http_prefix": PREFIX}}
    with start(ON, {"OTEL_METRICS_EXPORTER": "none"}, **prefixed) as bridged:
        eventually(lambda: status(bridged.scheduler, f"{PREFIX}/metrics/otel") == 200)
        assert status(bridged.scheduler, "/metrics/otel") == 404

        def broken(*_: Any, **__: Any) -> bytes:
            raise RuntimeError("broken by the test")

        monkeypatch.setattr(MetricPage, "render", broken)
        page = scrape(bridged.scheduler, f"{PREFIX}/metrics")
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
