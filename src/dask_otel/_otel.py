"""OpenTelemetry's side: the only module that imports the SDK and its exporters.

Finished records become the SDK's public data classes and go to exporters through their
public ``export()``. The SDK's batch processor and metric state are not used: see
`dask_otel.pump` and `dask_otel.core.series`.

Everything here is slow to import and may block (resource detectors): it is called in threads
of the bridge's own, never on the scheduler's event loop.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace as trace_api
from opentelemetry.sdk.metrics import Exemplar as SdkExemplar
from opentelemetry.sdk.metrics import export as sdk_metrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace import SpanLimits as SdkSpanLimits
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from dask_otel import semconv
from dask_otel._setting_problems import ConfigurationError
from dask_otel.core.records import (
    Exemplar,
    HistogramPoint,
    MetricRecord,
    NumberPoint,
    SpanRecord,
    Temporality,
)

logger = logging.getLogger("dask_otel")

_KINDS: Final = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_NOT_SAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)
_TEMPORALITY: Final = {
    "cumulative": sdk_metrics.AggregationTemporality.CUMULATIVE,
    "delta": sdk_metrics.AggregationTemporality.DELTA,
}

_GROUPS: Final = {
    "traces": "opentelemetry_traces_exporter",
    "metrics": "opentelemetry_metrics_exporter",
}
_OTLP_BY_PROTOCOL: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_OTLP_NAMES: Final = frozenset({"otlp", *_OTLP_BY_PROTOCOL.values()})
#: Traces whose sampling decision is remembered.
_MAX_DECISIONS: Final = 4096
#: Points of one metrics request: more would hold the GIL, and fill gRPC's 4 MiB.
_MAX_POINTS: Final = 500


# --------------------------------------------------------------------------- environment

_environment_lock = threading.Lock()


@contextmanager
def defaults_for_environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Set variables that the environment does not set, for as long as exporters are made.

    The SDK's parts read ``os.environ`` and nothing else. What the user has set is never
    touched, and nothing of ours stays behind.
    """
    with _environment_lock:
        ours = {key: value for key, value in defaults.items() if key not in os.environ}
        os.environ.update(ours)
        try:
            yield
        finally:
            for key in ours:
                os.environ.pop(key, None)


def is_disabled() -> bool:
    """Whether ``OTEL_SDK_DISABLED`` switches everything off."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _choice(variable: str, allowed: Sequence[str], default: str) -> str:
    value = os.environ.get(variable, "").strip().lower()
    if not value:
        return default
    if value not in allowed:
        raise ConfigurationError([f"{variable} is {value!r}; allowed: {', '.join(allowed)}"])
    return value


def _number(variable: str, default: float, least: float) -> float:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise ConfigurationError([f"{variable} is {text!r}; allowed: a number from {least:g} up"])
    return value


@dataclass(frozen=True, slots=True)
class Environment:
    """What the standard variables say about the pump. Times in seconds."""

    queue_size: int
    batch_size: int
    schedule_delay: float
    metric_interval: float
    temporality: Temporality
    exemplars: str


def read_environment() -> Environment:
    """Read the standard variables that the bridge itself obeys.

    Raises
    ------
    ConfigurationError
        If one has a value that is not allowed.
    """
    queue_size = int(_number("OTEL_BSP_MAX_QUEUE_SIZE", 2048, 1))
    # The default is smaller than the SDK's 512, because encoding holds the GIL.
    batch_size = int(_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(32, queue_size), 1))
    if batch_size > queue_size:
        raise ConfigurationError(
            [
                f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE is {batch_size}; allowed: at most "
                f"OTEL_BSP_MAX_QUEUE_SIZE, which is {queue_size}"
            ]
        )
    preference = _choice(
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
        ("cumulative", "delta", "lowmemory"),
        "cumulative",
    )
    return Environment(
        queue_size=queue_size,
        batch_size=batch_size,
        schedule_delay=_number("OTEL_BSP_SCHEDULE_DELAY", 1000, 0) / 1000,
        metric_interval=_number("OTEL_METRIC_EXPORT_INTERVAL", 60_000, 1) / 1000,
        # Both mean delta for synchronous counters and histograms, and ours behave as such.
        temporality="cumulative" if preference == "cumulative" else "delta",
        exemplars=_choice(
            "OTEL_METRICS_EXEMPLAR_FILTER",
            ("always_on", "always_off", "trace_based"),
            "trace_based",
        ),
    )


# ------------------------------------------------------------------------------ resource


def make_resource(
    service_name: str, instance_id: str, service_version: str, cluster_name: str | None
) -> Resource:
    """Return the resource: the user's attributes, then detectors', then ours.

    Parameters
    ----------
    service_name, instance_id, service_version
        Used where the user has set no other.
    cluster_name
        ``otel.cluster-name``; None leaves it to the environment, then to the service's name.
    """
    # The SDK invents a service name and an instance id where the user gave none: only what
    # the variables or a detector say beats ours.
    detected = dict(Resource.create().attributes)
    given = _user_attributes()
    if semconv.SERVICE_NAME not in given and str(
        detected.get(semconv.SERVICE_NAME, "unknown_service")
    ).startswith("unknown_service"):
        detected[semconv.SERVICE_NAME] = service_name
    if semconv.SERVICE_INSTANCE_ID not in given:
        detected[semconv.SERVICE_INSTANCE_ID] = instance_id
    detected.setdefault(semconv.SERVICE_VERSION, service_version)
    if semconv.CLUSTER_NAME not in detected:
        found = cluster_name or _cluster_name_from_environment()
        detected[semconv.CLUSTER_NAME] = found or str(detected[semconv.SERVICE_NAME])
    return Resource(detected)


def _user_attributes() -> Mapping[str, str]:
    """Return what OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME set, by key."""
    given = {}
    for item in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        key, separator, value = item.partition("=")
        if separator:
            given[key.strip()] = value.strip()
    if os.environ.get("OTEL_SERVICE_NAME"):
        given[semconv.SERVICE_NAME] = os.environ["OTEL_SERVICE_NAME"]
    return given


def _cluster_name_from_environment() -> str | None:
    """Return the name that the Dask operator, Dask Gateway or Coiled put there."""
    for variable in (
        "DASK_CLUSTER_NAME",
        "DASK_GATEWAY_CLUSTER_NAME",
        "COILED_CLUSTER_NAME",
        "DASK_COILED__CLUSTER_NAME",
    ):
        if os.environ.get(variable):
            return os.environ[variable]
    return None


# ----------------------------------------------------------------------------- exporters


def exporter_names(signal: str) -> list[str]:
    """Return the entry point names of a signal's exporters, as the standard variables say.

    Parameters
    ----------
    signal
        ``"traces"`` or ``"metrics"``.

    Raises
    ------
    ConfigurationError
        If the protocol is unknown.
    """
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    wanted = [name.strip() for name in os.environ.get(variable, "otlp").split(",")]
    names = []
    for name in filter(None, wanted):
        if name == "none":
            continue
        names.append(_otlp_entry_point(signal) if name == "otlp" else name)
    # A name given twice would export everything twice.
    return list(dict.fromkeys(names))


def _otlp_entry_point(signal: str) -> str:
    for variable in (
        f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ):
        if os.environ.get(variable, "").strip():
            return _OTLP_BY_PROTOCOL[_choice(variable, tuple(_OTLP_BY_PROTOCOL), "grpc")]
    return "otlp_proto_grpc"


def make_exporter(signal: str, name: str) -> Any:
    """Make an exporter by its entry point name.

    Raises
    ------
    ConfigurationError
        If there is no such exporter, it can't be made, or it is one that opens a port.
    """
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    if signal == "metrics" and name == "prometheus":
        raise ConfigurationError(
            [
                f"{variable} names 'prometheus', which opens a port in the scheduler's process; "
                "allowed: push exporters such as otlp and console. The scheduler's own /metrics "
                "page is the place for metrics that are scraped (otel.metrics.prometheus)"
            ]
        )
    found = list(entry_points(group=_GROUPS[signal], name=name))
    if not found:
        known = sorted({entry.name for entry in entry_points(group=_GROUPS[signal])})
        raise ConfigurationError(
            [f"{variable} names {name!r}; installed: {', '.join(['none', *known])}"]
        )
    keyword = _compression(signal) if name == "otlp_proto_grpc" else {}
    try:
        exporter = found[0].load()(**keyword)
    except Exception as error:
        raise ConfigurationError(
            [f"the {signal} exporter {name!r} ({variable}) could not be made: {error!r}"]
        ) from error
    wanted = SpanExporter if signal == "traces" else sdk_metrics.MetricExporter
    if not isinstance(exporter, wanted):
        raise ConfigurationError(
            [f"{variable} names {name!r}, which is no push exporter ({type(exporter).__name__})"]
        )
    return exporter


def _compression(signal: str) -> dict[str, Any]:
    """Return the gRPC exporter's compression where its constructor would not take the variable.

    ``none`` is a standard value, and raises there.
    """
    for variable in (
        f"OTEL_EXPORTER_OTLP_{signal.upper()}_COMPRESSION",
        "OTEL_EXPORTER_OTLP_COMPRESSION",
    ):
        if os.environ.get(variable, "").strip():
            value = _choice(variable, ("none", "gzip"), "none")
            from grpc import Compression

            return {
                "compression": Compression.Gzip if value == "gzip" else Compression.NoCompression
            }
    return {}


def describe(signal: str, name: str) -> str:
    """Return what a person needs to recognise an exporter: its name and endpoint."""
    if name not in _OTLP_NAMES:
        return name
    specific = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    endpoint = specific or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if name == "otlp_proto_http":
        return f"{endpoint or 'http://localhost:4318'} (OTLP over HTTP)"
    return f"{endpoint or 'http://localhost:4317'} (OTLP over gRPC)"


# ---------------------------------------------------------------------------------- logs


class ExporterLogs(logging.Filter):
    """Keeps exporters' messages of our threads out of the log, and remembers the last one.

    Exporters log an error for each failed request; the pump tells a person once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._threads: dict[int, str] = {}
        self._loggers: list[logging.Logger] = []

    def install(self) -> None:
        """Put the filter on the exporters' loggers that exist now."""
        for name, found in list(logging.root.manager.loggerDict.items()):
            if name.startswith("opentelemetry.exporter") and isinstance(found, logging.Logger):
                found.addFilter(self)
                self._loggers.append(found)

    def remove(self) -> None:
        """Take it off again."""
        for found in self._loggers:
            found.removeFilter(self)
        self._loggers.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        """Hold back the records of our threads."""
        if record.thread not in self._threads:
            return True
        self._threads[record.thread] = record.getMessage()[:500]
        return False

    def last(self) -> str:
        """Return the last message that was held back in this thread."""
        return self._threads.get(threading.get_ident(), "")

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Count this thread as ours, and suppress the instrumentation of its requests."""
        values = otel_context.set_value("suppress_instrumentation", True)
        values = otel_context.set_value("suppress_http_instrumentation", True, values)
        token = otel_context.attach(values)
        self._threads[threading.get_ident()] = ""
        try:
            yield
        finally:
            self._threads.pop(threading.get_ident(), None)
            otel_context.detach(token)


# ------------------------------------------------------------------------------- sampling


class TraceSampler:
    """Decides for whole traces with the sampler that the standard variables name.

    A trace is decided by its id and its root's name alone, which are known from the start;
    its spans follow the parent's decision as the sampler sees fit.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._decisions: OrderedDict[int, bool] = OrderedDict()
        self._lock = threading.Lock()

    def trace(self, trace_id: int, root_name: str = "") -> bool:
        """Return whether the trace is sampled."""
        with self._lock:
            decided = self._decisions.get(trace_id)
            if decided is None:
                result = self._sampler.should_sample(
                    otel_context.Context(), trace_id, root_name, SpanKind.SERVER, {}, ()
                )
                decided = result.decision is Decision.RECORD_AND_SAMPLE
                self._decisions[trace_id] = decided
                if len(self._decisions) > _MAX_DECISIONS:
                    self._decisions.popitem(last=False)
            return decided

    def span(self, record: SpanRecord) -> bool:
        """Return whether the span is sampled."""
        trace = self.trace(record.trace_id, record.root_name)
        if record.parent_span_id is None:
            return trace
        flags = _SAMPLED if trace else _NOT_SAMPLED
        parent = SpanContext(record.trace_id, record.parent_span_id, False, flags)
        result = self._sampler.should_sample(
            set_span_in_context(NonRecordingSpan(parent), otel_context.Context()),
            record.trace_id,
            record.name,
            _KINDS[record.kind],
            record.attributes,
            (),
        )
        return result.decision is Decision.RECORD_AND_SAMPLE


def make_sampler(resource: Resource) -> TraceSampler:
    """Return the sampler that ``OTEL_TRACES_SAMPLER`` names."""
    # A provider that processes nothing: the public way to the SDK's parsed sampler.
    return TraceSampler(TracerProvider(resource=resource, shutdown_on_exit=False).sampler)


# ------------------------------------------------------------------------------ span sinks


def _scope(version: str) -> InstrumentationScope:
    return InstrumentationScope(semconv.SCOPE_NAME, version, semconv.SCHEMA_URL)


def _links(record: SpanRecord, limit: int | None) -> list[SdkLink]:
    links = record.links if limit is None else record.links[:limit]
    return [
        SdkLink(SpanContext(link.trace_id, link.span_id, True, _SAMPLED), dict(link.attributes))
        for link in links
    ]


def _events(record: SpanRecord, limit: int | None) -> list[SdkEvent]:
    events = record.events if limit is None else record.events[:limit]
    return [SdkEvent(event.name, dict(event.attributes), event.time_ns) for event in events]


def _status(record: SpanRecord) -> Status:
    return Status() if record.error is None else Status(StatusCode.ERROR, record.error)


class ExporterSpanSink:
    """Spans to one exporter, through its public ``export``."""

    def __init__(
        self,
        name: str,
        exporter: SpanExporter,
        resource: Resource,
        sampler: TraceSampler,
        logs: ExporterLogs,
        version: str,
    ) -> None:
        self.name = name
        self._exporter = exporter
        self._resource = resource
        self._sampler = sampler
        self._logs = logs
        self._scope = _scope(version)
        limits = SdkSpanLimits()
        self._max_attributes: int | None = limits.max_span_attributes
        self._max_length: int | None = limits.max_span_attribute_length
        self._max_events: int | None = limits.max_events
        self._max_links: int | None = limits.max_links

    def export(self, records: Sequence[SpanRecord]) -> bool:
        """Export what is sampled."""
        spans = [self._readable(record) for record in records if self._sampler.span(record)]
        return not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS

    def _readable(self, record: SpanRecord) -> ReadableSpan:
        parent = None
        if record.parent_span_id is not None:
            parent = SpanContext(record.trace_id, record.parent_span_id, True, _SAMPLED)
        return ReadableSpan(
            name=record.name,
            context=SpanContext(record.trace_id, record.span_id, False, _SAMPLED),
            parent=parent,
            resource=self._resource,
            attributes=self._attributes(record),
            events=_events(record, self._max_events),
            links=_links(record, self._max_links),
            kind=_KINDS[record.kind],
            status=_status(record),
            start_time=record.start_ns,
            end_time=record.end_ns,
            instrumentation_scope=self._scope,
        )

    def _attributes(self, record: SpanRecord) -> dict[str, Any]:
        attributes = dict(record.attributes)
        if self._max_attributes is not None and len(attributes) > self._max_attributes:
            attributes = dict(list(attributes.items())[: self._max_attributes])
        if self._max_length is not None:
            for key, value in attributes.items():
                if isinstance(value, str):
                    attributes[key] = value[: self._max_length]
                elif isinstance(value, tuple):
                    attributes[key] = tuple(item[: self._max_length] for item in value)
        return attributes

    def last_error(self) -> str:
        """Return the exporter's last message."""
        return self._logs.last()

    def shutdown(self) -> None:
        """Shut the exporter down."""
        self._exporter.shutdown()


class _Ids(IdGenerator):
    """Gives one tracer the ids of the record at hand; used by one thread."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class ProviderSpanSink:
    """Spans through the tracer provider that the application has set, with our ids.

    Its sampler, processors and resource apply, and it is never shut down by us.
    """

    name = "the application's tracer provider"

    def __init__(self, provider: TracerProvider, version: str) -> None:
        self._tracer = provider.get_tracer(
            semconv.SCOPE_NAME, version, schema_url=semconv.SCHEMA_URL
        )
        self._ids = _Ids()
        # A plain attribute of our own tracer: other tracers of the provider keep theirs.
        self._tracer.id_generator = self._ids  # type: ignore[attr-defined]

    def export(self, records: Sequence[SpanRecord]) -> bool:
        """Start and end each span, with the times of the record."""
        for record in records:
            self._replay(record)
        return True

    def _replay(self, record: SpanRecord) -> None:
        self._ids.trace_id, self._ids.span_id = record.trace_id, record.span_id
        context = otel_context.Context()
        if record.parent_span_id is not None:
            parent = SpanContext(record.trace_id, record.parent_span_id, False, _SAMPLED)
            context = set_span_in_context(NonRecordingSpan(parent), context)
        span = self._tracer.start_span(
            record.name,
            context,
            _KINDS[record.kind],
            dict(record.attributes),
            _links(record, None),
            record.start_ns,
            record_exception=False,
        )
        for event in record.events:
            span.add_event(event.name, dict(event.attributes), event.time_ns)
        if record.error is not None:
            span.set_status(StatusCode.ERROR, record.error)
        span.end(record.end_ns)

    def last_error(self) -> str:
        """Return nothing: the provider does not tell."""
        return ""

    def shutdown(self) -> None:
        """Leave the application's provider alone."""


def application_provider() -> TracerProvider | None:
    """Return the SDK tracer provider that the application has set globally, if any."""
    provider = trace_api.get_tracer_provider()
    return provider if isinstance(provider, TracerProvider) else None


# ---------------------------------------------------------------------------- metric sinks


class ExporterMetricSink:
    """Metrics to one exporter, through its public ``export``."""

    def __init__(
        self,
        name: str,
        exporter: sdk_metrics.MetricExporter,
        resource: Resource,
        logs: ExporterLogs,
        version: str,
        split: bool,
    ) -> None:
        self.name = name
        #: Whether the last export was refused as invalid (HTTP 400).
        self.rejected = False
        self._exporter = exporter
        self._resource = resource
        self._logs = logs
        self._scope = _scope(version)
        self._split = split

    def export(self, records: Sequence[MetricRecord]) -> bool:
        """Export, in several requests if there are many points."""
        self.rejected = False
        for part in self._parts(records):
            metrics = [_metric(record) for record in part]
            scope = sdk_metrics.ScopeMetrics(self._scope, metrics, semconv.SCHEMA_URL)
            data = sdk_metrics.MetricsData(
                [sdk_metrics.ResourceMetrics(self._resource, [scope], "")]
            )
            if self._exporter.export(data) is not sdk_metrics.MetricExportResult.SUCCESS:
                self.rejected = "400" in self._logs.last()
                return False
        return True

    def _parts(self, records: Sequence[MetricRecord]) -> Iterator[list[MetricRecord]]:
        # Deltas go in one request: of several, one could be lost and the others not.
        part: list[MetricRecord] = []
        size = 0
        for record in records:
            if self._split and part and size + len(record.points) > _MAX_POINTS:
                yield part
                part, size = [], 0
            part.append(record)
            size += len(record.points)
        if part:
            yield part

    def last_error(self) -> str:
        """Return the exporter's last message."""
        return self._logs.last()

    def shutdown(self) -> None:
        """Shut the exporter down."""
        self._exporter.shutdown()


def _exemplars(exemplars: Sequence[Exemplar]) -> list[SdkExemplar]:
    return [
        SdkExemplar({}, exemplar.value, exemplar.time_ns, exemplar.span_id, exemplar.trace_id)
        for exemplar in exemplars
    ]


def _number_point(point: NumberPoint) -> sdk_metrics.NumberDataPoint:
    return sdk_metrics.NumberDataPoint(
        attributes=dict(point.attributes),
        start_time_unix_nano=point.start_ns,
        time_unix_nano=point.time_ns,
        value=point.value,
        exemplars=_exemplars(point.exemplars),
    )


def _histogram_point(point: HistogramPoint) -> sdk_metrics.HistogramDataPoint:
    return sdk_metrics.HistogramDataPoint(
        attributes=dict(point.attributes),
        start_time_unix_nano=point.start_ns,
        time_unix_nano=point.time_ns,
        count=point.count,
        sum=point.sum,
        bucket_counts=list(point.bucket_counts),
        explicit_bounds=list(point.bounds),
        min=point.min,
        max=point.max,
        exemplars=_exemplars(point.exemplars),
    )


def _metric(record: MetricRecord) -> sdk_metrics.Metric:
    temporality = _TEMPORALITY[record.temporality]
    data: Any
    if record.instrument == "histogram":
        points = [_histogram_point(p) for p in record.points if isinstance(p, HistogramPoint)]
        data = sdk_metrics.Histogram(points, temporality)
    else:
        numbers = [_number_point(p) for p in record.points if isinstance(p, NumberPoint)]
        if record.instrument == "gauge":
            data = sdk_metrics.Gauge(numbers)
        else:
            data = sdk_metrics.Sum(numbers, temporality, record.instrument == "counter")
    return sdk_metrics.Metric(record.name, record.description, record.unit, data)


# ---------------------------------------------------------------------------------- all


@dataclass(frozen=True, slots=True)
class Outputs:
    """Everything that the pump needs of OpenTelemetry."""

    environment: Environment
    span_sinks: tuple[ExporterSpanSink | ProviderSpanSink, ...]
    metric_sinks: tuple[ExporterMetricSink, ...]
    logs: ExporterLogs
    #: Whether a trace is sampled, for exemplars; None lets all of them through.
    sampled: Callable[[int], bool] | None
    #: Attributes of the resource.
    resource: Mapping[str, Any]


def build(
    environment: Mapping[str, str],
    service_name: str,
    instance_id: str,
    service_version: str,
    cluster_name: str | None,
    version: str,
) -> Outputs | None:
    """Make the exporters that the standard variables name.

    Parameters
    ----------
    environment
        Defaults for variables that are not set.
    service_name, instance_id, service_version, cluster_name
        For the resource; see `make_resource`.
    version
        Of the bridge, for the instrumentation scope.

    Returns
    -------
    outputs
        None if ``OTEL_SDK_DISABLED`` switches everything off.

    Raises
    ------
    ConfigurationError
        If a variable has a value that is not allowed.
    """
    with defaults_for_environment(environment):
        if is_disabled():
            return None
        read = read_environment()
        resource = make_resource(service_name, instance_id, service_version, cluster_name)
        sampler = make_sampler(resource)
        logs = ExporterLogs()
        spans: list[ExporterSpanSink | ProviderSpanSink] = []
        provider = application_provider()
        if provider is not None:
            spans.append(ProviderSpanSink(provider, version))
        else:
            spans += [
                ExporterSpanSink(
                    describe("traces", name),
                    make_exporter("traces", name),
                    resource,
                    sampler,
                    logs,
                    version,
                )
                for name in exporter_names("traces")
            ]
        metrics = [
            ExporterMetricSink(
                describe("metrics", name),
                make_exporter("metrics", name),
                resource,
                logs,
                version,
                split=read.temporality == "cumulative",
            )
            for name in exporter_names("metrics")
        ]
        logs.install()
    sampled = _exemplar_filter(read, sampler)
    return Outputs(read, tuple(spans), tuple(metrics), logs, sampled, resource.attributes)


def _exemplar_filter(read: Environment, sampler: TraceSampler) -> Callable[[int], bool] | None:
    if read.exemplars == "always_off":
        return lambda _: False
    return None if read.exemplars == "always_on" else sampler.trace
