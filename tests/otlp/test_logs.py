"""Log records over real sockets, into files and to the console: the third signal of the pump."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2

from dask_otel import semconv
from dask_otel._otel.sdk.probe import probe
from dask_otel._version import __version__
from dask_otel.core.events import lines
from dask_otel.core.records import Answer, ClusterEvent, LogRecord, SpanIdentity
from dask_otel.core.trace import Trace
from dask_otel.pump import lanes
from dask_otel.settings.keys import Settings
from tests.otlp.conftest import Begin, Build, send
from tests.otlp.json_reading import from_json
from tests.otlp.pipeline import make_batch
from tests.receiver import Log, Receiver, decode_logs
from tests.waiting import eventually

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


def dropped(made: Any) -> dict[str, float]:
    """Return the lost log records by reason."""
    counts = made.pump.counts().items()
    return {k[2]: v for k, v in counts if k[:2] == (semconv.OTEL_DROPPED.name, "logs")}


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
    settings = Settings()
    object.__setattr__(settings, "files", type(settings.files)(path=str(tmp_path)))
    made, export = begin({}, settings)
    export.close()
    assert not list(tmp_path.glob("*-logs.jsonl")), "no event, no file"
    made, export = begin({}, settings, started_ns=1)
    made.pump.logs.offer(EVENT)
    export.close()
    (path,) = tmp_path.glob("*-logs.jsonl")
    message = logs_service_pb2.ExportLogsServiceRequest()
    from_json(path.read_text("utf-8"), message)
    (log,) = decode_logs(message)
    assert (log.name, log.trace_id, log.span_id) == (EVENT.name, 5, 6)


@pytest.mark.parametrize("name", sorted(semconv.WRITTEN))
def test_what_workers_and_users_write_leaves_half_of_the_queue_to_events(
    name: str, server: Receiver, begin: Begin
) -> None:
    kept(server).answer = "UNAVAILABLE" if server.protocol == "grpc" else 503
    made, export = begin({**server.environ, "OTEL_BLRP_MAX_QUEUE_SIZE": "200"}, None)
    offer, written = made.pump.logs.offer, replace(EVENT, name=name)
    if name == semconv.WORKER_LOG:
        blob = b"[" + b",".join([lines.line(1.0, 30, "user", "x")] * 50) + b"]"
        about = {semconv.WORKER_NAME: "w", semconv.WORKER_ADDRESS: "tcp://w:1"}
        written = replace(written, facts={**about, lines.BLOB: blob}, weight=50)
    of = 100 // written.weight
    assert [offer(written) for _ in range(of + 1)] == [True] * of + [False]
    # One that is offered again later is not lost.
    assert not offer(written, counted=False)
    assert ([offer(EVENT) for _ in range(101)], dropped(made)) == (
        [True] * 100 + [False],
        {"queue_full": written.weight + 1},
    )
    server.answer = None
    server.wait_for(lambda s: len(s.logs) == 200)
    names = [log.name for log in server.logs]
    assert (names.count(name), names.count(EVENT.name)) == (100, 100)
    eventually(lambda: offer(written), what="there is room again")
    export.close()


def test_an_endpoint_that_takes_no_logs_is_asked_again_each_hour(
    server: Receiver,
    begin: Begin,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line, no alert; the spans are not concerned."""
    monkeypatch.setattr(lanes, "ASK_AGAIN", 3.0)
    kept(server).takes_no_logs = True
    with caplog.at_level(logging.INFO):
        made, _ = begin(server.environ)
        made.pump.logs.offer(EVENT)
        eventually(lambda: dropped(made) == {"unsupported": 1}, what="it was refused")
        for _ in range(5):
            made.pump.logs.offer(EVENT)
        eventually(lambda: dropped(made) == {"unsupported": 6}, what="the others are not sent")
        assert len(server.requests) == 1
        server.takes_no_logs = False
        eventually(lambda: made.pump.logs.offer(EVENT) and server.logs, what="it is asked again")
    lines = [r for r in caplog.records if "accepts no logs" in r.getMessage()]
    assert [r.levelno for r in lines] == [logging.INFO]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert [d["failing"] for d in made.pump.condition()["destinations"]] == [[]]


def test_an_endpoint_that_took_some_is_only_in_trouble(server: Receiver, begin: Begin) -> None:
    """A proxy says 404, too, while what is behind it restarts."""
    made, _ = begin(kept(server).environ)
    made.pump.logs.offer(EVENT)
    server.wait_for(lambda s: len(s.logs) == 1)
    server.takes_no_logs = True
    made.pump.logs.offer(EVENT)
    server.wait_for(lambda s: len(s.requests) >= 3)
    server.takes_no_logs = False
    server.wait_for(lambda s: len(s.logs) == 2)
    assert dropped(made) == {}


def test_the_queue_of_logs_has_its_own_levels(server: Receiver, begin: Begin) -> None:
    server.keeps = frozenset({"logs", "metrics"})
    made, export = begin({**server.environ, "OTEL_BLRP_MAX_QUEUE_SIZE": "7"}, None)
    made.pump.logs.offer(EVENT)
    server.wait_for(lambda s: s.logs)
    export.metrics(make_batch())
    export.close()
    signal = ((semconv.OTEL_SIGNAL, "logs"),)
    assert (
        server.last(semconv.OTEL_QUEUE_CAPACITY.name)[signal],
        server.last(semconv.OTEL_QUEUE_SIZE.name)[signal],
        server.last(semconv.OTEL_EXPORTED.name)[signal],
    ) == (7, 0, 1)
    assert signal not in server.last(semconv.OTEL_EXPORT_LAST_SUCCESS_AGE.name), "events are rare"


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
