"""Sending on to the user's endpoint: over real sockets, gRPC and HTTP."""

from __future__ import annotations

import gzip
import io
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import dask
import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from dask_otel.cli.cluster import configured_environment, export_environment, process_environment
from dask_otel.cli.forward import ForwardError, SignalNotTaken, destination, listens, send
from dask_otel.cli.received import Telemetry
from dask_otel.cli.sink import Sink

PREFIX = "OTEL_EXPORTER_OTLP_"


def request(name: str) -> ExportTraceServiceRequest:
    result = ExportTraceServiceRequest()
    result.resource_spans.add().scope_spans.add().spans.add(name=name, span_id=b"\1" * 8)
    return result


def names(requests) -> list[str]:
    return [r.resource_spans[0].scope_spans[0].spans[0].name for r in requests]


class Servicer(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.metadata: dict[str, str] = {}
        self.response = ExportTraceServiceResponse()

    def Export(self, request, context):
        self.requests.append(request)
        self.metadata = dict(context.invocation_metadata())
        return self.response


@pytest.fixture
def grpc_server():
    servicer = Servicer()
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
        servicer.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        yield servicer
        server.stop(None).wait(10)


def test_grpc_takes_all_requests_in_order_with_the_users_headers(grpc_server):
    environ = {
        PREFIX + "ENDPOINT": grpc_server.url,
        PREFIX + "HEADERS": "Authorization=Bearer%20x",
        PREFIX + "COMPRESSION": "gzip",
    }
    target = destination("traces", environ)
    assert listens(target)
    send(target, [request("a"), request("b")])
    assert names(grpc_server.requests) == ["a", "b"]
    assert grpc_server.metadata["authorization"] == "Bearer x"


def test_grpc_partial_success_is_an_error(grpc_server):
    grpc_server.response.partial_success.rejected_spans = 3
    grpc_server.response.partial_success.error_message = "too old"
    with pytest.raises(ForwardError, match="3 items rejected: too old"):
        send(destination("traces", {PREFIX + "ENDPOINT": grpc_server.url}), [request("a")])


def test_grpc_signal_that_the_server_does_not_know(grpc_server):
    target = destination("metrics", {PREFIX + "ENDPOINT": grpc_server.url})
    with pytest.raises(SignalNotTaken, match="UNIMPLEMENTED"):
        send(target, [ExportMetricsServiceRequest()])


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_http_takes_all_requests_in_order(compression):
    with Sink() as sink:
        environ = {
            PREFIX + "ENDPOINT": sink.endpoint + "/",
            PREFIX + "PROTOCOL": "http/protobuf",
            PREFIX + "COMPRESSION": compression,
        }
        send(destination("traces", environ), [request("a"), request("b")])
        assert names(sink.telemetry().traces) == ["a", "b"]
        assert sink.wait_for_span(int.from_bytes(b"\1" * 8, "big"), timeout=0)
        assert not sink.wait_for_span(5, timeout=0)


def test_http_unknown_path_is_a_signal_not_taken():
    with Sink() as sink:
        environ = {
            PREFIX + "TRACES_ENDPOINT": sink.endpoint + "/nowhere",
            PREFIX + "PROTOCOL": "http/protobuf",
        }
        with pytest.raises(SignalNotTaken, match="HTTP 404"):
            send(destination("traces", environ), [request("a")])


@contextmanager
def answering(status: int, headers: dict[str, str]):
    """Serve the same answer to everything; give the URL and the requests' headers."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append((self.headers, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            for item in headers.items():
                self.send_header(*item)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", seen
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "headers"), [(503, {}), (401, {}), (302, {"Location": "http://127.0.0.1:1/"})]
)
def test_http_anything_but_success_is_an_error(status, headers):
    with answering(status, headers) as (url, _):
        environ = {PREFIX + "ENDPOINT": url, PREFIX + "PROTOCOL": "http/protobuf"}
        with pytest.raises(ForwardError, match=f"HTTP {status}"):
            send(destination("traces", environ), [request("a")])


def test_http_sends_the_users_headers_and_compression():
    with answering(200, {"Content-Length": "0"}) as (url, seen):
        environ = {
            PREFIX + "ENDPOINT": url,
            PREFIX + "PROTOCOL": "http/protobuf",
            PREFIX + "HEADERS": "x-general=1",
            PREFIX + "TRACES_HEADERS": "x-tenant=a%20b",
            PREFIX + "COMPRESSION": "gzip",
        }
        send(destination("traces", environ), [request("a")])
    headers, body = seen[0]
    assert headers["x-tenant"] == "a b"
    assert headers["x-general"] is None
    assert headers["Content-Type"] == "application/x-protobuf"
    assert gzip.decompress(body) == request("a").SerializeToString()


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_nothing_listens(protocol):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    environ = {PREFIX + "ENDPOINT": f"http://127.0.0.1:{port}", PREFIX + "PROTOCOL": protocol}
    target = destination("traces", environ | {PREFIX + "TIMEOUT": "1"})
    assert not listens(target)
    with pytest.raises(ForwardError):
        send(target, [request("a")])


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "http://localhost:4317"),
        ({"ENDPOINT": " "}, "http://localhost:4317"),
        ({"PROTOCOL": "http/protobuf"}, "http://localhost:4318/v1/traces"),
        ({"PROTOCOL": "grpc", "ENDPOINT": "c:4317"}, "https://c:4317"),
        ({"ENDPOINT": "c:4317", "INSECURE": "true"}, "http://c:4317"),
        ({"ENDPOINT": "http://a:1", "TRACES_ENDPOINT": "http://b:2"}, "http://b:2"),
        ({"PROTOCOL": "http/protobuf", "ENDPOINT": "https://a/x/"}, "https://a/x/v1/traces"),
        ({"TRACES_PROTOCOL": "http/protobuf", "TRACES_ENDPOINT": "http://a/x"}, "http://a/x"),
    ],
)
def test_endpoint_comes_from_the_standard_variables(environ, url):
    target = destination("traces", {PREFIX + key: value for key, value in environ.items()})
    assert target.url == url


def test_address_has_the_protocols_port():
    assert destination("traces", {PREFIX + "ENDPOINT": "http://c"}).address == ("c", 4317)
    environ = {PREFIX + "ENDPOINT": "https://c", PREFIX + "PROTOCOL": "http/protobuf"}
    assert destination("traces", environ).address == ("c", 443)


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": "console"},
    ],
)
def test_signal_that_is_switched_off_goes_nowhere(environ):
    assert destination("traces", environ) is None


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PROTOCOL", "http/json", "'http/json'"),
        ("ENDPOINT", "ftp://x", "'ftp://x'"),
        ("ENDPOINT", "http://x:port", "'http://x:port'"),
        ("TIMEOUT", "soon", "'soon'"),
    ],
)
def test_unusable_variable_is_named(variable, value, message):
    with pytest.raises(ValueError, match=message):
        destination("traces", {PREFIX + variable: value})


def test_password_in_the_endpoint_is_not_shown():
    target = destination("traces", {PREFIX + "ENDPOINT": "http://me:secret@host:4317"})
    assert str(target) == "http://host:4317 (gRPC)"


# ------------------------------------------------------------- the demo's own environment


def test_users_endpoint_variables_do_not_reach_the_demos_receiver():
    user = {
        PREFIX + "HEADERS": "authorization=secret",
        PREFIX + "TRACES_ENDPOINT": "https://backend",
        PREFIX + "METRICS_CERTIFICATE": "/ca.pem",
        PREFIX + "METRICS_TEMPORALITY_PREFERENCE": "delta",
        "OTEL_TRACES_SAMPLER": "always_off",
        "OTEL_RESOURCE_ATTRIBUTES": "team=x",
        "NO_PROXY": "example.org",
        "PATH": "/bin",
    }
    before = dict(user)
    assert export_environment(user, "http://127.0.0.1:5") == {
        PREFIX + "ENDPOINT": "http://127.0.0.1:5",
        PREFIX + "PROTOCOL": "http/protobuf",
        PREFIX + "METRICS_TEMPORALITY_PREFERENCE": "delta",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_METRIC_EXPORT_INTERVAL": "5000",
        "OTEL_RESOURCE_ATTRIBUTES": "team=x",
        "NO_PROXY": "example.org,127.0.0.1",
        "no_proxy": "127.0.0.1",
        "PATH": "/bin",
    }
    assert user == before


def test_dask_config_gives_defaults_for_the_environment():
    config = {"otel.environment": {PREFIX + "ENDPOINT": "http://b:4317", PREFIX + "TIMEOUT": 3}}
    with process_environment({PREFIX + "TIMEOUT": "4"}), dask.config.set(config):
        found = configured_environment()
    assert found == {PREFIX + "ENDPOINT": "http://b:4317", PREFIX + "TIMEOUT": "4"}


def test_process_environment_is_restored():
    before = dict(os.environ)
    with process_environment({"A": "b"}):
        assert dict(os.environ) == {"A": "b"}
    assert dict(os.environ) == before


# ------------------------------------------------------------------- what the demo makes of it


def hand_over(environ):
    """Let the demo send one request of each signal; return (sent, errors, output)."""
    pytest.importorskip("pyarrow")
    from rich.console import Console

    from dask_otel.cli import showcase

    console = Console(file=io.StringIO(), width=200)
    targets = [destination("traces", environ), destination("metrics", environ)]
    telemetry = Telemetry([request("a")], [ExportMetricsServiceRequest()])
    sent, errors = showcase._send(console, targets, telemetry)
    return sent, errors, console.file.getvalue()


def test_backend_for_traces_only_is_no_error(grpc_server):
    sent, errors, output = hand_over({PREFIX + "ENDPOINT": grpc_server.url})
    assert (sent, errors) == (True, [])
    assert f"Sent the traces to {grpc_server.url} (gRPC)." in output
    assert "does not take metrics (UNIMPLEMENTED" in output


def test_endpoint_that_takes_nothing_is_an_error():
    with Sink() as sink:
        environ = {
            PREFIX + "ENDPOINT": sink.endpoint + "/nowhere",
            PREFIX + "PROTOCOL": "http/protobuf",
        }
        sent, errors, _ = hand_over(environ)
    assert not sent
    assert [error.partition(" does not take ")[2][:15] for error in errors] == [
        "traces (HTTP 40",
        "metrics (HTTP 4",
    ]
