"""Nobody is at the endpoint: the close does not wait, and a person is told once what helps."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dask_otel import semconv
from dask_otel._otel.sdk import exporters
from dask_otel.core.records import ClusterEvent
from dask_otel.scheduler.wiring import WiredPump, make_pump
from dask_otel.settings.keys import FileSettings, ProfileSettings, Settings, WorkerSettings
from tests.environment import OFF, set_variables
from tests.otlp.pipeline import make_batch
from tests.receiver import port_of, refusing
from tests.waiting import eventually

#: Seconds for a request, and those of a close: nobody waits so long.
LONG = 100


def made_with(
    monkeypatch: pytest.MonkeyPatch, settings: Settings | None = None, **variables: str
) -> WiredPump:
    set_variables(monkeypatch, {"OTEL_BLRP_SCHEDULE_DELAY": "20", **variables})
    made = make_pump(settings or Settings(), "Scheduler-1", time.time_ns())
    assert made is not None
    return made


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nobody listen at the default endpoint, whatever runs on this machine."""
    with refusing() as endpoint:
        address = "127.0.0.1", port_of(endpoint)
        monkeypatch.setattr(exporters, "_DEFAULT_ADDRESS", address)
        yield


def test_who_has_configured_nothing_gets_a_hint(
    default: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = made_with(monkeypatch, OTEL_METRIC_EXPORT_INTERVAL="100")
    assert [
        x
        for x in (
            "nothing listens at http://localhost:4317",
            "so spans and metrics can't be seen",
            "otel.files.path",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        )
        if x not in made.hint
    ] == []
    made.pump.start()

    def is_failing() -> bool:
        # Again and again, as the bridge sends them.
        made.pump.offer_metrics(make_batch())
        failing: bool = made.pump.condition()["destinations"][0]["failing"]
        return failing

    eventually(is_failing)
    made.pump.request_close(0.0)
    eventually(lambda: made.pump.closed)
    assert caplog.records == [], "it is said once"


@pytest.mark.usefixtures("application")
@pytest.mark.parametrize("metrics", [True, False])
def test_beside_an_applications_provider_events_alone_are_no_news(
    default: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, metrics: bool
) -> None:
    made = made_with(monkeypatch, **({} if metrics else {"OTEL_METRICS_EXPORTER": "none"}))
    assert ("so metrics can't be seen" in made.hint, bool(made.hint)) == (metrics, metrics)
    made.pump.start()
    made.pump.logs.offer(ClusterEvent(1.0, semconv.SCHEDULER_STARTED, {}))
    # The first is the application's provider.
    eventually(lambda: made.pump.condition()["destinations"][-1]["failing"])
    made.pump.request_close(0.0)
    eventually(lambda: made.pump.closed)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b"),
        ("", ""),
    ],
)
def test_what_is_configured_or_listens_needs_no_hint(
    default: None, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        if not variable:
            monkeypatch.setattr(exporters, "_DEFAULT_ADDRESS", listening.getsockname())
        made = made_with(monkeypatch, **({variable: value} if variable else {}))
    assert made.hint == ""


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ((), "spans and metrics: http://c:4317 (OTLP over gRPC)"),
        (("METRICS",), "spans: http://c:4317 (OTLP over gRPC)"),
        (("TRACES",), "metrics: http://c:4317 (OTLP over gRPC)"),
        (("TRACES", "METRICS"), "logs: http://c:4317 (OTLP over gRPC)"),
        (("TRACES", "METRICS", "LOGS"), "spans and metrics: to nowhere"),
    ],
)
def test_the_log_names_what_is_exported(
    monkeypatch: pytest.MonkeyPatch, without: tuple[str, ...], said: str
) -> None:
    none = {f"OTEL_{signal}_EXPORTER": "none" for signal in without}
    made = made_with(monkeypatch, OTEL_EXPORTER_OTLP_ENDPOINT="http://c:4317", **none)
    assert made.summary.partition(" (OTEL_")[0] == said


@pytest.mark.parametrize("missing", ["otel.files.path", "otel.workers.context", ""])
def test_profiles_that_can_not_be_taken_are_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, missing: str
) -> None:
    settings = Settings(
        profiles=ProfileSettings(enabled=True),
        files=FileSettings(path=None if missing == "otel.files.path" else str(tmp_path)),
        workers=WorkerSettings(context=missing != "otel.workers.context"),
    )
    made = made_with(monkeypatch, settings, **OFF)
    said = [text for text in caplog.messages if "profiles" in text]
    if missing:
        assert f"also needs {missing}" in said[0]
        assert made.pump.profiles is None
    else:
        assert said == []
        assert made.pump.profiles is not None
    made.pump.request_close(0.0)
