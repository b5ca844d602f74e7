"""Where each setting comes from: a person who sees a value wants to know where to change it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import dask.config

from dask_otel.core.masking import Mask, masked_variable
from dask_otel.settings.keys import Settings
from dask_otel.settings.problems import ConfigurationError
from dask_otel.settings.reading import flat, read_settings

DEFAULT: Final = "default"
#: Characters of a value.
_LONGEST: Final = 120
_INHERITED: Final = "DASK_INTERNAL_INHERIT_CONFIG"


class InForce(NamedTuple):
    """One setting as it is in force."""

    key: str
    #: As it may be shown.
    value: str
    #: ``default``, a YAML file's path, an environment variable, ``register()``, or Python code.
    origin: str


def settings_in_force(
    settings: Settings, overrides: Mapping[str, Any] | None = None
) -> list[InForce]:
    """Return every key of the section ``otel`` with its value and where it comes from.

    Parameters
    ----------
    settings
        As they are in force.
    overrides
        What ``dask_otel.register`` was given.
    """
    values, defaults = flat(settings), flat(Settings())
    sources = [
        *((origin, _parsed(given)) for origin, given in _sources()),
        ("register()", _parsed({"otel": dict(overrides or {})})),
    ]
    return [
        InForce(key, _shown(key, value), _origin(key, value, defaults, sources))
        for key, value in values.items()
    ]


def _origin(
    key: str,
    value: Any,
    defaults: Mapping[str, Any],
    sources: list[tuple[str, Mapping[str, Any]]],
) -> str:
    # The last one that gives this value has won.
    for origin, given in reversed(sources):
        if key in given and given[key] == value:
            return _variable_of(key) if origin == "environment" else origin
    return DEFAULT if key in defaults and defaults[key] == value else "dask.config.set, in Python"


def _variable_of(key: str) -> str:
    return "DASK_" + key.upper().replace(".", "__").replace("-", "_")


def _sources() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what Dask reads, in the order in which later ones win."""
    with suppress(Exception):  # a file that can't be read any more: its values stay unnamed
        for path, data in dask.config.collect_yaml(dask.config.paths, return_paths=True):
            yield str(path), data
    inherited = os.environ.get(_INHERITED)
    if inherited:
        with suppress(Exception):  # not ours: its values stay unnamed
            yield "the process that started this one", dask.config.deserialize(inherited)
    own = {name: value for name, value in os.environ.items() if name != _INHERITED}
    yield "environment", dask.config.collect_env(own)


def _parsed(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys that a source gives, with the values that are made of them."""
    given = data.get("otel") if isinstance(data, Mapping) else None
    if not isinstance(given, Mapping):
        return {}
    try:
        parsed = flat(read_settings(given, own=True))
    except ConfigurationError:
        return {}
    return {key: value for key, value in parsed.items() if _gives(given, key.split(".")[1:])}


def _gives(given: Mapping[str, Any], path: list[str]) -> bool:
    """Whether a mapping has a key, however it is spelled."""
    wanted = ".".join(path).replace("_", "-").lower()
    return any(name == wanted or name.startswith(f"{wanted}.") for name in _names(given))


def _names(given: Any, before: str = "") -> Iterator[str]:
    if not isinstance(given, Mapping):
        return
    for key, value in given.items():
        name = f"{before}{str(key).replace('_', '-').lower()}"
        yield name
        yield from _names(value, f"{name}.")


def _shown(key: str, value: Any) -> str:
    if key.startswith("otel.environment."):
        return masked_variable(key.rpartition(".")[2], str(value))
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = f"{value:g}" if isinstance(value, float) else Mask()(str(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def variables_in_force(environment: Mapping[str, str], win: bool = False) -> list[InForce]:
    """Return the ``OTEL_*`` variables that are set, masked, with their origins.

    Parameters
    ----------
    environment
        ``otel.environment``: for variables that the process's own environment does not set.
    win
        Whether they count although it sets them: with a provider of the bridge's own.
    """
    own = environment_of({})
    return [
        InForce(
            name,
            masked_variable(name, value),
            "environment"
            if name in own and not (win and name in environment)
            else "otel.environment",
        )
        for name, value in sorted(environment_of(environment, win).items())
    ]


def environment_of(defaults: Mapping[str, str], win: bool = False) -> dict[str, str]:
    """Return the ``OTEL_*`` variables that are set, over defaults for those that are not.

    With `win` the defaults are over them, as in ``defaults_for_environment``.
    """
    own = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("OTEL_") and value.strip()
    }
    return {**own, **defaults} if win else {**defaults, **own}
