"""Reads the answers to OTLP requests, which the exporters keep to themselves or throw away.

A server may take a request and not what is in it: a partial success, which the exporters do not
read. They take a redirect for a success, and the web page of any server whatever.

What this relies on: over HTTP, a `requests.Session` is given to the exporter, which is public.
Over gRPC there is no such argument: the exporter makes its stub with ``_stub``, once or at each
new connection, and calls the one in ``_client``. Where a release has none of them, its answers
are not seen; a contract test says so first.
"""

from __future__ import annotations

import json
import time
from datetime import timezone
from email.utils import parsedate_to_datetime
from io import BytesIO
from socket import gaierror
from ssl import SSLError
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from dask_otel._otel.sdk.answers import Answers, innermost, words_of

if TYPE_CHECKING:
    import requests

_REPLIES: Final = {"traces": ExportTraceServiceResponse, "metrics": ExportMetricsServiceResponse}
#: How a partial success counts, in protobuf and in JSON.
_COUNTS: Final = {
    "traces": ("rejected_spans", "rejectedSpans"),
    "metrics": ("rejected_data_points", "rejectedDataPoints"),
}
_RETRY_INFO: Final = "google.rpc.retryinfo-bin"
#: HTTP statuses that blame what was sent: it is invalid, or too large.
_BLAMES: Final = (400, 413)
#: What gRPC says where nobody listens or a name does not resolve (the last one: older versions),
#: as UNAVAILABLE.
_NOBODY: Final = (
    "failed to connect to all addresses", "errors resolving", "DNS resolution failed"
)  # fmt: skip
#: The errors where nobody listens, a name does not resolve, or TLS is refused, over HTTP.
_NO_WAY: Final = (ConnectionRefusedError, gaierror, SSLError)
#: Bytes of an answer that are read: of one that is OTLP, and of any other, for its words.
_MOST: Final = 65536
_MOST_WORDS: Final = 4096
_OTLP: Final = ("application/x-protobuf", "application/protobuf", "application/json")
#: Seconds for an answer's content where the exporter has no timeout.
_LONGEST: Final = 10.0


# ------------------------------------------------------------------------------------- HTTP


def watched_session(signal: str, answers: Answers) -> requests.Session:
    """Return a session for an exporter of a signal, whose answers are noted."""
    # Not at the top: gRPC does without it.
    import requests

    class Session(requests.Session):
        def request(self, *args: Any, **kwargs: Any) -> requests.Response:
            # A redirect turns a POST into a GET: the data would be gone.
            kwargs["allow_redirects"] = False
            if kwargs.get("verify") in (None, True) and isinstance(self.verify, str):
                # Newer exporters leave OTEL_EXPORTER_OTLP_CERTIFICATE with the session, where
                # REQUESTS_CA_BUNDLE would win over it.
                kwargs["verify"] = self.verify
            # Or all of it would be read before anybody looks, however much it is.
            kwargs["stream"] = True
            try:
                response = super().request(*args, **kwargs)
                _read(response, kwargs.get("timeout"))
            except Exception as error:
                late = isinstance(error, requests.Timeout)
                # One that was kept may have been closed since: the next one is new.
                broke = isinstance(error, requests.ConnectionError) and not late
                absent = isinstance(innermost(error), _NO_WAY) or (broke and bool(answers.problem))
                answers.refused(words_of(error), late=late, absent=absent)
                if absent and answers.hurry:
                    # No ConnectionError, which the exporter would try again.
                    raise requests.RequestException(answers.problem) from error
                if isinstance(error, OSError):
                    raise
                # Nothing of the data: it has been encoded.
                raise requests.RequestException(words_of(error)) from error
            _record_answer(signal, response, answers)
            return response

    return Session()


def _read(response: requests.Response, timeout: Any) -> None:
    """Read an answer's content: so much of it, and what comes in time.

    The timeout of an HTTP client begins anew with each byte: an answer that never ends would be
    read for ever, and kept in memory.
    """
    import requests
    from urllib3.exceptions import HTTPError, ReadTimeoutError

    seconds = float(timeout) if isinstance(timeout, (int, float)) else _LONGEST
    until = time.monotonic() + seconds
    most = _MOST if _kind(response) in _OTLP else _MOST_WORDS
    body = bytearray()
    try:
        # One by one: more would be waited for.
        for byte in response.raw.stream(1, decode_content=True):
            body += byte
            if len(body) >= most:
                response.raw.close()
                break
            if time.monotonic() >= until:
                raise requests.ReadTimeout(f"the answer did not end within {seconds:.3g} s")
    except ReadTimeoutError as error:
        response.raw.close()
        raise requests.ReadTimeout(error) from error
    except HTTPError as error:
        response.raw.close()
        raise requests.ConnectionError(error) from error
    except requests.ReadTimeout:
        response.raw.close()
        raise
    finally:
        response.raw.release_conn()
    # Where the exporter looks for it.
    response.raw = BytesIO(bytes(body))


def _kind(response: requests.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _record_answer(signal: str, response: requests.Response, answers: Answers) -> None:
    status = response.status_code
    kind = _kind(response)
    body = response.content
    page = kind in ("text/html", "application/xhtml+xml") or body.lstrip()[:1] == b"<"
    if 200 <= status < 300:
        if page:
            answers.refused("the endpoint answers with a web page: no OTLP server is there")
        elif body:
            answers.taken(*_partial(signal, kind, body))
        else:
            answers.taken()
        return
    if response.is_redirect:
        location = response.headers.get("location", "")
        answers.refused(f"the endpoint redirects to {location}, which is not followed")
        return
    words = "" if page else _words(kind, body)
    reason = f"HTTP status {status} {response.reason or ''}".rstrip()
    if status in (404, 405):
        # What was asked for, as the exporter has put it together.
        reason += f" for {urlsplit(response.url).path or '/'}"
    answers.refused(
        f"{reason}: {words}" if words else reason,
        blames=status in _BLAMES,
        pause=_retry_after(response.headers.get("retry-after", "")),
    )


def _retry_after(value: str) -> float:
    """Return the seconds that a header says, as a number or as a date; 0 for nothing of use."""
    if value.strip().isdecimal():
        # What has more digits is no number of seconds, either.
        return float(value.strip()[:9])
    try:
        # Dates of HTTP are in GMT, with or without a word about it.
        when = parsedate_to_datetime(value).replace(tzinfo=timezone.utc)
    except (ValueError, TypeError):
        return 0.0
    return max(0.0, when.timestamp() - time.time())


def _partial(signal: str, kind: str, body: bytes) -> tuple[int, str]:
    """Return how many items a server did not take, and what it says about that."""
    try:
        if kind == "application/json":
            return _partial_json(_COUNTS[signal][1], json.loads(body))
        reply: Any = _REPLIES[signal]()
        reply.ParseFromString(body)
    except (DecodeError, ValueError, TypeError, AttributeError):
        text = body.decode("utf-8", "replace")
        return 0, f"an answer that is no OTLP ({kind or 'of no type'}): {text}"
    return _partial_reply(signal, reply)


def _partial_json(count: str, reply: Any) -> tuple[int, str]:
    partial = reply.get("partialSuccess") or {}
    return int(partial.get(count) or 0), str(partial.get("errorMessage") or "")


def _partial_reply(signal: str, reply: Any) -> tuple[int, str]:
    partial = reply.partial_success
    return getattr(partial, _COUNTS[signal][0]), partial.error_message


def _words(kind: str, body: bytes) -> str:
    if kind in ("application/x-protobuf", "application/protobuf"):
        status = Status()
        try:
            status.ParseFromString(body)
        except DecodeError:
            pass
        else:
            return str(status.message)
    return body.decode("utf-8", "replace")


# ------------------------------------------------------------------------------------- gRPC


def watch_stub(signal: str, exporter: Any, answers: Answers) -> bool:
    """Note the answers that a gRPC exporter gets; False if this release hides them."""
    make, client = getattr(exporter, "_stub", None), getattr(exporter, "_client", None)
    if not callable(make) or not callable(getattr(client, "Export", None)):
        return False
    # It makes another one when it connects again.
    exporter._stub = lambda channel: _Stub(signal, make(channel), answers)  # noqa: SLF001
    exporter._client = _Stub(signal, client, answers)  # noqa: SLF001
    return True


class _Stub:
    """A stub of OTLP's services, whose answers are noted."""

    def __init__(self, signal: str, stub: Any, answers: Answers) -> None:
        self._signal = signal
        self._export = stub.Export
        self._answers = answers

    def Export(self, *args: Any, **kwargs: Any) -> Any:
        """Send a request."""
        from grpc import RpcError

        try:
            reply = self._export(*args, **kwargs)
        except RpcError as error:
            self._refused(error)
            if self._answers.absent and self._answers.hurry:
                # No RpcError, which the exporter would try again.
                raise ConnectionError(self._answers.problem) from error
            raise
        except Exception as error:
            # Nothing of the data: it has been encoded. A header that gRPC does not take, say.
            self._answers.refused(type(error).__name__)
            raise ConnectionError(type(error).__name__) from error
        self._answers.taken(*_partial_reply(self._signal, reply))
        return reply

    def _refused(self, error: Any) -> None:
        code = error.code().name
        details = error.details() or "no reason given"
        self._answers.refused(
            f"{code}: {details}",
            blames=code == "INVALID_ARGUMENT",
            late=code == "DEADLINE_EXCEEDED",
            absent=code == "UNAVAILABLE" and any(words in details for words in _NOBODY),
            pause=_retry_info(error),
        )


def _retry_info(error: Any) -> float:
    """Return the seconds of a ``RetryInfo``, where the exporters look for it; 0 for none."""
    for key, value in error.trailing_metadata() or ():
        if key == _RETRY_INFO:
            info = RetryInfo()
            try:
                info.ParseFromString(value)
                return max(0.0, float(info.retry_delay.ToMilliseconds()) / 1e3)
            except (DecodeError, TypeError, ValueError):
                return 0.0
    return 0.0
