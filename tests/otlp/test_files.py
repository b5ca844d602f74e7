"""What is exported, in files: the same as over OTLP, alone or beside it, whatever the disk does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dask_otel._otel.sdk import otlp_json
from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.files import run_name
from dask_otel.core.records import Failure, Row
from dask_otel.pump.pump import Pump
from dask_otel.settings.keys import ConfigurationError, FileSettings, Settings
from tests.otlp.conftest import Begin, Build, send
from tests.otlp.json_reading import from_json
from tests.otlp.pipeline import make_batch, make_span
from tests.otlp.records import CHILD, HISTOGRAM, ROOT, counter, number
from tests.receiver import decode_points, decode_spans, receiver
from tests.unit.finished import T
from tests.unit.pumps import closes

StartExport = Callable[..., Pump]

REQUESTS: dict[str, Any] = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
}


@pytest.fixture
def export(begin: Begin, tmp_path: Path) -> StartExport:
    """Start pumps as the bridge does, with files below the test's folder."""

    def start(folder: Path = tmp_path / "files", **variables: str) -> Pump:
        settings = Settings(files=FileSettings(path=str(folder)), cluster_name="shop")
        return begin(variables, settings, "Scheduler-0a1b2c3d4e5f", int(T * 1e9))

    return start


def read(folder: Path, signal: str) -> list[Any]:
    """Return the requests in the files of a signal, read with protobuf's own JSON mapping."""
    requests = []
    for path in sorted(folder.glob(f"*-{signal}.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            requests.append(REQUESTS[signal]())
            from_json(line, requests[-1])
    return requests


def test_a_folder_that_nobody_can_write_to_is_told_at_the_start(
    export: StartExport, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    export(tmp_path / "new")
    assert (caplog.messages, list((tmp_path / "new").iterdir())) == ([], [])
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        caplog.clear()
        export(folder)
        (said,) = caplog.messages
        assert f"can't write into otel.files.path: Not a directory: {folder}" in said


def target(path: str | Path) -> FileSettings:
    return FileSettings(str(path), 10**8, 10)


@pytest.mark.parametrize(
    ("variables", "interval", "at_once"),
    [
        ({}, 5.0, True),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, 5.0, True),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "20000"}, 20.0, False),
    ],
)
def test_files_have_metrics_every_five_seconds_until_one_is_full(
    build: Build, tmp_path: Path, variables: dict[str, str], interval: float, at_once: bool
) -> None:
    outputs = build(files=FileSettings(str(tmp_path), 1000, 10), **variables)
    read_ = outputs.environment
    assert (read_.file_interval or read_.metric_interval) == interval
    sink = outputs.metric_sinks[-1]
    assert sink.destination is outputs.files
    assert sink.destination.eager() is at_once
    for value in (1, 2):
        assert send(sink, [counter(number(value), description="x" * 600)]).taken
    assert len(list(tmp_path.iterdir())) == 2
    assert not sink.destination.eager()


# ------------------------------------------------------------------------------- fidelity


def test_files_have_what_a_server_gets(export: StartExport, tmp_path: Path) -> None:
    with receiver("http/protobuf") as server:
        running = export(**server.environ)
        failure = Failure(T + 5, "load-1", "load", "tcp://w:1", "KeyError('ö\\n')", "Traceback …")
        failed = make_span("failed", groups=2, result="failure", failures=(failure,))
        for span in (make_span("one", groups=3), failed):
            assert running.spans.offer(span)
        running.offer_metrics(make_batch(spans=3))
        closes(running)
        spans = [span for one in read(tmp_path / "files", "traces") for span in decode_spans(one)]
        points = [p for one in read(tmp_path / "files", "metrics") for p in decode_points(one)]
        assert len(spans) > 6
        assert {span.span_id: span for span in spans} == {s.span_id: s for s in server.spans}
        # Each exporter has totals of its own, which count it as well: the user's are the same.
        assert users(points) == users(server.points)
        assert len(users(points)) >= 3


def users(points: list[Any]) -> dict[Any, Any]:
    return {p.series: (p.value, p.time_ns) for p in points if not p.metric.startswith("dask.otel.")}


@pytest.mark.parametrize(
    ("cluster", "begins"),
    [
        ("../../etc/passwd", "etc-passwd-2023"),
        ("-rf *", "rf-2023"),
        (".hidden", "hidden-2023"),
        ("Zoë's", "Zo--s-2023"),
        ("...", "dask-2023"),
        ("x" * 300, "x" * 60 + "-2023"),
        ("a\0b\nc", "a-b-c-2023"),
    ],
)
def test_names_are_safe(cluster: str, begins: str) -> None:
    name = run_name(cluster, "Scheduler-../../x y", int(T * 1e9))
    assert name.startswith(begins)
    assert name.isascii()
    assert (
        run_name("shop", "Scheduler-0a1b2c3d4e5f", int(T * 1e9)) == "shop-20231114T221320Z-0a1b2c3d"
    )
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


# --------------------------------------------------------------------------- which exporters


@pytest.mark.parametrize(
    ("variables", "traces", "metrics"),
    [
        ({}, [], []),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "3"}, [], []),
        ({"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}, [], []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, [], []),
        ({"OTEL_TRACES_EXPORTER": "none"}, [], []),
        ({"OTEL_TRACES_EXPORTER": "console"}, ["console"], []),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, [], ["http://localhost:4317 (OTLP over gRPC)"]),
        # With this one, they are defaults of the configuration.
        (
            {"OTEL_SERVICE_NAME": "dask", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1"},
            ["http://c:1 (OTLP over gRPC)"],
            ["http://c:1 (OTLP over gRPC)"],
        ),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            ["http://localhost:4318 (OTLP over HTTP)"],
            ["http://localhost:4318 (OTLP over HTTP)"],
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:1"},
            ["http://t:1 (OTLP over gRPC)"],
            [],
        ),
        (
            {"OTEL_EXPORTER_OTLP_HEADERS": "a=b"},
            ["http://localhost:4317 (OTLP over gRPC)"],
            ["http://localhost:4317 (OTLP over gRPC)"],
        ),
    ],
)
def test_a_signal_is_sent_only_where_the_variables_say_so(
    build: Build, tmp_path: Path, variables: dict[str, str], traces: list[str], metrics: list[str]
) -> None:
    ours, environ = ({}, variables) if "OTEL_SERVICE_NAME" not in variables else (variables, {})
    outputs = build(environ, defaults=ours, files=target(tmp_path))
    files = f"files in {tmp_path}"
    assert [sink.destination.name for sink in outputs.span_sinks] == [*traces, files]
    assert [sink.destination.name for sink in outputs.metric_sinks] == [*metrics, files]


def test_home_is_the_schedulers(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert send(build(files=target("~/files")).span_sinks[0], [ROOT]).taken
    assert len(list((tmp_path / "files").iterdir())) == 1


def test_a_home_of_nobody_is_an_error_of_the_configuration(build: Build) -> None:
    with pytest.raises(ConfigurationError, match=r"otel\.files\.path is '~nobody"):
        build(files=target("~nobody of that name/x"))


def test_an_application_with_a_provider_has_files_as_well(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider()
    monkeypatch.setattr(
        "dask_otel._otel.sdk.outputs.application_provider", lambda: provider, raising=True
    )
    outputs = build(files=target(tmp_path))
    assert [sink.destination.name for sink in outputs.span_sinks] == [
        "the application's tracer provider",
        f"files in {tmp_path}",
    ]


# ------------------------------------------------------------------------------- OTLP/JSON


ENCODER = Encoder({"service.name": "dask"}, "1")
#: An attribute with a name like a field's, and bytes that are no id.
TRACES = ENCODER.request(
    Row(ENCODER.span(one))
    for one in (replace(ROOT, attributes={"traceId": "not hex", "raw": b"\0\xff"}), CHILD)
)
METRICS = ENCODER.metrics(
    [
        counter(number(1.5, a="x"), number(float("inf"), a="y"), number(2)),
        counter(number(0), name="zero", instrument="gauge"),
        counter(number(-3), name="level", instrument="updowncounter"),
        counter(HISTOGRAM, name="h", instrument="histogram"),  # type: ignore[arg-type]
    ],
    lambda: None,
)


@pytest.mark.parametrize(
    ("signal", "body", "items", "parts"),
    [
        ("traces", TRACES, 2, ['"kind":2', f'"startTimeUnixNano":"{ROOT.start_ns}"']),
        ("metrics", METRICS, 6, ['"asDouble":"Infinity"', '"aggregationTemporality":2']),
    ],
)
def test_lines_are_the_request_written_in_breaths(
    signal: str, body: bytes, items: int, parts: list[str]
) -> None:
    """The event loop has its turn: measured in calls, not in time."""
    request, back = REQUESTS[signal].FromString(body), REQUESTS[signal]()
    breaths: list[int] = []
    (line,) = otlp_json.lines(request, lambda: breaths.append(1))
    from_json(line, back)
    assert back == request
    assert line.isascii()
    assert "\n" not in line
    # Enums and long numbers as OTLP has them.
    assert [part for part in parts if part not in line] == []
    assert len(breaths) == items


def test_long_requests_become_several_lines(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_json, "LONGEST_LINE", 3000)
    monkeypatch.setattr(otlp_json, "_LONGEST_PIECE", 500)
    outputs = build(files=target(tmp_path))
    spans = [replace(ROOT, span_id=index + 1, events=(), links=()) for index in range(20)]
    points = counter(*(number(index, n=index) for index in range(40)))
    assert send(outputs.span_sinks[0], spans).taken
    assert send(outputs.metric_sinks[0], [points]).taken
    for path in tmp_path.iterdir():
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) > 2
        assert max(map(len, lines)) <= 3000
    ids = [s.span_id for one in read(tmp_path, "traces") for s in decode_spans(one)]
    assert ids == list(range(1, 21))
    values = [p.value for one in read(tmp_path, "metrics") for p in decode_points(one)]
    assert values == list(range(40))
