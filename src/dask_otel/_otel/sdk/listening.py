"""A look at who listens at an endpoint, by a socket of our own: what exporters say is vague.

A server that closes the connection without a word may want TLS, or HTTP/2, or less of both. So it
is spoken to in each of these, as little as possible: an ``OPTIONS *`` of HTTP/1, the first frame
of HTTP/2, a handshake of TLS. Nothing of the telemetry is sent, and no header of the user's.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
import urllib.request
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from dask_otel.core.endpoints.address import Endpoint, Listener

_HTTP_1: Final = b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
#: HTTP/2's preface, and an empty frame of settings.
_HTTP_2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
#: Frames that a server of HTTP/2 begins with: SETTINGS, GOAWAY.
_FRAMES: Final = (4, 7)
_SLOWEST: Final = 1.0
#: What a server of TLS says, in plain HTTP, to who speaks without; not Python's "HTTPStatus".
_WANTS_TLS: Final = re.compile(rb"\bHTTPS\b")


def look(endpoint: Endpoint, seconds: float) -> Listener | None:
    """Return who listens at an endpoint.

    Parameters
    ----------
    endpoint
        As it was configured.
    seconds
        The longest time that this may take.

    Returns
    -------
    listener
        None where nobody can tell: the address is none, or a proxy is in between.
    """
    address = _address(endpoint)
    if address is None or _proxied(endpoint, address[0]):
        return None
    until = time.monotonic() + seconds
    try:
        with _connected(address, until):
            pass
    except socket.gaierror:
        return "unresolved"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"
    except (OSError, UnicodeError):
        return "unreachable"
    return _speaker(address, until)


def _address(endpoint: Endpoint) -> tuple[str, int] | None:
    url = endpoint.url if endpoint.scheme else f"//{endpoint.url}"
    try:
        parts = urlsplit(url)
        # gRPC's own default, as that of https, is 443.
        port = parts.port or (
            80 if endpoint.scheme == "http" and endpoint.protocol == "HTTP" else 443
        )
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None


def _proxied(endpoint: Endpoint, host: str) -> bool:
    proxies = urllib.request.getproxies()
    names = ("grpc", "https", "http") if endpoint.protocol == "gRPC" else (endpoint.scheme, "all")
    return any(name in proxies for name in names) and not urllib.request.proxy_bypass(host)


def _connected(address: tuple[str, int], until: float) -> socket.socket:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return socket.create_connection(address, timeout=left)


def _speaker(address: tuple[str, int], until: float) -> Listener:
    first = _answer(address, until, _HTTP_1)
    second = _answer(address, until, _HTTP_2)
    http = first is not None and first.startswith(b"HTTP/1") and not _WANTS_TLS.search(first)
    http_2 = second is not None and len(second) > 3 and second[3] in _FRAMES
    if http:
        # Both at one port: nothing follows from it.
        return "other" if http_2 else "http"
    if http_2:
        return "h2"
    found = _behind_tls(address, until)
    if found is not None:
        return found
    if first is None and second is None:
        return "silent"
    return "other" if first or second else "closed"


def _answer(address: tuple[str, int], until: float, request: bytes) -> bytes | None:
    """Return the first bytes of an answer; none if the connection was closed, None for silence."""
    found = b""
    try:
        with _connected(address, min(until, time.monotonic() + _SLOWEST)) as connection:
            connection.settimeout(max(0.05, min(until - time.monotonic(), _SLOWEST)))
            connection.sendall(request)
            while len(found) < 1024:
                part = connection.recv(1024)
                if not part:
                    break
                found += part
                # A frame of HTTP/2 is short, and nothing may follow it.
                if len(found) > 3 and found[3] in _FRAMES:
                    break
    except TimeoutError:
        return found or None
    except OSError:
        pass
    return found


def _behind_tls(address: tuple[str, int], until: float) -> Listener | None:
    speaks = {name: _handshake(address, until, name) for name in ("h2", "http/1.1")}
    if all(spoken is None for spoken in speaks.values()):
        return None
    if speaks["h2"] == "h2" and speaks["http/1.1"] != "http/1.1":
        return "tls-h2"
    if speaks["http/1.1"] == "http/1.1" and speaks["h2"] != "h2":
        return "tls-http"
    return "tls"


def _handshake(address: tuple[str, int], until: float, protocol: str) -> str | None:
    """Return the protocol that a handshake agreed on, or nothing; None if TLS is not spoken."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Only who is there: nothing is sent to it, and nothing that it says is believed.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    try:
        with (
            _connected(address, min(until, time.monotonic() + _SLOWEST)) as plain,
            context.wrap_socket(plain, server_hostname=address[0]) as secured,
        ):
            agreed = secured.selected_alpn_protocol()
            with suppress(OSError):
                secured.close()
            return agreed or ""
    except ssl.SSLError as error:
        # It refuses in TLS's own words: a certificate is wanted, or another protocol.
        return "" if "ALERT" in (error.reason or "").upper() else None
    except (OSError, ValueError):
        return None
