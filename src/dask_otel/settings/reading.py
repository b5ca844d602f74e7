"""Reads the configuration into `Settings`, or reports all its problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

import dask.config

from dask_otel._log import logger
from dask_otel.settings import problems as problem
from dask_otel.settings.keys import KNOBS, NAMES, SECTIONS, Settings
from dask_otel.settings.problems import ConfigurationError
from dask_otel.settings.rules import VARIABLE_NAME

T = TypeVar("T")
#: Full key: the raw value, and its source.
_Found: TypeAlias = dict[str, tuple[Any, str]]

_ENVIRONMENT: Final = "otel.environment"
_REGISTERED: Final = "the arguments of dask_otel.register"
#: Keys that name code to run on the scheduler: only the scheduler's own process may set them.
_OWN: Final = frozenset({"otel.redact"})


def read_settings(overrides: Mapping[str, Any] | None = None, *, own: bool = False) -> Settings:
    """Return the settings in Dask's present configuration.

    Parameters
    ----------
    overrides
        Overrides for this bridge, nested like the section ``otel``
        (``{"spans": {"linger": "5s"}}``), with ``_`` or ``-`` in the keys.
    own
        Whether the overrides come from this process, too, and not from a client.

    Raises
    ------
    ConfigurationError
        With every unknown key and every bad value, not only the first.
    """
    problems: list[str] = []
    given = _flatten(dask.config.get("otel", None), "Dask's configuration", problems)
    laid = _flatten(overrides, _REGISTERED, problems)
    if not own:
        problems += [
            f"{key}, in {_REGISTERED}, is refused: it names code that runs on the scheduler, so "
            "only the scheduler's own configuration may set it."
            for key in laid
            if key in _OWN
        ]
    values = _parse(given | laid, problems)
    if problems:
        raise ConfigurationError(problems)
    before = f"{_ENVIRONMENT}."
    values[_ENVIRONMENT] = {
        key.removeprefix(before): value for key, value in values.items() if key.startswith(before)
    }
    return _build("otel", Settings, values)


def valid_values(given: Any) -> dict[str, Any]:
    """Return full key: parsed value of one source like the section ``otel``, without bad ones."""
    problems: list[str] = []
    return _parse(_flatten(given, "", problems), problems)


def _parse(found: _Found, problems: list[str]) -> dict[str, Any]:
    """Return full key: parsed value; append errors to the problems."""
    values = {}
    for key, (value, source) in found.items():
        rule = KNOBS.get(key, KNOBS[_ENVIRONMENT]).rule
        try:
            values[key] = rule.parse(value)
        except (ValueError, RecursionError):
            problems.append(problem.bad_value(key, value, source, rule.allowed))
    return values


def _build(section: str, owner: type[T], values: Mapping[str, Any]) -> T:
    """Return the settings of a section and its subsections."""
    given: dict[str, Any] = {}
    for known in fields(owner):  # type: ignore[arg-type]
        key = f"{section}.{known.name.replace('_', '-')}"
        if key in SECTIONS:
            given[known.name] = _build(key, SECTIONS[key], values)
        elif key in values:
            given[known.name] = values[key]
    return owner(**given)


def _flatten(given: Any, source: str, problems: list[str], section: str = "otel") -> _Found:
    """Return the known keys of one source, unparsed; append errors to the problems."""
    if given is None:  # a section in YAML with nothing, or only comments, below it
        return {}
    if not isinstance(given, Mapping):
        problems.append(problem.bad_value(section, given, source, "a section with keys below it"))
        return {}
    if section == _ENVIRONMENT:
        return _variables(given, source, problems)
    found: _Found = {}
    for raw, value in given.items():
        name = problem.key_text(raw)
        if "." in name:  # "spans.linger", as dask.config.set has it
            name, _, rest = name.partition(".")
            value = {rest: value}
        if isinstance(raw, str):
            name = dask.config.canonical_name(name, NAMES[section])
        key = f"{section}.{name}"
        if name not in NAMES[section]:
            problems.append(problem.unknown_key(section, name, value, source, NAMES))
        elif key in found:
            problems.append(
                f"{key} is given twice in {source}, once with _ and once with -. Keep one of them."
            )
        elif key in SECTIONS or key == _ENVIRONMENT:
            found |= _flatten(value, source, problems, key)
        else:
            found[key] = (value, source)
    return found


def _variables(given: Mapping[Any, Any], source: str, problems: list[str]) -> _Found:
    found: _Found = {}
    named = [(problem.key_text(raw), value) for raw, value in given.items()]
    # Dask converts names from DASK_OTEL__ENVIRONMENT__OTEL_… to lower case, so both spellings may
    # be present. The order in Dask's dict does not show which is newer: the lower-case one, from
    # the environment, overrides a YAML file's.
    for name, value in sorted(named, key=lambda item: not item[0].isupper()):
        variable_name = name.replace("-", "_").upper()
        if VARIABLE_NAME.fullmatch(variable_name):
            found[f"{_ENVIRONMENT}.{variable_name}"] = (value, source)
        else:
            found_here = problem.assignment(f"{_ENVIRONMENT}.{name}", value)
            problems.append(f"{found_here}, in {source}: a name here must begin with OTEL_.")
    return found


def differences(a: Settings, b: Settings) -> list[str]:
    """Return the full keys that differ in two settings; no values, as some are secret."""
    left, right = flat(a), flat(b)
    # A dict keeps the order of the keys, and has common keys once.
    return [key for key in {**left, **right} if left.get(key) != right.get(key)]


def flat(settings: Settings) -> dict[str, Any]:
    """Return full key: parsed value, the variables last."""
    found = {
        key: attrgetter(key.removeprefix("otel.").replace("-", "_"))(settings) for key in KNOBS
    }
    variables = found.pop(_ENVIRONMENT)
    return found | {f"{_ENVIRONMENT}.{name}": value for name, value in variables.items()}


DEFAULTS: Final[Mapping[str, Any]] = flat(Settings())

# ------------------------------------------------------------------------- the client's side


@cache
def _warn(key: str, line: str) -> None:
    logger.warning("dask-otel uses the default of %s: %s", key, line)


def setting(key: str) -> Any:
    """Return one setting from Dask's present configuration; the default if it is not valid.

    For the client side, where an invalid value causes a single warning. The scheduler reports an
    invalid configuration as a whole.

    Parameters
    ----------
    key
        The full key, such as ``otel.client.span-per-caller``.
    """
    value, problems = dask.config.get(key, DEFAULTS[key]), list[str]()
    values = _parse({key: (value, "Dask's configuration")}, problems)
    for line in problems:
        _warn(key, line)
    return values.get(key, DEFAULTS[key])
