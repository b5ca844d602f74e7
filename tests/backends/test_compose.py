"""docker-compose.yml is valid, and the stack that it describes works with the same files.

No container engine is needed: the servers run natively, with the configuration files that the
compose file mounts. What that leaves unproven is the packaging: the images and their file systems.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dask_otel import semconv
from tests.cluster import processes
from tests.waiting import eventually

from .clients import PrometheusClient, get_json, spans_of_file
from .conftest import Start
from .servers import (
    DEPLOY,
    PINNED,
    REPOSITORY,
    Running,
    backends,
    binary,
    start_alertmanager,
    start_collector,
    start_prometheus,
    start_sink,
)
from .telemetry import SECOND, counter, export_metrics, new_resource, now_ns

pytestmark = [pytest.mark.backend, pytest.mark.cluster]

COMPOSE = REPOSITORY / "docker-compose.yml"
SERVICES = {
    "scheduler", "worker-1", "worker-2", "demo", "backends", "collector", "jaeger", "tempo",
    "loki", "prometheus", "alertmanager", "grafana",
}  # fmt: skip


def _run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The compose file as Docker's own library reads it."""
    done = _run(binary("compose"), "-format", "json", str(COMPOSE))
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads(done.stdout)
    assert loaded["services"].keys() == SERVICES
    return loaded


def test_only_loopback_is_published(compose: dict[str, Any]) -> None:
    published = {
        name: [port["target"] for port in service.get("ports") or ()]
        for name, service in compose["services"].items()
    }
    assert {name: ports for name, ports in published.items() if ports} == {
        "scheduler": [8787],
        # For what the reader runs: http://localhost:4317 is where the bridge sends by default.
        "collector": [4317, 4318],
        "jaeger": [16686],
        "prometheus": [9090],
        "alertmanager": [9093],
        "grafana": [3000],
    }
    for service in compose["services"].values():
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports") or ())


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    images = {
        name: service["image"]
        for name, service in compose["services"].items()
        if not service.get("build")
    }
    for image in images.values():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", image), image
    # The versions that the tests run. No newer Jaeger than theirs can be built.
    for name in ("collector", "prometheus", "alertmanager"):
        assert images[name].endswith(PINNED[name].pin["version"]), name
    assert _version(images["jaeger"]) > _version(PINNED["jaeger"].pin["version"])


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[-3:])


def test_every_mounted_file_is_there(compose: dict[str, Any]) -> None:
    mounted = [
        Path(volume["source"])
        for service in compose["services"].values()
        for volume in service.get("volumes") or ()
        if volume["type"] == "bind"
    ]
    assert len(mounted) >= 7
    for source in mounted:
        assert source.exists(), source
        assert source.is_relative_to(DEPLOY)


def test_everything_has_a_health_check(compose: dict[str, Any]) -> None:
    services = compose["services"]
    own = {name for name, service in services.items() if service.get("healthcheck")}
    asked = str(services["backends"]["command"])
    for name in SERVICES - {"demo", "backends"}:
        assert name in own or f"http://{name}:" in asked, name


def _prometheus_config(folder: Path, alertmanager: Running) -> Path:
    """The shipped configuration; only the address of Alertmanager is that of the test's."""
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    changed = text.replace("alertmanager:9093", alertmanager.url.removeprefix("http://"))
    assert changed != text
    changed = changed.replace("rules/*.yml", str(DEPLOY / "prometheus" / "rules" / "*.yml"))
    config = folder / "prometheus.yml"
    config.write_text(changed, encoding="utf-8")
    return config


def _scheduler_environment(collector: Running) -> dict[str, str]:
    """The scheduler's variables of the compose file, with the address of the test's Collector."""
    scheduler = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["scheduler"]
    environment = dict(scheduler["environment"])
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    assert "--preload dask_otel" in scheduler["command"]
    ours = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc, "OTEL_METRIC_EXPORT_INTERVAL": "1000"}
    return environment | ours


WAIT_FOR = (sys.executable, str(DEPLOY / "docker" / "wait_for.py"))


def test_the_stack_works(start: Start, tmp_path: Path) -> None:
    """Demo, scheduler and workers, Collector, Prometheus with the alerts, Alertmanager.

    A second Collector that writes files stands in for Jaeger and Tempo.
    """
    alertmanager = start(start_alertmanager, DEPLOY / "alertmanager" / "alertmanager.yml")
    config = _prometheus_config(tmp_path, alertmanager)
    prometheus = start(start_prometheus, config, ["--rules.alert.resend-delay=1s"])
    sink = start(start_sink)
    collector = start(start_collector, backends(sink.grpc, sink.http, prometheus.http))
    urls = (f"{prometheus.url}/-/ready", f"{alertmanager.url}/-/ready", collector.server.ready)
    assert _run(*WAIT_FOR, "--timeout", "30", *urls).returncode == 0

    with processes.cluster(tmp_path) as dask:
        environment = _scheduler_environment(collector)
        dask.start_scheduler("--preload", "dask_otel.preload", env=environment)
        for name in ("worker-1", "worker-2"):
            dask.start_worker(name)
        # Every second run fails, and not every fifth.
        code = "import demo_loop; demo_loop.FAILS_EVERY = 2; demo_loop.main()"
        own = {"SCHEDULER": dask.address, "DATA": str(tmp_path / "data"), "RUNS": "2", "PAUSE": "0"}
        done = _run(sys.executable, "-c", code, PYTHONPATH=str(DEPLOY / "docker"), **own)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "run 1: error of the model" in done.stdout
        assert re.search(r"run 2: failed as it should: .* has a price of -1\.0", done.stdout)
        _assert_metrics(PrometheusClient(prometheus.url))
        wanted = {"Alice's workflow", "data load", "shuffle", "model training"}
        eventually(lambda: {one.name for one in spans_of_file(sink.files[0])} >= wanted)
        broken = {"Alice's workflow", "preprocessing", "shuffle"}
        eventually(
            lambda: broken == {
                one.name
                for one in spans_of_file(sink.files[0])
                if one.type == "span" and one.status == 2
            },
            what="the run that failed",
        )  # fmt: skip
    _assert_alerts(prometheus, alertmanager)


def test_waiting_for_nobody_fails() -> None:
    done = _run(*WAIT_FOR, "http://127.0.0.1:9/")
    assert (done.returncode, done.stderr) == (1, "no answer from http://127.0.0.1:9/\n")


def _assert_metrics(client: PrometheusClient) -> None:
    of = '{dask_cluster_name="compose", dask_span_root_name="Alice\'s workflow"}'
    query = f"sum by (dask_span_name) (dask_span_execute_time_seconds_total{of})"

    def names() -> set[str]:
        return {one.labels["dask_span_name"] for one in client.query(query)}

    eventually(
        lambda: names() >= {"Alice's workflow/data load", "Alice's workflow/preprocessing/shuffle"}
    )
    loaded = {one["name"] for group in client.get("rules")["groups"] for one in group["rules"]}
    assert {"DaskClusterIdle", "cluster:dask_idle:ratio15m"} <= loaded


def _assert_alerts(prometheus: Running, alertmanager: Running) -> None:
    """A counter of lost spans goes up, and the shipped alert reaches the shipped Alertmanager."""
    resource, now = new_resource(), now_ns()
    labels = {semconv.OTEL_SIGNAL: "traces", semconv.OTEL_REASON: "queue_full"}
    points = [(now - 60 * SECOND, 0.0), (now, 5.0)]
    dropped = counter(semconv.OTEL_DROPPED, points, labels, now - 61 * SECOND)
    export_metrics(prometheus, resource, [dropped])

    def arrived() -> list[dict[str, Any]]:
        alerts = get_json(f"{alertmanager.url}/api/v2/alerts")
        return [
            a for a in alerts if a["labels"]["dask_cluster_name"] == resource["dask.cluster.name"]
        ]

    # Rules are evaluated every 15 s.
    (alert,) = eventually(arrived)
    assert (alert["labels"]["alertname"], alert["labels"]["severity"]) == (
        "DaskOtelDropping",
        "warning",
    )
    assert re.search(r"dropped [\d.]+ traces \(queue_full\)$", alert["annotations"]["summary"])
    assert {one["name"] for one in alert["receivers"]} == {"nobody"}
