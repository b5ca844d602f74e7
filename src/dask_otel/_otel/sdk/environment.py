"""The standard variables that the bridge itself obeys, and how it reads them."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from dask_otel.core.masking import masked_path
from dask_otel.core.records import Temporality
from dask_otel.settings.problems import ConfigurationError

#: Shorter intervals are seconds taken for milliseconds, and would keep the scheduler busy.
_LEAST_INTERVAL_MS: Final = 100
#: Seconds: what is in files is read as the story of one run, often of minutes.
_FILE_INTERVAL: Final = 5.0
#: Three years: as good as never, and what every clock can wait for. Of longer times some raise.
_NEVER: Final = {"seconds": 1e8, "milliseconds": 1e11}
#: Digits of a count. Python reads no number of thousands of them.
_DIGITS: Final = 15
_QUEUE_SIZE: Final = 2048
#: Smaller than the SDK's 512, because a batch that fails is sent again as a whole.
_BATCH_SIZE: Final = 128

#: A header in a variable, as OpenTelemetry's own exporters read it.
_HEADER: Final = re.compile(
    r"(?P<name>[!#-'*+\-.0-9A-Z^-z|~]+)[ \t]*=(?P<value>[ !#-+\--:<-\[\]-~\t]*)"
)

_environment_lock = threading.Lock()


@contextmanager
def defaults_for_environment(defaults: Mapping[str, str], win: bool = False) -> Iterator[None]:
    """Set variables that the environment does not set, for as long as exporters are made.

    Parameters
    ----------
    defaults
        Variables with their values.
    win
        Whether they count although the environment sets them, because that is an application's.

    Notes
    -----
    The SDK's parts read ``os.environ`` and nothing else, the exporters' loaders and the resource's
    detectors among them: there is no argument to pass instead. It takes 20 ms, 150 ms where the
    exporters are imported, and changes nothing where there are no defaults of ours. A blank
    ``OTEL_*`` variable counts as not set, as specified; several of the SDK's parts take
    it for a value, so it is hidden from them. Afterwards the environment is as it was.
    """
    with _environment_lock:
        hidden = {
            key: value
            for key, value in os.environ.items()
            if key.startswith("OTEL_") and (not value.strip() or (win and key in defaults))
        }
        for key in hidden:
            del os.environ[key]
        ours = {key: value for key, value in defaults.items() if key not in os.environ}
        os.environ.update(ours)
        try:
            yield
        finally:
            for key in ours:
                os.environ.pop(key, None)
            os.environ.update(hidden)


def known_variables() -> set[str]:
    """Return the variables that OpenTelemetry's installed packages say they read."""
    modules = [entry.load() for entry in entry_points(group="opentelemetry_environment_variables")]
    values = [value for module in modules for value in vars(module).values()]
    return {value for value in values if isinstance(value, str) and value.startswith("OTEL_")}


def is_disabled() -> bool:
    """Whether ``OTEL_SDK_DISABLED`` switches everything off."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def first_set(*variables: str) -> tuple[str, str] | None:
    """Return name and value of the first of some variables that is set."""
    for variable in variables:
        value = os.environ.get(variable, "").strip()
        if value:
            return variable, value
    return None


def _short(text: str) -> str:
    """Return a value as it is shown to people: a mistake can be of any length."""
    return repr(text) if len(text) <= 100 else f"{text[:99]!r}…"


def choice(allowed: Sequence[str], *variables: str) -> str | None:
    """Return the value of the first variable that is set, in lower case; None if none is.

    Raises
    ------
    ConfigurationError
        If it is none of the allowed ones.
    """
    found = first_set(*variables)
    if found is None:
        return None
    variable, value = found
    if value.lower() not in allowed:
        raise ConfigurationError([f"{variable} is {_short(value)}. Allowed: {', '.join(allowed)}."])
    return value.lower()


def number(least: float, unit: str, *variables: str) -> float | None:
    """Return the value of the first variable that is set; None if none is.

    Raises
    ------
    ConfigurationError
        If it is no finite number, or too small.
    """
    found = first_set(*variables)
    if found is None:
        return None
    variable, text = found
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise ConfigurationError(
            [f"{variable} is {_short(text)}. Allowed: a number of {unit}, {least:g} or more."]
        )
    return min(value, _NEVER[unit])


def count(variable: str, least: int) -> int | None:
    """Return the value of a variable that holds a whole number; None if it is not set.

    Raises
    ------
    ConfigurationError
        If it holds something else, or too little.
    """
    found = first_set(variable)
    if found is None:
        return None
    digits = found[1].isascii() and found[1].isdigit() and len(found[1]) <= _DIGITS
    if not (digits and int(found[1]) >= least):
        raise ConfigurationError(
            [f"{variable} is {_short(found[1])}. Allowed: a whole number, {least} or more."]
        )
    return int(found[1])


def check_pem(variable: str, *, folder: bool = False) -> None:
    """Check the file that a variable names, if it is set.

    Parameters
    ----------
    variable
        Its name.
    folder
        Whether it may name a folder as well.

    Raises
    ------
    ConfigurationError
        If the file can't be read, or holds nothing of the kind.
    """
    found = first_set(variable)
    if found is None:
        return
    path = Path(found[1])
    try:
        if folder and path.is_dir():
            return
        problem = "" if b"-----BEGIN " in path.read_bytes() else "it holds nothing in PEM format"
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
    if problem:
        raise ConfigurationError(
            [
                # People put the key itself there, where its file's name belongs.
                f"{variable} is {masked_path(found[1])!r}: {problem}. Allowed: a file in PEM "
                "format that the scheduler can read"
                f"{', or a folder of such files' if folder else ''}."
            ]
        )


def headers(charset: str, *variables: str) -> dict[str, str]:
    """Return the headers in the first variable that is set; no value of it is told.

    Parameters
    ----------
    charset
        What values may consist of, once decoded.
    variables
        Their names.

    Raises
    ------
    ConfigurationError
        If there is one that could not be sent.
    """
    found = first_set(*variables)
    if found is None:
        return {}
    read: dict[str, str] = {}
    wrong = []
    for place, item in enumerate(found[1].split(","), 1):
        header = _HEADER.fullmatch(item.strip())
        if _is_header(header, charset):
            assert header is not None
            read[header["name"].lower()] = unquote(header["value"]).strip()
        elif item.strip():
            wrong.append(place)
    if wrong:
        raise ConfigurationError(
            [
                f"{found[0]} is '…' (not shown, as it may be secret), and of its items, which "
                f"commas separate, no. {', '.join(map(str, wrong))} is no header. Allowed: "
                "name=value, with anything but plain letters, digits and signs percent-encoded, "
                f"and without control characters or what is no {charset.upper()}."
            ]
        )
    return read


def _is_header(found: re.Match[str] | None, charset: str) -> bool:
    if found is None:
        return False
    value = unquote(found["value"]).strip()
    try:
        value.encode(charset)
    except UnicodeEncodeError:
        return False
    return value.isprintable()


@dataclass(frozen=True, slots=True)
class Environment:
    """What the standard variables say about the pump. Times in seconds."""

    queue_size: int
    batch_size: int
    schedule_delay: float
    metric_interval: float
    #: The same for files; None where the variable says it for all.
    file_interval: float | None
    temporality: Temporality
    #: Which measurements may have exemplars.
    exemplars: str


def read_environment() -> Environment:
    """Read the standard variables that the pump obeys.

    Raises
    ------
    ConfigurationError
        If one has a value that is not allowed.
    """
    queue_size = count("OTEL_BSP_MAX_QUEUE_SIZE", 1) or _QUEUE_SIZE
    batch_size = count("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1) or min(_BATCH_SIZE, queue_size)
    if batch_size > queue_size:
        raise ConfigurationError(
            [
                f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE is '{batch_size}'. Allowed: at most "
                f"OTEL_BSP_MAX_QUEUE_SIZE, which is {queue_size}."
            ]
        )
    delay = number(0, "milliseconds", "OTEL_BSP_SCHEDULE_DELAY")
    interval = number(_LEAST_INTERVAL_MS, "milliseconds", "OTEL_METRIC_EXPORT_INTERVAL")
    preference = choice(
        ("cumulative", "delta", "lowmemory"), "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    )
    exemplars = choice(("always_on", "always_off", "trace_based"), "OTEL_METRICS_EXEMPLAR_FILTER")
    return Environment(
        queue_size=queue_size,
        batch_size=batch_size,
        schedule_delay=1.0 if delay is None else delay / 1000,
        metric_interval=60.0 if interval is None else interval / 1000,
        file_interval=_FILE_INTERVAL if interval is None else None,
        # Both mean delta for synchronous counters and histograms, and ours behave as such.
        temporality="delta" if preference in ("delta", "lowmemory") else "cumulative",
        exemplars=exemplars or "trace_based",
    )
