"""Puts the pump together: exporters, totals and translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from dask_otel import semconv
from dask_otel._version import __version__
from dask_otel.advice import FoldAdvice
from dask_otel.breath import Breath
from dask_otel.core.cardinality import SeriesLimits
from dask_otel.core.labels import LabelRules, Patterns
from dask_otel.core.records import FinishedSpan, SpanRecord
from dask_otel.core.series import MetricState
from dask_otel.core.text import Sanitizer
from dask_otel.core.translate import SpanLimits, translate
from dask_otel.pump import MAX_POINTS, Pump, PumpLimits
from dask_otel.settings import MetricSettings, Settings


@dataclass(frozen=True, slots=True)
class MadePump:
    """A pump that has not been started, and what the bridge must know of it."""

    pump: Pump
    #: Seconds between two exports of metrics.
    metric_interval: float
    #: For the log: where everything goes.
    summary: str


def make_pump(settings: Settings, instance_id: str, started_ns: int) -> MadePump | None:
    """Make exporters and pump as the settings and the standard variables say.

    Slow: it imports the SDK and exporters, and runs resource detectors. Call it in a thread.

    Parameters
    ----------
    settings
        The bridge's own knobs.
    instance_id
        Dask's id of the scheduler.
    started_ns
        When the bridge started: no zero point lies before it.

    Returns
    -------
    made
        None if ``OTEL_SDK_DISABLED`` switches everything off.

    Raises
    ------
    ConfigurationError
        If a standard variable has a value that is not allowed.
    """
    from dask_otel import _otel

    outputs = _otel.build(
        settings.environment,
        service_name="dask-scheduler",
        instance_id=instance_id,
        service_version=version("distributed"),
        cluster_name=settings.cluster_name,
        version=__version__,
    )
    if outputs is None:
        return None
    read = outputs.environment
    note = Sanitizer()
    limits = SeriesLimits(
        max_names=settings.metrics.max_names,
        max_series=settings.metrics.max_series,
        retire_after_ns=int(settings.metrics.retire_after * 1e9),
        interval_ns=int(read.metric_interval * 1e9),
    )
    rules, advice = _label_rules(settings.metrics), FoldAdvice(settings.metrics)
    totals = [
        MetricState(
            started_ns,
            temporality=read.temporality,
            limits=limits,
            sampled=outputs.sampled,
            rules=rules,
            told=advice,
            breathe=Breath(),
        )
        for _ in outputs.metric_sinks
    ]
    for state in totals:
        for time in ("idle", "unused", "lost"):
            # A closed sum needs all its parts, also while they are 0.
            state.keep((semconv.CLUSTER_TIME.name, time))
    pump = Pump(
        outputs.span_sinks,
        list(zip(outputs.metric_sinks, totals, strict=True)),
        partial(_translate, limits=_span_limits(settings), note=note),
        PumpLimits(
            queue_size=read.queue_size,
            batch_size=read.batch_size,
            schedule_delay=read.schedule_delay,
            max_points=None if read.temporality == "delta" else MAX_POINTS,
        ),
        note.drain,
    )
    places = [sink.name for sink in (*outputs.span_sinks, *outputs.metric_sinks)]
    summary = ", ".join(dict.fromkeys(places)) or "to nowhere (OTEL_TRACES_EXPORTER=none)"
    return MadePump(pump, read.metric_interval, summary)


def _label_rules(settings: MetricSettings) -> LabelRules:
    return LabelRules(
        names=Patterns(settings.span_names.allow, settings.span_names.deny),
        prefixes=Patterns(settings.prefixes.allow, settings.prefixes.deny),
        span_label=settings.span_label,
        rules=settings.name_rules,
        tags=settings.tag_attributes,
    )


def _span_limits(settings: Settings) -> SpanLimits:
    spans = settings.spans
    default = SpanLimits()
    return SpanLimits(
        message=default.message if spans.exception_message else 0,
        stacktrace=default.stacktrace if spans.exception_stacktrace else 0,
        exceptions=spans.max_exceptions,
    )


def _translate(finished: FinishedSpan, limits: SpanLimits, note: Sanitizer) -> Sequence[SpanRecord]:
    return translate(finished, limits, note)
