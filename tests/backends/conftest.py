"""Fixtures that start the real servers, once per test session and only where a test wants them.

A test that wants a server which is not there is left out, and the summary says so and how to get
it. With ``DASK_OTEL_REQUIRE_BACKENDS=1`` it fails instead, except where a registry refused the
server: no run on this machine could change that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from . import servers
from .bridge_run import Run, run_workload
from .clients import JaegerClient, PrometheusClient, TempoClient

R = TypeVar("R", bound=servers.Running)

REQUIRED = os.environ.get("DASK_OTEL_REQUIRE_BACKENDS") == "1"
LEFT_OUT = pytest.StashKey[dict[str, str]]()

#: Starts a server and stops it at the end of the fixture's scope.
Start = Callable[[Callable[[Path], R]], R]


def _left_out(config: pytest.Config, missing: servers.Missing) -> None:
    """Leave the test out, or fail it where the servers are required."""
    reason = str(missing)
    config.stash.setdefault(LEFT_OUT, {})[reason] = reason
    if REQUIRED and not isinstance(missing, servers.Refused):
        pytest.fail(f"DASK_OTEL_REQUIRE_BACKENDS=1, and {reason}", pytrace=False)
    pytest.skip(reason)


# Here and not where a server is started: wherever in a test one is asked for, the test says openly
# that it is not there.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Leave out a test with a fixture that wants a server which is not there."""
    try:
        yield
    except servers.Missing as missing:
        _left_out(item.config, missing)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Leave out a test that itself wants a server which is not there."""
    try:
        yield
    except servers.Missing as missing:
        _left_out(item.config, missing)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    reasons = config.stash.get(LEFT_OUT, {})
    if reasons:
        terminalreporter.section("backend tests left out")
        for reason in reasons:
            terminalreporter.line(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the servers that a failed test used."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, servers.Running):
                server = value.server
                report.sections.append((f"log of {server.name}", server.log_tail()))
    return report


@pytest.fixture(scope="session")
def backend_binary() -> Callable[..., str]:
    """The path of a server's binary, or the test is left out."""
    return servers.binary


def _starter(factory: pytest.TempPathFactory) -> Iterator[Callable[[Callable[[Path], R]], R]]:
    started: list[servers.Running] = []

    def start(make: Callable[[Path], R]) -> R:
        running = make(factory.mktemp("server"))
        started.append(running)
        return running

    try:
        yield start
    finally:
        for running in reversed(started):
            running.stop()


@pytest.fixture(scope="session")
def start_shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Callable[[Path], R]], R]]:
    """Start a server that lives until the end of the session."""
    yield from _starter(tmp_path_factory)


@pytest.fixture
def start(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Callable[[Path], R]], R]]:
    """Start a server of this test's own."""
    yield from _starter(tmp_path_factory)


@pytest.fixture(scope="session")
def prometheus(start_shared: Start[servers.Prometheus]) -> servers.Prometheus:
    return start_shared(servers.start_prometheus)


@pytest.fixture
def prometheus_client(prometheus: servers.Prometheus) -> PrometheusClient:
    return PrometheusClient(prometheus.url)


@pytest.fixture(scope="session")
def jaeger(start_shared: Start[servers.Jaeger]) -> servers.Jaeger:
    return start_shared(servers.start_jaeger)


@pytest.fixture
def jaeger_client(jaeger: servers.Jaeger) -> JaegerClient:
    return JaegerClient(jaeger.url)


@pytest.fixture(scope="session")
def tempo(start_shared: Start[servers.Tempo]) -> servers.Tempo:
    return start_shared(servers.start_tempo)


@pytest.fixture
def tempo_client(tempo: servers.Tempo) -> TempoClient:
    return TempoClient(tempo.url)


@pytest.fixture(scope="session")
def sink(start_shared: Start[servers.Sink]) -> servers.Sink:
    return start_shared(servers.start_sink)


@pytest.fixture(scope="session")
def collector(
    start_shared: Start[servers.Collector], sink: servers.Sink, prometheus: servers.Prometheus
) -> servers.Collector:
    # The environment of the Collector names what the sender does not know.
    more = {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=staging,service.name=ignored"}
    return start_shared(
        lambda folder: servers.start_collector(
            folder, servers.behind_collector(sink, prometheus.otlp, **more)
        )
    )


#: How the bridge reaches Prometheus: the variables of the scheduler.
ROUTES = ("straight", "collector over grpc", "collector over http")


def _environment(
    route: str, prometheus: servers.Prometheus, collector: servers.Collector
) -> dict[str, str]:
    if route == "collector over grpc":
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc}
    over_http = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.http,
    }
    if route == "straight":  # Prometheus takes no traces
        over_http["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"] = prometheus.otlp_metrics
    return over_http


@pytest.fixture(scope="session", params=ROUTES)
def bridge_run(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    prometheus: servers.Prometheus,
    collector: servers.Collector,
) -> Run:
    """A cluster that has worked and ended, by each way to Prometheus."""
    environment = _environment(request.param, prometheus, collector)
    folder = tmp_path_factory.mktemp("dask")
    return run_workload(folder, PrometheusClient(prometheus.url), environment)
