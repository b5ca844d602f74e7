"""The scheduler's own /metrics page, scraped as a Prometheus would."""

from __future__ import annotations

import logging
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest
from distributed import Client, span
from prometheus_client.parser import text_string_to_metric_families as parse_text

import dask_otel
from dask_otel._prometheus.page import MetricPage
from tests.backends.prometheus_names import fine_metrics
from tests.cluster.conftest import Start
from tests.cluster.tasks import double
from tests.cluster.truth import own_values, text_keys
from tests.environment import OFF
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

ON = {"metrics": {"prometheus": True}}
#: Of the pages of two schedulers.
PREFIXES = ("", "/dask/cluster")
NAMES = ("dask_span_name", "dask_cluster_name")


def get(scheduler: Any, path: str) -> str:
    """Return a page of the scheduler's HTTP server."""
    url = f"http://127.0.0.1:{scheduler.http_server.port}{path}"
    with urllib.request.urlopen(url) as answer:
        return str(answer.read(), "utf-8")


def scrape(scheduler: Any, path: str) -> dict[tuple[Any, ...], float]:
    """Return the present value of every series on a page."""
    found: dict[tuple[Any, ...], float] = {}
    for family in parse_text(get(scheduler, path)):
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in found, "a series that came twice makes Prometheus refuse the page"
            found[key] = sample.value
    return found


def is_ours(key: tuple[Any, ...]) -> bool:
    return key[0].startswith(("dask_span_", "dask_cluster_", "dask_task_", "dask_otel_"))


def work(client: Client, name: str) -> bool:
    with span(name):
        futures = client.map(double, range(20), pure=False)
        assert client.submit(sum, futures).result() == 380
    return True


@pytest.mark.unreconciled("nothing comes over OTLP")
def test_two_schedulers_in_one_process_have_their_own_and_take_them_away(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also below a prefix; and our error leaves Dask's page alone."""

    def begin(number: int) -> Any:
        config = {**ON, "cluster-name": f"number-{number}"}
        more = {"dashboard": False, "http_prefix": PREFIXES[number] or "/"}
        environ = {**OFF, "OTEL_METRIC_EXPORT_INTERVAL": "200"}
        return start(config, environ, n_workers=1, scheduler_kwargs=more)

    with begin(0) as first, begin(1) as second:
        for number, one in enumerate((first, second)):
            work(one.client, f"span-{number}")

        def apart() -> bool:
            for number, one in enumerate((first, second)):
                truth = text_keys(one.client.run_on_scheduler(own_values))
                for page in ("/metrics", "/metrics/otel"):
                    found = scrape(one.scheduler, PREFIXES[number] + page)
                    assert fine_metrics(found) == pytest.approx(truth)
                    labels = {pair for key in found if is_ours(key) for pair in key[1:]}
                    assert {value for name, value in labels if name in NAMES} == {
                        f"span-{number}",
                        f"number-{number}",
                    }
            return True

        eventually(apart, what="each scheduler has its own series, with Dask's values")
        assert dask_otel.unregister(first.client) == "stopped"
        assert not [key for key in scrape(first.scheduler, "/metrics") if is_ours(key)]
        for one in (first, second):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(one.scheduler, "/metrics/otel")

        def broken(*_: Any, **__: Any) -> bytes:
            raise RuntimeError("broken by the test")

        shown = scrape(second.scheduler, f"{PREFIXES[1]}/metrics")
        monkeypatch.setattr(MetricPage, "render", broken)
        left = scrape(second.scheduler, f"{PREFIXES[1]}/metrics")
        assert [any(map(is_ours, keys)) for keys in (shown, left)] == [True, False]
        assert ("dask_scheduler_clients",) in left
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
