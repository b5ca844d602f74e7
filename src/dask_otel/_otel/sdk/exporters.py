"""The exporters in the standard variables: our own transports, or others' exporters.

``otlp``, the default, is our transport. Any other name selects the exporter that an installed
package registers under it: console, a vendor's, OpenTelemetry's own ``otlp_proto_grpc`` and
``otlp_proto_http``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader
from opentelemetry.sdk.trace.export import SpanExporter

from dask_otel._log import logger
from dask_otel._otel.sdk.environment import (
    choice,
    first_set,
    flag,
    headers,
    mistaken,
    number,
    pem_file,
    shown_to_sdk,
    variables,
)
from dask_otel._otel.sdk.foreign import ForeignExporter
from dask_otel._otel.sdk.otlp_json import FileTransport, print_lines
from dask_otel._otel.sdk.sink import ExporterSink, MakeSink
from dask_otel._otel.sdk.transport import (
    GrpcTransport,
    HttpTransport,
    Transport,
    grpc_channel,
    mask_of_environment,
)
from dask_otel._version import __version__, entry_points, installed
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.masking import masked_url
from dask_otel.pump.destination import Destination
from dask_otel.pump.thread import promptly
from dask_otel.settings.problems import ConfigurationError

if TYPE_CHECKING:
    import grpc
    import requests

_KINDS: Final = {"traces": SpanExporter, "metrics": MetricExporter}
_PROTOCOLS: Final = ("grpc", "http/protobuf")
#: By whether it is gRPC.
_COMPRESSIONS: Final = {True: ("none", "gzip"), False: ("none", "gzip", "deflate")}
#: OpenTelemetry's own exporters of OTLP, which read the same variables.
_OTHERS: Final = ("otlp_proto_grpc", "otlp_proto_http")
#: The modules of OpenTelemetry's own exporters, which only read variables when they are made.
_OWN: Final = ("opentelemetry.exporter.otlp.proto.", "opentelemetry.sdk.")
#: The variables of the timeout of one export.
_PUMP_TIMEOUTS: Final = {
    "traces": "OTEL_BSP_EXPORT_TIMEOUT",
    "metrics": "OTEL_METRIC_EXPORT_TIMEOUT",
    "logs": "OTEL_BLRP_EXPORT_TIMEOUT",
}
#: Options that name a server or how to reach it, unlike a time or a temporality.
_REACHING: Final = (
    "ENDPOINT",
    "PROTOCOL",
    "HEADERS",
    "INSECURE",
    "CERTIFICATE",
    "CLIENT_KEY",
    "CLIENT_CERTIFICATE",
)
#: The default endpoint of gRPC, and seconds to reach it: it is on this machine.
_DEFAULT_ADDRESS: Final = ("localhost", 4317)
_AT_ONCE: Final = 1.0
#: Timeout of a request, in seconds.
_DEFAULT_TIMEOUT: Final = 10.0
#: The sender and its version of OTLP, in the form of the specification.
_AGENT: Final = (
    f"dask-otel/{__version__} OTel-OTLP-Exporter-Python/{installed('opentelemetry-proto')}"
)


def make_sinks(signals: Iterable[str], make: MakeSink) -> list[ExporterSink]:
    """Make the sinks of some signals; those with one address have one destination.

    Parameters
    ----------
    signals
        ``"traces"``, ``"metrics"``, ``"logs"``.
    make
        Makes each one.

    Raises
    ------
    ConfigurationError
        If an exporter is missing, can't be made, or opens a port; the exporters made before it
        are released.
    """
    made: list[ExporterSink] = []
    destinations: dict[str, Destination] = {}
    with ExitStack() as undo:
        for signal in signals:
            for name in _exporter_names(signal):
                at = _destination(signal, name)
                parts = _transport(signal, name)
                if parts is not None:
                    undo.callback(parts[0].close)
                    made.append(make(signal, destinations.setdefault(at.name, at), *parts))
        undo.pop_all()
    return made


def _transport(signal: str, name: str) -> tuple[Any, ...] | None:
    """Return an exporter's transport; whether the user configured it; its key in the spool."""
    if name == "otlp" or (signal == "logs" and name in _OTHERS):
        # The key does not depend on the protocol: waiting spans may be sent over another one.
        return _otlp(signal, name), is_named(signal), "otlp"
    if signal != "logs":
        return _foreign(signal, name), True, None if name == "console" else name
    if name != "console":
        # It may be meant for an application: there is no stable interface of such exporters.
        effect = "which the bridge can't use for logs. Spans and metrics are not affected"
        allowed = ", ".join(("none", "console", "otlp", *_OTHERS))
        mistaken("OTEL_LOGS_EXPORTER", name, effect, allowed)
        return None
    return (FileTransport(signal, print_lines),)


def labels(signal: str) -> list[str]:
    """Return the names of a signal's destinations, without making their exporters.

    Raises
    ------
    ConfigurationError
        If the protocol is unknown.
    """
    return [_destination(signal, name).name for name in _exporter_names(signal)]


def is_named(signal: str) -> bool:
    """Whether the standard variables name a signal's exporter or server."""
    return bool(
        first_set(
            f"OTEL_{signal.upper()}_EXPORTER",
            *(variable for what in _REACHING for variable in _variables(signal, what)),
        )
    )


def nobody_listens() -> bool:
    """Whether there is no server at the default endpoint."""
    try:
        socket.create_connection(_DEFAULT_ADDRESS, _AT_ONCE).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def _exporter_names(signal: str) -> list[str]:
    found = first_set(f"OTEL_{signal.upper()}_EXPORTER")
    wanted = [name.strip() for name in (found[1] if found else "otlp").split(",")]
    # A repeated name would export everything twice.
    return list(dict.fromkeys(name for name in wanted if name and name.lower() != "none"))


def _variables(signal: str, what: str) -> tuple[str, str]:
    """Return the variables of an OTLP exporter's option; the first one has priority."""
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}", f"OTEL_EXPORTER_OTLP_{what}"


# ------------------------------------------------------------------------------ our own OTLP


def _otlp(signal: str, name: str) -> Transport:
    grpc = _speaks_grpc(signal, name)
    make: Callable[..., Transport] = _grpc if grpc else _http
    seconds = number(0.001, "seconds", *_variables(signal, "TIMEOUT")) or _DEFAULT_TIMEOUT
    most = number(1, "milliseconds", _PUMP_TIMEOUTS[signal])
    return make(
        signal,
        headers("ascii" if grpc else "latin-1", *_variables(signal, "HEADERS")),
        seconds if most is None else min(seconds, most / 1000),
        choice(_COMPRESSIONS[grpc], *_variables(signal, "COMPRESSION")) or "none",
        pem_file(*_variables(signal, "CERTIFICATE"), folder=not grpc),
        pem_file(*_variables(signal, "CLIENT_KEY")),
        pem_file(*_variables(signal, "CLIENT_CERTIFICATE")),
    )


def _http(
    signal: str,
    sent: dict[str, str],
    timeout: float,
    compression: str,
    authority: str | None,
    key: str | None,
    certificate: str | None,
) -> Transport:
    import requests

    variable, url, parts = _endpoint(signal, "http://localhost:4318")
    if not url.lower().startswith(("http://", "https://")):
        raise ConfigurationError(
            [
                f"{variable} is {masked_url(url)!r}. Allowed over HTTP: a URL that "
                "begins with http:// or https://."
            ]
        )
    if variable != _variables(signal, "ENDPOINT")[0]:
        # A query, such as a tenant or a key, stays behind the path. A fragment is never sent.
        path = f"{parts.path.removesuffix('/')}/v1/{signal}"
        url = parts._replace(path=path, fragment="").geturl()
    return HttpTransport(
        signal,
        {"user-agent": _AGENT, **sent},
        timeout,
        _credential_provider("HTTP", signal) or requests.Session,
        url,
        compression,
        authority,
        (certificate, key) if certificate and key else certificate,
    )


def _grpc(
    signal: str, sent: dict[str, str], timeout: float, compression: str, *files: str | None
) -> Transport:
    _, endpoint, parts = _endpoint(signal, "http://localhost:4317")
    insecure = flag(*_variables(signal, "INSECURE"))
    plain = parts.scheme == "http" if insecure is None else insecure
    credentials = None
    if parts.scheme == "https" or not plain:
        credentials = _credential_provider("GRPC", signal) or partial(_credentials, files)
    connect = partial(grpc_channel, parts.netloc or endpoint, credentials, compression, _AGENT)
    return GrpcTransport(signal, sent, timeout, connect)


def _endpoint(signal: str, default: str) -> tuple[str, str, SplitResult]:
    """Return the variable with a signal's endpoint, the endpoint, and its parts."""
    variable, url = first_set(*_variables(signal, "ENDPOINT")) or ("", default)
    try:
        return variable, url, urlsplit(url)
    except ValueError:
        # Without the cause, which may contain a secret.
        raise ConfigurationError(
            [f"{variable} is {masked_url(url)!r}. Allowed: an address such as {default}."]
        ) from None


def _credentials(files: Iterable[str | None]) -> grpc.ChannelCredentials:
    """Read the files of certificates anew for each connection: they are renewed in place."""
    from grpc import ssl_channel_credentials

    return ssl_channel_credentials(*[Path(path).read_bytes() if path else None for path in files])


def _credential_provider(protocol: str, signal: str) -> Callable[[], Any] | None:
    """Return the user's factory of a session, or of gRPC credentials, if there is one."""
    prefix = f"OTEL_PYTHON_EXPORTER_OTLP_{protocol}"
    suffix = "CREDENTIAL_PROVIDER"
    found = first_set(f"{prefix}_{signal.upper()}_{suffix}", f"{prefix}_{suffix}")
    if found is None:
        return None
    variable, name = found
    try:
        (entry,) = entry_points(group="opentelemetry_otlp_credential_provider", name=name)
        provider: Callable[[], requests.Session | grpc.ChannelCredentials] = promptly(entry.load)
    except Exception as error:
        raise ConfigurationError(
            [f"{variable} names {name!r}, which could not be loaded: {_masked(error)}."]
        ) from error
    return provider


def _speaks_grpc(signal: str, name: str) -> bool:
    if name in _OTHERS:
        return name == _OTHERS[0]
    return choice(_PROTOCOLS, *_variables(signal, "PROTOCOL")) != "http/protobuf"


def _destination(signal: str, name: str) -> Destination:
    """Return where an exporter sends a signal: for OTLP, its endpoint."""
    if name != "otlp" and name not in _OTHERS:
        return Destination(name)
    grpc = _speaks_grpc(signal, name)
    given = first_set(*_variables(signal, "ENDPOINT"))
    url = masked_url(given[1]) if given else f"http://localhost:{4317 if grpc else 4318}"
    address = Endpoint(url, "gRPC" if grpc else "HTTP")
    return Destination(str(address), address)


# ------------------------------------------------------------------------ others' exporters


def _foreign(signal: str, name: str) -> ForeignExporter:
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    group = f"opentelemetry_{signal}_exporter"
    found = list(entry_points(group=group, name=name))
    if not found and not (signal == "metrics" and name == "prometheus"):
        known = sorted({entry.name for entry in entry_points(group=group)})
        raise ConfigurationError(
            [f"{variable} names {name!r}. Installed: {', '.join(['none', *known])}."]
        )
    try:
        factory: Any = promptly(found[0].load) if found else MetricReader
        pulls = isinstance(factory, type) and issubclass(factory, MetricReader)
        # A pull exporter would open its port now.
        exporter = None if pulls else _made(variable, found[0], factory)
    except Exception as error:
        raise ConfigurationError(
            [f"{variable} names {name!r}, and that exporter could not be made: {_masked(error)}."]
        ) from error
    if not isinstance(exporter, _KINDS[signal]):
        raise ConfigurationError(
            [
                f"{variable} names {name!r}, which does not push: such exporters open a port in "
                "the scheduler's process. Allowed: push exporters such as otlp and console. "
                "Metrics that are scraped belong on the scheduler's own /metrics page "
                "(otel.metrics.prometheus)."
            ]
        )
    # The export of spans has no such argument.
    millis = number(1, "milliseconds", _PUMP_TIMEOUTS[signal]) if signal == "metrics" else None
    return ForeignExporter(signal, exporter, {"timeout_millis": millis} if millis else {})


def _made(variable: str, entry: EntryPoint, factory: Callable[[], Any]) -> Any:
    """Return an exporter. Only OpenTelemetry's own see `otel.environment`: others may wait."""
    # A user's provider of credentials is code of others.
    if entry.module.startswith(_OWN) and not any(
        name.endswith("CREDENTIAL_PROVIDER") for name in variables()
    ):
        return shown_to_sdk(factory)
    unseen = [
        name
        for name, value in sorted(variables().items())
        if name.startswith("OTEL_EXPORTER_") and os.environ.get(name) != value
    ]
    if unseen:
        logger.warning(
            "dask-otel: %s names %r, and that exporter reads the scheduler's own environment, so "
            "it does not get %s of otel.environment. Set such variables where the scheduler starts",
            variable,
            entry.name,
            ", ".join(unseen),
        )
    return promptly(factory)


def _masked(error: Exception) -> str:
    """Return an error's message without secrets: it may repeat the values of variables."""
    return mask_of_environment()(repr(error))
