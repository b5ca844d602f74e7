"""Detects the protocol of a server with our own socket, because exporters' errors are vague.

If a server closes the connection silently, it may expect TLS or HTTP/2, or no TLS or HTTP/1. So the
check tries each of them, as briefly as possible: an HTTP/1 ``OPTIONS *``, the first HTTP/2 frame, a
TLS handshake. It sends no telemetry and none of the user's headers.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
import urllib.request
from typing import Final
from urllib.parse import urlsplit

from dask_otel.core.endpoints.address import Endpoint, Listener

_HTTP_1: Final = b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
#: HTTP/2's preface, and an empty SETTINGS frame.
_HTTP_2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
#: The types of an HTTP/2 server's first frame: SETTINGS, GOAWAY.
_FRAMES: Final = (b"\4", b"\7")
#: Seconds for each connection.
_SLOWEST: Final = 1.0
#: A TLS server's answer, in plain HTTP, to a client without TLS; not Python's "HTTPStatus".
_WANTS_TLS: Final = re.compile(rb"\bHTTPS\b")
#: Why no server was found, by the error of the connection; the first match counts.
_ABSENT: Final[tuple[tuple[type[Exception], Listener], ...]] = (
    (socket.gaierror, "unresolved"),
    (ConnectionRefusedError, "refused"),
    (TimeoutError, "silent"),
    (Exception, "unreachable"),
)
#: By whether the server speaks HTTP/1 and HTTP/2: without TLS, and with it. Both at one port prove
#: nothing.
_PLAIN: Final[dict[tuple[bool, bool], Listener]] = {
    (True, False): "http",
    (False, True): "h2",
    (True, True): "other",
}
_TLS: Final[dict[tuple[bool, bool], Listener]] = {
    (True, False): "tls-http",
    (False, True): "tls-h2",
}


def look(endpoint: Endpoint, seconds: float) -> Listener | None:
    """Return the kind of server at an endpoint.

    Parameters
    ----------
    endpoint
        The configured endpoint.
    seconds
        The longest time for the check.

    Returns
    -------
    listener
        None if unknown: the address is invalid or a file's, or there is a proxy in between.
    """
    address = _address(endpoint)
    if address is None or _proxied(endpoint, address[0]):
        return None
    until = time.monotonic() + seconds
    try:
        socket.create_connection(address, seconds).close()
    except (OSError, UnicodeError) as error:
        return next(listener for kind, listener in _ABSENT if isinstance(error, kind))
    return _speaker(address, until)


def _address(endpoint: Endpoint) -> tuple[str, int] | None:
    url = endpoint.url if endpoint.scheme else f"//{endpoint.url}"
    # gRPC's own default is 443, like that of https.
    default = 80 if endpoint.scheme == "http" and endpoint.protocol == "HTTP" else 443
    try:
        parts = urlsplit(url)
        known = parts.hostname and not endpoint.unix
        return (str(parts.hostname), parts.port or default) if known else None
    except ValueError:
        return None


def _proxied(endpoint: Endpoint, host: str) -> bool:
    proxies = urllib.request.getproxies()
    names = ("grpc", "https", "http") if endpoint.protocol == "gRPC" else (endpoint.scheme, "all")
    return any(name in proxies for name in names) and not urllib.request.proxy_bypass(host)


def _connected(address: tuple[str, int], until: float) -> socket.socket:
    left = min(_SLOWEST, until - time.monotonic())
    if left <= 0:
        raise TimeoutError
    return socket.create_connection(address, timeout=left)


def _speaker(address: tuple[str, int], until: float) -> Listener:
    first, second = (_answer(address, until, hello) for hello in (_HTTP_1, _HTTP_2))
    http = first is not None and first.startswith(b"HTTP/1") and not _WANTS_TLS.search(first)
    http_2 = second is not None and second[3:4] in _FRAMES
    if http or http_2:
        return _PLAIN[http, http_2]
    agreed = {name: _handshake(address, until, name) for name in ("http/1.1", "h2")}
    if any(protocol is not None for protocol in agreed.values()):
        understood = (agreed["http/1.1"] == "http/1.1", agreed["h2"] == "h2")
        return _TLS.get(understood, "tls")
    if first is None and second is None:
        return "silent"
    return "other" if first or second else "closed"


def _answer(address: tuple[str, int], until: float, request: bytes) -> bytes | None:
    """Return the first bytes of an answer; none if the connection was closed, None for silence."""
    found = b""
    try:
        with _connected(address, until) as connection:
            connection.sendall(request)
            # An HTTP/2 frame is short, and may be the only one.
            while len(found) < 1024 and found[3:4] not in _FRAMES:
                part = connection.recv(1024)
                if not part:
                    break
                found += part
    except TimeoutError:
        return found or None
    except OSError:
        pass
    return found


def _handshake(address: tuple[str, int], until: float, protocol: str) -> str | None:
    """Return the negotiated protocol, or an empty string; None if the server speaks no TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Only to identify the server: we send it nothing, and trust no answer.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    try:
        with (
            _connected(address, until) as plain,
            context.wrap_socket(plain, server_hostname=address[0]) as secured,
        ):
            return secured.selected_alpn_protocol() or ""
    except ssl.SSLError as error:
        # A TLS alert: the server requires a certificate or another protocol.
        return "" if "ALERT" in (error.reason or "").upper() else None
    except (OSError, ValueError):
        return None
