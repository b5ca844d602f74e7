"""A real Prometheus that scrapes the scheduler has what one has that gets OTLP."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from distributed import Client

from dask_otel.core import identity
from tests.cluster import processes
from tests.waiting import eventually

from .bridge_run import Run, observe, scheduler
from .clients import PrometheusClient
from .conftest import Start
from .servers import Running, start_prometheus

pytestmark = [pytest.mark.backend, pytest.mark.cluster]

#: Jobs of the scraping Prometheus, by the page that each scrapes.
PAGES = {"alone": "/metrics/otel", "dasks-own": "/metrics"}
#: Labels that say where a series came from.
ORIGIN = {"job", "instance"}
#: Seconds pass, and exports are counted, also where nothing happens.
MOVING = ("dask_cluster_time_", "dask_cluster_capacity_", "dask_otel_", "dask_event_loop_")


@dataclass
class Both:
    """One cluster's metrics in two Prometheus servers."""

    pushed: Run
    scraped: PrometheusClient

    def series(self, client: PrometheusClient, **labels: str) -> dict[Any, float]:
        """Every present series of the cluster, without labels of its origin."""
        matchers = "".join(f', {key}="{value}"' for key, value in labels.items())
        name = self.pushed.name
        query = f'{{__name__=~"dask_.+", dask_cluster_name="{name}"{matchers}}}'
        return {
            (one.name, *sorted((k, v) for k, v in one.labels.items() if k not in ORIGIN)): one.value
            for one in client.query(query)
        }


def scrape_config(folder: Path, port: int) -> Path:
    jobs = [
        {
            "job_name": job,
            "metrics_path": path,
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        }
        for job, path in PAGES.items()
    ]
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def both(
    start_shared: Start, prometheus: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("scraping")
    run = Run(PrometheusClient(prometheus.url), f"cluster-{uuid.uuid4().hex[:12]}")
    run.started = time.time()
    environment = {
        "DASK_OTEL__METRICS__PROMETHEUS": "true",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": prometheus.otlp_metrics,
        "OTEL_TRACES_EXPORTER": "none",
    }
    with processes.cluster(folder) as dask, scheduler(dask, run.name, environment):
        with Client(dask.address) as client:
            port = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.port)
        config = scrape_config(folder, port)
        options = ["--enable-feature=created-timestamp-zero-ingestion"]
        scraped = PrometheusClient(start_shared(start_prometheus, config, options).url)
        eventually(
            lambda: len(scraped.query("up == 1")) == len(PAGES), what="Prometheus takes both pages"
        )
        observe(run, dask.address, folder)
        yield Both(run, scraped)


@pytest.mark.parametrize("job", PAGES)
def test_the_same_series_with_the_same_values(both: Both, job: str) -> None:
    def same() -> bool:
        pushed = both.series(both.pushed.prometheus)
        scraped = both.series(both.scraped, job=job)
        assert {_normal(key) for key in scraped} == {_normal(key) for key in pushed}
        still = {_normal(k): v for k, v in pushed.items() if not k[0].startswith(MOVING)}
        assert len(still) > 100
        assert still == {_normal(k): v for k, v in scraped.items() if _normal(k) in still}
        return True

    eventually(same, 30, what="both have the same")


def _normal(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """A series with its bucket as a number: OTLP gives ``le="1"``, a scrape ``le="1.0"``."""
    name, *labels = key
    return (name, *[(k, float(v) if k == "le" else v) for k, v in labels])


def test_exemplars_come_with_the_page_of_our_own(both: Both) -> None:
    between = (both.pushed.started, time.time() + 60)
    name = both.pushed.selector(
        "dask_span_execute_time_seconds_total", dask_span_name="nightly/compute"
    )
    found = both.scraped.exemplars(name, *between)
    ids = both.pushed.ids
    assert found == {
        (f"{identity.trace_id(ids['nightly']):032x}", f"{identity.span_id(ids['compute']):016x}")
    }


def test_created_times_let_increase_see_the_first_value(both: Both) -> None:
    selector = both.pushed.selector(
        "dask_span_execute_time_seconds_total", dask_span_name="nightly/load", job="alone"
    )
    samples = both.scraped.query(f"{selector}[10m]")
    assert samples
    assert {one.points[0][1] for one in samples} == {0.0}
    truth = sum(
        v for k, v in both.pushed.values.items() if k[0] == "nightly/load" and k[4] == "seconds"
    )
    # From the first 0 on nothing is missing. Prometheus extrapolates to the end of the range, by at
    # most 1.1 times the mean time between two points.
    most = truth * (1 + 1.1 / (min(len(one.points) for one in samples) - 1))
    assert truth * 0.999 <= both.scraped.value(f"sum(increase({selector}[10m]))") <= most
