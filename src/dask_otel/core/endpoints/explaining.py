"""Explains an endpoint's answer: the likely cause, and what to do.

One table of kinds serves the scheduler's warning and ``dask-otel doctor``. The input is the
configured endpoint, the exporter's reason, and sometimes the result of a check of the address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from dask_otel.core.endpoints.address import Endpoint

#: The most frequent variables in the advice.
PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"

#: The advice if the cause is unknown.
UNKNOWN: Final = f"Check that a collector listens there, and {ENDPOINT} and {PROTOCOL}."


@dataclass(frozen=True, slots=True)
class Trouble:
    """The reason why an endpoint does not accept requests."""

    #: A short and stable name, for scripts.
    kind: str
    #: A sentence: the likely cause.
    cause: str
    #: A sentence or two: what to do.
    remedy: str

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}"


# ----------------------------------------------------------------------------- the texts

#: By kind: the cause, and what to do. In braces: parts of the address, and the signal.
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "bad_address": (
        "The endpoint is not a valid address.",
        f"Correct {ENDPOINT}: scheme, host and port without quotes, such as http://collector:4318.",
    ),
    "certificate_file": (
        "A file of a certificate or its key can't be read.",
        "Correct the file that the message names, or its permissions; it is read again at the next "
        "try.",
    ),
    "client_certificate": (
        "The server requires a client certificate.",
        "Set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY.",
    ),
    "certificate_name": (
        "The server's certificate does not include the name {host}.",
        "Use a name that the certificate includes, or give the server a certificate for {host}.",
    ),
    "certificate_expired": (
        "The server's certificate has expired, or is not valid yet.",
        "Renew it. If it is valid now, the clock of this machine is wrong.",
    ),
    "certificate_untrusted": (
        "The server's certificate is not trusted: it is self-signed, or its authority is unknown.",
        "Set OTEL_EXPORTER_OTLP_CERTIFICATE to the PEM file of its authority.",
    ),
    "plain_to_tls": (
        "The endpoint has no TLS (http), and the server requires it.",
        "Use https:// in the endpoint. If you have an authority of your own, set "
        "OTEL_EXPORTER_OTLP_CERTIFICATE to its PEM file.",
    ),
    "tls_to_plain": (
        "The endpoint requires TLS (https), and the server does not use it.",
        "Use http:// in the endpoint, or enable TLS on the server.",
    ),
    "no_scheme": (
        "The endpoint has no scheme, so the exporter uses TLS, and the server does not.",
        f"Set {ENDPOINT} to http://{{authority}}.",
    ),
    "grpc_to_http": (
        "The exporter uses gRPC, and an HTTP server listens on this port.",
        f"Use the port for gRPC (usually 4317), or set {PROTOCOL}=http/protobuf.",
    ),
    "http_to_grpc": (
        "The exporter uses HTTP, and a gRPC server listens on this port.",
        f"Use the port for HTTP (usually 4318), or set {PROTOCOL}=grpc.",
    ),
    "web_page": (
        "A web page answered: this is the address of a user interface or a proxy, not of an OTLP "
        "receiver.",
        "Use the receiver's port (usually 4318), or the path in its documentation.",
    ),
    "redirect": (
        "The server redirects the request, mostly to a login page, or from http to https.",
        f"Set {ENDPOINT} to the redirect's target if that is the receiver.",
    ),
    "proxy": (
        "A proxy (HTTP_PROXY, HTTPS_PROXY) does not forward the request.",
        "Add {host} to NO_PROXY if the scheduler can reach it directly.",
    ),
    "proxy_address": (
        "The address of the proxy (ALL_PROXY, HTTP_PROXY, HTTPS_PROXY) is invalid.",
        "Correct it, or add {host} to NO_PROXY if the scheduler can reach it directly.",
    ),
    "proxy_socks": (
        "The proxy (ALL_PROXY, HTTP_PROXY, HTTPS_PROXY) speaks SOCKS, and the package for it is "
        "missing.",
        "Install PySocks where the scheduler runs, or add {host} to NO_PROXY if the scheduler can "
        "reach it directly.",
    ),
    "proxy_login": (
        "A proxy requires a user and a password.",
        "Set HTTPS_PROXY with them, or add the endpoint to NO_PROXY.",
    ),
    "path_twice": (
        "The address has the signal's path twice: {path}.",
        f"Remove it from {ENDPOINT}, because the exporter appends it; only "
        "OTEL_EXPORTER_OTLP_{SIGNAL}_ENDPOINT is used unchanged.",
    ),
    "not_found": (
        "The server does not accept {signal} at this address.",
        f"{ENDPOINT} may need a path before /v1/{{signal}}, such as /otlp. If the server accepts "
        "no {signal} at all (Jaeger accepts no metrics), set OTEL_{SIGNAL}_EXPORTER=none.",
    ),
    "no_signal": (
        "The server uses gRPC, and does not accept {signal}.",
        "Send them elsewhere (OTEL_EXPORTER_OTLP_{SIGNAL}_ENDPOINT), enable that receiver, or "
        "set OTEL_{SIGNAL}_EXPORTER=none.",
    ),
    "invalid": (
        "The server rejects the request as invalid.",
        "Its message has the reason; a header with the tenant may be missing "
        "(OTEL_EXPORTER_OTLP_HEADERS).",
    ),
    "unauthenticated": (
        "The server requires a login.",
        "Put its token or key into OTEL_EXPORTER_OTLP_HEADERS where the scheduler runs, as in "
        "authorization=Bearer%20… (write a space as %20).",
    ),
    "forbidden": (
        "The server does not permit this sender.",
        "The token or key needs permission to write {signal}; or a proxy, or the policy of a "
        "service mesh, rejects the request.",
    ),
    "too_large": (
        "The request is larger than the server accepts.",
        "Raise its limit (max_request_body_size, max_recv_msg_size_mib, client_max_body_size), or "
        "lower OTEL_BSP_MAX_EXPORT_BATCH_SIZE.",
    ),
    "content_type": (
        "The server does not accept protobuf at this address.",
        "Check the path; it may be for a format other than OTLP.",
    ),
    "rate_limit": (
        "The server has reached a limit of rate, memory or quota.",
        "Raise that limit, or export less often (OTEL_METRIC_EXPORT_INTERVAL).",
    ),
    "server_error": (
        "The server, or a proxy in front of it, has an internal error.",
        "See its log; it may be a collector that can't reach its own backend.",
    ),
    "unresolved": (
        "The name {host} does not resolve.",
        f"Check its spelling in {ENDPOINT}. Names of Docker Compose and Kubernetes resolve only "
        "inside; from another namespace, use the full name (collector.monitoring.svc).",
    ),
    "refused": (
        "Nothing listens at {authority}.",
        f"Start a collector there, or correct {ENDPOINT} (usually port 4317 for gRPC, 4318 for "
        "HTTP).",
    ),
    "unreachable": (
        "There is no route to {host}.",
        "Check the network, and the firewalls between the scheduler and {host}.",
    ),
    "timeout": (
        "The server did not answer in time: it is slow or hangs, or a firewall or a network policy "
        "drops the requests.",
        "Check that the scheduler can reach the port; for a slow server, increase "
        "OTEL_EXPORTER_OTLP_TIMEOUT (seconds; 10 by default).",
    ),
    "closed": (
        "The server closed the connection without an answer: it may require {other_scheme}, or "
        "{other_protocol}.",
        "Check the scheme and the port of the endpoint; `dask-otel doctor` finds out what listens "
        "there.",
    ),
    "partial_success": (
        "The server accepted the request, but rejected {lost} of its items: {words}.",
        "See the server's limits and its log. These items are lost, because OTLP forbids sending "
        "them again.",
    ),
    "server_note": ("The server accepted everything, with a message: {words}.", "See the message."),
}

#: Instead of the text of `not_found`, if the user configured the whole path.
_OWN_PATH: Final = (
    "The server has nothing at {path}.",
    "OTEL_EXPORTER_OTLP_{SIGNAL}_ENDPOINT is used unchanged: add /v1/{signal} to it.",
)
#: Instead of the text of `refused`, if a server listens at another address of the host.
_OTHER_ADDRESS: Final = (
    "One of the addresses of {host} refuses the connection, although a server listens at another.",
    "Use the address of the server, such as 127.0.0.1 instead of localhost.",
)

#: Instead of the texts of `refused` and `no_scheme`, for a Unix socket.
_UNIX: Final = {
    "refused": (
        "Nothing listens at {authority}, or the scheduler may not use that file.",
        f"Start a collector there, or correct {ENDPOINT} or the permissions of the file.",
    ),
    "no_scheme": (
        "The exporter uses TLS, and the server at {authority} does not.",
        "Set OTEL_EXPORTER_OTLP_INSECURE=true.",
    ),
}

# ------------------------------------------------------------------- the signs of each kind


class _Sign(NamedTuple):
    """A kind, with the words in the reason and the listeners that mean it."""

    kind: str
    words: tuple[str, ...]
    #: See `Listener`.
    listeners: tuple[str, ...] = ()
    #: Limits the sign to TLS or no TLS (for the listeners), and to a protocol.
    secure: bool | None = None
    protocol: str = ""


#: Checked before the server's own code; the first match counts.
_FIRST: Final = (
    _Sign("proxy_socks", ("SOCKS support",)),
    _Sign("proxy_address", ("InvalidProxyURL", "ProxySchemeUnknown")),
    _Sign(
        "certificate_file",
        ("FileNotFoundError", "PermissionError", "TLS CA certificate bundle",
         "TLS certificate file", "TLS key file"),
    ),
    _Sign("bad_address", ("InvalidURL", "LocationParseError", "MissingSchema", "InvalidSchema")),
    _Sign(
        "client_certificate",
        ("certificate required", "CERTIFICATE_REQUIRED", "bad certificate"),
    ),
    _Sign(
        "certificate_name",
        ("Hostname mismatch", "Hostname Verification", "not in peer certificate",
         "IP address mismatch", "doesn't match"),
    ),
    _Sign("certificate_expired", ("certificate has expired", "is not yet valid")),
    _Sign("certificate_untrusted", ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed")),
    _Sign(
        "plain_to_tls",
        ("HTTP request was sent to HTTPS port",
         "Client sent an HTTP request to an HTTPS server"),
        ("tls", "tls-h2", "tls-http"),
        secure=False,
    ),
    _Sign(
        "tls_to_plain",
        ("WRONG_VERSION_NUMBER", "wrong version number", "RECORD_LAYER_FAILURE",
         "record layer failure", "packet length too long", "UNKNOWNPROTOCOL"),
        ("h2", "http"),
        secure=True,
    ),
    _Sign("web_page", ("web page: no OTLP server",)),
    _Sign("redirect", ("redirects to",)),
    _Sign("proxy", ("ProxyError", "Tunnel connection failed")),
)  # fmt: skip
#: Checked if the server's status explains nothing.
_THEN: Final = (
    _Sign(
        "grpc_to_http",
        ("Expected SETTINGS frame", "missing selected ALPN", "http1.x server",
         "http2 header with status: 404", "http2 header with status: 405",
         "http2 header with status: 415", "invalid content-type"),
        ("http", "tls-http"),
        protocol="gRPC",
    ),
    _Sign("http_to_grpc", ("BadStatusLine", "Malformed HTTP"), ("h2", "tls-h2"), protocol="HTTP"),
)  # fmt: skip
#: Checked if its code explains nothing either.
_LAST: Final = (
    _Sign(
        "unresolved",
        ("gaierror", "NameResolutionError", "Name or service not known", "errors resolving",
         "DNS resolution failed", "Domain name not found", "nodename nor servname",
         "name resolution"),
        ("unresolved",),
    ),
    _Sign(
        "refused",
        # The latter of a Unix socket.
        ("Connection refused", "ConnectionRefused", "error: No such file",
         "error: Permission denied"),
        ("refused",),
    ),
    _Sign(
        "unreachable",
        ("No route to host", "unreachable", "EHOSTUNREACH", "ENETUNREACH"),
        ("unreachable",),
    ),
    _Sign(
        "timeout",
        ("DEADLINE_EXCEEDED", "Timeout", "timed out", "no answer within"),
        ("silent",),
    ),
    _Sign(
        "closed",
        ("Connection reset", "ConnectionReset", "RemoteDisconnected", "Socket closed",
         "Connection aborted", "BrokenPipe", "Broken pipe", "EOF occurred"),
        ("closed",),
    ),
)  # fmt: skip
#: Kinds that mean a missing server.
_ABSENT: Final = frozenset(sign.kind for sign in _LAST)

_STATUS: Final = re.compile(r"HTTP status (\d{3})")
_PATH: Final = re.compile(r"HTTP status \d{3}[^:]*? for (/\S*?)(?::|$)")
_CODE: Final = re.compile(r"([A-Z_]{5,}):")
_SIGNAL_PATH: Final = re.compile(r"/v1/(?:traces|metrics|logs)")
#: Quotes belong to a file of variables whose reader keeps them.
_NO_HOST: Final = re.compile(r"[ \"']|:$")

_BY_STATUS: Final = {
    400: "invalid",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "not_found",
    407: "proxy_login",
    413: "too_large",
    415: "content_type",
    429: "rate_limit",
}
_BY_CODE: Final = {
    "UNIMPLEMENTED": "no_signal",
    "NOT_FOUND": "no_signal",
    "UNAUTHENTICATED": "unauthenticated",
    "PERMISSION_DENIED": "forbidden",
    "RESOURCE_EXHAUSTED": "rate_limit",
    "INVALID_ARGUMENT": "invalid",
}
#: Unspecific codes of gRPC.
_VAGUE: Final = ("UNAVAILABLE", "INTERNAL", "UNKNOWN", "ABORTED", "DATA_LOSS")


def explain(
    endpoint: Endpoint, signal: str, reason: str, listener: str | None = None
) -> Trouble | None:
    """Return the likely cause of a failed export; None if unknown.

    Parameters
    ----------
    endpoint
        The configured endpoint.
    signal
        ``"traces"`` or ``"metrics"``.
    reason
        The message of the exporter or the server.
    listener
        The result of a check of the address (`Listener`), if there was one.
    """
    kind = _kind_of(endpoint, reason, listener)
    if kind is None:
        return None
    asked = _PATH.search(reason)
    path = asked[1] if asked else endpoint.path
    grpc = endpoint.protocol == "gRPC"
    if kind == "not_found" and len(_SIGNAL_PATH.findall(path)) > 1:
        kind = "path_twice"
    elif kind == "tls_to_plain" and endpoint.scheme not in ("http", "https"):
        kind = "no_scheme"
    elif kind == "unresolved" and _NO_HOST.search(endpoint.authority):
        # Unlike HTTP's libraries, gRPC looks any text up.
        kind = "bad_address"
    cause, remedy = (_UNIX.get(kind) if endpoint.unix else None) or KINDS[kind]
    if kind == "not_found" and asked and not _SIGNAL_PATH.search(path):
        cause, remedy = _OWN_PATH
    elif kind == "refused" and listener in ("h2", "http", "tls", "tls-h2", "tls-http"):
        cause, remedy = _OTHER_ADDRESS
    elif kind == "refused" and endpoint.host in ("localhost", "127.0.0.1", "[::1]"):
        remedy += " localhost is the machine or container of the scheduler itself."
    elif kind in ("tls_to_plain", "no_scheme") and listener == ("http" if grpc else "h2"):
        other = KINDS["grpc_to_http" if grpc else "http_to_grpc"]
        cause, remedy = f"{cause} {other[0]}", f"{remedy} {other[1]}"
    parts = {
        "host": endpoint.host,
        "authority": endpoint.authority,
        "url": endpoint.url,
        "path": path or "/",
        "signal": signal,
        "SIGNAL": signal.upper(),
        "other_scheme": "a connection without TLS (http)" if endpoint.secure else "TLS (https)",
        "other_protocol": "HTTP" if grpc else "gRPC",
    }
    return Trouble(kind, cause.format_map(parts), remedy.format_map(parts))


def _kind_of(endpoint: Endpoint, reason: str, listener: str | None) -> str | None:
    lowered = reason.lower()

    def first(signs: tuple[_Sign, ...]) -> str | None:
        for sign in signs:
            # A server that does not speak HTTP does not speak gRPC either.
            said = any(word.lower() in lowered for word in sign.words) and not (
                sign.kind == "http_to_grpc" and listener == "other"
            )
            seen = listener in sign.listeners and sign.secure in (None, endpoint.secure)
            if sign.protocol in ("", endpoint.protocol) and (said or seen):
                return sign.kind
        return None

    if kind := first(_FIRST):
        return kind
    # gRPC quotes the status of a server that does not speak it.
    status = _STATUS.search(reason) if endpoint.protocol == "HTTP" else None
    if status is not None:
        return "server_error" if int(status[1]) >= 500 else _BY_STATUS.get(int(status[1]))
    if kind := first(_THEN):
        return kind
    found = _CODE.match(reason) if endpoint.protocol == "gRPC" else None
    code = found[1] if found else ""
    large = any(word in lowered for word in ("larger than max", "message size", "too large"))
    if code == "RESOURCE_EXHAUSTED" and large:
        return "too_large"
    return _BY_CODE.get(code) or first(_LAST) or ("server_error" if code in _VAGUE else None)


def remedied_by(trouble: Trouble | None, reason: str) -> str:
    """Return a name for the remedies of a failed export: its kind, or ``unknown``.

    It is ``absent`` for all kinds of a missing server: one outage has several of them.
    """
    if trouble is None:
        return "unknown"
    # gRPC reports failed connections as UNAVAILABLE, with many different messages.
    vague = reason.startswith("UNAVAILABLE") and trouble.kind == "server_error"
    return "absent" if vague or trouble.kind in _ABSENT else trouble.kind


def partly_taken(lost: int, words: str) -> Trouble:
    """Explain a request that a server accepted only in part."""
    kind = "partial_success" if lost > 0 else "server_note"
    cause, remedy = KINDS[kind]
    return Trouble(kind, cause.format(lost=lost, words=words), remedy)
