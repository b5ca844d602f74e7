"""A real OTLP receiver, over gRPC or HTTP/protobuf, that keeps what it got.

It is a few lines over ``opentelemetry-proto``, the protocol's own definitions, and can be told
to misbehave.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from socketserver import BaseRequestHandler, ThreadingTCPServer
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tests.certificates import Certificate
from tests.otlp_server import SIGNALS, Answer, serve
from tests.waiting import eventually


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(item) for item in value.array_value.values)
    return getattr(value, kind) if kind else None


def attributes(pairs: Any) -> dict[str, Any]:
    """Return OTLP attributes as a plain dictionary, with the types they had on the wire."""
    items: list[KeyValue] = list(pairs)
    found = {item.key: _value(item.value) for item in items}
    assert len(found) == len(items), "an attribute key came twice"
    return found


class Span(SimpleNamespace):
    """A received span, as `decode_spans` makes it."""

    @property
    def type(self) -> str:
        """What the span is: ``span``, ``group``, …"""
        return str(self.attributes.get("dask.span.type"))

    @property
    def ids(self) -> tuple[int, int, int]:
        """What is current in its tasks: ids, and that it is sampled."""
        return self.trace_id, self.span_id, 1

    @property
    def path(self) -> str:
        """Full name of the Dask span."""
        return str(self.attributes.get("dask.span.name"))


class Point(SimpleNamespace):
    """A received data point, as `decode_points` makes it."""

    @property
    def labels(self) -> tuple[tuple[str, Any], ...]:
        """Its attributes, as a key."""
        return tuple(sorted(self.attributes.items()))

    @property
    def series(self) -> tuple[str, tuple[tuple[str, Any], ...]]:
        """Metric and labels."""
        return self.metric, self.labels


class Log(SimpleNamespace):
    """A received log record, as `decode_logs` makes it."""


def _int(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def decode_spans(request: trace_service_pb2.ExportTraceServiceRequest) -> Iterator[Span]:
    """Yield the spans of a request."""
    for resource in request.resource_spans:
        of = attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    name=span.name,
                    trace_id=_int(span.trace_id),
                    span_id=_int(span.span_id),
                    parent_id=_int(span.parent_span_id) or None,
                    kind=span.kind,
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    attributes=attributes(span.attributes),
                    events=[
                        (e.name, e.time_unix_nano, attributes(e.attributes)) for e in span.events
                    ],
                    links=[
                        (_int(link.trace_id), _int(link.span_id), attributes(link.attributes))
                        for link in span.links
                    ],
                    trace_state=span.trace_state,
                    status=span.status.code,
                    message=span.status.message,
                    resource=of,
                    scope=(scope.scope.name, scope.scope.version, scope.schema_url),
                    # Attributes, events and links that limits left out.
                    dropped=(
                        span.dropped_attributes_count,
                        span.dropped_events_count,
                        span.dropped_links_count,
                    ),
                )


def decode_points(request: metrics_service_pb2.ExportMetricsServiceRequest) -> Iterator[Point]:
    """Yield the data points of a request, in order."""
    for resource in request.resource_metrics:
        of = attributes(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                for point in data.data_points:
                    number = kind != "histogram"
                    is_int = point.WhichOneof("value") == "as_int" if number else None
                    value: Any = (
                        (point.as_int if is_int else point.as_double)
                        if number
                        else {
                            "count": point.count,
                            "sum": point.sum,
                            "buckets": list(point.bucket_counts),
                            "bounds": list(point.explicit_bounds),
                        }
                    )
                    yield Point(
                        metric=metric.name,
                        unit=metric.unit,
                        kind=kind,
                        monotonic=data.is_monotonic if kind == "sum" else None,
                        temporality=None if kind == "gauge" else data.aggregation_temporality,
                        attributes=attributes(point.attributes),
                        start_ns=point.start_time_unix_nano,
                        time_ns=point.time_unix_nano,
                        value=value,
                        is_int=is_int,
                        exemplars=[
                            (_int(e.trace_id), _int(e.span_id), e.as_double or e.as_int)
                            for e in point.exemplars
                        ],
                        resource=of,
                        scope=(scope.scope.name, scope.scope.version, scope.schema_url),
                    )


def decode_logs(request: logs_service_pb2.ExportLogsServiceRequest) -> Iterator[Log]:
    """Yield the log records of a request."""
    for resource in request.resource_logs:
        for scope in resource.scope_logs:
            for log in scope.log_records:
                of = attributes(log.attributes)
                name = of.pop("event.name")
                # The oldest release of the protocol has no such field.
                assert (getattr(log, "event_name", name), log.observed_time_unix_nano) == (
                    name,
                    log.time_unix_nano,
                )
                yield Log(
                    name=name,
                    time_ns=log.time_unix_nano,
                    severity=log.severity_number,
                    severity_text=log.severity_text,
                    body=_value(log.body),
                    # Besides its name.
                    attributes=of,
                    trace_id=_int(log.trace_id) or None,
                    span_id=_int(log.span_id) or None,
                    flags=log.flags,
                    resource=attributes(resource.resource.attributes),
                    scope=(scope.scope.name, scope.scope.version, scope.schema_url),
                )


_REFUSED: Final = b"refused by the test"


class _Messages(NamedTuple):
    """The protocol's messages of a signal."""

    request: Any
    response: Any
    #: What partial success calls what it did not take.
    rejected: str
    decode: Callable[[Any], Iterator[Any]]


_MESSAGES: Final = {
    "traces": _Messages(
        trace_service_pb2.ExportTraceServiceRequest,
        trace_service_pb2.ExportTraceServiceResponse,
        "rejected_spans",
        decode_spans,
    ),
    "metrics": _Messages(
        metrics_service_pb2.ExportMetricsServiceRequest,
        metrics_service_pb2.ExportMetricsServiceResponse,
        "rejected_data_points",
        decode_points,
    ),
    "logs": _Messages(
        logs_service_pb2.ExportLogsServiceRequest,
        logs_service_pb2.ExportLogsServiceResponse,
        "rejected_log_records",
        decode_logs,
    ),
}


@dataclass
class Receiver:
    """What was received, and how to answer. Shared by the server's threads."""

    protocol: str
    endpoint: str = ""
    #: HTTP status, or gRPC status name, of the answers; None for success.
    answer: int | str | None = None
    #: Where an HTTP answer of status 3xx points to.
    location: str = ""
    #: After how many seconds an answer that is no success says to come back: HTTP's
    #: ``Retry-After``, gRPC's ``RetryInfo``.
    retry_after: int | None = None
    #: How many items successful answers say were not taken, and why.
    partial: tuple[int, str] | None = None
    #: What an HTTP success holds instead: type and content.
    content: tuple[str, bytes] | None = None
    #: The encoding that an HTTP answer says it has.
    encoding: str = ""
    #: Decides about one request by its content, where it returns a status.
    judge: Callable[[str, Any], int | str | None] = lambda signal, request: None
    #: Signals whose requests are kept; what comes of others is for `judge` to see.
    keeps: frozenset[str] = frozenset({"traces", "metrics"})
    #: Whether it does not know log records, as Jaeger.
    takes_no_logs: bool = False
    #: Called with the signal before each answer: to wait, for instance.
    before_answer: Callable[[str], None] = lambda signal: None
    #: Requests as they came: (signal, decoded request, headers).
    requests: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    #: Requests that were answered with success.
    accepted: list[tuple[str, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _decoding: threading.Lock = field(default_factory=threading.Lock)
    #: What was decoded of the accepted ones, which tests ask for again and again.
    _items: dict[str, list[Any]] = field(default_factory=lambda: {one: [] for one in _MESSAGES})
    _decoded: int = 0

    @property
    def environ(self) -> dict[str, str]:
        """Variables that make an exporter send here."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": self.protocol,
        }

    def reply(self, signal: str) -> Any:
        """Return the message of a success."""
        made = _MESSAGES[signal].response()
        if self.partial is not None:
            count, made.partial_success.error_message = self.partial
            setattr(made.partial_success, _MESSAGES[signal].rejected, count)
        return made

    def answered(self, where: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Take a request as the server got it."""
        signal = SIGNALS[where]
        status = self.take(signal, _MESSAGES[signal].request.FromString(body), headers)
        content = _REFUSED if status is not None else self.reply(signal).SerializeToString()
        if self.protocol == "grpc":
            if status is None or self.retry_after is None:
                return Answer(status, content)
            info = RetryInfo(retry_delay=Duration(seconds=self.retry_after))
            return Answer(status, content, {"google.rpc.retryinfo-bin": info.SerializeToString()})
        kind = "application/x-protobuf" if status is None else "text/plain"
        if self.content is not None:
            kind, content = self.content
        said = {"Content-Type": kind, "Location": self.location, "Content-Encoding": self.encoding}
        if status is not None and self.retry_after is not None:
            said["Retry-After"] = str(self.retry_after)
        return Answer(status, content, {name: value for name, value in said.items() if value})

    def take(self, signal: str, request: Any, headers: Mapping[str, str]) -> int | str | None:
        """Keep a request and return how to answer."""
        kept = signal in self.keeps
        if kept:
            with self._lock:
                self.requests.append((signal, request, {k.lower(): v for k, v in headers.items()}))
        self.before_answer(signal)
        with self._lock:
            answer = self.answer or self.judge(signal, request)
            if signal == "logs" and self.takes_no_logs:
                answer = "UNIMPLEMENTED" if self.protocol == "grpc" else 404
            if answer is None and kept:
                self.accepted.append((signal, request))
            return answer

    @property
    def spans(self) -> list[Span]:
        """Accepted spans, in the order of their arrival."""
        return self._got("traces")

    @property
    def points(self) -> list[Point]:
        """Accepted data points, in the order of their arrival."""
        return self._got("metrics")

    @property
    def logs(self) -> list[Log]:
        """Accepted log records, in the order of their arrival; see `keeps`."""
        return self._got("logs")

    def _got(self, wanted: str) -> list[Any]:
        with self._decoding:
            # Requests need not wait for it: who waits too long for an answer sends again.
            with self._lock:
                new = self.accepted[self._decoded :]
            for signal, request in new:
                self._items[signal] += _MESSAGES[signal].decode(request)
            self._decoded += len(new)
            return list(self._items[wanted])

    def last(self, metric: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        """Return the last value of each series of a metric."""
        return {p.labels: p.value for p in self.points if p.metric == metric}

    def named(self, name: str, generation: int = 1) -> Span:
        """Wait for the only Dask span of that name and generation."""

        def found() -> list[Span]:
            return [
                s
                for s in self.spans
                if s.type == "span"
                and s.name == name
                and s.attributes["dask.span.generation"] == generation
            ]

        (only,) = eventually(found, what=f"export of {name}")
        return only


#: Those that run, by endpoint.
RUNNING: dict[str, Receiver] = {}


@contextmanager
def receiver(
    protocol: str = "http/protobuf", port: int = 0, tls: Certificate | None = None
) -> Iterator[Receiver]:
    """Run a receiver on a free loopback port.

    Parameters
    ----------
    protocol
        ``"grpc"`` or ``"http/protobuf"``.
    port
        0 for a free one.
    tls
        With it the receiver speaks TLS.
    """
    made = Receiver(protocol)
    with serve(protocol, made.answered, port=port, tls=tls) as made.endpoint:
        RUNNING[made.endpoint] = made
        try:
            yield made
        finally:
            del RUNNING[made.endpoint]


def port_of(endpoint: str) -> int:
    """Return the port of an endpoint that names one."""
    port = urlsplit(endpoint).port
    assert port is not None, endpoint
    return port


@contextmanager
def refusing() -> Iterator[str]:
    """Give an endpoint that nobody else can listen at, and nobody does."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def hanging_up(handler: type[BaseRequestHandler] = BaseRequestHandler) -> Iterator[int]:
    """Accept connections, and close each of them when it was handled; give the port."""
    with ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(30)


@contextmanager
def silent_server() -> Iterator[str]:
    """Accept connections, by the kernel's backlog, and never say a word; give the endpoint."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
