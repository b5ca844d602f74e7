"""The bridge's own configuration: the section ``otel`` of Dask's configuration, parsed once.

Importing this module puts the shipped defaults (``otel.yaml``) into ``dask.config``, below
everything that the user has set, as Dask's satellites do. Unlike some of these it writes no
file into the user's configuration directory.

Where OpenTelemetry has a standard variable (endpoint, headers, sampler, queue size) there is
no key here. Every key has its default, its rule and its meaning in four places: here,
``otel.yaml``, ``otel-schema.yaml`` and ``docs/configuration.md``; a test keeps them equal.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import dask.config
import yaml  # type: ignore[import-untyped]  # comes with dask

from dask_otel.core.metrics.labels import NameRule
from dask_otel.settings import problems as problem
from dask_otel.settings.problems import ConfigurationError
from dask_otel.settings.rules import (
    DAY,
    HOUR,
    VARIABLE_NAME,
    YEAR,
    Rule,
    cluster_name,
    count,
    duration,
    duration_or_never,
    flag,
    name_rules,
    one_of,
    patterns,
    propagation,
    tag_keys,
    trace_url,
    variable,
)

__all__ = [
    "ClientSettings",
    "ConfigurationError",
    "MetricSettings",
    "PatternSettings",
    "Settings",
    "SpanSettings",
    "differences",
]

T = TypeVar("T")

logger = logging.getLogger("dask_otel")

_DEFAULT: Final = object()
#: Bad values that `setting` has warned about.
_warned: set[str] = set()


def _knob(default: T, rule: Rule) -> T:
    knob: T = field(default=default, metadata={"rule": rule})
    return knob


# ------------------------------------------------------------------------------ settings


@dataclass(frozen=True, slots=True)
class SpanSettings:
    """Section ``otel.spans``. Durations are seconds."""

    #: What to do with the default span, Dask's name for work outside every span.
    default: Literal["export", "metrics-only"] = _knob("export", one_of("export", "metrics-only"))
    #: ``group`` adds one child span per task group.
    detail: Literal["span", "group"] = _knob("group", one_of("span", "group"))
    #: How long a settled span waits for new work before it is exported.
    linger: float = _knob(2.0, duration(0, DAY))
    #: The longest wait for the last heartbeats of the workers that ran a span's tasks.
    settle_timeout: float = _knob(30.0, duration(0, DAY))
    #: Task groups exported per span.
    max_groups: int = _knob(64, count(0, 10_000))
    #: A continuation later than this after the root's previous generation is a new trace.
    trace_gap: float = _knob(HOUR, duration(0, YEAR))
    #: Spans after which a continuation begins a new trace.
    max_per_trace: int = _knob(5000, count(1, 1_000_000))
    #: Exception events per span.
    max_exceptions: int = _knob(16, count(0, 128))
    #: Whether the messages of exceptions, which can hold data, are exported.
    exception_message: bool = _knob(True, flag())
    #: Whether their stack traces are exported.
    exception_stacktrace: bool = _knob(True, flag())
    #: Age at which a span that has not ended shows itself in its trace; None: never.
    progress_after: float | None = _knob(60.0, duration_or_never(0, YEAR))
    #: The least time between two signs of its progress.
    progress_interval: float = _knob(300.0, duration(1, YEAR))
    #: Exported spans kept in mind for continuations.
    remember: int = _knob(10_000, count(1, 10_000_000))


@dataclass(frozen=True, slots=True)
class PatternSettings:
    """Sections ``otel.metrics.span-names`` and ``.prefixes``: which names are labels."""

    #: Glob patterns; without any, everything is allowed.
    allow: tuple[str, ...] = _knob((), patterns())
    #: Glob patterns; they win over `allow`.
    deny: tuple[str, ...] = _knob((), patterns())


@dataclass(frozen=True, slots=True)
class MetricSettings:
    """Section ``otel.metrics``. Durations are seconds."""

    #: Span names used as labels before folding.
    max_names: int = _knob(200, count(1, 100_000))
    #: Series per instrument before folding.
    max_series: int = _knob(2000, count(1, 1_000_000))
    #: The least time that a series is exported after its last change.
    retire_after: float = _knob(HOUR, duration(HOUR / 4, YEAR))
    #: ``root`` labels every span by the name of its root.
    span_label: Literal["full", "root"] = _knob("full", one_of("full", "root"))
    #: What is replaced in each tag of a span's name.
    name_rules: tuple[NameRule, ...] = _knob((), name_rules())
    #: Keys of ``key:value`` tags that become labels ``dask.tag.<key>``.
    tag_attributes: tuple[str, ...] = _knob((), tag_keys())
    #: Workers with series of their own.
    max_workers: int = _knob(100, count(0, 10_000))
    span_names: PatternSettings = field(default_factory=PatternSettings)
    prefixes: PatternSettings = field(default_factory=PatternSettings)
    #: Whether the scheduler's own /metrics page has the series, too.
    prometheus: bool = _knob(False, flag())


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Section ``otel.client``: what runs beside the user's code."""

    #: Whether work under a caller's span without a Dask span gets one Dask span per caller's.
    span_per_caller: bool = _knob(False, flag())


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one bridge. Durations are seconds."""

    enabled: bool = _knob(True, flag())
    #: ``dask.cluster.name``; None: from the deployment's environment, else ``service.name``.
    cluster_name: str | None = _knob(None, cluster_name())
    #: The longest time that the bridge may delay the scheduler's close.
    close_timeout: float = _knob(5.0, duration(0, HOUR))
    #: What becomes of the caller's context: its trace is taken up, linked to, or left alone.
    propagation: Literal["adopt", "link", "off"] = _knob("adopt", propagation())
    #: Whether baggage travels with it.
    baggage: bool = _knob(False, flag())
    #: Where a trace can be looked at, with ``{trace_id}`` and ``{span_id}``; None: nowhere.
    trace_url: str | None = _knob(None, trace_url())
    #: OTEL_* variable: value, for those that the scheduler's environment does not set.
    #: Not in the repr: headers can hold credentials. A plain dict, as it has to be pickled.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    client: ClientSettings = field(default_factory=ClientSettings)
    spans: SpanSettings = field(default_factory=SpanSettings)
    metrics: MetricSettings = field(default_factory=MetricSettings)

    @classmethod
    def from_config(cls, overrides: Mapping[str, Any] | None = None) -> Settings:
        """Return the settings that Dask's configuration holds now.

        Parameters
        ----------
        overrides
            Nested like the section ``otel`` (``{"spans": {"linger": "5s"}}``), with ``_`` or
            ``-`` in the keys; laid over the configuration for this bridge only.

        Raises
        ------
        ConfigurationError
            With every unknown key and every bad value, not only the first.
        """
        problems: list[str] = []
        given = {
            **_flatten(dask.config.get("otel", None), "Dask's configuration", problems),
            **_flatten(overrides, "the arguments of dask_otel.register", problems),
        }
        parsed: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
        for (section, name), (value, source) in given.items():
            rule = _VARIABLE if section == _ENVIRONMENT else _RULES[section][name]
            try:
                parsed[section][name.replace("-", "_")] = rule.parse(value)
            except ValueError:
                problems.append(problem.bad_value(f"{section}.{name}", value, source, rule.allowed))
        if problems:
            raise ConfigurationError(problems)
        return cls(
            **parsed["otel"],
            environment=parsed[_ENVIRONMENT],
            client=ClientSettings(**parsed["otel.client"]),
            spans=SpanSettings(**parsed["otel.spans"]),
            metrics=MetricSettings(
                **parsed["otel.metrics"],
                span_names=PatternSettings(**parsed["otel.metrics.span-names"]),
                prefixes=PatternSettings(**parsed["otel.metrics.prefixes"]),
            ),
        )


def differences(a: Settings, b: Settings) -> list[str]:
    """Return the full keys in which two settings differ; no values, as some are secret."""
    left, right = _flat(a), _flat(b)
    # A dict keeps the order of the keys and drops what both have.
    return [key for key in {**left, **right} if left.get(key) != right.get(key)]


def _flat(settings: Settings) -> dict[str, Any]:
    """Return full key: parsed value."""
    owners = {
        "otel": settings,
        "otel.client": settings.client,
        "otel.spans": settings.spans,
        "otel.metrics": settings.metrics,
        "otel.metrics.span-names": settings.metrics.span_names,
        "otel.metrics.prefixes": settings.metrics.prefixes,
    }
    return {
        f"{section}.{name}": getattr(owner, name.replace("-", "_"))
        for section, owner in owners.items()
        for name in _RULES[section]
    } | {f"{_ENVIRONMENT}.{name}": value for name, value in settings.environment.items()}


# ------------------------------------------------------------------------------- reading


def _rules(settings: type[Any]) -> dict[str, Rule]:
    return {
        knob.name.replace("_", "-"): knob.metadata["rule"]
        for knob in fields(settings)
        if "rule" in knob.metadata
    }


_ENVIRONMENT: Final = "otel.environment"
_VARIABLE: Final = variable()
#: Section: name: rule, of all sections with fixed names.
_RULES: Final[Mapping[str, Mapping[str, Rule]]] = {
    "otel": _rules(Settings),
    "otel.client": _rules(ClientSettings),
    "otel.spans": _rules(SpanSettings),
    "otel.metrics": _rules(MetricSettings),
    "otel.metrics.span-names": _rules(PatternSettings),
    "otel.metrics.prefixes": _rules(PatternSettings),
}
_SECTIONS: Final = (*_RULES, _ENVIRONMENT)
#: Section: every name in it, sections too, as dask.config.canonical_name wants it.
_NAMES: Final[Mapping[str, Mapping[str, None]]] = {
    "otel": dict.fromkeys([*_RULES["otel"], "environment", "client", "spans", "metrics"]),
    "otel.client": dict.fromkeys(_RULES["otel.client"]),
    "otel.spans": dict.fromkeys(_RULES["otel.spans"]),
    "otel.metrics": dict.fromkeys([*_RULES["otel.metrics"], "span-names", "prefixes"]),
    "otel.metrics.span-names": dict.fromkeys(_RULES["otel.metrics.span-names"]),
    "otel.metrics.prefixes": dict.fromkeys(_RULES["otel.metrics.prefixes"]),
}


class _Given(NamedTuple):
    value: Any
    source: str


#: (section, name): the raw value
_Found: TypeAlias = dict[tuple[str, str], _Given]


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


def setting(key: str) -> Any:
    """Return one setting as Dask's configuration has it now; its default if that is not valid.

    For what runs beside the user's code, where a mistake in the configuration, which the
    scheduler reports as a whole, must not be in the way.

    Parameters
    ----------
    key
        The full key, such as ``otel.client.span-per-caller``.
    """
    section, _, name = key.rpartition(".")
    value = dask.config.get(key, _DEFAULT)
    if value is not _DEFAULT:
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
    return _flat(Settings())


# ------------------------------------------------------------------------------ defaults


def _put_defaults_into_dask() -> None:
    with Path(__file__).with_name("otel.yaml").open(encoding="utf-8") as file:
        defaults = yaml.safe_load(file)
    # Dask replaces a value by a section of the same name: DASK_OTEL=false would be lost
    # without a word. Put it back, so that from_config reports it.
    misplaced = {
        section: value
        for section in _SECTIONS
        if (value := dask.config.get(section, None)) is not None and not isinstance(value, Mapping)
    }
    dask.config.update_defaults(defaults)
    dask.config.set(misplaced)


_put_defaults_into_dask()
