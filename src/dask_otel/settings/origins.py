"""The origin of each setting, so that people know where to change it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import dask.config

from dask_otel.core.masking import Mask, masked_variable, secrets_of
from dask_otel.core.text import shortened
from dask_otel.settings.keys import Settings
from dask_otel.settings.reading import DEFAULTS, flat, valid_values
from dask_otel.settings.variables import environment_of

DEFAULT: Final = "default"
#: Variables for the SDK that the bridge does not obey; docs/configuration.md says why.
_IGNORED: Final = re.compile(
    r"OTEL_(?:(?:EXPERIMENTAL_)?CONFIG_FILE|EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"
    r"|LOGRECORD_[A-Z_]+_LIMIT|LOG_LEVEL|PYTHON_ID_GENERATOR)"
)
#: Most characters of a value.
_LONGEST: Final = 120


class InForce(NamedTuple):
    """One effective setting."""

    key: str
    #: Its value, masked.
    value: str
    #: ``default``, a YAML file's path, an environment variable, ``register()``, or Python code.
    origin: str


def settings_in_force(
    settings: Settings, overrides: Mapping[str, Any] | None = None
) -> list[InForce]:
    """Return every key of the section ``otel`` with its effective value and origin.

    `overrides` is the configuration given to ``dask_otel.register``.
    """
    sources: list[tuple[str, Mapping[str, Any]]] = [
        *((origin, valid_values(given.get("otel"))) for origin, given in _sources()),
        ("register()", valid_values(overrides)),
    ]
    return [
        InForce(key, _shown(key, value), _origin(key, value, sources))
        for key, value in flat(settings).items()
    ]


def _origin(key: str, value: Any, sources: list[tuple[str, Mapping[str, Any]]]) -> str:
    # The last source with this value is its origin.
    for origin, given in reversed(sources):
        if key in given and given[key] == value:
            return variable_of(key) if origin == "environment" else origin
    return DEFAULT if key in DEFAULTS and DEFAULTS[key] == value else "dask.config.set, in Python"


def variable_of(key: str) -> str:
    """Return the environment variable of a key."""
    return "DASK_" + key.upper().replace(".", "__").replace("-", "_")


def _sources() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the sources of Dask's configuration; each overrides the earlier ones."""
    with suppress(Exception):  # a file that is no longer readable: its values have no origin
        for path, data in dask.config.collect_yaml(dask.config.paths, return_paths=True):
            yield str(path), data
    own = {**os.environ}
    if inherited := own.pop("DASK_INTERNAL_INHERIT_CONFIG", None):
        with suppress(Exception):  # not ours: its values have no origin
            yield "the process that started this one", dask.config.deserialize(inherited)
    yield "environment", dask.config.collect_env(own)


def _shown(key: str, value: Any) -> str:
    if key.startswith("otel.environment."):
        return masked_variable(key.rpartition(".")[2], str(value))
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = f"{value:g}" if isinstance(value, float) else Mask()(str(value))
    return shortened(text, _LONGEST)


def variables_in_force(environment: Mapping[str, str], win: bool = False) -> list[InForce]:
    """Return the ``OTEL_*`` variables that are set, masked, with their origins.

    `environment` (``otel.environment``) has defaults for the process's own environment; with `win`,
    as for a provider of the bridge, they override it.
    """
    own = environment_of({})
    return [
        InForce(
            name,
            masked_variable(name, value),
            (
                "environment"
                if name in own and not (win and name in environment)
                else "otel.environment"
            )
            + (", but the bridge ignores it" if _IGNORED.fullmatch(name) else ""),
        )
        for name, value in sorted(environment_of(environment, win).items())
    ]


def mask_of(settings: Settings) -> Mask:
    """Return a mask that removes the variables' secrets from other libraries' messages."""
    # If a variable has two values, the unused one is a secret, too.
    return Mask(secrets_of(environment_of({})) | secrets_of(settings.environment))
