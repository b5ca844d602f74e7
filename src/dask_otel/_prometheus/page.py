"""The metrics as a page for Prometheus: the other way out, without a collector.

The same records as over OTLP, with the names and labels that Prometheus makes of OTLP (its
strategy ``UnderscoreEscapingWithSuffixes``), so that dashboards and alerts work with both.
`MetricPage` keeps the last collected records; a scrape renders them, and changes nothing.

Needs ``prometheus_client`` (the extra ``prometheus``), which writes the two text formats.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeAlias

from prometheus_client import exposition as text_format
from prometheus_client.core import Exemplar as ClientExemplar
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_format
from prometheus_client.utils import floatToGoString

from dask_otel import semconv
from dask_otel.core.records import (
    Answer,
    AttributeValue,
    Exemplar,
    HistogramPoint,
    MetricRecord,
    NumberPoint,
)

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = openmetrics_format.CONTENT_TYPE_LATEST

#: Units in names; units in braces are annotations, and are not in names.
_UNITS: Final = {"s": "seconds", "By": "bytes", "By.s": "By_s"}
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_]")

#: Resource attributes that become labels of every series, as docs/telemetry.md recommends for OTLP.
PROMOTED: Final = (
    semconv.CLUSTER_NAME,
    "service.namespace",
    semconv.SERVICE_VERSION,
    "deployment.environment.name",
    "k8s.namespace.name",
)

_Key: TypeAlias = tuple[tuple[str, AttributeValue], ...]


class _Sample(NamedTuple):
    point: NumberPoint | HistogramPoint
    #: The last one of its series, also of an earlier collection: scrapes may be less frequent.
    exemplar: Exemplar | None


class MetricPage:
    """The last collected metrics of one bridge, as text.

    Parameters
    ----------
    resource
        Attributes of the resource. Some become labels of every series (`PROMOTED`); all of
        them are those of ``target_info``.
    destination
        The page as a `dask_otel.pump.destination.Destination`.

    Notes
    -----
    It is a sink of the pump: `send` belongs to the pump's thread. Any thread may call `render`.
    """

    signal = "metrics"
    #: All at once: there is no request that could become too large.
    max_points: int | None = None

    def __init__(self, resource: Mapping[str, object], destination: Any = None) -> None:
        self.destination = destination
        texts = {prometheus_name(key): _text(value) for key, value in resource.items()}
        promoted = {prometheus_name(key) for key in PROMOTED}
        self._labels = {key: value for key, value in texts.items() if key in promoted and value}
        self._target = {key: value for key, value in texts.items() if value}
        #: Of the last collection: the record of each name, and the samples of its series.
        self._families: dict[str, tuple[MetricRecord, dict[_Key, _Sample]]] = {}

    def send(self, records: Sequence[MetricRecord], _longest: float) -> Answer:
        """Replace the records, which must be cumulative."""
        before = {name: samples for name, (_, samples) in self._families.items()}
        self._families = {
            record.name: (record, _samples(record, before.get(record.name, {})))
            for record in records
        }
        return Answer(True)

    def close(self) -> None:
        """Release nothing: the routes go with the bridge."""

    def render(self, *, openmetrics: bool = False, target_info: bool = False) -> bytes:
        """Return the page.

        Parameters
        ----------
        openmetrics
            OpenMetrics 1.0 with exemplars and created times, instead of the text format 0.0.4,
            which has neither.
        target_info
            Whether to add the resource's attributes.
        """
        metrics = [self._metric(*family, openmetrics) for family in self._families.values()]
        if target_info:
            metrics.append(Metric("target", "Attributes of the resource", "info"))
            metrics[-1].add_sample("target_info", self._target, 1.0)
        text = openmetrics_format if openmetrics else text_format
        # The writers only collect from it.
        registry: Any = SimpleNamespace(collect=lambda: metrics)
        return bytes(text.generate_latest(registry))

    def _metric(
        self, record: MetricRecord, samples: Mapping[_Key, _Sample], openmetrics: bool
    ) -> Metric:
        name = prometheus_name(record.name)
        is_ratio = record.unit == "1" and record.instrument == "gauge"
        unit = "ratio" if is_ratio else _UNITS.get(record.unit, "")
        kind = record.instrument if record.instrument in ("counter", "histogram") else "gauge"
        metric = Metric(name, record.description, kind, unit)
        for key, (point, exemplar) in samples.items():
            labels = {prometheus_name(name): _text(value) for name, value in key} | self._labels
            # Only OpenMetrics has exemplars and created times.
            exemplar = exemplar if openmetrics else None
            if isinstance(point, HistogramPoint):
                _add_histogram(metric, labels, point, exemplar)
            elif kind == "counter":
                sample = f"{metric.name}_total"
                metric.add_sample(sample, labels, float(point.value), exemplar=_client(exemplar))
            else:
                metric.add_sample(metric.name, labels, float(point.value))
            if openmetrics and kind != "gauge":
                metric.add_sample(f"{metric.name}_created", labels, point.start_ns / 1e9)
        return metric


# ------------------------------------------------------------------------------------ names


def prometheus_name(name: str) -> str:
    """Return a metric's name without unit, or an attribute's key, as Prometheus writes it."""
    return _ILLEGAL.sub("_", name)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps([*value]) if isinstance(value, (list, tuple)) else str(value)


# ---------------------------------------------------------------------------------- samples


def _samples(record: MetricRecord, before: Mapping[_Key, _Sample]) -> dict[_Key, _Sample]:
    """Return the last point of each series; a zero point comes before it."""
    samples: dict[_Key, _Sample] = {}
    for point in record.points:
        key = tuple(point.attributes.items())
        old = before.get(key)
        # Not that of a series which has started again.
        exemplar = old.exemplar if old and old.point.start_ns == point.start_ns else None
        samples[key] = _Sample(point, point.exemplars[-1] if point.exemplars else exemplar)
    return samples


def _add_histogram(
    metric: Metric, labels: dict[str, str], point: HistogramPoint, exemplar: Exemplar | None
) -> None:
    bounds = [*map(floatToGoString, point.bounds), "+Inf"]
    bucket = -1 if exemplar is None else bisect_left(point.bounds, exemplar.value)
    totals = accumulate(point.bucket_counts)
    for index, (bound, total) in enumerate(zip(bounds, totals, strict=True)):
        metric.add_sample(
            f"{metric.name}_bucket",
            {**labels, "le": bound},
            float(total),
            exemplar=_client(exemplar) if index == bucket else None,
        )
    metric.add_sample(f"{metric.name}_count", labels, float(point.count))
    metric.add_sample(f"{metric.name}_sum", labels, point.sum)


def _client(exemplar: Exemplar | None) -> ClientExemplar | None:
    if exemplar is None:
        return None
    ids = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
    return ClientExemplar(ids, exemplar.value, exemplar.time_ns / 1e9)
