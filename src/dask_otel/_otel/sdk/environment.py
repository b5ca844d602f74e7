"""The standard variables that the bridge itself reads."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote

from dask_otel._log import logger
from dask_otel._version import entry_points
from dask_otel.core.masking import masked_path
from dask_otel.core.records import Temporality
from dask_otel.core.text import shortened
from dask_otel.pump.limits import PumpLimits
from dask_otel.pump.thread import promptly
from dask_otel.settings.problems import ConfigurationError
from dask_otel.settings.rule import Rule
from dask_otel.settings.variables import environment_of

#: Shorter intervals are probably seconds instead of milliseconds, and would load the scheduler.
_LEAST_INTERVAL_MS: Final = 100
#: In seconds: a file records one run, often of minutes.
_FILE_INTERVAL: Final = 5.0
#: Three years, which means never. Some clocks raise for longer waits.
_NEVER: Final = {"seconds": 1e8, "milliseconds": 1e11}

#: A header in a variable, as OpenTelemetry's own exporters read it.
_HEADER: Final = re.compile(
    r"(?P<name>[!#-'*+\-.0-9A-Z^-z|~]+)[ \t]*=(?P<value>[ !#-+\--:<-\[\]-~\t]*)"
)

_Value = TypeVar("_Value")

#: The variables in force while a bridge's exporters are made; None elsewhere.
_in_force: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("in_force", default=None)
#: Mistakes in variables, for the doctor; None elsewhere.
_mistakes: Final[ContextVar[dict[str, None] | None]] = ContextVar("mistakes", default=None)
_process_lock: Final = threading.Lock()


def variables() -> Mapping[str, str]:
    """Return the ``OTEL_*`` variables in force: in `defaults_for_environment`, with defaults."""
    return _in_force.get() or environment_of({})


@contextmanager
def defaults_for_environment(defaults: Mapping[str, str], win: bool = False) -> Iterator[None]:
    """Let `variables` return defaults for those that are missing, in this thread alone.

    The process's own environment stays as it is: it may contain no secret of the bridge's, since
    processes that start meanwhile, such as workers, inherit it.

    Parameters
    ----------
    defaults
        Variables with their values.
    win
        Whether they override the environment, because it belongs to an application.
    """
    token = _in_force.set(environment_of(defaults, win))
    try:
        yield
    finally:
        _in_force.reset(token)


def shown_to_sdk(make: Callable[[], _Value]) -> _Value:
    """Return the result of one call that can't block, with `variables` as the environment.

    Some of the SDK's parts read only ``os.environ``: there is no argument to pass instead. A
    process that starts at this very moment inherits it, so the call may not wait, nor run code of
    others. Nothing is changed without defaults, but for blank variables, which several of the SDK's
    parts take for values: these are hidden. Afterwards the environment is restored.
    """
    shown = variables()
    with _process_lock:
        hidden = {
            key: value
            for key, value in os.environ.items()
            if key.startswith("OTEL_") and shown.get(key) != value
        }
        for key in hidden:
            os.environ.pop(key, None)
        ours = {key: value for key, value in shown.items() if key not in os.environ}
        os.environ.update(ours)
        try:
            return make()
        finally:
            for key in ours:
                os.environ.pop(key, None)
            os.environ.update(hidden)


def known_variables() -> set[str]:
    """Return the variables that OpenTelemetry's installed packages declare."""
    modules = [entry.load() for entry in entry_points(group="opentelemetry_environment_variables")]
    return {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, str) and value.startswith("OTEL_")
    }


def first_set(*names: str) -> tuple[str, str] | None:
    """Return the name and value of the first variable that is set."""
    values = ((name, variables().get(name, "").strip()) for name in names)
    return next((found for found in values if found[1]), None)


def _read(
    parse: Callable[[str], _Value],
    allowed: str,
    names: Sequence[str],
    shown: Callable[[str], str] = lambda text: repr(shortened(text, 100)),
) -> _Value | None:
    """Return the parsed value of the first variable that is set; None if none is.

    A `_Refusal` explains the error in the value; any other ``ValueError`` means only that it is
    wrong. `shown` returns the value for the message, since it may be secret.
    """
    found = first_set(*names)
    if found is None:
        return None
    variable, text = found
    try:
        return parse(text)
    except ValueError as error:
        problem = str(error) if isinstance(error, _Refusal) else ""
        message = f"{variable} is {shown(text)}{problem}. Allowed: {allowed}."
        # Without the cause, which may contain the value.
        raise ConfigurationError([message]) from None


class _Refusal(ValueError):
    """The error in a value, as the end of a sentence."""


@contextmanager
def mistakes() -> Iterator[dict[str, None]]:
    """Keep this thread's `mistaken` values from the log; yield them in words, each once."""
    found: dict[str, None] = {}
    token = _mistakes.set(found)
    try:
        yield found
    finally:
        _mistakes.reset(token)


def mistaken(variable: str, text: str, effect: str, allowed: str = "") -> None:
    """Report a wrong value that must not be an error, as specified; `effect` is what happens."""
    said = f"{variable} is {shortened(text, 100)!r}, {effect}."
    said += f" Allowed: {allowed}." if allowed else ""
    if (found := _mistakes.get()) is not None:
        found[said] = None
    else:
        logger.warning("dask-otel: %s", said)


def choice(allowed: Sequence[str], *variables: str) -> str | None:
    """Return the value of the first variable that is set, in lower case; None if none is.

    Raises
    ------
    ConfigurationError
        If it is not allowed.
    """
    return _read(lambda text: allowed[allowed.index(text.lower())], ", ".join(allowed), variables)


def flag(*variables: str) -> bool | None:
    """Return the value of the first variable that is set; None if none is.

    As specified, all but true is false; what is neither is `mistaken`.
    """
    if (found := first_set(*variables)) is None:
        return None
    name, text = found
    if text.lower() not in ("true", "false"):
        mistaken(name, text, "which means false", "true, false")
    return text.lower() == "true"


def is_disabled() -> bool:
    """Whether ``OTEL_SDK_DISABLED`` switches everything off."""
    return flag("OTEL_SDK_DISABLED") or False


def number(least: float, unit: str, *variables: str) -> float | None:
    """Return the value of the first variable that is set; None if none is.

    Raises
    ------
    ConfigurationError
        If it is not a finite number, or too small.
    """
    rule = Rule(
        f"a number of {unit}, {least:g} or more",
        {"minimum": least, "maximum": sys.float_info.max},
        float,
    )
    found: float | None = _read(rule.parse, rule.allowed, variables)
    return None if found is None else min(found, _NEVER[unit])


def count(variable: str, least: int) -> int | None:
    """Return the value of a variable with a whole number; None if it is not set.

    Raises
    ------
    ConfigurationError
        If it is not a whole number, or too small.
    """
    limits = {"minimum": least, "maximum": sys.maxsize}
    rule = Rule(f"a whole number, {least} or more", limits, int)
    return _read(rule.parse, rule.allowed, [variable])


def pem_file(*variables: str, folder: bool = False) -> str | None:
    """Return the path of a PEM file in the first variable that is set; None if none is.

    Parameters
    ----------
    variables
        Their names.
    folder
        Whether a folder of such files is allowed too.

    Raises
    ------
    ConfigurationError
        If the file can't be read, or contains no PEM.
    """

    def parse(text: str) -> str:
        try:
            if not promptly(
                lambda: (
                    (folder and Path(text).is_dir()) or b"-----BEGIN " in Path(text).read_bytes()
                )
            ):
                raise _Refusal(": it holds nothing in PEM format")
        except OSError as error:
            raise _Refusal(f": {error.strerror or error}") from None
        return text

    allowed = "a file in PEM format that the scheduler can read"
    # Some users put the key itself there, instead of its file's name.
    return _read(
        parse,
        f"{allowed}, or a folder of such files" if folder else allowed,
        variables,
        lambda text: repr(masked_path(text)),
    )


def headers(charset: str, *variables: str) -> dict[str, str]:
    """Return the headers in the first variable that is set; messages never contain a value.

    Parameters
    ----------
    charset
        The charset of decoded values.
    variables
        Their names.

    Raises
    ------
    ConfigurationError
        If a header can't be sent.
    """

    def parse(text: str) -> dict[str, str]:
        items = {place: item.strip() for place, item in enumerate(text.split(","), 1)}
        read = {place: _header(item, charset) for place, item in items.items() if item}
        wrong = [str(place) for place, header in read.items() if header is None]
        if wrong:
            raise _Refusal(
                " (not shown, as it may be secret), and of its items, which commas separate, "
                f"no. {', '.join(wrong)} is no header"
            )
        return dict(header for header in read.values() if header is not None)

    allowed = (
        "name=value, with anything but plain letters, digits and signs percent-encoded, and "
        f"without control characters or characters outside {charset.upper()}"
    )
    return _read(parse, allowed, variables, lambda _: "'…'") or {}


def _header(item: str, charset: str) -> tuple[str, str] | None:
    """Return name and value of a header; None if it can't be sent."""
    found = _HEADER.fullmatch(item)
    value = unquote(found["value"]).strip() if found else ""
    # A character outside the charset becomes another one.
    printable = value.isprintable() and value.encode(charset, "replace").decode(charset) == value
    return (found["name"].lower(), value) if found and printable else None


@dataclass(frozen=True, slots=True)
class Environment:
    """The pump's settings in the standard variables. Times in seconds."""

    spans: PumpLimits
    logs: PumpLimits
    metric_interval: float
    #: The same for files; None if the variable is set, and so applies to all.
    file_interval: float | None
    temporality: Temporality
    #: The filter for exemplars.
    exemplars: str


def read_environment() -> Environment:
    """Read the standard variables of the pump.

    Raises
    ------
    ConfigurationError
        If one has a value that is not allowed.
    """
    interval = number(_LEAST_INTERVAL_MS, "milliseconds", "OTEL_METRIC_EXPORT_INTERVAL")
    preference = choice(
        ("cumulative", "delta", "lowmemory"), "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    )
    exemplars = choice(("always_on", "always_off", "trace_based"), "OTEL_METRICS_EXEMPLAR_FILTER")
    return Environment(
        spans=_batching("OTEL_BSP"),
        logs=_batching("OTEL_BLRP"),
        metric_interval=60.0 if interval is None else interval / 1000,
        file_interval=_FILE_INTERVAL if interval is None else None,
        # Both mean delta for synchronous counters and histograms, and ours behave as such.
        temporality="delta" if preference in ("delta", "lowmemory") else "cumulative",
        exemplars=exemplars or "trace_based",
    )


def _batching(prefix: str) -> PumpLimits:
    default = PumpLimits()
    queue_size = count(f"{prefix}_MAX_QUEUE_SIZE", 1) or default.queue_size
    batch_size = count(f"{prefix}_MAX_EXPORT_BATCH_SIZE", 1) or min(default.batch_size, queue_size)
    if batch_size > queue_size:
        raise ConfigurationError(
            [
                f"{prefix}_MAX_EXPORT_BATCH_SIZE is '{batch_size}'. Allowed: at most "
                f"{prefix}_MAX_QUEUE_SIZE, which is {queue_size}."
            ]
        )
    delay = number(0, "milliseconds", f"{prefix}_SCHEDULE_DELAY")
    return PumpLimits(
        queue_size, batch_size, default.schedule_delay if delay is None else delay / 1000
    )
