"""The addresses of exporters, as users configure them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

#: The result of a check of an address: HTTP/2 without TLS (gRPC), HTTP/1 without TLS, TLS with
#: either of them or an unknown protocol, or why no server was found.
Listener: TypeAlias = Literal[
    "h2", "http", "tls-h2", "tls-http", "tls", "silent", "closed", "other",
    "refused", "unresolved", "unreachable",
]  # fmt: skip

#: Timeouts of a request from this one on, in seconds, are probably milliseconds.
_IMPLAUSIBLE: Final = 300.0
_TIMEOUT: Final = re.compile(r"OTEL_EXPORTER_OTLP_(?:[A-Z]+_)?TIMEOUT")
_NUMBER: Final = re.compile(r"\s*[0-9]{1,15}(?:\.[0-9]*)?\s*")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An exporter's endpoint, as the user configured it."""

    #: Without possible secrets.
    url: str
    protocol: Literal["gRPC", "HTTP"]

    def __str__(self) -> str:
        return f"{self.url} (OTLP over {self.protocol})"

    @property
    def scheme(self) -> str:
        """``http``, ``https``, or empty if it is not given."""
        return self.url.partition("://")[0].lower() if "://" in self.url else ""

    @property
    def secure(self) -> bool:
        """Whether the address requires TLS: with gRPC, all but ``http`` do."""
        return self.scheme == "https" or (self.scheme != "http" and self.protocol == "gRPC")

    @property
    def unix(self) -> bool:
        """Whether it is the socket of a file, which only gRPC has."""
        return self.url.lower().startswith(("unix:", "unix-abstract:"))

    @property
    def host(self) -> str:
        """The name or address, without the port."""
        authority = self.authority
        if authority.startswith("["):
            return authority.partition("]")[0] + "]"
        return authority.partition(":")[0]

    @property
    def authority(self) -> str:
        """Host and port; the whole address of a Unix socket."""
        return (
            self.url if self.unix else (self.url.partition("://")[2] or self.url).partition("/")[0]
        )

    @property
    def path(self) -> str:
        """The part after the port."""
        _, slash, path = (self.url.partition("://")[2] or self.url).partition("/")
        return "" if self.unix else (slash + path).rstrip("/")


def oddities(endpoint: Endpoint) -> list[str]:
    """Return the suspicious parts of an address, whether it works or not."""
    found = []
    if endpoint.protocol == "gRPC" and endpoint.path:
        found.append(f"gRPC ignores the path {endpoint.path}; leave it out.")
    if (match := re.search(r":(\d{1,9})$", endpoint.authority)) and not 0 < int(match[1]) < 65536:
        found.append(f"{match[1]} is no port: ports end at 65535.")
    elif match and int(match[1]) == (4318 if endpoint.protocol == "gRPC" else 4317):
        other = "HTTP" if endpoint.protocol == "gRPC" else "gRPC"
        found.append(f"{match[1]} is the usual port of {other}, not of {endpoint.protocol}.")
    return found


def long_timeouts(variables: Iterable[tuple[str, str]]) -> list[str]:
    """Return a sentence for each timeout in these variables that is implausible as seconds."""
    return [
        f"{name} is {value}, which is read as seconds: one request without an answer can block its "
        "signal for that long. Other SDKs read milliseconds; if you meant those, set it to "
        f"{float(value) / 1000:g}."
        for name, value in variables
        if _TIMEOUT.fullmatch(name) and _NUMBER.fullmatch(value) and float(value) >= _IMPLAUSIBLE
    ]
