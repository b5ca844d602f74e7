"""Where a signal goes, as the standard variables say: transports of ours, or others' exporters.

``otlp``, the default, is our transport. Any other name leads to the exporter that an installed
package offers under it, as it is: console, a vendor's, OpenTelemetry's own ``otlp_proto_grpc`` and
``otlp_proto_http``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader
from opentelemetry.sdk.trace.export import SpanExporter

from dask_otel._otel.sdk.environment import check_pem, choice, first_set, headers, number
from dask_otel._otel.sdk.foreign import ForeignExporter
from dask_otel._otel.sdk.transport import (
    GrpcTransport,
    HttpTransport,
    Transport,
    grpc_channel,
    mask_of_environment,
)
from dask_otel._version import __version__
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.masking import masked_url
from dask_otel.core.records import Answer
from dask_otel.settings.problems import ConfigurationError

if TYPE_CHECKING:
    import grpc
    import requests

_GROUPS: Final = {
    "traces": "opentelemetry_traces_exporter",
    "metrics": "opentelemetry_metrics_exporter",
}
_KINDS: Final = {"traces": SpanExporter, "metrics": MetricExporter}
_PROTOCOLS: Final = ("grpc", "http/protobuf")
#: OpenTelemetry's own exporters of OTLP, which obey the same variables.
_OTHERS: Final = ("otlp_proto_grpc", "otlp_proto_http")
_PUMP_TIMEOUTS: Final = {
    "traces": "OTEL_BSP_EXPORT_TIMEOUT",
    "metrics": "OTEL_METRIC_EXPORT_TIMEOUT",
}
#: What says which server is meant, or how it is reached; a time or a temporality does not.
_REACHING: Final = (
    "ENDPOINT",
    "PROTOCOL",
    "HEADERS",
    "INSECURE",
    "CERTIFICATE",
    "CLIENT_KEY",
    "CLIENT_CERTIFICATE",
)
#: Where gRPC goes if nobody says so. Seconds: it is on this machine.
_DEFAULT_ADDRESS: Final = ("localhost", 4317)
_AT_ONCE: Final = 1.0
#: Of a request, in seconds.
_DEFAULT_TIMEOUT: Final = 10.0
#: As the specification has it: who sends, with what that knows of OTLP.
_AGENT: Final = (
    f"dask-otel/{__version__} OTel-OTLP-Exporter-Python/{version('opentelemetry-proto')}"
)


class Sender(Protocol):
    """A transport; see `dask_otel._otel.sdk.transport.Transport`."""

    def send(self, request: bytes, longest: float) -> Answer:
        """Send a request, for so many seconds at most; never raises."""

    @property
    def close(self) -> Callable[[], None]:
        """Release what it holds."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A transport, and what goes with it."""

    #: What a person needs to recognise it: its name or endpoint.
    label: str
    transport: Sender
    #: What a person can do where it fails; empty for what helps with an endpoint.
    advice: str = ""
    #: Whether somebody named it, or the server that it sends to.
    named: bool = True
    #: What its spans have in the spool: its name in OTEL_TRACES_EXPORTER. None where what it got
    #: has arrived, so that nothing waits.
    key: str | None = None


def make_destinations(signal: str) -> list[Destination]:
    """Make what sends a signal.

    Parameters
    ----------
    signal
        ``"traces"`` or ``"metrics"``.

    Raises
    ------
    ConfigurationError
        If there is no such exporter, it can't be made, or it is one that opens a port.
    """
    made: list[Destination] = []
    try:
        for name in _exporter_names(signal):
            one = _otlp(signal) if name == "otlp" else _foreign(signal, name)
            made.append(one)
    except ConfigurationError:
        shut_down(made)
        raise
    return made


def labels(signal: str) -> list[str]:
    """Return what a signal's destinations are called, without making them.

    Raises
    ------
    ConfigurationError
        If the protocol is unknown.
    """
    return [_label(signal, name) for name in _exporter_names(signal)]


def is_named(signal: str) -> bool:
    """Whether the standard variables say where a signal goes: an exporter, or a server."""
    return bool(
        first_set(
            f"OTEL_{signal.upper()}_EXPORTER",
            *(variable for what in _REACHING for variable in _variables(signal, what)),
        )
    )


def nobody_listens() -> bool:
    """Whether nobody listens at the default endpoint."""
    try:
        socket.create_connection(_DEFAULT_ADDRESS, _AT_ONCE).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def shut_down(made: list[Destination]) -> None:
    """Release what will not be used."""
    for one in made:
        one.transport.close()


def _exporter_names(signal: str) -> list[str]:
    found = first_set(f"OTEL_{signal.upper()}_EXPORTER")
    wanted = [name.strip() for name in (found[1] if found else "otlp").split(",")]
    # A name given twice would export everything twice.
    return list(dict.fromkeys(name for name in wanted if name and name.lower() != "none"))


def _variables(signal: str, what: str) -> tuple[str, str]:
    """Return the variables of an OTLP exporter's option, the one that wins first."""
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}", f"OTEL_EXPORTER_OTLP_{what}"


def _value(signal: str, what: str) -> str | None:
    found = first_set(*_variables(signal, what))
    return found[1] if found else None


# ------------------------------------------------------------------------------ our own OTLP


def _otlp(signal: str) -> Destination:
    grpc = _speaks_grpc(signal)
    for what in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"):
        for variable in _variables(signal, what):
            check_pem(variable, folder=what == "CERTIFICATE" and not grpc)
    sent = headers("ascii" if grpc else "latin-1", *_variables(signal, "HEADERS"))
    allowed = ("none", "gzip") if grpc else ("none", "gzip", "deflate")
    compression = choice(allowed, *_variables(signal, "COMPRESSION")) or "none"
    seconds = number(0.001, "seconds", *_variables(signal, "TIMEOUT")) or _DEFAULT_TIMEOUT
    most = export_timeout_millis(signal)
    timeout = seconds if most is None else min(seconds, most / 1000)
    make = _grpc if grpc else _http
    transport = make(signal, sent, timeout, compression)
    # The key is the same whatever the protocol: what waits may go by another one.
    return Destination(_label(signal, "otlp"), transport, named=is_named(signal), key="otlp")


def _http(signal: str, sent: dict[str, str], timeout: float, compression: str) -> Transport:
    import requests

    variable, url = first_set(*_variables(signal, "ENDPOINT")) or ("", "http://localhost:4318")
    if not url.lower().startswith(("http://", "https://")):
        raise ConfigurationError(
            [
                f"{variable} is {masked_url(url)!r}. Allowed over HTTP: a URL that "
                "begins with http:// or https://."
            ]
        )
    if variable != _variables(signal, "ENDPOINT")[0]:
        url = f"{url.removesuffix('/')}/v1/{signal}"
    key, certificate = _value(signal, "CLIENT_KEY"), _value(signal, "CLIENT_CERTIFICATE")
    return HttpTransport(
        signal,
        {"user-agent": _AGENT, **sent},
        timeout,
        _credential_provider("HTTP", signal) or requests.Session,
        url,
        compression,
        _value(signal, "CERTIFICATE"),
        (certificate, key) if certificate and key else certificate,
    )


def _grpc(signal: str, sent: dict[str, str], timeout: float, compression: str) -> Transport:
    endpoint = _value(signal, "ENDPOINT") or "http://localhost:4317"
    parts = urlsplit(endpoint)
    insecure = _value(signal, "INSECURE")
    plain = parts.scheme == "http" if insecure is None else insecure.lower() == "true"
    credentials = None
    if parts.scheme == "https" or not plain:
        credentials = _credential_provider("GRPC", signal) or _grpc_credentials(signal)
    target = parts.netloc or endpoint
    connect = partial(grpc_channel, target, credentials, compression, _AGENT)
    return GrpcTransport(signal, sent, timeout, connect)


def _grpc_credentials(signal: str) -> Callable[[], grpc.ChannelCredentials]:
    from grpc import ssl_channel_credentials

    paths = [_value(signal, what) for what in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")]
    return partial(
        ssl_channel_credentials, *(Path(path).read_bytes() if path else None for path in paths)
    )


def _credential_provider(protocol: str, signal: str) -> Callable[[], Any] | None:
    """Return what makes a session, or credentials of gRPC, if the user names something."""
    prefix = f"OTEL_PYTHON_EXPORTER_OTLP_{protocol}"
    suffix = "CREDENTIAL_PROVIDER"
    found = first_set(f"{prefix}_{signal.upper()}_{suffix}", f"{prefix}_{suffix}")
    if found is None:
        return None
    variable, name = found
    try:
        (entry,) = entry_points(group="opentelemetry_otlp_credential_provider", name=name)
        provider: Callable[[], requests.Session | grpc.ChannelCredentials] = entry.load()
    except Exception as error:
        raise ConfigurationError(
            [f"{variable} names {name!r}, which could not be loaded: {_shown(error)}."]
        ) from error
    return provider


def _speaks_grpc(signal: str) -> bool:
    return choice(_PROTOCOLS, *_variables(signal, "PROTOCOL")) != "http/protobuf"


def _label(signal: str, name: str) -> str:
    """Return what an exporter is called: where it sends to, for those of OTLP."""
    if name != "otlp" and name not in _OTHERS:
        return name
    grpc = _speaks_grpc(signal) if name == "otlp" else name == _OTHERS[0]
    endpoint = _value(signal, "ENDPOINT")
    url = masked_url(endpoint) if endpoint else f"http://localhost:{4317 if grpc else 4318}"
    return str(Endpoint(url, "gRPC" if grpc else "HTTP"))


def export_timeout_millis(signal: str) -> float | None:
    """Return what the pump's own variable says about one export, if it is set."""
    return number(1, "milliseconds", _PUMP_TIMEOUTS[signal])


# ------------------------------------------------------------------------ others' exporters


def _foreign(signal: str, name: str) -> Destination:
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    found = list(entry_points(group=_GROUPS[signal], name=name))
    if not found and not (signal == "metrics" and name == "prometheus"):
        known = sorted({entry.name for entry in entry_points(group=_GROUPS[signal])})
        raise ConfigurationError(
            [f"{variable} names {name!r}. Installed: {', '.join(['none', *known])}."]
        )
    try:
        factory = found[0].load() if found else MetricReader
        # Before it is made: a pull exporter opens its port then.
        if isinstance(factory, type) and issubclass(factory, MetricReader):
            raise _pull_exporter(variable, name)
        exporter = factory()
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            [f"{variable} names {name!r}, and that exporter could not be made: {_shown(error)}."]
        ) from error
    if not isinstance(exporter, _KINDS[signal]):
        raise _pull_exporter(variable, name)
    millis = export_timeout_millis("metrics") if signal == "metrics" else None
    options = {} if millis is None else {"timeout_millis": millis}
    key = None if name == "console" else name
    return Destination(_label(signal, name), ForeignExporter(signal, exporter, options), key=key)


def _shown(error: Exception) -> str:
    """Return an error of somebody else's, who may repeat what the variables say."""
    return mask_of_environment()(repr(error))


def _pull_exporter(variable: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        [
            f"{variable} names {name!r}, which does not push: such exporters open a port in the "
            "scheduler's process. Allowed: push exporters such as otlp and console. Metrics that "
            "are scraped belong on the scheduler's own /metrics page (otel.metrics.prometheus)."
        ]
    )
