"""What servers answer that do not take what they are sent."""

from __future__ import annotations

import re
from typing import Final

from dask_otel.core.endpoints.trouble import ENDPOINT, Seen, Trouble

_STATUS: Final = re.compile(r"HTTP status (\d{3})")
_PATH: Final = re.compile(r"HTTP status \d{3}[^:]*? for (/\S*?)(?::|$)")
_CODE: Final = re.compile(r"([A-Z_]{5,}):")
_SIGNAL_PATH: Final = re.compile(r"/v1/(?:traces|metrics|logs)")


def page(seen: Seen) -> Trouble | None:
    """Tell: a web page."""
    if not seen.says("web page: no OTLP server"):
        return None
    return Trouble(
        "web_page",
        "A web page answers: the address is that of a user interface or a proxy, not of an OTLP "
        "receiver.",
        "Use the receiver's port (4318 as a rule) or the path that its documentation names.",
    )


def redirect(seen: Seen) -> Trouble | None:
    """Tell: a redirect."""
    if not seen.says("redirects to"):
        return None
    return Trouble(
        "redirect",
        "The server sends the request elsewhere; to a login page, or from http to https, mostly.",
        f"Set {ENDPOINT} to where it points if that is the receiver.",
    )


def status(seen: Seen) -> Trouble | None:
    """Tell: a status of HTTP."""
    # gRPC quotes the status of a server that does not speak it.
    found = None if seen.grpc else _STATUS.search(seen.reason)
    if found is None:
        return None
    status = int(found[1])
    if status in (404, 405):
        return _not_found(seen)
    if status >= 500:
        return _SERVER_ERROR
    return _of_kind(seen, _BY_STATUS.get(status))


def code(seen: Seen) -> Trouble | None:
    """Tell: a code of gRPC that says what is wrong."""
    code = _code_of(seen)
    if code in ("UNIMPLEMENTED", "NOT_FOUND"):
        return _no_signal(seen)
    if code == "RESOURCE_EXHAUSTED" and seen.says("larger than max", "message size", "too large"):
        return _of_kind(seen, "too_large")
    return _of_kind(seen, _BY_CODE.get(code))


def vague_code(seen: Seen) -> Trouble | None:
    """Tell: a code of gRPC that says little."""
    vague = ("UNAVAILABLE", "INTERNAL", "UNKNOWN", "ABORTED", "DATA_LOSS")
    return _SERVER_ERROR if _code_of(seen) in vague else None


def _code_of(seen: Seen) -> str:
    found = _CODE.match(seen.reason) if seen.grpc else None
    return found[1] if found else ""


_BY_STATUS: Final = {
    400: "invalid",
    401: "unauthenticated",
    403: "forbidden",
    407: "proxy_login",
    413: "too_large",
    415: "content_type",
    429: "rate_limit",
}
_BY_CODE: Final = {
    "UNAUTHENTICATED": "unauthenticated",
    "PERMISSION_DENIED": "forbidden",
    "RESOURCE_EXHAUSTED": "rate_limit",
    "INVALID_ARGUMENT": "invalid",
}
_ANSWERS: Final = {
    "invalid": (
        "The server says that what it was sent is invalid.",
        "Its own words say what; a header that names a tenant may be missing "
        "(OTEL_EXPORTER_OTLP_HEADERS).",
    ),
    "unauthenticated": (
        "The server does not know who is sending.",
        "Put its token or key into OTEL_EXPORTER_OTLP_HEADERS where the scheduler runs, as in "
        "authorization=Bearer%20…; blanks have to be written as %20.",
    ),
    "forbidden": (
        "The server knows who is sending, and does not allow it.",
        "The token or key needs the right to write {signal}; or a proxy, or a network policy of a "
        "service mesh, refuses the request.",
    ),
    "proxy_login": (
        "A proxy on the way wants a user and a password.",
        "Set HTTPS_PROXY with them, or put the endpoint into NO_PROXY.",
    ),
    "too_large": (
        "The server takes no request as large as this one.",
        "Raise its limit (max_request_body_size, max_recv_msg_size_mib, client_max_body_size), or "
        "lower OTEL_BSP_MAX_EXPORT_BATCH_SIZE.",
    ),
    "content_type": (
        "The server does not take protobuf at this address.",
        "Check the path; it may be for another format than OTLP.",
    ),
    "rate_limit": (
        "The server takes no more at the moment: a limit of rate, memory or quota.",
        "Raise that limit, or export less often (OTEL_METRIC_EXPORT_INTERVAL).",
    ),
}


_SERVER_ERROR: Final = Trouble(
    "server_error",
    "The server, or a proxy before it, has a problem of its own.",
    "See its log; a collector that can't reach its own backend answers so, too.",
)


def _of_kind(seen: Seen, kind: str | None) -> Trouble | None:
    if kind is None:
        return None
    cause, remedy = _ANSWERS[kind]
    return Trouble(kind, cause, remedy.replace("{signal}", seen.signal))


def _not_found(seen: Seen) -> Trouble:
    asked = _PATH.search(seen.reason)
    path = asked[1] if asked else seen.endpoint.path
    if len(_SIGNAL_PATH.findall(path)) > 1:
        return Trouble(
            "path_twice",
            f"The path of the signal is there twice: {path}.",
            f"Leave it out of {ENDPOINT}, to which the exporter appends it; only "
            f"OTEL_EXPORTER_OTLP_{seen.signal.upper()}_ENDPOINT is used as it is.",
        )
    own = f"OTEL_EXPORTER_OTLP_{seen.signal.upper()}_ENDPOINT"
    if asked and not _SIGNAL_PATH.search(path):
        return Trouble(
            "not_found",
            f"The server has nothing at {path or '/'}.",
            f"{own} is used as it is: add /v1/{seen.signal} to it.",
        )
    return Trouble(
        "not_found",
        f"The server takes no {seen.signal} at this address.",
        f"It may want a path before /v1/{seen.signal}, such as /otlp, in {ENDPOINT}; or it takes "
        f"no {seen.signal} at all, as Jaeger no metrics: then set {seen.exporter}=none.",
    )


def _no_signal(seen: Seen) -> Trouble:
    return Trouble(
        "no_signal",
        f"The server speaks gRPC, and takes no {seen.signal}.",
        f"Send them elsewhere (OTEL_EXPORTER_OTLP_{seen.signal.upper()}_ENDPOINT), switch that "
        f"receiver on, or set {seen.exporter}=none.",
    )
