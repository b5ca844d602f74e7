"""The live series of every metric, and the way from Dask's raw keys to them.

Making labels costs more than adding a number, so the series of a raw key is cached. Beyond
the caps (`dask_otel.core.metrics.cardinality`) a raw key belongs to a series of ``_OTHER``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeAlias, TypeVar

from dask_otel import semconv
from dask_otel.core.metrics import cardinality
from dask_otel.core.metrics.batch import RawSeries
from dask_otel.core.metrics.cardinality import NameSlots, SeriesLimits
from dask_otel.core.metrics.labels import LabelRules
from dask_otel.core.metrics.routing import is_ignored_cluster_key, route_cluster_key, route_span_key
from dask_otel.core.metrics.series import HistogramSeries, LevelSeries, NumberSeries
from dask_otel.core.records import SpanMetricKey
from dask_otel.core.text import Sanitizer, label_text
from dask_otel.semconv import METRICS, Metric

#: Limits of the cache from raw keys to series: its size, and the characters of a text in a key.
_MAX_ROUTES: Final = 20_000
_MAX_ROUTE_TEXT: Final = 256

AnySeries: TypeAlias = NumberSeries | HistogramSeries
Kept = TypeVar("Kept")

_SERIES: Final[dict[str, type[AnySeries]]] = {"histogram": HistogramSeries, "counter": NumberSeries}


@dataclass(slots=True, eq=False)
class SpanLabel:
    """The name of a Dask span as label values, and the series of raw keys under it."""

    #: Name, root name, and the value of each tag label.
    texts: tuple[str, ...]
    routes: dict[Hashable, AnySeries] = field(default_factory=dict)
    #: Whether it was counted as folded.
    counted: bool = False


class Family:
    """One metric and its series, by their label values."""

    def __init__(self, metric: Metric, tag_labels: tuple[str, ...]) -> None:
        self.metric = metric
        span_keys = semconv.SPAN_KEYS + tag_labels
        keys = [span_keys if label == semconv.SPAN else (label,) for label in metric.labels]
        #: Attribute keys of the points.
        self.keys = tuple(chain.from_iterable(keys))
        #: Index of the prefix among the labels without the span's; -1 if there is none.
        plain = [label for label in metric.labels if label != semconv.SPAN]
        self.prefix_at = plain.index(semconv.TASK_PREFIX) if semconv.TASK_PREFIX in plain else -1
        #: Series with only fixed labels never retire.
        self.retires = not cardinality.FREE_LABELS.isdisjoint(metric.labels)
        self.series: dict[tuple[str, ...], AnySeries] = {}


class Families:
    """Every live series.

    Parameters
    ----------
    limits
        The caps.
    sanitizer
        Counts changed values, and unknown keys.
    rules
        Users' rules for labels.
    on_folded
        Called when a cap folds a value, with the kind (see `folded`) and the folded span name,
        metric or value.
    """

    def __init__(
        self,
        limits: SeriesLimits,
        sanitizer: Sanitizer,
        rules: LabelRules | None = None,
        on_folded: Callable[[str, str], None] | None = None,
    ) -> None:
        self._limits = limits
        self._sanitizer = sanitizer
        self._rules = rules or LabelRules()
        self._on_folded = on_folded
        self._families: dict[str, Family] = {}
        #: By place: the span's names, and after its root the values of each tag label.
        places = (0, *range(2, 2 + len(self._rules.tag_labels)))
        self._slots = {place: NameSlots() for place in places}
        #: Counts the folded values. ``names``, ``series``, ``tags``: beyond a cap.
        #: ``denied_names``, ``denied_prefixes``: denied by the patterns. A name or key counts when
        #: it enters the cache.
        self.folded = Sanitizer()
        # From raw keys to series. Only keys of plain strings: 1, True and 1.0 are one key of a
        # dict, but different strings.
        self._labels: dict[Hashable, SpanLabel] = {}
        self._raw: dict[Hashable, AnySeries] = {}
        self._routes = 0

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())

    def drop(self, family: Family, series: AnySeries) -> None:
        """Retire a series. `forget_routes` must follow; else cached routes still lead to it."""
        del family.series[series.identity]
        if semconv.SPAN in family.metric.labels:
            for place, slots in self._slots.items():
                slots.release(series.identity[place])

    def folded_levels(self, metric: Hashable) -> list[LevelSeries]:
        """Return the metric's series with the levels of several names."""
        family = self._families.get(metric)  # type: ignore[call-overload]
        return [
            series
            for identity, series in (() if family is None else family.series.items())
            if semconv.FOLDED in identity and isinstance(series, LevelSeries) and series.measured
        ]

    def forget_routes(self) -> None:
        """Clear the cache of routes.

        Completely, since that needs no bookkeeping on the hot path. A key in use returns, at the
        cost of making its labels again.
        """
        self._routes = 0
        self._labels = {}
        self._raw = {}

    # ------------------------------------------------------------------- raw keys to series

    def label(self, tags: tuple[Hashable, ...]) -> SpanLabel:
        """Return the span label of these tags."""
        if found := self._labels.get(tags):
            return found
        texts, denied = self._rules.span(tags, self._sanitizer)
        if denied:
            self.folded.count("denied_names")
            texts = (semconv.FOLDED, semconv.FOLDED, *texts[2:])
        return self._kept(self._labels, tags, SpanLabel(texts), _is_plain(tags))

    def of_span(self, label: SpanLabel, key: SpanMetricKey) -> AnySeries:
        """Return the series of a span's key, and cache it in ``label.routes``."""
        if found := label.routes.get(key):
            return found
        metric, labels = route_span_key(key)
        return self._kept(label.routes, key, self._series(metric, label, labels), _is_plain(key))

    def of_cluster(self, key: Hashable) -> AnySeries | None:
        """Return the series of a key of the cluster's totals.

        None if another metric covers it, or if it is unknown (counted).
        """
        route = route_cluster_key(key)
        if route is not None:
            return self._series(route[0], None, route[1])
        if not is_ignored_cluster_key(key):
            self._sanitizer.count("unknown_key")
        return None

    def of_raw(self, raw: RawSeries) -> AnySeries:
        """Return the series of a raw series; raises for one that is not in `semconv`."""
        if found := self._raw.get(raw):
            return found
        name, *labels = raw
        metric, label = METRICS[name], None  # type: ignore[index]
        if semconv.SPAN in metric.labels:
            tags, *labels = labels
            label = self.label(tags)  # type: ignore[arg-type]
        # Integer labels are workers' names, which the bridge sets itself.
        plain = all(type(p) is int or _is_short(p) or _is_plain(p) for p in raw)
        return self._kept(self._raw, raw, self._series(metric, label, tuple(labels)), plain)

    def _series(
        self, metric: Metric, label: SpanLabel | None, labels: tuple[Hashable, ...]
    ) -> AnySeries:
        family = self._families.get(metric.name)
        if family is None:
            family = self._families[metric.name] = Family(metric, self._rules.tag_labels)
        texts = [label_text(value, self._sanitizer) for value in labels]
        at = family.prefix_at
        # A missing one always keeps its label.
        if at >= 0 and texts[at] != semconv.EMPTY and not self._rules.prefixes(texts[at]):
            self.folded.count("denied_prefixes")
            texts[at] = semconv.FOLDED
        identity = (*texts,) if label is None else (*label.texts, *texts)
        return family.series.get(identity) or self._admit(family, identity, label)

    def _admit(
        self, family: Family, identity: tuple[str, ...], label: SpanLabel | None
    ) -> AnySeries:
        """Return a new series or, beyond a cap, the one that it is folded into."""
        if label is not None:
            if not self._slots[0].admits(identity[0], self._limits.max_names):
                if not label.counted:
                    label.counted = True
                    self._count_folded("names", identity[0])
                identity = (semconv.FOLDED, semconv.FOLDED, *identity[2:])
            identity = self._with_known_tags(identity)
        if found := family.series.get(identity):
            return found
        limit = self._limits.max_series
        if len(family.series) >= self._limits.ordinary_series:
            self._count_folded("series", family.metric.name)
            for candidate, others in cardinality.folded(family.keys, identity):
                identity = candidate
                if found := family.series.get(identity):
                    return found
                if len(family.series) + others < limit:
                    break
        if label is not None:
            for place, slots in self._slots.items():
                slots.acquire(identity[place])
        attributes = dict(zip(family.keys, identity, strict=True))
        kind = _SERIES.get(family.metric.instrument, LevelSeries)
        series = family.series[identity] = kind(identity, attributes, family.metric)
        return series

    def _with_known_tags(self, identity: tuple[str, ...]) -> tuple[str, ...]:
        """Fold the values of tag labels beyond the cap."""
        values = list(identity)
        for place, slots in self._slots.items():
            if not slots.admits(values[place], self._limits.max_names):
                self._count_folded("tags", values[place])
                values[place] = semconv.FOLDED
        return tuple(values)

    def _kept(self, routes: dict[Hashable, Kept], key: Hashable, found: Kept, plain: bool) -> Kept:
        """Cache what belongs to a plain key, and return it."""
        if plain:
            routes[key] = found
            self._routes += 1
            if self._routes > _MAX_ROUTES:
                self.forget_routes()
        return found

    def _count_folded(self, kind: str, what: str) -> None:
        self.folded.count(kind)
        if self._on_folded is not None:
            self._on_folded(kind, what)


def _is_short(part: object) -> bool:
    return type(part) is str and len(part) <= _MAX_ROUTE_TEXT


def _is_plain(key: Hashable) -> bool:
    """Return whether a key is a tuple of short strings, so that equal keys have equal text."""
    return isinstance(key, tuple) and all(map(_is_short, key))
