"""Log records over real sockets, into files and to the console: the third signal of the pump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2

from dask_otel import semconv
from dask_otel._otel.sdk.probe import probe
from dask_otel._version import __version__
from dask_otel.core.records import Answer, ClusterEvent, LogRecord, SpanIdentity
from dask_otel.core.trace import Trace
from dask_otel.settings.keys import FileSettings, Settings
from tests.otlp.conftest import Begin, Build, send
from tests.otlp.json_reading import from_json, logs_of
from tests.receiver import Log, Receiver, decode_logs
from tests.unit.pumps import closes

# Others go on in the other processes meanwhile.
pytestmark = pytest.mark.xdist_group("waiting")

RECORD = LogRecord(
    time_ns=1_700_000_000_000_000_001,
    name=semconv.WORKER_REMOVED,
    severity=semconv.ERROR,
    body="Worker ä was lost.",
    attributes={"dask.worker.name": "ä", "dask.task.count": 3, "dask.task.prefixes": ("a", "b")},
    trace_id=Trace(0x5B8EFFF798038103D269B633813FC60C),
    span_id=7,
)
EVENT = ClusterEvent(
    1_700_000_000.5,
    semconv.CLIENT_ADDED,
    {semconv.CLIENT_ID: "Client-1"},
    (SpanIdentity("a", "a", ("nightly",), 1, Trace(5), 6, None),),
)


def kept(server: Receiver) -> Receiver:
    server.keeps = frozenset({"logs"})
    return server


def test_a_log_record_arrives_with_all_that_it_has(server: Receiver, build: Build) -> None:
    (sink,) = build(kept(server).environ, logs=True).log_sinks
    assert send(sink, [RECORD, RECORD]) == Answer(True)
    one, two = server.logs
    assert one.resource["service.name"] == "dask-scheduler"
    expected = Log(
        name=RECORD.name,
        time_ns=RECORD.time_ns,
        severity=17,
        severity_text="ERROR",
        body=RECORD.body,
        attributes=dict(RECORD.attributes),
        trace_id=RECORD.trace_id,
        span_id=7,
        flags=1,
        resource=one.resource,
        scope=("dask_otel", __version__, semconv.SCHEMA_URL),
    )
    assert one == two == expected


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("otlp", "http://c:1 (OTLP over gRPC)"),
        ("otlp_proto_http,otlp", "http://c:1 (OTLP over HTTP)"),
        ("console", "console"),
        ("none", None),
    ],
)
def test_the_variables_of_logs_choose_the_exporter(
    build: Build, name: str, label: str | None
) -> None:
    variables = {
        "OTEL_LOGS_EXPORTER": name,
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://c:1",
    }
    sinks = build(variables, logs=True).log_sinks
    assert (
        [one.destination.name for one in sinks][:1],
        len(sinks),
        build(variables).log_sinks,
    ) == (
        [label] if label else [],
        name.count(",") + 1 if label else 0,
        (),
    )


def test_an_exporter_of_logs_that_the_bridge_cannot_use_stops_nothing_else(
    server: Receiver, build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    outputs = build(server.environ, logs=True, OTEL_LOGS_EXPORTER="vendor")
    assert (len(outputs.span_sinks), outputs.log_sinks) == (1, ())
    assert "'vendor'" in caplog.text


def test_the_console_gets_lines_that_a_collector_reads(
    build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    (sink,) = build(logs=True, OTEL_LOGS_EXPORTER="console").log_sinks
    assert send(sink, [RECORD]).taken
    message = logs_service_pb2.ExportLogsServiceRequest()
    from_json(capsys.readouterr().out, message)
    assert [log.body for log in decode_logs(message)] == [RECORD.body]


def test_files_get_log_records_and_only_where_there_are_some(begin: Begin, tmp_path: Path) -> None:
    settings = Settings(files=FileSettings(path=str(tmp_path)))
    closes(begin({}, settings))
    assert not list(tmp_path.glob("*-logs.jsonl")), "no event, no file"
    pump = begin({}, settings, started_ns=1)
    pump.logs.offer(EVENT)
    closes(pump)
    (path,) = tmp_path.glob("*-logs.jsonl")
    (log,) = logs_of([path])
    assert (log.name, log.trace_id, log.span_id) == (EVENT.name, 5, 6)


def test_the_doctor_sends_a_record(server: Receiver) -> None:
    found = look(server)
    assert found["logs"]["ok"] is True
    (log,) = server.logs
    assert (log.name, log.trace_id) == (semconv.DOCTOR_EVENT, int(found["trace_id"], 16))
    server.takes_no_logs = True
    found = look(server)
    assert (found["logs"]["ok"], found["logs"]["unsupported"]) == (False, True)


def look(server: Receiver) -> dict[str, Any]:
    found = probe(Settings(environment=kept(server).environ), 10)
    return {**found, **{result["signal"]: result for result in found["results"]}}
