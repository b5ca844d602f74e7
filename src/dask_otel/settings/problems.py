"""What a person reads in the scheduler's log when the configuration is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dask_otel.core.masking import Mask

_WHERE: Final = "All keys: https://github.com/dask-otel/dask-otel/blob/main/docs/configuration.md"


class ConfigurationError(ValueError):
    """The configuration holds keys or values that the bridge does not know.

    Parameters
    ----------
    problems
        One line for each problem: full key, value, what is allowed.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        # The only argument, so that the error survives pickling (from scheduler to client).
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.problems[0]} {_WHERE}"
        # One line all the same: it stands in a log, after time and level.
        listed = " ".join(f"({n}) {problem}" for n, problem in enumerate(self.problems, 1))
        return f"{len(self.problems)} problems: {listed} {_WHERE}"


#: What people look for here although OpenTelemetry has a standard variable for it.
_STANDARD: Final[Mapping[str, str]] = {
    "endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "protocol": "OTEL_EXPORTER_OTLP_PROTOCOL",
    "headers": "OTEL_EXPORTER_OTLP_HEADERS",
    "certificate": "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "compression": "OTEL_EXPORTER_OTLP_COMPRESSION",
    "timeout": "OTEL_EXPORTER_OTLP_TIMEOUT",
    "service-name": "OTEL_SERVICE_NAME",
    "resource-attributes": "OTEL_RESOURCE_ATTRIBUTES",
    "sampler": "OTEL_TRACES_SAMPLER",
}
_SECRET: Final = re.compile(r"auth|cert|cred|environ|header|key|pass|secret|token", re.IGNORECASE)
_MASK: Final = Mask()


def bad_value(key: str, value: Any, source: str, allowed: str) -> str:
    """Return the line for a value that the key does not take."""
    return f"{_assignment(key, value)}, in {source}, is not valid. Allowed: {allowed}."


def given_twice(key: str, source: str) -> str:
    """Return the line for a key that one source spells in two ways."""
    return f"{key} is given twice in {source}, once with _ and once with -. Keep one of them."


def not_a_clients(key: str, source: str) -> str:
    """Return the line for a key that a client may not set."""
    return (
        f"{key}, in {source}, is refused: it names code that runs on the scheduler, and is taken "
        "from the scheduler's own configuration alone."
    )


def bad_variable_name(name: str, value: Any, source: str) -> str:
    """Return the line for a name below ``otel.environment`` that is no OTEL_* variable."""
    key = f"otel.environment.{name}"
    return f"{_assignment(key, value)}, in {source}: a name here must begin with OTEL_."


def unknown_key(
    section: str, name: str, value: Any, source: str, keys: Mapping[str, Iterable[str]]
) -> str:
    """Return the line for an unknown key, with what was probably meant.

    Parameters
    ----------
    section, name
        The full key of a known section, and the name in it that is unknown.
    value, source
        What it was set to, and where.
    keys
        Full key of each section: the names in it.
    """
    leaf = name.lower().replace("_", "-").rpartition(".")[2][:64]
    if standard := _STANDARD.get(leaf):
        advice = f" Use the standard variable {standard}, or otel.environment.{standard}."
    elif meant := _near_miss(leaf, section, keys):
        advice = f" Did you mean {meant}?"
    else:
        advice = ""
    found = f"{_assignment(f'{section}.{name}', value)}, in {source}: there is no such key."
    return f"{found}{advice} Allowed in {section}: {', '.join(keys[section])}."


def _near_miss(leaf: str, section: str, keys: Mapping[str, Iterable[str]]) -> str | None:
    for where in (section, *keys):  # the same section first
        if close := difflib.get_close_matches(leaf, keys[where], n=1, cutoff=0.7):
            return f"{where}.{close[0]}"
    return None


def _assignment(key: str, value: Any) -> str:
    """Return ``key = value`` without what may be a credential: this goes into a log."""
    if isinstance(value, Mapping):
        return f"{key} = (a mapping)"
    if _SECRET.search(key):
        return f"{key} = ({type(value).__name__}, not shown: it may be secret)"
    return f"{key} = {_short(value)}"


def key_text(name: Any) -> str:
    """Return a key of any type as text that any log can print."""
    # No subclass: what its str() says is its own.
    return name if type(name) is str and name.isprintable() else _short(name)


def _short(value: Any) -> str:
    try:
        text = _MASK(" ".join(repr(value)[:2000].split()))
    except Exception:  # noqa: BLE001 - a broken repr, an int too long to print: report all the same
        return f"(a {type(value).__name__})"
    return text if len(text) <= 100 else f"{text[:99]}…"
