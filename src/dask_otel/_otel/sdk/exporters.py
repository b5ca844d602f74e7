"""Exporters, as the standard variables name them."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, Final

from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader
from opentelemetry.sdk.trace.export import SpanExporter

from dask_otel._otel.sdk.answers import Answers, mask_of_environment
from dask_otel._otel.sdk.environment import (
    check_headers,
    check_pem,
    choice,
    first_set,
    number,
)
from dask_otel._otel.sdk.internal import InternalMetrics
from dask_otel._otel.sdk.watching import watch_stub, watched_session
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.masking import masked_url
from dask_otel.settings.problems import ConfigurationError

_GROUPS: Final = {
    "traces": "opentelemetry_traces_exporter",
    "metrics": "opentelemetry_metrics_exporter",
}
_KINDS: Final = {"traces": SpanExporter, "metrics": MetricExporter}
_OTLP_BY_PROTOCOL: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_OTLP_NAMES: Final = frozenset({"otlp", *_OTLP_BY_PROTOCOL.values()})
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
#: Of OTLP exporters, in seconds.
_DEFAULT_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True)
class NamedExporter:
    """An exporter, and what goes with it."""

    #: What a person needs to recognise it: its name or endpoint.
    label: str
    exporter: Any
    #: The answers that it gets, if it speaks OTLP.
    answers: Answers | None
    #: What a person can do where it fails; empty for what helps with an endpoint.
    advice: str = ""
    #: Whether somebody named it, or the server that it sends to.
    named: bool = True
    #: What its spans have in the spool: its name in OTEL_TRACES_EXPORTER. None where what it got
    #: has arrived, so that nothing waits.
    key: str | None = None


def make_exporters(signal: str, internal: InternalMetrics | None = None) -> list[NamedExporter]:
    """Make the exporters of a signal.

    Parameters
    ----------
    signal
        ``"traces"`` or ``"metrics"``.
    internal
        Where they count what they do.

    Raises
    ------
    ConfigurationError
        If there is no such exporter, it can't be made, or it is one that opens a port.
    """
    exporters: list[NamedExporter] = []
    try:
        for name in exporter_names(signal):
            one = _make(signal, name, internal)
            if one.key and any(one.key == other.key for other in exporters):
                # Both of OTLP's: each has rows of its own.
                one = replace(one, key=name)
            exporters.append(one)
    except ConfigurationError:
        shut_down(exporters)
        raise
    return exporters


def destinations(signal: str) -> list[str]:
    """Return the labels of a signal's exporters, without making them.

    Raises
    ------
    ConfigurationError
        If the protocol is unknown.
    """
    return [_label(signal, name) for name in exporter_names(signal)]


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


def shut_down(exporters: list[NamedExporter]) -> None:
    """Release exporters that will not be used."""
    for one in exporters:
        one.exporter.shutdown()


def exporter_names(signal: str) -> list[str]:
    """Return the entry point names of a signal's exporters, as the standard variables say.

    Raises
    ------
    ConfigurationError
        If the protocol is unknown.
    """
    found = first_set(f"OTEL_{signal.upper()}_EXPORTER")
    wanted = [name.strip() for name in (found[1] if found else "otlp").split(",")]
    names = [
        _otlp_entry_point(signal) if name == "otlp" else name
        for name in wanted
        if name and name.lower() != "none"
    ]
    # A name given twice would export everything twice.
    return list(dict.fromkeys(names))


def _variables(signal: str, what: str) -> tuple[str, str]:
    """Return the variables of an OTLP exporter's option, the one that wins first."""
    return f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}", f"OTEL_EXPORTER_OTLP_{what}"


def _otlp_entry_point(signal: str) -> str:
    protocol = choice(tuple(_OTLP_BY_PROTOCOL), *_variables(signal, "PROTOCOL"))
    return _OTLP_BY_PROTOCOL[protocol or "grpc"]


def _make(signal: str, name: str, internal: InternalMetrics | None) -> NamedExporter:
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    found = list(entry_points(group=_GROUPS[signal], name=name))
    if not found and not (signal == "metrics" and name == "prometheus"):
        known = sorted({entry.name for entry in entry_points(group=_GROUPS[signal])})
        raise ConfigurationError(
            [f"{variable} names {name!r}. Installed: {', '.join(['none', *known])}."]
        )
    answers = None
    options: dict[str, Any] = {}
    if name in _OTLP_NAMES:
        options = _otlp_options(signal, grpc=name == "otlp_proto_grpc")
    if name == "otlp_proto_http" and not _has_credential_provider(signal):
        answers = Answers(mask_of_environment())
        options["session"] = watched_session(signal, answers)
    try:
        factory = found[0].load() if found else MetricReader
        # Before it is made: a pull exporter opens its port then.
        if isinstance(factory, type) and issubclass(factory, MetricReader):
            raise _pull_exporter(variable, name)
        if internal is not None and name in _OTLP_NAMES:
            options |= internal.options(factory)
        exporter = factory(**options)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            [f"{variable} names {name!r}, and that exporter could not be made: {_shown(error)}."]
        ) from error
    if not isinstance(exporter, _KINDS[signal]):
        raise _pull_exporter(variable, name)
    if name == "otlp_proto_grpc":
        seen = Answers(mask_of_environment())
        answers = seen if watch_stub(signal, exporter, seen) else None
    named = name not in _OTLP_NAMES or is_named(signal)
    return NamedExporter(_label(signal, name), exporter, answers, named=named, key=_key(name))


def _key(name: str) -> str | None:
    """Return the same for OTLP whatever the protocol: what waits may go by another one."""
    if name in _OTLP_NAMES:
        return "otlp"
    return None if name == "console" else name


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


def _has_credential_provider(signal: str) -> bool:
    """Whether the HTTP exporter gets a session from somebody else, which we must not replace."""
    return bool(
        first_set(
            "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
            f"OTEL_PYTHON_EXPORTER_OTLP_HTTP_{signal.upper()}_CREDENTIAL_PROVIDER",
        )
    )


def _otlp_options(signal: str, grpc: bool) -> dict[str, Any]:
    """Return what an OTLP exporter would not, or wrongly, read from the variables itself."""
    _check(signal, grpc)
    options: dict[str, Any] = {}
    allowed = ("none", "gzip") if grpc else ("none", "gzip", "deflate")
    compression = choice(allowed, *_variables(signal, "COMPRESSION"))
    if grpc and compression:
        # `none` is a standard value, and raises in the gRPC exporter.
        from grpc import Compression

        options["compression"] = (
            Compression.Gzip if compression == "gzip" else Compression.NoCompression
        )
    own = number(0.001, "seconds", *_variables(signal, "TIMEOUT"))
    pump = number(1, "milliseconds", _PUMP_TIMEOUTS[signal])
    if own is not None or pump is not None:
        seconds = _DEFAULT_TIMEOUT if own is None else own
        options["timeout"] = seconds if pump is None else min(seconds, pump / 1000)
    return options


def _check(signal: str, grpc: bool) -> None:
    """Raise what an exporter would go without, with a message of its own at most."""
    for what in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"):
        for variable in _variables(signal, what):
            check_pem(variable, folder=what == "CERTIFICATE" and not grpc)
    for variable in _variables(signal, "HEADERS"):
        check_headers(variable, "ascii" if grpc else "latin-1")
    endpoint = first_set(*_variables(signal, "ENDPOINT"))
    if endpoint and not grpc and not endpoint[1].lower().startswith(("http://", "https://")):
        raise ConfigurationError(
            [
                f"{endpoint[0]} is {masked_url(endpoint[1])!r}. Allowed over HTTP: a URL that "
                "begins with http:// or https://."
            ]
        )


def _label(signal: str, name: str) -> str:
    if name not in _OTLP_NAMES:
        return name
    http = name == "otlp_proto_http"
    found = first_set(*_variables(signal, "ENDPOINT"))
    default = f"http://localhost:{4318 if http else 4317}"
    return str(Endpoint(masked_url(found[1]) if found else default, "HTTP" if http else "gRPC"))


def export_timeout_millis(signal: str) -> float | None:
    """Return what the pump's own variable says about one export, if it is set."""
    return number(1, "milliseconds", _PUMP_TIMEOUTS[signal])
