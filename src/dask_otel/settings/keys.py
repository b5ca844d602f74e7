"""The bridge's own configuration: the section ``otel`` of Dask's configuration, parsed once.

Importing this module puts the shipped defaults (``otel.yaml``) into ``dask.config``, below
everything that the user has set, as Dask's satellites do. Unlike some of these it writes no
file into the user's configuration directory.

Where OpenTelemetry has a standard variable (endpoint, headers, sampler, queue size) there is
no key here. Every key has its default, its rule and its meaning here; ``otel.yaml``,
``otel-schema.yaml`` and the table in ``docs/configuration.md`` are made of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import dask.config
import yaml  # type: ignore[import-untyped]  # comes with dask

from dask_otel.core.metrics.labels import NameRule
from dask_otel.settings import problems as problem
from dask_otel.settings.problems import ConfigurationError
from dask_otel.settings.rules import (
    DAY,
    ENVIRONMENT_SCHEMA,
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
    "LogSettings",
    "MetricSettings",
    "PatternSettings",
    "Settings",
    "SpanSettings",
    "WorkerSettings",
    "differences",
    "setting",
]

logger = logging.getLogger("dask_otel")

#: Where a field's metadata has its `Knob`.
_KNOB: Final = "knob"


@dataclass(frozen=True, slots=True)
class Knob:
    """What is said of one key, once: its default, what is allowed, and what it means.

    ``otel.yaml``, ``otel-schema.yaml`` and the table in ``docs/configuration.md`` are made of it
    by ``tools/build_settings.py``.
    """

    #: As it stands in YAML.
    default: str
    rule: Rule
    #: A summary without a full stop; after a blank line, more. Links are relative to ``docs/``.
    meaning: str


def _knob(default: str, rule: Rule, meaning: str) -> Any:
    value = rule.parse(yaml.safe_load(default))
    return field(default=value, metadata={_KNOB: Knob(default, rule, cleandoc(meaning))})


# ------------------------------------------------------------------------------ settings


@dataclass(frozen=True, slots=True)
class SpanSettings:
    """Section ``otel.spans``. Durations are seconds."""

    default: Literal["export", "metrics-only"] = _knob(
        "export",
        one_of("export", "metrics-only"),
        """
        What happens with work outside every `distributed.span`

        Dask books it on spans named `default`. `export` makes traces of these, too;
        `metrics-only` counts their work in the metrics and exports no trace.
        """,
    )
    detail: Literal["span", "group"] = _knob(
        "group",
        one_of("span", "group"),
        """
        What a trace shows below a Dask span

        `span` exports the Dask spans alone; `group` adds one child span for each task group, which
        shows what work filled the span.
        """,
    )
    linger: float = _knob(
        "2s",
        duration(0, DAY),
        """
        How long a settled span waits for more work before it is exported

        New work in this time re-opens the span; new work after it becomes a continuation.
        """,
    )
    settle_timeout: float = _knob(
        "30s",
        duration(0, DAY),
        """
        The longest wait for the last heartbeats of the workers that ran a span's tasks

        After it the span is exported, and counted in `dask.otel.unsettled`.
        """,
    )
    max_groups: int = _knob(
        "64",
        count(0, 10_000),
        """
        Task groups exported for one span, the longest first

        The others are counted in `dask.span.dropped.count`.
        """,
    )
    trace_gap: float = _knob(
        "1h",
        duration(0, YEAR),
        """
        A continuation that starts later than this after the root's previous generation begins a
        new trace, linked to the first
        """,
    )
    max_per_trace: int = _knob(
        "5000",
        count(1, 1_000_000),
        "Spans in one trace, after which a continuation begins a new trace, linked to the first",
    )
    max_exceptions: int = _knob("16", count(0, 128), "Exception events on one span")
    exception_message: bool = _knob(
        "true",
        flag(),
        """
        Whether the messages of exceptions are exported

        They can hold data.
        """,
    )
    exception_stacktrace: bool = _knob(
        "true",
        flag(),
        """
        Whether the stack traces of exceptions are exported

        They can hold data.
        """,
    )
    progress_after: float | None = _knob(
        "60s",
        duration_or_never(0, YEAR),
        """
        Age at which a span that has not ended [shows itself](lifecycle.md#long-spans) in its trace;
        `null` for never

        A child span marks its start, others follow as it goes on.
        """,
    )
    progress_interval: float = _knob(
        "5 minutes",
        duration(1, YEAR),
        """
        The least time between two children that show the progress of a long span

        It grows with the span's age: at least a tenth of it passes between two.
        """,
    )
    remember: int = _knob(
        "10000",
        count(1, 10_000_000),
        """
        How many exported spans are kept in mind, so that later work on them becomes a continuation
        """,
    )


@dataclass(frozen=True, slots=True)
class PatternSettings:
    """Sections ``otel.metrics.span-names`` and ``.prefixes``: which names are labels."""

    allow: tuple[str, ...] = _knob(
        "[]",
        patterns(),
        """
        Glob patterns of the names that are used as metric labels; without any, all are

        The others are counted under `_OTHER`. Case matters.
        """,
    )
    deny: tuple[str, ...] = _knob(
        "[]",
        patterns(),
        """
        Glob patterns of the names that are not used as metric labels; they win over `allow`

        These are counted under `_OTHER`.
        """,
    )


@dataclass(frozen=True, slots=True)
class MetricSettings:
    """Section ``otel.metrics``. Durations are seconds."""

    max_names: int = _knob(
        "200",
        count(1, 100_000),
        "Span names used as metric labels; the others are folded into `_OTHER`",
    )
    max_series: int = _knob(
        "2000",
        count(1, 1_000_000),
        "Series of one instrument; the others are folded into `_OTHER`",
    )
    retire_after: float = _knob(
        "1h",
        duration(HOUR / 4, YEAR),
        """
        How long a series is exported after its last change, at least

        Never below 15 minutes: a series that retires too early looks stale to the backends while
        its span is still in use.
        """,
    )
    span_label: Literal["full", "root"] = _knob(
        "full",
        one_of("full", "root"),
        """
        What the label `dask.span.name` of a metric says

        `full` is the span's own name, `root` that of the root above it: one label value for each
        workflow. See [Cardinality](cardinality.md).
        """,
    )
    name_rules: tuple[NameRule, ...] = _knob(
        "[]",
        name_rules(),
        """
        What is replaced in span names before they become metric labels, such as ids and dates

        Each rule has a `pattern`, a regular expression of Python, and `replace`, empty if it is
        left out. The rules are applied to each tag, one after the other; a tag that becomes empty
        is left out. A choice or a repetition inside a repetition is not allowed, because it can
        take for ever. See [Cardinality](cardinality.md#take-ids-and-dates-out-of-the-names).
        """,
    )
    tag_attributes: tuple[str, ...] = _knob(
        "[]",
        tag_keys(),
        """
        Keys of `key:value` tags that become a metric label `dask.tag.<key>`

        A span has the value of the innermost tag, `_EMPTY` without one.
        """,
    )
    max_workers: int = _knob(
        "100",
        count(0, 10_000),
        """
        Workers with series of their own in `dask.worker.*`

        The others are summed under `_OTHER`; gauges, which have no sum, leave them out. At most a
        quarter of `max-series` are used.
        """,
    )
    prometheus: bool = _knob(
        "false",
        flag(),
        """
        Whether the scheduler's own `/metrics` page has the series, for a
        [Prometheus](prometheus.md) that scrapes it

        Needs the extra `prometheus`. `/metrics/otel` has them alone, with exemplars. Let Prometheus
        have the metrics one way, never both: with `true`, set `OTEL_METRICS_EXPORTER` to `none`
        unless something else takes them.
        """,
    )
    span_names: PatternSettings = field(default_factory=PatternSettings)
    prefixes: PatternSettings = field(default_factory=PatternSettings)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Section ``otel.workers``."""

    context: bool = _knob(
        "true",
        flag(),
        """
        Whether the Dask span of a task is the current OpenTelemetry span while the task runs

        What libraries and user code trace in tasks becomes part of its trace. The bridge brings
        this to all workers by itself; those without the package do nothing.
        See [Trace context](context.md#in-tasks).
        """,
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Section ``otel.logs``."""

    inject: bool = _knob(
        "false",
        flag(),
        """
        Whether log records of workers name the trace, the span and the task that they come from

        By `trace_id`, `span_id`, `trace_flags`, `dask.span.name` and `dask.task.key`: for those who
        do not use OpenTelemetry's own logging instrumentation. Needs `otel.workers.context`.
        See [Trace context](context.md#in-logs).
        """,
    )


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Section ``otel.client``: what runs beside the user's code."""

    span_per_caller: bool = _knob(
        "false",
        flag(),
        """
        Whether work under a caller's span without a Dask span gets one Dask span for each caller's
        span

        It takes the place of `default`. Dask never forgets a span, about 680 bytes each, and its
        name is a metric label: [read this first](context.md#one-dask-span-per-caller). Read on the
        client.
        """,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one bridge. Durations are seconds."""

    enabled: bool = _knob(
        "true",
        flag(),
        """
        Whether the bridge runs

        With `false` the preload does nothing: no thread, no callback, no export.
        """,
    )
    cluster_name: str | None = _knob(
        "null",
        cluster_name(),
        """
        The resource attribute `dask.cluster.name`

        With `null` it is what the operator, the gateway or Coiled puts into the environment, and
        where there is none, `service.name`. Digits alone need quotes within quotes in the
        environment variable: `"'2026'"`.
        """,
    )
    close_timeout: float = _knob(
        "5s",
        duration(0, HOUR),
        """
        The longest time that the bridge may delay the close of the scheduler

        What could not be exported by then is dropped.
        """,
    )
    propagation: Literal["adopt", "link", "off"] = _knob(
        "adopt",
        propagation(),
        """
        What becomes of the span that is current where work is submitted

        `adopt` makes the Dask root its child, in its trace; `link` leaves the Dask root a trace of
        its own, with a link; `off` ignores it. On the client it says which trace its links name.
        See [the caller](context.md#the-caller).
        """,
    )
    baggage: bool = _knob(
        "false",
        flag(),
        """
        Whether the caller's baggage travels with its context

        At most 8192 characters of it, with the message of each task. Read on the client.
        """,
    )
    trace_url: str | None = _knob(
        "null",
        trace_url(),
        """
        Where a trace can be looked at; `null` for no links

        An http or https address in which `{trace_id}` and `{span_id}` stand for the ids. Read where
        links are shown: on the client. See [links to a trace](context.md#links-to-a-trace).
        """,
    )
    #: OTEL_* variable: value, for those that the scheduler's environment does not set.
    #: Not in the repr: headers can hold credentials. A plain dict, as it has to be pickled.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    client: ClientSettings = field(default_factory=ClientSettings)
    spans: SpanSettings = field(default_factory=SpanSettings)
    metrics: MetricSettings = field(default_factory=MetricSettings)
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    logs: LogSettings = field(default_factory=LogSettings)

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
            workers=WorkerSettings(**parsed["otel.workers"]),
            logs=LogSettings(**parsed["otel.logs"]),
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
        "otel.workers": settings.workers,
        "otel.logs": settings.logs,
    }
    return {
        f"{section}.{name}": getattr(owner, name.replace("-", "_"))
        for section, owner in owners.items()
        for name in _RULES[section]
    } | {f"{_ENVIRONMENT}.{name}": value for name, value in settings.environment.items()}


# ------------------------------------------------------------------------------- reading


def _rules(settings: type[Any]) -> dict[str, Rule]:
    return {
        known.name.replace("_", "-"): known.metadata[_KNOB].rule
        for known in fields(settings)
        if _KNOB in known.metadata
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
    "otel.workers": _rules(WorkerSettings),
    "otel.logs": _rules(LogSettings),
}
_SECTIONS: Final = (*_RULES, _ENVIRONMENT)
_SECTIONS_OF_OTEL: Final = (
    "environment", "client", "spans", "metrics", "workers", "logs",
)  # fmt: skip
#: Section: every name in it, sections too, as dask.config.canonical_name wants it.
_NAMES: Final[Mapping[str, Mapping[str, None]]] = {
    "otel": dict.fromkeys([*_RULES["otel"], *_SECTIONS_OF_OTEL]),
    "otel.client": dict.fromkeys(_RULES["otel.client"]),
    "otel.spans": dict.fromkeys(_RULES["otel.spans"]),
    "otel.metrics": dict.fromkeys([*_RULES["otel.metrics"], "span-names", "prefixes"]),
    "otel.metrics.span-names": dict.fromkeys(_RULES["otel.metrics.span-names"]),
    "otel.metrics.prefixes": dict.fromkeys(_RULES["otel.metrics.prefixes"]),
    "otel.workers": dict.fromkeys(_RULES["otel.workers"]),
    "otel.logs": dict.fromkeys(_RULES["otel.logs"]),
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


def knobs() -> dict[str, Knob]:
    """Return every key with a rule of its own and what is said of it, in the order of the docs."""
    owners = {
        "otel": Settings,
        "otel.client": ClientSettings,
        "otel.spans": SpanSettings,
        "otel.metrics": MetricSettings,
        "otel.metrics.span-names": PatternSettings,
        "otel.metrics.prefixes": PatternSettings,
        "otel.workers": WorkerSettings,
        "otel.logs": LogSettings,
    }
    found = {
        f"{section}.{known.name.replace('_', '-')}": known.metadata[_KNOB]
        for section, owner in owners.items()
        for known in fields(owner)
        if _KNOB in known.metadata
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
    that the environment has always wins. Names must begin with `OTEL_`.
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
