"""Nobody is at the endpoint: the close does not wait, and a person is told once what helps."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator

import pytest

from dask_otel._otel.sdk import exporters, outputs
from dask_otel.pump.health import Health
from dask_otel.pump.pump import Pump
from dask_otel.scheduler.wiring import WiredPump, make_pump
from dask_otel.settings.keys import Settings
from tests.otlp.pipeline import Export, make_batch
from tests.receiver import Receiver, refusing
from tests.waiting import eventually

#: Seconds for a request, and those of a close: nobody waits so long.
LONG = 100


def made_with(monkeypatch: pytest.MonkeyPatch, **variables: str) -> WiredPump:
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    made = make_pump(Settings(), "Scheduler-1", time.time_ns())
    assert made is not None
    return made


def patience(pump: Pump) -> list[float]:
    return [lane._sink.patience for lane in pump._lanes]


def refusal(server: Receiver, status: int, code: str) -> int | str:
    return code if server.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc" else status


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nobody listen at the default endpoint, whatever runs on this machine."""
    with refusing() as address:
        monkeypatch.setattr(exporters, "_DEFAULT_ADDRESS", address)
        yield


def test_who_has_configured_nothing_gets_a_hint(
    default: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_with(monkeypatch)
    assert "nothing listens at http://localhost:4317" in made.hint
    assert "otel.files.path" in made.hint
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in made.hint
    # And no wait at the end.
    assert patience(made.pump) == [0.0, 0.0]


def test_while_it_looks_the_process_has_its_own_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look may take seconds, and the application makes exporters of its own."""
    seen: list[bool] = []

    def looks() -> bool:
        seen.append("OTEL_SERVICE_NAME" in os.environ)
        return False

    monkeypatch.setattr(outputs, "nobody_listens", looks)
    settings = Settings(environment={"OTEL_SERVICE_NAME": "dask"})
    assert make_pump(settings, "Scheduler-1", time.time_ns()) is not None
    assert seen == [False]


def test_who_has_somebody_there_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setattr(exporters, "_DEFAULT_ADDRESS", listening.getsockname())
        assert made_with(monkeypatch).hint == ""


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b"),
    ],
)
def test_what_is_configured_keeps_its_promise(
    default: None, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    made = made_with(monkeypatch, **{variable: value})
    assert made.hint == ""
    assert patience(made.pump) == [1.0, 1.0]


def test_after_the_hint_who_comes_and_takes_nothing_is_told_of(
    default: None,
    server: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    # Where it goes is configured, but it is taken for what nobody named.
    monkeypatch.setattr(exporters, "is_named", lambda signal: False)
    server.answer = refusal(server, 400, "INVALID_ARGUMENT")
    made = made_with(monkeypatch, **server.environ)
    assert made.hint
    made.pump.start()
    export = Export(made.pump)
    export.metrics(make_batch())
    eventually(lambda: len(caplog.records) == 1)
    server.answer = None
    export.metrics(make_batch())
    eventually(lambda: len(caplog.records) == 2)
    export.close(LONG)
    failed, works = [r.getMessage() for r in caplog.records if r.name == "distributed.dask_otel"]
    assert "can't export metrics" in failed
    assert works.endswith("again")


@pytest.mark.parametrize(
    "reason",
    [
        "UNAVAILABLE: failed to connect to all addresses; last error: Connection refused",
        "UNAVAILABLE: connections to all backends failing; last error: handshaker shutdown",
        "DEADLINE_EXCEEDED: Deadline Exceeded",
        "",
    ],
)
def test_after_the_hint_it_is_no_news_that_nobody_is_there(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    health = Health("http://localhost:4317 (OTLP over gRPC)")
    health.expect_nobody()
    health.failed("spans", reason)
    health.failed("metrics", reason)
    health.ok("spans")
    (works,) = [record.getMessage() for record in caplog.records]
    assert "dask-otel exports to" in works
    health.failed("spans", reason)
    assert caplog.records[-1].levelname == "WARNING"
