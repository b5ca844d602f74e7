"""Transports of OTLP: one request, one answer. `pump.policy` decides about retries.

The answers: accepted, completely or in part; refused, perhaps because of the content; no server; no
answer in time. A server may accept a request but not its content (partial success), redirect it, or
return a web page: none of these is a success.
"""

from __future__ import annotations

import gzip
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timezone
from email.utils import parsedate_to_datetime
from socket import gaierror
from ssl import SSLError
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from google.protobuf.json_format import Parse, ParseError
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry import context as otel_context
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from dask_otel._otel.sdk.environment import variables
from dask_otel.core.masking import Mask, secrets_of
from dask_otel.core.records import Answer
from dask_otel.core.text import shortened

if TYPE_CHECKING:
    import grpc
    import requests

#: The messages of each signal.
REQUESTS: Final[dict[str, Any]] = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
}
_REPLIES: Final[dict[str, Any]] = {
    "traces": ExportTraceServiceResponse,
    "metrics": ExportMetricsServiceResponse,
    "logs": ExportLogsServiceResponse,
}
#: The field with the count of a partial success.
_COUNTS: Final = {
    "traces": "rejected_spans",
    "metrics": "rejected_data_points",
    "logs": "rejected_log_records",
}
_METHODS: Final = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
#: Seconds without a request after which a connection is made anew: balancers and NATs forget idle
#: ones, some after four minutes, and do not say so. It is longer than the usual export interval.
_IDLE: Final = 120.0
_RETRY_INFO: Final = "google.rpc.retryinfo-bin"
#: HTTP statuses that blame the content: it is invalid, or too large.
_BLAMES: Final = (400, 413)
#: Parts of gRPC's message, with UNAVAILABLE, if no server answers: nothing listens, a name does not
#: resolve, the connection breaks.
_NOBODY: Final = (
    "failed to connect", "connections to all backends failing", "errors resolving", "Socket closed",
    "DNS resolution failed", "onnection reset", "GOAWAY", "roken pipe", "Stream removed",
)  # fmt: skip
#: Codes that may mean a dead connection.
_BROKEN: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
#: Options of gRPC's channels: each one connects by itself, without the backoff of others.
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)
#: Errors over HTTP if no server answers.
_NO_WAY: Final = (ConnectionRefusedError, gaierror, SSLError)
#: Limits of the bytes read from an answer: from OTLP, and from any other, for its message.
_MOST: Final = 65536
_MOST_WORDS: Final = 4096
_OTLP: Final = ("application/x-protobuf", "application/protobuf", "application/json")
#: What a success says if it can't be read: the data was taken, and must not come again.
_NO_OTLP: Final = "an answer that is no OTLP"
#: Characters of others' messages in ours.
_LONGEST: Final = 300
#: Control characters that a text may have.
_FEW: Final = 4
_NO_SECRETS: Final = Mask()


def mask_of_environment() -> Mask:
    """Return a mask for the secrets in the ``OTEL_*`` variables in force."""
    return Mask(secrets_of(variables()))


def plain(text: str, mask: Mask = _NO_SECRETS) -> str:
    """Return others' text as one short line, without control characters and passwords."""
    line = mask(" ".join(text[: 4 * _LONGEST].split()))
    if sum(not c.isprintable() for c in line) > _FEW:
        # Another protocol, such as gRPC's where HTTP is expected.
        line = line[: next(n for n, c in enumerate(line) if not c.isprintable())] + "(no text)"
    line = "".join([c if c.isprintable() else "\ufffd" for c in line])
    return shortened(line, _LONGEST)


def innermost(error: BaseException) -> BaseException:
    """Return the root cause of an error."""
    for _ in range(10):
        behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if behind is None:
            break
        error = behind
    return error


def words_of(error: BaseException) -> str:
    """Return the type of an error, with the type and the message of its innermost cause.

    The outermost error often names objects and repeats the URL; the innermost one has the reason: a
    name does not resolve, nothing listens, a certificate is not trusted.
    """
    inner = innermost(error)
    name, root = type(error).__name__, type(inner).__name__
    if "header" in name.lower():
        # The message contains a header's value, which may be secret.
        return name
    words = f"{root}: {inner}".rstrip(": ")
    return plain(words if name == root else f"{name} ({words})")


@contextmanager
def uninstrumented() -> Iterator[None]:
    """Keep instrumented HTTP and gRPC clients from tracing this thread's requests."""
    values = otel_context.set_value("suppress_instrumentation", True)
    values = otel_context.set_value("suppress_http_instrumentation", True, values)
    token = otel_context.attach(values)
    try:
        yield
    finally:
        otel_context.detach(token)


class Transport(ABC):
    """Sends requests of one signal to one server. Used by one thread.

    Parameters
    ----------
    signal
        ``"traces"``, ``"metrics"`` or ``"logs"``.
    headers
        The headers of each request.
    timeout
        Seconds for a whole request.
    connect
        Makes a client, which keeps its connections.
    """

    def __init__(
        self,
        signal: str,
        headers: Mapping[str, str],
        timeout: float,
        connect: Callable[[], Any],
    ) -> None:
        self._signal = signal
        self._headers = dict(headers)
        self._timeout = timeout
        self._connect = connect
        self._client: Any = None
        #: When the client was last used, on the monotonic clock.
        self._used_at = 0.0
        #: Whether the client may have a connection that worked.
        self._kept = False
        #: Servers may repeat parts of a request.
        self._mask = mask_of_environment()

    def __repr__(self) -> str:
        worked = "" if self._kept else "no "
        return f"<{type(self).__name__} of {self._signal}, {worked}connection that worked>"

    def send(self, request: bytes, longest: float) -> Answer:
        """Send a request within `longest` seconds; never raises."""
        until = time.monotonic() + min(self._timeout, longest)
        kept, self._kept = self._kept, False
        with uninstrumented():
            answer = self._answer(request, until)
            if answer.absent and kept and not answer.pause:
                # The server may have closed the idle connection: try a new one.
                answer = self._answer(request, until)
        self._kept = answer.taken
        return answer._replace(
            reason=plain(answer.reason, self._mask), said=plain(answer.said, self._mask)
        )

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        """Return the client, a new one after a long pause."""
        if time.monotonic() - self._used_at > _IDLE:
            self.close()
        self._used_at = time.monotonic()
        if self._client is None:
            self._client = self._connect()
        return self._client

    @abstractmethod
    def _answer(self, request: bytes, until: float) -> Answer:
        """Send the request once."""

    def _taken(self, reply: Any) -> Answer:
        """Return the answer in a success message, with the rejected count and the reason."""
        lost = max(0, getattr(reply.partial_success, _COUNTS[self._signal]))
        words = reply.partial_success.error_message
        return Answer(True, lost=lost, said=words or ("no reason given" if lost else ""))


# ------------------------------------------------------------------------------------- HTTP


_COMPRESS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "none": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}


class HttpTransport(Transport):
    """OTLP over HTTP, with protobuf.

    Parameters
    ----------
    signal, headers, timeout, connect
        See `Transport`; the client is a `requests.Session`.
    url
        The endpoint.
    compression
        ``"none"``, ``"gzip"`` or ``"deflate"``.
    verify
        File or folder of trusted certificates; None for the session's own.
    certificate
        The client's certificate: a file, or that and the file of its key; None for none.
    """

    def __init__(
        self,
        signal: str,
        headers: Mapping[str, str],
        timeout: float,
        connect: Callable[[], requests.Session],
        url: str,
        compression: str = "none",
        verify: str | None = None,
        certificate: str | tuple[str, str] | None = None,
    ) -> None:
        from requests.utils import get_auth_from_url

        super().__init__(signal, headers, timeout, connect)
        self.url = url
        # Without any, a login in ~/.netrc would replace the configured header. Proxies and
        # certificates of the environment still apply.
        self._auth = login if any(login := get_auth_from_url(url)) else lambda request: request
        encoding = {} if compression == "none" else {"content-encoding": compression}
        self._headers |= {"content-type": "application/x-protobuf", "accept-encoding": "identity"}
        self._headers |= encoding
        self._compress = _COMPRESS[compression]
        self._options: dict[str, Any] = {"verify": verify, "cert": certificate}

    def _answer(self, request: bytes, until: float) -> Answer:
        import requests
        from urllib3 import Timeout

        try:
            left = max(0.001, until - time.monotonic())
            session = self._connected()
            response = session.post(
                self.url,
                data=self._compress(request),
                headers=self._headers,
                auth=session.auth or self._auth,
                # For connecting and the answer together. A number is for each of them, but a
                # user's own session may know nothing else.
                timeout=Timeout(total=left) if type(session) is requests.Session else left,
                # A redirect can turn a POST into a GET, which would lose the data.
                allow_redirects=False,
                # Else the whole answer would be read at once, whatever its size.
                stream=True,
                **self._options,
            )
            with response:
                body = _content(response, until, left)
        except Exception as error:
            broke = isinstance(error, requests.ConnectionError)
            late = isinstance(error, requests.Timeout)
            absent = isinstance(innermost(error), _NO_WAY) or (broke and not late)
            return Answer(False, words_of(error), absent=absent)
        return self._read(response, body)

    def _read(self, response: requests.Response, body: bytes) -> Answer:
        status = response.status_code
        kind = _kind(response)
        page = body.lstrip()[:1] == b"<" or (
            bool(body) and kind in ("text/html", "application/xhtml+xml")
        )
        if 200 <= status < 300:
            if page:
                return Answer(
                    False, "the endpoint answers with a web page: no OTLP server is there"
                )
            return self._success(kind, body) if body else Answer(True)
        if response.is_redirect:
            location = response.headers.get("location", "")
            return Answer(False, f"the endpoint redirects to {location}, which is not followed")
        reason = f"HTTP status {status} {response.reason or ''}".rstrip()
        if status in (404, 405):
            # Add the path of the request.
            reason += f" for {urlsplit(response.url).path or '/'}"
        words = "" if page else _words(kind, body)
        return Answer(
            False,
            f"{reason}: {words}" if words else reason,
            blames=status in _BLAMES,
            unsupported=status == 404,
            pause=_retry_after(response.headers.get("retry-after", "")),
        )

    def _success(self, kind: str, body: bytes) -> Answer:
        reply = _REPLIES[self._signal]()
        try:
            if kind == "application/json":
                Parse(body, reply, ignore_unknown_fields=True)
            else:
                reply.ParseFromString(body)
        except (DecodeError, ParseError, ValueError):
            text = body.decode("utf-8", "replace")
            return Answer(True, said=f"{_NO_OTLP} ({kind or 'of no type'}): {text}")
        return self._taken(reply)


def _content(response: requests.Response, until: float, seconds: float) -> bytes:
    """Return an answer's content, limited in size and time.

    An HTTP client's timeout begins again with each byte: an answer that never ends would be read
    into memory for ever. It also decompresses without a limit, before urllib3 2.6: a few bytes
    could become gigabytes. No server is asked to compress; some do so anyway.
    """
    import requests

    most = _MOST if _kind(response) in _OTLP else _MOST_WORDS
    # Older releases lack `read1`, and `read` would wait for more bytes.
    read = getattr(response.raw, "read1", lambda _, **options: response.raw.read(1, **options))
    body = b""
    while len(body) < most and (part := read(most, decode_content=False)):
        body += part
        if time.monotonic() >= until:
            raise requests.ReadTimeout(f"the answer did not end within {seconds:.3g} s")
    if response.headers.get("content-encoding"):
        with suppress(zlib.error):
            # Gzip or deflate.
            body = zlib.decompressobj(47).decompress(body, most)
    return body[:most]


def _kind(response: requests.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _words(kind: str, body: bytes) -> str:
    if kind in ("application/x-protobuf", "application/protobuf"):
        with suppress(DecodeError):
            return str(Status.FromString(body).message)
    return body.decode("utf-8", "replace")


def _retry_after(value: str) -> float:
    """Return the seconds in a header, a number or a date; 0 for anything else."""
    if value.strip().isdecimal():
        # More digits are no number of seconds either.
        return float(value.strip()[:9])
    try:
        # HTTP dates are in GMT, whether they name it or not.
        when = parsedate_to_datetime(value).replace(tzinfo=timezone.utc)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, when.timestamp() - time.time())


# ------------------------------------------------------------------------------------- gRPC


class GrpcTransport(Transport):
    """OTLP over gRPC; the client is a channel. See `Transport`."""

    def _answer(self, request: bytes, until: float) -> Answer:
        from grpc import RpcError

        try:
            # The channel's callable is made for each request, which is cheap.
            reply = self._connected().unary_unary(_METHODS[self._signal])(
                request,
                timeout=max(0.001, until - time.monotonic()),
                # A value of this name is bytes, which gRPC encodes.
                metadata=tuple(
                    (name, value.encode() if name.endswith("-bin") else value)
                    for name, value in self._headers.items()
                ),
            )
            return self._taken(_REPLIES[self._signal].FromString(reply))
        except DecodeError:
            return Answer(True, said=_NO_OTLP)
        except RpcError as error:
            return self._refused(error)
        except OSError as error:
            # The file of a certificate is being renewed.
            return Answer(False, words_of(error))
        except Exception as error:
            # The message may contain a header's value, which may be secret.
            return Answer(False, type(error).__name__)

    def _refused(self, error: Any) -> Answer:
        code = error.code().name
        details = error.details() or "no reason given"
        absent = code == "UNAVAILABLE" and any(words in details for words in _NOBODY)
        if code in _BROKEN:
            # A channel neither leaves a connection that a balancer or a NAT has forgotten, nor
            # connects again at once: it waits up to two minutes.
            self.close()
        return Answer(
            False,
            f"{code}: {details}",
            blames=code == "INVALID_ARGUMENT",
            unsupported=code == "UNIMPLEMENTED",
            absent=absent,
            pause=_retry_info(error),
        )


def grpc_channel(
    target: str,
    credentials: Callable[[], grpc.ChannelCredentials] | None,
    compression: str,
    agent: str,
) -> grpc.Channel:
    """Return a channel; without credentials it uses no TLS."""
    import grpc

    options = (("grpc.primary_user_agent", agent), *_OPTIONS)
    kinds = grpc.Compression
    compressed = kinds.Gzip if compression == "gzip" else kinds.NoCompression
    if credentials is None:
        return grpc.insecure_channel(target, options, compressed)
    return grpc.secure_channel(target, credentials(), options, compressed)


def _retry_info(error: Any) -> float:
    """Return the seconds of a ``RetryInfo``; 0 for none."""
    for key, value in error.trailing_metadata() or ():
        if key == _RETRY_INFO:
            with suppress(DecodeError, TypeError, ValueError):
                delay = RetryInfo.FromString(value).retry_delay
                return max(0.0, float(delay.ToMilliseconds()) / 1e3)
    return 0.0
