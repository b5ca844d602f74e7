"""The messages in the scheduler's log about an invalid configuration."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dask_otel.core.masking import Mask
from dask_otel.core.text import shortened

ALL_KEYS: Final = (
    "All keys and variables: https://dask-otel.readthedocs.io/en/stable/configuration.html"
)


class ConfigurationError(ValueError):
    """The configuration has unknown keys or invalid values.

    Parameters
    ----------
    problems
        One line for each problem: full key, value, allowed values.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        # The only argument, so that the error can be pickled (from scheduler to client).
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.problems[0]} {ALL_KEYS}"
        # Still on one line, because a log prints it after time and level.
        listed = " ".join(f"({n}) {problem}" for n, problem in enumerate(self.problems, 1))
        return f"{len(self.problems)} problems: {listed} {ALL_KEYS}"


#: Expected keys for which OpenTelemetry has a standard variable instead.
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
#: Not `otel.spans.task-keys`.
_SECRET: Final = re.compile(
    r"auth|cert|cred|environ|header|(?<!task-)key|pass|secret|token", re.IGNORECASE
)


def bad_value(key: str, value: Any, source: str, allowed: str) -> str:
    """Return the line for an invalid value of a key."""
    return f"{assignment(key, value)}, in {source}, is not valid. Allowed: {allowed}."


def unknown_key(
    section: str, name: str, value: Any, source: str, keys: Mapping[str, Iterable[str]]
) -> str:
    """Return the line for an unknown key, with the key that was probably meant.

    `name` is unknown in `section`, the full key of a known one; `keys` has all sections' names.
    """
    # Below a section that does not exist, as in otel.exporter.endpoint, a key can be right.
    names = [name, *map(key_text, value if isinstance(value, Mapping) else ())]
    advice = next(filter(None, (_advice(one, section, keys) for one in names)), "")
    found = f"{assignment(f'{section}.{name}', value)}, in {source}: there is no such key."
    return f"{found}{advice} Allowed in {section}: {', '.join(keys[section])}."


def _advice(name: str, section: str, keys: Mapping[str, Iterable[str]]) -> str:
    leaf = name.lower().replace("_", "-")[:64]
    if standard := _STANDARD.get(leaf):
        return f" Use the standard variable {standard}, or otel.environment.{standard}."
    for where in (section, *keys):  # the same section first
        # Not otel.report for otel.exporter.
        if close := difflib.get_close_matches(leaf, keys[where], n=1, cutoff=0.8):
            return f" Did you mean {where}.{close[0]}?"
    return ""


def assignment(key: str, value: Any) -> str:
    """Return ``key = value`` for a log, without possible credentials."""
    if isinstance(value, Mapping):
        return f"{key} = (a mapping)"
    if _SECRET.search(key):
        return f"{key} = ({type(value).__name__}, not shown: it may be secret)"
    return f"{key} = {_short(value)}"


def key_text(name: Any) -> str:
    """Return a key of any type as text for a log."""
    # Not a subclass, whose str() may be anything.
    return name if type(name) is str and name.isprintable() else _short(name)


def _short(value: Any) -> str:
    try:
        text = Mask()(" ".join(repr(value)[:2000].split()))
    except Exception:  # noqa: BLE001 - a broken repr, an int too long to print: report all the same
        return f"(a {type(value).__name__})"
    return shortened(text, 100)
