"""Fixtures that start the real servers, once per test session and only where a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import pytest

from . import servers
from .bridge_run import Run
from .clients import JaegerClient, PrometheusClient, TempoClient
from .scraping import Scraped, run_scraped
from .servers import Running

#: Starts a server and stops it at the end of the fixture's scope.
Start: TypeAlias = Callable[..., Running]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the servers that a failed test used."""
    report = yield
    used = getattr(item, "funcargs", {}).values() if report.failed else ()
    for server in [value.server for value in used if isinstance(value, Running)]:
        report.sections.append((f"log of {server.name}", server.log_tail()))
    return report


@contextmanager
def _starter(factory: pytest.TempPathFactory) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(make: Start, *args: object) -> Running:
            running = make(factory.mktemp("server"), *args)
            stack.callback(running.server.stop)
            return running

        yield start


@pytest.fixture(scope="session")
def start_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a server that lives until the end of the session."""
    with _starter(tmp_path_factory) as start:
        yield start


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a server of this test's own."""
    with _starter(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def prometheus(start_shared: Start) -> Running:
    return start_shared(servers.start_prometheus)


@pytest.fixture
def prometheus_client(prometheus: Running) -> PrometheusClient:
    return PrometheusClient(prometheus.url)


@pytest.fixture(scope="session")
def jaeger(start_shared: Start) -> Running:
    return start_shared(servers.start_jaeger)


@pytest.fixture
def jaeger_client(jaeger: Running) -> JaegerClient:
    return JaegerClient(jaeger.url)


@pytest.fixture(scope="session")
def tempo() -> Running:
    """Its API, and OTLP over gRPC and over HTTP."""
    return servers.started_by_the_user("tempo", "'http://… http://… http://…'")


@pytest.fixture
def tempo_client(tempo: Running) -> TempoClient:
    return TempoClient(tempo.url)


@pytest.fixture(scope="session")
def loki() -> Running:
    return servers.started_by_the_user("loki", "http://…")


@pytest.fixture(scope="session")
def victorialogs(start_shared: Start) -> Running:
    return start_shared(servers.start_victorialogs)


@pytest.fixture(scope="session")
def sink(start_shared: Start) -> Running:
    return start_shared(servers.start_sink)


@pytest.fixture(scope="session")
def collector(start_shared: Start, sink: Running, prometheus: Running) -> Running:
    # The environment of the Collector names what the sender does not know.
    more = {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=staging,service.name=ignored"}
    behind = servers.backends(sink.grpc, sink.http, prometheus.http)
    return start_shared(servers.start_collector, behind | more)


@pytest.fixture(scope="session")
def scraped(
    start_shared: Start,
    prometheus: Running,
    collector: Running,
    tmp_path_factory: pytest.TempPathFactory,
) -> Scraped:
    """A cluster that has worked and ended: pushed to one Prometheus, and scraped by another."""
    environment = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.http,
        # Prometheus takes no traces.
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{prometheus.http}/v1/metrics",
        "DASK_OTEL__METRICS__PROMETHEUS": "true",
    }
    client = PrometheusClient(prometheus.url)
    return run_scraped(tmp_path_factory.mktemp("dask"), client, environment, start_shared)


@pytest.fixture(scope="session")
def bridge_run(scraped: Scraped) -> Run:
    """The same cluster, in the Prometheus that it sent to."""
    return scraped.pushed
