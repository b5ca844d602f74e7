"""Sends on what the demo received, to the endpoint that the user has configured.

Reads the same variables as the SDK's exporters
(https://opentelemetry.io/docs/specs/otel/protocol/exporter/). It sends the requests as
they are, once each and in order, and says what the endpoint answered: the SDK's exporters
take only the SDK's own objects and keep the answer to themselves.
"""

from __future__ import annotations

import gzip
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message as HttpHeaders
from http.client import HTTPException
from pathlib import Path
from typing import IO, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.util.re import parse_env_headers

Signal: TypeAlias = Literal["traces", "metrics"]
Request: TypeAlias = ExportTraceServiceRequest | ExportMetricsServiceRequest
Response: TypeAlias = ExportTraceServiceResponse | ExportMetricsServiceResponse

_RESPONSES: Final[dict[Signal, type[Response]]] = {
    "traces": ExportTraceServiceResponse,
    "metrics": ExportMetricsServiceResponse,
}
_GRPC_METHODS: Final[dict[Signal, str]] = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}


class ForwardError(Exception):
    """The endpoint did not take a request; the text says what it answered."""


class SignalNotTaken(ForwardError):
    """The endpoint speaks OTLP but does not know this signal, as Jaeger with metrics."""


@dataclass(frozen=True)
class Destination:
    """Where one signal goes."""

    signal: Signal
    protocol: Literal["grpc", "http/protobuf"]
    #: With scheme; for HTTP with the full path.
    url: str
    headers: tuple[tuple[str, str], ...]
    gzip: bool
    #: Seconds for one request.
    timeout: float
    #: Paths of PEM files.
    certificate: str | None
    client_certificate: str | None
    client_key: str | None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        default = {"http": 80, "https": 443}[parts.scheme]
        if self.protocol == "grpc":
            default = 4317
        return parts.hostname or "localhost", parts.port or default

    def __str__(self) -> str:
        # Without credentials that somebody may have put into the URL.
        host = urlsplit(self.url).netloc.rpartition("@")[2]
        protocol = "gRPC" if self.protocol == "grpc" else "HTTP"
        return f"{urlsplit(self.url).scheme}://{host} ({protocol})"


class _Variables:
    """OTEL_EXPORTER_OTLP_* for one signal: the signal's own variable before the general."""

    def __init__(self, environ: Mapping[str, str], signal: Signal) -> None:
        self._environ = environ
        self._signal = signal.upper()

    def own(self, name: str) -> str | None:
        # An empty variable counts as unset, as the specification says.
        return self._environ.get(f"OTEL_EXPORTER_OTLP_{self._signal}_{name}", "").strip() or None

    def general(self, name: str) -> str | None:
        return self._environ.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip() or None

    def __getitem__(self, name: str) -> str | None:
        return self.own(name) or self.general(name)


def _grpc_url(variables: _Variables) -> str:
    endpoint = variables["ENDPOINT"] or "http://localhost:4317"
    if "://" not in endpoint:
        insecure = (variables["INSECURE"] or "false").lower() == "true"
        return f"{'http' if insecure else 'https'}://{endpoint}"
    return endpoint


def _http_url(variables: _Variables, signal: Signal) -> str:
    if own := variables.own("ENDPOINT"):
        return own
    base = variables.general("ENDPOINT") or "http://localhost:4318"
    return f"{base.rstrip('/')}/v1/{signal}"


def destination(signal: Signal, environ: Mapping[str, str]) -> Destination | None:
    """Return where the standard variables send a signal; None where they switch it off.

    Raises
    ------
    ValueError
        Where a variable has a value that can't be used; the text names it.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporters = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() or "otlp"
    if not {"otlp", "otlp_proto_grpc", "otlp_proto_http"} & {
        name.strip() for name in exporters.split(",")
    }:
        return None
    variables = _Variables(environ, signal)
    protocol = variables["PROTOCOL"] or "grpc"
    if protocol not in ("grpc", "http/protobuf"):
        raise ValueError(f"OTLP protocol {protocol!r}: it can be grpc or http/protobuf")
    url = _grpc_url(variables) if protocol == "grpc" else _http_url(variables, signal)
    try:
        usable = urlsplit(url).scheme in ("http", "https") and urlsplit(url).port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"OTLP endpoint {url!r}: it must be a URL with http or https")
    try:
        timeout = float(variables["TIMEOUT"] or 10)
    except ValueError:
        raise ValueError(f"OTLP timeout {variables['TIMEOUT']!r}: it must be seconds") from None
    return Destination(
        signal=signal,
        protocol="grpc" if protocol == "grpc" else "http/protobuf",
        url=url,
        headers=tuple(parse_env_headers(variables["HEADERS"] or "", liberal=True).items()),
        gzip=(variables["COMPRESSION"] or "none").lower() == "gzip",
        timeout=timeout,
        certificate=variables["CERTIFICATE"],
        client_certificate=variables["CLIENT_CERTIFICATE"],
        client_key=variables["CLIENT_KEY"],
    )


def listens(target: Destination, timeout: float = 1.0) -> bool:
    """Return whether something accepts TCP connections there."""
    try:
        with socket.create_connection(target.address, timeout=timeout):
            return True
    except OSError:
        return False


def send(target: Destination, requests: Sequence[Request]) -> None:
    """Send requests in order; return once the endpoint has accepted them all.

    Raises
    ------
    ForwardError
        At the first request that is not taken as a whole. Those before it have arrived.
    """
    try:
        if target.protocol == "grpc":
            _send_grpc(target, requests)
        else:
            _send_http(target, requests)
    except (OSError, HTTPException, DecodeError) as error:
        raise ForwardError(str(error) or type(error).__name__) from error


def _check_complete(response: Response) -> None:
    partial = response.partial_success
    if isinstance(partial, ExportTracePartialSuccess):
        count = partial.rejected_spans
    else:
        count = partial.rejected_data_points
    if count:
        raise ForwardError(f"{count} items rejected: {partial.error_message or 'no reason given'}")


# ---------------------------------------------------------------------------------- gRPC


def _read(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _channel(target: Destination) -> grpc.Channel:
    host, port = target.address
    compression = grpc.Compression.Gzip if target.gzip else grpc.Compression.NoCompression
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if urlsplit(target.url).scheme == "http":
        return grpc.insecure_channel(authority, compression=compression)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(target.certificate),
        private_key=_read(target.client_key),
        certificate_chain=_read(target.client_certificate),
    )
    return grpc.secure_channel(authority, credentials, compression=compression)


def _send_grpc(target: Destination, requests: Sequence[Request]) -> None:
    with _channel(target) as channel:
        # The generated stubs have no type information; this is what they do.
        export = channel.unary_unary(
            _GRPC_METHODS[target.signal],
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=_RESPONSES[target.signal].FromString,
        )
        for request in requests:
            try:
                response = export(request, timeout=target.timeout, metadata=target.headers)
            except grpc.RpcError as error:
                text = f"{error.code().name}: {error.details()}"
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise SignalNotTaken(text) from error
                raise ForwardError(text) from error
            _check_complete(response)


# ---------------------------------------------------------------------------------- HTTP


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without its body: report it instead."""

    def redirect_request(
        self,
        req: urllib.request.Request,  # noqa: ARG002
        fp: IO[bytes],  # noqa: ARG002
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: HttpHeaders,  # noqa: ARG002
        newurl: str,  # noqa: ARG002
    ) -> None:
        return None


def _opener(target: Destination) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context(cafile=target.certificate)
    if target.client_certificate:
        context.load_cert_chain(target.client_certificate, target.client_key)
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect)


def _send_http(target: Destination, requests: Sequence[Request]) -> None:
    opener = _opener(target)
    headers = {"Content-Type": "application/x-protobuf", **dict(target.headers)}
    if target.gzip:
        headers["Content-Encoding"] = "gzip"
    for request in requests:
        body = request.SerializeToString()
        body = gzip.compress(body) if target.gzip else body
        post = urllib.request.Request(target.url, data=body, headers=headers, method="POST")
        try:
            with opener.open(post, timeout=target.timeout) as answer:
                response = _RESPONSES[target.signal].FromString(answer.read())
        except urllib.error.HTTPError as error:
            text = f"HTTP {error.code} {error.reason}"
            error.close()
            if error.code == 404:
                raise SignalNotTaken(text) from error
            raise ForwardError(text) from error
        _check_complete(response)
