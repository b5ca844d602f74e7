"""Reading the configuration: from what people wrote to `Settings`, or to all that is wrong."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from inspect import cleandoc
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import dask.config

from dask_otel.settings import problems as problem
from dask_otel.settings.keys import SECTIONS, Settings
from dask_otel.settings.knob import KNOB, Knob
from dask_otel.settings.problems import ConfigurationError
from dask_otel.settings.rules import ENVIRONMENT_SCHEMA, VARIABLE_NAME, Rule, variable

logger = logging.getLogger("distributed.dask_otel")

T = TypeVar("T")

_ENVIRONMENT: Final = "otel.environment"
_VARIABLE: Final = variable()
_REGISTERED: Final = "the arguments of dask_otel.register"


def _dashed(name: str) -> str:
    return name.replace("_", "-")


#: Section: name: rule, of all sections with fixed names.
_RULES: Final[Mapping[str, Mapping[str, Rule]]] = {
    section: {
        _dashed(known.name): known.metadata[KNOB].rule
        for known in fields(owner)
        if KNOB in known.metadata
    }
    for section, owner in SECTIONS.items()
}
#: Section: every name in it, sections too, as dask.config.canonical_name wants it.
_NAMES: Final[Mapping[str, Mapping[str, None]]] = {
    section: dict.fromkeys(_dashed(known.name) for known in fields(owner))
    for section, owner in SECTIONS.items()
}


class _Given(NamedTuple):
    value: Any
    source: str


#: (section, name): the raw value
_Found: TypeAlias = dict[tuple[str, str], _Given]


#: What names code that runs on the scheduler: only who runs that may say so.
_OWN: Final = frozenset({("otel.spans", "redact")})


def read_settings(overrides: Mapping[str, Any] | None = None, *, own: bool = False) -> Settings:
    """Return the settings that Dask's configuration holds now.

    Parameters
    ----------
    overrides
        Nested like the section ``otel`` (``{"spans": {"linger": "5s"}}``), with ``_`` or ``-`` in
        the keys; laid over the configuration for this bridge only.
    own
        Whether these are the process's own, too, and not a client's.

    Raises
    ------
    ConfigurationError
        With every unknown key and every bad value, not only the first.
    """
    problems: list[str] = []
    given = _flatten(dask.config.get("otel", None), "Dask's configuration", problems)
    laid = _flatten(overrides, _REGISTERED, problems)
    if not own:
        refused = [f"{section}.{name}" for section, name in laid if (section, name) in _OWN]
        problems += [problem.not_a_clients(key, _REGISTERED) for key in refused]
    given |= laid
    parsed: dict[str, dict[str, Any]] = {section: {} for section in (*SECTIONS, _ENVIRONMENT)}
    for (section, name), (value, source) in given.items():
        rule = _VARIABLE if section == _ENVIRONMENT else _RULES[section][name]
        try:
            parsed[section][name.replace("-", "_")] = rule.parse(_plain(value))
        except ValueError:
            problems.append(problem.bad_value(f"{section}.{name}", value, source, rule.allowed))
    if problems:
        raise ConfigurationError(problems)
    parsed["otel"]["environment"] = parsed[_ENVIRONMENT]
    return _build("otel", Settings, parsed)


def _plain(value: Any) -> Any:
    """Return a text of a class of its own, such as a member of an enum, as the text that it is."""
    if isinstance(value, str):
        return str.__str__(value)
    if type(value) is list or type(value) is tuple:
        return [_plain(item) for item in value]
    return value


def _build(section: str, owner: type[T], parsed: Mapping[str, dict[str, Any]]) -> T:
    """Return the settings of a section, with those of the sections in it."""
    inner = {
        known.name: _build(name, SECTIONS[name], parsed)
        for known in fields(owner)  # type: ignore[arg-type]
        if (name := f"{section}.{_dashed(known.name)}") in SECTIONS
    }
    return owner(**parsed[section], **inner)


def _flatten(given: Any, source: str, problems: list[str], section: str = "otel") -> _Found:
    """Return the known keys of one source, unparsed; append what is wrong to the problems."""
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
            name = dask.config.canonical_name(name, _NAMES[section])
        if name not in _NAMES[section]:
            problems.append(problem.unknown_key(section, name, value, source, _NAMES))
        elif (section, name) in found:
            problems.append(problem.given_twice(f"{section}.{name}", source))
        elif name in _RULES[section]:
            found[section, name] = _Given(value, source)
        else:
            found |= _flatten(value, source, problems, f"{section}.{name}")
    return found


def _variables(given: Mapping[Any, Any], source: str, problems: list[str]) -> _Found:
    found: _Found = {}
    named = [(problem.key_text(raw), value) for raw, value in given.items()]
    # Dask lower-cases what it reads from DASK_OTEL__ENVIRONMENT__OTEL_…, so both spellings can
    # be there. The order of Dask's dict says nothing about which came later: the lower-case
    # one, from the environment, wins over a YAML file's.
    for name, value in sorted(named, key=lambda item: not item[0].isupper()):
        variable_name = name.replace("-", "_").upper()
        if VARIABLE_NAME.fullmatch(variable_name):
            found[_ENVIRONMENT, variable_name] = _Given(value, source)
        else:
            problems.append(problem.bad_variable_name(name, value, source))
    return found


def differences(a: Settings, b: Settings) -> list[str]:
    """Return the full keys in which two settings differ; no values, as some are secret."""
    left, right = flat(a), flat(b)
    # A dict keeps the order of the keys and drops what both have.
    return [key for key in {**left, **right} if left.get(key) != right.get(key)]


def flat(settings: Settings) -> dict[str, Any]:
    """Return full key: parsed value."""
    flat = {}
    for section, rules in _RULES.items():
        owner: Any = settings
        for name in section.split(".")[1:]:
            owner = getattr(owner, name.replace("-", "_"))
        for name in rules:
            flat[f"{section}.{name}"] = getattr(owner, name.replace("-", "_"))
    return flat | {f"{_ENVIRONMENT}.{name}": value for name, value in settings.environment.items()}


# ------------------------------------------------------------------ what is made of the keys


def knobs() -> dict[str, Knob]:
    """Return every key with a rule of its own and what is said of it, in the order of the docs."""
    found = {
        f"{section}.{_dashed(known.name)}": known.metadata[KNOB]
        for section, owner in SECTIONS.items()
        for known in fields(owner)
        if KNOB in known.metadata
    }
    environment = Knob("{}", _VARIABLE._replace(schema=ENVIRONMENT_SCHEMA), _ENVIRONMENT_MEANING)
    # Where a person looks for it: after the keys that are alone, before the sections.
    alone = [key for key in found if key.count(".") == 1]
    return {
        **{key: found[key] for key in alone},
        _ENVIRONMENT: environment,
        **{key: knob for key, knob in found.items() if key not in alone},
    }


_ENVIRONMENT_MEANING: Final = cleandoc(
    """
    Values for `OTEL_*` variables that the environment of the scheduler does not set

    For deployments where Dask's configuration can be set but the environment cannot. A variable
    that the environment has wins, but for `otel.provider: own`. Names must begin with `OTEL_`.
    See [below](configuration.md#when-the-environment-cannot-be-set).
    """
)


# ------------------------------------------------------------------ beside the user's code

_ABSENT: Final = object()
#: Bad values that `setting` has warned about.
_warned: set[str] = set()


def setting(key: str) -> Any:
    """Return one setting as Dask's configuration has it now; its default if that is not valid.

    For what runs beside the user's code, where a mistake in the configuration, which the
    scheduler reports as a whole, must not be in the way: it is one warning.

    Parameters
    ----------
    key
        The full key, such as ``otel.client.span-per-caller``.
    """
    value = dask.config.get(key, _ABSENT)
    if value is not _ABSENT:
        section, _, name = key.rpartition(".")
        rule = _RULES[section][name]
        try:
            return rule.parse(value)
        except ValueError:
            line = problem.bad_value(key, value, "Dask's configuration", rule.allowed)
            if line not in _warned:
                _warned.add(line)
                logger.warning("dask-otel uses the default of %s: %s", key, line)
    return _defaults()[key]


@cache
def _defaults() -> dict[str, Any]:
    return flat(Settings())
