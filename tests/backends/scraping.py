"""A cluster whose scheduler is scraped by a real Prometheus, while it sends to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from distributed import Client

from tests.cluster import processes
from tests.waiting import eventually

from .bridge_run import Run, new_run, observe, scheduler
from .clients import PrometheusClient
from .servers import Running, start_prometheus

#: Jobs of the scraping Prometheus, by the page that each scrapes.
PAGES = {"alone": "/metrics/otel", "dasks-own": "/metrics"}
#: Labels that say where a series came from.
ORIGIN = {"job", "instance"}


@dataclass
class Scraped:
    """One cluster's metrics in two Prometheus servers; one of them scrapes."""

    pushed: Run
    scraped: PrometheusClient
    #: By page, when it was scraped last, after the last export.
    at: Mapping[str, float]

    def series(self, client: PrometheusClient, at: float, **labels: str) -> dict[Any, float]:
        """Every series of the cluster at a time, without labels of its origin."""
        matchers = "".join(f', {key}="{value}"' for key, value in labels.items())
        name = self.pushed.name
        query = f'{{__name__=~"dask_.+", dask_cluster_name="{name}"{matchers}}}'
        return {
            (one.name, *sorted((k, v) for k, v in one.labels.items() if k not in ORIGIN)): one.value
            for one in client.query(query, at)
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


def run_scraped(
    folder: Path, client: PrometheusClient, environment: Mapping[str, str], start: Any
) -> Scraped:
    """Run a cluster to its end, with a Prometheus of its own that scrapes it."""
    run = new_run(client)
    with processes.cluster(folder) as dask, scheduler(dask, run.name, environment):
        with Client(dask.address) as asking:
            port = asking.run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.port)
        options = ["--enable-feature=created-timestamp-zero-ingestion"]
        running: Running = start(start_prometheus, scrape_config(folder, port), options)
        scraped = PrometheusClient(running.url)
        eventually(
            lambda: len(scraped.query("up == 1")) == len(PAGES), what="Prometheus takes both pages"
        )
        observe(run, dask.address, folder)
        # Of each page, after the last export.
        eventually(lambda: scraped.value("min(timestamp(dask_otel_running))") > run.at)
        # Of each its own: a later scrape of one may take too long where the machine is busy.
        at = {one.labels["job"]: one.value for one in scraped.query("timestamp(dask_otel_running)")}
    return Scraped(run, scraped, at)
