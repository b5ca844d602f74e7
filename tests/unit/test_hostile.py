"""What others send, in any shape: it costs nothing beside it, and is bounded where it is shown.

`make fuzz` goes on where these stop; see `fuzz/properties.py`.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import grpc
import requests
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from urllib3 import HTTPResponse

from dask_otel import semconv
from dask_otel._dask.clients import ClientBlocks
from dask_otel._otel.sdk.encode import Encoder, reread, resource_of, span_name
from dask_otel._otel.sdk.environment import headers, read_environment
from dask_otel._otel.sdk.exporters import labels as labels_of
from dask_otel._otel.sdk.exporters import make_sinks
from dask_otel._otel.sdk.resource import make_resource
from dask_otel._otel.sdk.sampling import make_sampler
from dask_otel._otel.sdk.sink import ExporterSink
from dask_otel._otel.sdk.transport import GrpcTransport, HttpTransport
from dask_otel.cli.spool_view import listing
from dask_otel.core.attributes import COUNT_LIMIT, TOTAL_LIMIT
from dask_otel.core.endpoints.explaining import partly_taken
from dask_otel.core.life.blocks import ATTRIBUTES, BLOCKS, CLIENT, ENTERED, LEFT
from dask_otel.core.metrics.batch import MetricBatch, Observation
from dask_otel.core.records import Event, HistogramPoint, Link, Origin, Row, SpanRecord
from dask_otel.settings.keys import ConfigurationError
from dask_otel.settings.origins import variables_in_force
from dask_otel.spool.store import Encoded, Store
from tests.limits import make_limits, make_state
from tests.unit.garbage import anything, hashables, numbers, texts, values
from tests.unit.metric_states import START, S

# --------------------------------------------------------------------------------------- metrics

KEYS = st.tuples(
    st.sampled_from(["execute", "p2p", "get-data"]) | hashables,
    hashables,
    st.sampled_from(["seconds", "bytes", "count"]) | hashables,
)
CHANGES = st.lists(st.tuples(st.lists(hashables, max_size=3).map(tuple), KEYS, numbers), max_size=8)


# `make fuzz` goes on with it.
@settings(max_examples=10)
@given(st.lists(CHANGES, min_size=2, max_size=2), st.sampled_from([*semconv.METRICS, "odd"]))
def test_metrics_of_garbage_cost_no_valid_increment(rounds: list[Any], name: str) -> None:
    """The valid one is of the first span; totals never go back, and all values are numbers."""
    state, before = make_state(START), dict[Any, float]()
    for number, changes in enumerate(rounds, 1):
        batch = MetricBatch(time_ns=START + number * 10 * S)
        batch.deltas_of("good", ("good",), (1, 99)).values["execute", "f", "cpu", "seconds"] = 1.5
        for place, (tags, key, value) in enumerate(changes):
            batch.deltas_of(place, tags, (1, place + 1)).values[key] = value
            # Dask's own additions raise before ours.
            with suppress(OverflowError):
                batch.add(name, *key, value=value)
            with suppress(OverflowError):
                batch.add_of_cluster({key: value}, frozenset())
            batch.set_level(name, *key, value=value)
            batch.observe(Observation(name, key, value, None))
        state.apply(batch)
        found: dict[Any, float] = {}
        for record in state.collect(batch.time_ns + 1):
            for point in record.points:
                assert all(len(text) <= 255 for text in point.attributes.values())
                "".join(point.attributes.values()).encode()
                value = point.sum if isinstance(point, HistogramPoint) else point.value
                assert math.isfinite(value)
                if record.instrument == "counter":
                    found[record.name, tuple(point.attributes.items())] = value
        state.settled(True)
        assert all(found.get(series, value) >= value for series, value in before.items())
        good = [
            value
            for (of, labels), value in found.items()
            if of == semconv.SPAN_EXECUTE_TIME.name and dict(labels)[semconv.SPAN_NAME] == "good"
        ]
        assert good == [1.5 * number]
        before = found


# -------------------------------------------------------------------------------------- messages

LINES = st.lists(
    st.tuples(st.sampled_from([ENTERED, LEFT]), st.sampled_from("ab") | hashables).map(list)
    | values,
    max_size=5,
)


# `make fuzz` goes on with it.
@settings(max_examples=10)
@given(values, LINES, LINES, st.dictionaries(hashables, values, max_size=4), values)
def test_a_message_of_garbage_costs_no_good_line(
    message: Any, before: list[Any], after: list[Any], described: dict[Any, Any], of_a: Any
) -> None:
    spans: dict[str, Any] = {
        name: SimpleNamespace(identity=SimpleNamespace(dask_id=name), held=[], attributes={})
        for name in ("good", "a")
    }
    holder: Any = SimpleNamespace(
        open=spans,
        hold=lambda span: span.held.append(span),
        unhold=lambda span, ended, now: span.held.pop(),
    )
    clients = {"me": SimpleNamespace(last_seen=0.0)}
    scheduler: Any = SimpleNamespace(clients=clients, _active_graph_updates=0)
    blocks = ClientBlocks(scheduler, holder, make_limits())
    blocks.handle_message(message, 0.0)
    described |= {"a": of_a, "good": {"batch.id": 7}}
    lines = [*before, [ENTERED, "good"], *after]
    blocks.handle_message({CLIENT: "me", BLOCKS: lines, ATTRIBUTES: described}, 1.0)
    good, other = spans.values()
    assert (len(good.held), good.attributes) == (1, {"batch.id": 7})
    assert len(other.attributes) <= COUNT_LIMIT
    assert sum(len(str(key)) for key in other.attributes) <= TOTAL_LIMIT
    blocks.tick(100.0)
    blocks.client_gone("me", 101.0)
    assert not good.held


# ----------------------------------------------------------------------------------- environment

SECRETS = [
    *("x-key=hunter2", "http://u:hunter2@h:4317/?k=hunter2", "u:hunter2@h", "hunter2A" * 40),
    *("-----BEGIN PRIVATE KEY-----\nhunter2", "secret=hunter2\n"),
]
KNOWN = ["grpc", "http/protobuf", "gzip", "traceidratio", "a=b,c=%zz,=,team=etl", ""]
#: What an environment can hold.
CONTENT = (texts | numbers.map(lambda number: f"{number!r}"[:400])).map(
    lambda text: text.replace("\0", "").encode("utf-8", "replace").decode()
)
VARIABLES = [
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
    "OTEL_SERVICE_NAME",
    "OTEL_METRICS_EXEMPLAR_FILTER",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
]
CREDENTIALS = [
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
]
ENVIRONMENT: dict[str, st.SearchStrategy[str]] = {
    **dict.fromkeys(VARIABLES, CONTENT | st.sampled_from(KNOWN)),
    **dict.fromkeys(CREDENTIALS, CONTENT | st.sampled_from(SECRETS)),
}


def _environment() -> None:
    found = read_environment()
    for limits in (found.spans, found.logs):
        assert 1 <= limits.batch_size <= limits.queue_size
        assert 0 <= limits.schedule_delay < math.inf
    assert 0 < found.metric_interval < math.inf


def _exporters() -> None:
    for signal in ("traces", "metrics"):
        assert not any("hunter2" in label for label in labels_of(signal))
        for one in make_sinks([signal], partial(ExporterSink, Mock(), Mock())):
            one.transport.close()


def _resource() -> None:
    made = make_resource("i", None)
    for key, value in made.attributes.items():
        f"{key}{value}".encode()
    Encoder(made.attributes, "1")
    make_sampler()


@given(st.fixed_dictionaries({}, optional=ENVIRONMENT), st.integers(0, 9))
def test_variables_are_values_in_their_limits_or_one_error_without_a_credential(
    given: dict[str, str], dice: int
) -> None:
    # A resource searches the installed packages each time, which is slow.
    parts: list[Callable[[], object]] = [
        *(_environment, _exporters, partial(headers, "latin-1", "OTEL_EXPORTER_OTLP_HEADERS")),
        *([] if dice else [_resource]),
    ]
    others = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    with patch.dict(os.environ, {**others, **given}, clear=True):
        for part in parts:
            try:
                part()
            except ConfigurationError as error:
                shown = str(error)
                assert "hunter2" not in shown
                assert len(shown.encode().splitlines()) == 1
                assert len(shown) < 2000
        assert not any("hunter2" in one.value for one in variables_in_force({}))


# --------------------------------------------------------------------------------------- answers

PAUSES = texts | st.sampled_from(["1", "-1", "9" * 400, "Wed, 21 Oct 2099 07:28:00 GMT", "1e9"])
BODIES = st.binary() | st.builds(
    lambda count, said: json.dumps(
        {"partialSuccess": {"rejectedSpans": count, "errorMessage": said}}
    ).encode(),
    anything.filter(lambda value: not isinstance(value, bytes)).map(str),
    texts,
)


def _http(status: int, kind: str, pause: str, reason: str | None, body: bytes) -> Any:
    """Return a transport that gets an answer over HTTP."""
    response = requests.Response()
    response.status_code, response.reason = status, reason
    response.headers.update({"content-type": kind, "location": pause, "retry-after": pause})
    response.url = "http://h/v1/traces"
    response.raw = HTTPResponse(BytesIO(body), preload_content=False)
    session = SimpleNamespace(post=lambda *_, **__: response, close=lambda: None)
    return HttpTransport("traces", {}, 10, lambda: session, response.url)


def _grpc(code: grpc.StatusCode, said: str | None, key: str, content: Any, reply: bytes) -> Any:
    """Return a transport that gets an answer over gRPC."""
    refused = grpc.aio.AioRpcError(code, (), ((key, content),) if key else None, said)

    def export(*args: Any, **kwargs: Any) -> Any:
        if code is not grpc.StatusCode.OK:
            raise refused
        return reply

    channel = SimpleNamespace(unary_unary=lambda _: export, close=lambda: None)
    return GrpcTransport("traces", {}, 10, lambda: channel)


TRANSPORTS = st.builds(
    _http,
    st.sampled_from([200, 202, 301, 400, 401, 404, 413, 429, 503, 99, 999]),
    st.sampled_from(["application/x-protobuf", "application/json", "text/html; charset=x"]) | texts,
    PAUSES,
    st.none() | texts,
    BODIES,
) | st.builds(
    _grpc,
    st.sampled_from(grpc.StatusCode),
    st.none() | texts,
    st.just("google.rpc.retryinfo-bin") | texts,
    st.binary()
    | texts
    | st.integers(-9, 9).map(
        lambda n: RetryInfo(retry_delay=Duration(seconds=n * 10**10)).SerializeToString()
    ),
    st.binary(),
)


@given(TRANSPORTS, st.integers(-1, 3))
def test_whatever_a_server_answers_is_shown_in_a_short_line(transport: Any, count: int) -> None:
    for _ in range(2):
        answer = transport.send(b"", 10)
        for words in (answer.said, answer.reason):
            assert len(words) <= 300
            assert words.isprintable()
        assert 0 <= answer.pause < math.inf
        assert answer.lost >= 0
        assert answer.taken or answer.reason
        str(partly_taken(count, answer.said)).encode()


# ----------------------------------------------------------------------------------------- spool

BYTES = 10_000_000
#: The values of a row that can be damaged.
COLUMNS = [
    *(("runs", name) for name in ("resource", "scope", "started_ns", "alive_ns", "alive_again")),
    *(("rows", name) for name in ("run", "sink", "ids", "body", "crc")),
]


def _encoded(number: int, ids: bytes | None = None) -> Encoded:
    record = SpanRecord(
        number, number, 7, f"span {number}", "server", START, START + number,
        {"text": "a", "number": 1.5, "array": ("b", 2)},
        (Event("exception", START, {"exception.type": "ValueError"}),),
        (Link(5, 6),), "d", "root",
    )  # fmt: skip
    return "otlp", ids, Encoder({}, "1").span(record)


def _run(name: str) -> Origin:
    return Encoder({"service.instance.id": name, "service.name": "dask-scheduler"}, "1").origin


@cache
def _template() -> bytes:
    """Return a file with three spans that wait, of a lost run, and the note of a fourth."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "template.db"
        store = Store.open(path, BYTES, _run("lost"), START, reread)
        store.write([_encoded(4, b"4"), *map(_encoded, (1, 2, 3))], alive_ns=START + 10)
        store.close(clean=False)
        return path.read_bytes()


def _read(rows: list[Row]) -> set[str]:
    """Return the names of the spans of a request, which any server can read."""
    request = Encoder({}, "1").request([row for row in rows if row.body is not None])
    return {
        span.name
        for resource in ExportTraceServiceRequest.FromString(request).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }


def _used(path: Path, right: set[str]) -> None:
    """Use a file as a spool: it is refused, or the good rows beside a damaged one are sent."""
    path.chmod(0o600)
    with suppress(OSError):
        text = "\n".join(listing(path))
        text.encode()
        assert len(text) < 20_000
    try:
        store = Store.open(path, BYTES, _run("next"), START + 20, reread)
    except OSError:
        return
    with suppress(OSError):
        store.adopt(["otlp"])
        assert right <= _read(store.waiting("otlp", 0, 100))
        before = store.last
        dropped, _ = store.write([_encoded(9)], alive_ns=START + 30)
        # By a damaged count of free pages the file is full, and what it drops is counted.
        assert dropped or "span 9" in _read(store.waiting("otlp", before, 100))
    store.close(clean=True)


@example([(35, b"\x00\x80")], None)
@given(
    st.lists(st.tuples(st.integers(0, 511) | st.integers(0, 65535), st.binary(max_size=4))),
    st.none() | st.integers(0, 65535),
)
def test_a_damaged_spool_is_used_or_refused(
    damage: list[tuple[int, bytes]], length: int | None
) -> None:
    content = bytearray(_template())
    for at, put in damage:
        content[at % len(content) : at % len(content) + len(put)] = put
    with TemporaryDirectory() as folder:
        path = Path(folder) / "spool.db"
        path.write_bytes(content[:length])
        _used(path, set())


# Each makes a file.
@settings(max_examples=10)
@given(st.sampled_from(COLUMNS), anything.filter(lambda v: not isinstance(v, list | dict)) | texts)
def test_beside_a_damaged_row_of_a_spool_the_others_are_sent(
    where: tuple[str, str], value: Any
) -> None:
    table, column = where
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = str(value)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "spool.db"
        path.write_bytes(_template())
        with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.Error, UnicodeError):
            connection.execute(
                f"UPDATE {table} SET {column} = ? WHERE id = (SELECT max(id) FROM {table})",
                (value,),
            )
            connection.commit()
        # There is one run, and the row is the last one's.
        _used(path, {f"span {n}" for n in (4, 1, 2)} if table == "rows" else set())


@given(st.binary(), st.integers(0, 2**62))
def test_any_bytes_are_a_span_that_can_be_sent_or_none(body: bytes, at: int) -> None:
    span_name(body)
    resource_of(Origin(body, body))
    found = reread(body, at, _run("lost"))
    assert found is None or len(_read([Row(found)])) == 1
