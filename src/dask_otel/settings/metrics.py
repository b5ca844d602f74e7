"""Section ``otel.metrics``: series, their labels and their bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dask_otel.core.metrics.labels import NameRule
from dask_otel.settings.knob import knob as _knob
from dask_otel.settings.rules import (
    FLAG,
    HOUR,
    NAME_RULES,
    PATTERNS,
    TAG_KEYS,
    YEAR,
    count,
    duration,
    one_of,
)


@dataclass(frozen=True, slots=True)
class PatternSettings:
    """Sections ``otel.metrics.span-names`` and ``.prefixes``: the names that become labels."""

    allow: tuple[str, ...] = _knob(
        "[]",
        PATTERNS,
        """
        Glob patterns of the names that are used as metric labels; an empty list allows all

        The others are counted under `_OTHER`. Case matters.
        """,
    )
    deny: tuple[str, ...] = _knob(
        "[]",
        PATTERNS,
        """
        Glob patterns of the names that are not used as metric labels; they override `allow`

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
        The name in the label `dask.span.name` of a metric

        `full` is the span's own name, `root` the name of the root above it: one label value for
        each workflow. See [Cardinality](cardinality.md).
        """,
    )
    name_rules: tuple[NameRule, ...] = _knob(
        "[]",
        NAME_RULES,
        """
        Replacements in span names before they become metric labels, for ids and dates

        Each rule has a `pattern`, a regular expression of Python, and `replace`, empty if it is
        left out. The rules are applied to each tag, one after the other; a tag that becomes empty
        is left out. A group may not be repeated more than 8 times: that can take for ever. See
        [Cardinality](cardinality.md#take-ids-and-dates-out-of-the-names).
        """,
    )
    tag_attributes: tuple[str, ...] = _knob(
        "[]",
        TAG_KEYS,
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

        The others are summed under `_OTHER`; gauges, which have no sum, leave them out. Never more
        than a quarter of `max-series`.
        """,
    )
    prometheus: bool = _knob(
        "false",
        FLAG,
        """
        Whether the scheduler's own `/metrics` page has the series, for a
        [Prometheus](prometheus.md) that scrapes it

        Needs the extra `prometheus`. `/metrics/otel` has only these, with exemplars. Prometheus
        must get the metrics one way, not both: with `true`, set `OTEL_METRICS_EXPORTER` to `none`
        unless another backend takes them.
        """,
    )
    span_names: PatternSettings = field(default_factory=PatternSettings)
    prefixes: PatternSettings = field(default_factory=PatternSettings)
