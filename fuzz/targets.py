"""The targets: each gives hostile input to one part, and checks its promises.

They raise where a promise is broken. None of them knows the fuzzer, so that the unit tests run them
on a few bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import Mock, patch

import dask.config
import grpc
import requests
from benchmarks.throughput import finished
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.unit import report_files
from urllib3 import HTTPResponse

from dask_otel import semconv
from dask_otel._dask.clients import ClientBlocks
from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.environment import headers, read_environment
from dask_otel._otel.sdk.exporters import labels as labels_of
from dask_otel._otel.sdk.exporters import make_sinks
from dask_otel._otel.sdk.resource import make_resource
from dask_otel._otel.sdk.sampling import make_sampler
from dask_otel._otel.sdk.sink import ExporterSink
from dask_otel._otel.sdk.transport import GrpcTransport, HttpTransport, Transport, plain
from dask_otel.core.attributes import COUNT_LIMIT, TOTAL_LIMIT, bounded_attributes
from dask_otel.core.context import (
    MAX_BAGGAGE,
    MAX_STATE,
    baggage_entries,
    make_carrier,
    read_carrier,
)
from dask_otel.core.endpoints.address import Endpoint, oddities
from dask_otel.core.endpoints.explaining import explain, partly_taken
from dask_otel.core.life.blocks import ATTRIBUTES, BLOCKS, CLIENT, ENTERED, LEFT
from dask_otel.core.life.open_span import Limits
from dask_otel.core.metrics.batch import MetricBatch, Observation
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import (
    Failure,
    FinishedGroup,
    FinishedSpan,
    FinishedTask,
    Incident,
    Row,
    TaskCounts,
    TaskRun,
)
from dask_otel.core.text import ATTRIBUTE_LIMIT, Sanitizer
from dask_otel.core.traces.translate import translate
from dask_otel.core.traces.values import SpanLimits
from dask_otel.report.document import read_report
from dask_otel.settings.keys import KNOBS, ConfigurationError
from dask_otel.settings.origins import settings_in_force, variables_in_force
from dask_otel.settings.reading import read_settings
from fuzz.checks import T_NS, Exports, T, check, check_span
from fuzz.clusters import cluster
from fuzz.data import Data
from fuzz.process import encoder, folder
from fuzz.spools import spool

# ---------------------------------------------------------------------------------------- spans


def _finished(tags: tuple[Any, ...], dask_id: str, **more: Any) -> FinishedSpan:
    one = finished(1)
    who = replace(one.identity, tags=tags, dask_id=dask_id, root_id=dask_id)
    return replace(one, identity=who, **more)


def _hostile(data: Data) -> FinishedSpan:
    def failure() -> Failure:
        return Failure(
            data.number(), data.text(), data.text(), None, data.text(), data.text(),
            data.choice((None, "KilledWorker")), data.choice((None, "w", "\0")),
        )  # fmt: skip

    def group() -> FinishedGroup:
        return FinishedGroup(
            data.text(), data.text(), 1, data.number(), data.number(), TaskCounts(3, erred=1),
            data.number(), {data.key(): data.number()}, (data.text(),),
        )  # fmt: skip

    def task() -> FinishedTask:
        run = TaskRun(
            data.number(), 1, data.key(), data.choice((None, "w")), data.number(), data.number(),
            1, data.number(), data.number(), data.text(),
            (("transfer", data.number(), data.number()),),
            failure=failure() if data.flag() else None,
        )  # fmt: skip
        return FinishedTask(run, data.text(), data.text(), 1)

    return _finished(
        tuple(data.many(data.key)),
        data.text(),
        start=data.number(),
        stop=data.number(),
        first_start=data.number(),
        result=data.choice(("success", "failure", "error", "cancellation", "unknown")),
        output_bytes=data.number(),
        worker_count=data.number(),
        active_cpu=data.number(),
        activities={data.key(): data.number() for _ in range(data.integer(0, 40))},
        idle=data.number(),
        groups=tuple(data.many(group, 2)),
        tasks=tuple(data.many(task, 2)),
        failures=(failures := tuple(data.many(failure, 3))),
        tree_failure=failures[0] if failures else None,
        incidents=tuple(
            data.many(lambda: Incident(data.number(), data.text(), {data.text(): data.key()}), 3)
        ),
        collections=tuple(data.many(data.text)),
        code=data.choice((None, (data.text(), data.number(), data.text()))),
        requested=data.choice((None, (data.key(),))),
        attributes=bounded_attributes(data.value())[0],
    )


def spans(data: Data) -> None:
    """A finished span whose fields are all wrong, in a batch with a valid one."""
    answers = (data.key(), data.key())

    def redact(name: str, text: str) -> Any:
        if data.integer(0, 3) == 3:
            raise ValueError(text)
        return answers[len(text) % 2]

    limits = SpanLimits(
        text=ATTRIBUTE_LIMIT,
        task_keys=data.flag(),
        code=data.flag(),
        redact=data.choice((None, redact)),
    )
    hostile = _hostile(data)
    records = translate(hostile, limits, Sanitizer())
    expected = 1 + len(hostile.groups) + len(hostile.tasks)
    check(len(records) == expected, "no span is lost", len(records), expected)
    good = translate(_finished(("good",), "good"), limits)
    for record in records:
        check_span(record)
    rows = [Row(encoder().span(record)) for record in (*records, *good)]
    request = ExportTraceServiceRequest.FromString(encoder().request(rows))
    sent = [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
    check(len(sent) == expected + 1, "all of a batch are sent", len(sent))


# -------------------------------------------------------------------------------------- metrics


def metrics(data: Data) -> None:
    """Keys and values of metrics that no worker reports, in a batch with a valid one."""
    exports = Exports(MetricState(T_NS, sanitizer=Sanitizer()))
    good = ("execute", "inc", "thread-cpu", "seconds")
    names = (*semconv.METRICS, "dask.no.such.metric", 7)
    for _ in range(2):
        batch = MetricBatch(time_ns=exports.time_ns)
        for number in range(data.integer(0, 4)):
            place = batch.deltas_of(number, tuple(data.many(data.key)), (1, number + 1))
            for _ in range(data.integer(0, 4)):
                head = data.choice(("execute", "p2p", "get-data", data.key()))
                unit = data.choice(("seconds", "bytes", "count", data.key()))
                key = (head, *data.many(data.key, 3), unit)
                place.values[key] = data.number()
        for _ in range(data.integer(0, 3)):
            with suppress(OverflowError):  # of the addition itself: Dask's own raises before
                key = (data.key(), *data.many(data.key, 3))
                batch.add_of_worker({key: data.number()}, frozenset())
                batch.add(data.choice(names), *data.many(data.key, 5), value=data.number())
            batch.set_level(data.choice(names), *data.many(data.key, 5), value=data.number())
            labels = tuple(data.many(data.key, 3))
            batch.observe(Observation(str(data.choice(names)), labels, data.number(), None))
        batch.deltas_of("good", ("good",), (1, 99)).values[good] = 1.5
        exports.check(batch)


# ------------------------------------------------------------------------------------- carriers


def carriers(data: Data) -> None:
    """Anything as the caller's context."""
    value = data.value()
    if data.flag():
        value = {
            "traceparent": data.choice((data.text(), "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01")),
            "tracestate": data.key(),
            "baggage": data.key(),
            "nested": data.key(),
        }
    caller = read_carrier(value)
    if caller is None:
        return
    check(len(caller.state) <= MAX_STATE, "the state is bounded", len(caller.state))
    check(len(caller.baggage) <= MAX_BAGGAGE, "the baggage is bounded", len(caller.baggage))
    check(read_carrier(make_carrier(caller)) == caller, "what is passed on is the same", caller)
    for key, entry in baggage_entries(caller.baggage, ("a", "b", "é")).items():
        check(key in ("a", "b", "é"), "only what is wanted", key)
        check(len(entry) <= MAX_BAGGAGE, "entries are bounded", entry)


# ------------------------------------------------------------------------------------- messages


def _open_span(dask_id: str) -> Any:
    """Return an open span, as far as blocks know it."""
    return SimpleNamespace(identity=SimpleNamespace(dask_id=dask_id), held=[], attributes={})


def messages(data: Data) -> None:
    """Messages of clients on the bridge's topic; valid parts of a message are taken."""
    good, other = _open_span("good"), _open_span("a")
    holder: Any = SimpleNamespace(
        open={"good": good, "a": other},
        hold=lambda span: span.held.append(span),
        unhold=lambda span, ended, now: span.held.pop(),
    )
    clients = {"me": SimpleNamespace(last_seen=T)}
    scheduler = SimpleNamespace(clients=clients, _active_graph_updates=0)
    blocks = ClientBlocks(scheduler, holder, Limits())
    blocks.handle_message(data.value(), T)

    def line() -> Any:
        ids = data.choice(("a", "b", data.key()))
        return data.choice(([ENTERED, ids], [LEFT, ids], [ids], data.value(1)))

    described = {data.key(): data.value() for _ in range(data.integer(0, 3))}
    lines = [*data.many(line), [ENTERED, "good"], *data.many(line)]
    message = {
        CLIENT: "me",
        BLOCKS: lines,
        ATTRIBUTES: {**described, "good": {"batch.id": 7}, "b": data.value()},
    }
    if data.flag():
        message[data.key()] = data.value()
    intact = set(message) == {CLIENT, BLOCKS, ATTRIBUTES}
    blocks.handle_message(message, T + 1)
    if intact and message[CLIENT] == "me" and message[BLOCKS] is lines:
        check(len(good.held) == 1, "a good line is taken", message)
        check(good.attributes.get("batch.id") == 7, "good attributes are taken", message)
    check(len(other.attributes) <= COUNT_LIMIT, "attributes are bounded")
    size = sum(len(str(key)) for key in other.attributes)
    check(size <= TOTAL_LIMIT, "attributes are bounded", size)
    blocks.tick(T + 100)
    blocks.client_gone("me", T + 101)
    check(not good.held, "a client that is gone holds nothing")


# -------------------------------------------------------------------------------- configuration


def settings(data: Data) -> None:
    """Any configuration: settings that are valid, or one error that can be printed."""
    known = list(KNOBS)

    def section() -> Any:
        found: dict[Any, Any] = {}
        for _ in range(data.integer(0, 5)):
            key = data.choice(known).removeprefix("otel.") if data.flag() else data.key(1)
            found[key] = data.value(2)
        return found

    config = section() if data.flag() else data.value()
    overrides = section() if data.flag() else data.value()
    with dask.config.set({"otel": config}):
        try:
            found = read_settings(overrides)
        except ConfigurationError as error:
            check(len(str(error).encode().splitlines()) == 1, "an error is one line", str(error))
            return
        check(isinstance(overrides, dict) or not overrides, "anything but a section is refused")
        check("redact" not in str(overrides), "a client does not name code")
        for one in settings_in_force(found, overrides):
            check(len(one.value) <= 200, "a value is shown short", one)


# ---------------------------------------------------------------------------------- environment

_VARIABLES: Final = (
    "OTEL_BSP_MAX_QUEUE_SIZE",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_METRIC_EXPORT_INTERVAL",
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
    "OTEL_METRICS_EXEMPLAR_FILTER",
    "OTEL_EXPORTER_OTLP_HEADERS",
)


def _variable(text: str) -> str:
    """Return what an environment can hold of a text."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    others = {k: v for k, v in os.environ.items() if k not in (*_VARIABLES, *_EXPORTERS)}
    with patch.dict(os.environ, {**others, **values}, clear=True):
        yield


def environment(data: Data) -> None:
    """Any text in the standard variables: values within their limits, or one error."""
    values = {
        name: _variable(data.choice((data.text(), str(data.number())[:400], "secret=hunter2\n")))
        for name in _VARIABLES
    }
    with _environment(values):
        try:
            headers("latin-1", "OTEL_EXPORTER_OTLP_HEADERS")
        except ConfigurationError as error:
            check("hunter2" not in str(error), "no credential in an error", str(error))
            str(error).encode()
        try:
            found = read_environment()
        except ConfigurationError as error:
            check(len(str(error).encode().splitlines()) == 1, "an error is one line", str(error))
            return
    check(1 <= found.batch_size <= found.queue_size, "sizes are right", found)
    check(0 <= found.schedule_delay < math.inf, "the delay is a time", found)
    check(0 < found.metric_interval < math.inf, "the interval is a time", found)


_EXPORTERS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "OTEL_BSP_EXPORT_TIMEOUT",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SERVICE_NAME",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
)
#: Credentials, in their own variables or in those of others.
_SECRETS: Final = (
    "x-key=hunter2", "http://u:hunter2@h:4317/?k=hunter2", "u:hunter2@h",
    "-----BEGIN PRIVATE KEY-----\nhunter2", "hunter2A" * 40,
)  # fmt: skip


def exporters(data: Data) -> None:
    """Any text in the variables of exporters: all that is made of them, or one error."""
    values = {}
    for name in _EXPORTERS:
        secret = name.endswith(("ENDPOINT", "HEADERS", "KEY"))
        known = ("grpc", "http/protobuf", "gzip", "traceidratio", "a=b,c=%zz,=,team=etl")
        text = data.choice((data.text(), data.choice(_SECRETS if secret else known), ""))
        values[name] = _variable(text)

    def resource() -> None:
        made = make_resource("s", "i", "1", None)
        for key, value in made.attributes.items():
            key.encode()
            str(value).encode()
        Encoder(made.attributes, "1")
        make_sampler(made)

    def made(signal: str) -> None:
        for label in labels_of(signal):
            check("hunter2" not in label, "no credential in a name", label)
        for one in make_sinks([signal], partial(ExporterSink, Mock(), Mock())):
            one.transport.close()

    parts: list[Callable[[], object]] = [partial(made, "traces"), partial(made, "metrics")]
    if not data.integer(0, 15):
        # Looks for what is installed each time, which is slow.
        parts.append(resource)
    with _environment(values):
        for part in parts:
            try:
                part()
            except ConfigurationError as error:
                shown = str(error)
                check("hunter2" not in shown, "no credential in an error", shown)
                check(len(shown.encode().splitlines()) == 1, "an error is one line", shown)
                check(len(shown) < 2000, "an error is short", shown)
        for one in variables_in_force({}):
            check("hunter2" not in one.value, "no credential is shown", one)


# -------------------------------------------------------------------------------------- answers


def _http(data: Data, signal: str) -> Transport:
    """Return a transport that gets an answer over HTTP, right or wrong."""
    waits = ("1", "-1", "9" * 400, "Wed, 21 Oct 2099 07:28:00 GMT", "Mon, 99 Foo", "nan", "1e9")
    kinds = ("application/x-protobuf", "application/json", "text/html; charset=x", data.text())
    reply = {"partialSuccess": {"rejectedSpans": data.plain(1), "errorMessage": data.plain(1)}}
    bodies = (b"", json.dumps(reply).encode(), data.text().encode("utf-8", "replace"), data.rest())
    response = requests.Response()
    response.status_code = data.choice((200, 202, 301, 400, 401, 404, 413, 429, 503, 99, 999))
    response.headers["content-type"] = data.choice(kinds)
    response.headers["location"] = data.text()
    response.headers["retry-after"] = data.choice((*waits, data.text()))
    response.reason = data.choice((None, data.text()))
    response.url = "http://h/v1/traces"
    response.raw = HTTPResponse(BytesIO(data.choice(bodies)), preload_content=False)
    session = SimpleNamespace(post=lambda *_, **__: response, close=lambda: None)
    return HttpTransport(signal, {}, 10, lambda: session, response.url)


def _grpc(data: Data, signal: str) -> Transport:
    """Return a transport that gets an answer over gRPC, right or wrong."""

    code = data.choice(list(grpc.StatusCode))
    details = data.choice((None, data.text()))
    info = RetryInfo(retry_delay=Duration(seconds=data.integer(-9, 9) * 10**10))
    content = data.choice((info.SerializeToString(), b"\xff", b"", "text"))
    keys = ("google.rpc.retryinfo-bin", data.text())
    metadata = data.choice((None, (), ((data.choice(keys), content),)))
    refused = grpc.aio.AioRpcError(code, (), metadata, details)
    reply = data.rest() if data.flag() else None

    def export(*args: Any, **kwargs: Any) -> Any:
        if reply is None:
            raise refused
        return reply

    channel = SimpleNamespace(unary_unary=lambda _: export, close=lambda: None)
    return GrpcTransport(signal, {}, 10, lambda: channel)


def answers(data: Data) -> None:
    """What servers answer, and exporters say: words for people, short, on one line."""
    signal = data.choice(("traces", "metrics"))
    transport = data.choice((_grpc, _http))(data, signal)
    for _ in range(2):
        answer = transport.send(b"", 10)
        for words in (answer.said, answer.reason):
            check(len(words) <= 300 and words.isprintable(), "words are short", words)
        check(0 <= answer.pause < math.inf, "a pause is a time", answer.pause)
        check(answer.lost >= 0, "what is lost is a count", answer.lost)
        check(answer.taken or bool(answer.reason), "a no has a reason", answer)
    said = plain(data.text())
    problem = plain(data.text() if data.flag() else data.rest().decode("utf-8", "replace"))
    for words in (said, problem):
        check(len(words) <= 300 and words.isprintable(), "words are short and printable", words)
    url = data.choice(("http://h:4317", "https://h:4318/v1/traces", "h:4317", data.text()))
    endpoint = Endpoint(url, data.choice(("gRPC", "HTTP")))
    oddities(endpoint)
    codes = ("404 Not Found", "StatusCode.UNAVAILABLE: ", "status 503", "<html>", "SSLError: ", "")
    reason = data.choice(codes) + data.text() + problem
    listener = data.choice((None, "h2", "http", "tls", "closed", "refused", "unresolved"))
    for signal in ("traces", "metrics"):
        trouble = explain(endpoint, signal, reason, listener)
        if trouble is not None:
            str(trouble).encode("utf-8", "surrogatepass")
    str(partly_taken(data.integer(-1, 3), said)).encode()


# --------------------------------------------------------------------------------------- report


def _template() -> Any:
    load = report_files.span(1, failed=True, events=(("exception", {}),), dask_span_capacity=3.5)
    point = report_files.point(2.5, {"dask.span.name": "load"})
    counter = report_files.counter("dask.span.execute.time", point)
    return {**report_files.traces(load), **report_files.metrics(counter)}


def _spoil(data: Data, value: Any) -> Any:
    """Return JSON with something in it that does not belong there."""
    if isinstance(value, dict) and value and data.integer(0, 7):
        key = data.choice(sorted(value))
        return {**value, key: _spoil(data, value[key])}
    if isinstance(value, list) and value and data.integer(0, 7):
        at = data.integer(0, len(value) - 1)
        spoiled = _spoil(data, value[at])
        return [*value[:at], spoiled, *value[at + 1 :], *value[: data.integer(0, 2)]]
    return data.plain()


def report(data: Data) -> None:
    """Any file: a report, or what could not be read; never markup out of it."""
    path = Path(folder().name) / data.choice(
        ("telemetry.jsonl", "telemetry.json", "telemetry.json.gz")
    )
    if data.flag():
        content = data.rest()
    else:
        value = _template()
        for _ in range(data.integer(1, 4)):
            value = _spoil(data, value)
        lines = [json.dumps(value), json.dumps(_template())]
        content = "\n".join(lines).encode("utf-8", "replace")
    path.write_bytes(content)
    try:
        found = read_report(path, price=0.1)
    except FileNotFoundError:
        return
    finally:
        path.unlink()
    found.text().encode("utf-8")
    json.dumps(found.to_dict(), allow_nan=False)
    found.redacted().text()


TARGETS: Final[dict[str, Callable[[Data], None]]] = {
    target.__name__: target
    for target in (
        spans,
        metrics,
        carriers,
        messages,
        cluster,
        settings,
        environment,
        exporters,
        answers,
        report,
        spool,
    )
}
