"""Spans and metrics made with the plain OpenTelemetry SDK, in the shape of the contract."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as GrpcMetricExporter,
)
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
    OTLPSpanExporter as GrpcSpanExporter,
)
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpMetricExporter,
)
from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
    OTLPSpanExporter as HttpSpanExporter,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, Status, StatusCode

from dask_otel import semconv
from tests.receiver import Span

from .servers import Running

SECOND = 1_000_000_000


def span_exporter(protocol: str, to: Running) -> SpanExporter:
    """The SDK's exporter for ``grpc`` or ``http``."""
    if protocol == "grpc":
        return GrpcSpanExporter(endpoint=to.grpc, insecure=True)
    return HttpSpanExporter(endpoint=f"{to.http}/v1/traces")


def new_resource(**attributes: str) -> Resource:
    """A scheduler that no other test has: its own cluster name and instance id."""
    unique = uuid.uuid4().hex[:12]
    return Resource(
        {
            "service.name": "dask-scheduler",
            "service.instance.id": f"Scheduler-{unique}",
            "dask.cluster.name": f"cluster-{unique}",
            **attributes,
        }
    )


def now_ns() -> int:
    """The time in whole milliseconds, which is all that Prometheus keeps."""
    return time.time_ns() // 1_000_000 * 1_000_000


def cluster_of(resource: Resource) -> str:
    return str(resource.attributes["dask.cluster.name"])


@contextmanager
def tracing(exporter: SpanExporter, resource: Resource) -> Iterator[Callable[..., trace.Span]]:
    """A function that starts a span; every span is exported when it ends."""
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    try:
        yield provider.get_tracer(semconv.SCOPE_NAME).start_span
    finally:
        provider.shutdown()


@dataclass(frozen=True)
class Tree:
    """The ids of what `send_tree` sent."""

    trace_id: int
    root_id: int
    child_id: int
    name: str


def send_tree(
    exporter: SpanExporter, resource: Resource, *, failed: bool, idle: float = 90.5
) -> Tree:
    """Export a root with one child, as the bridge would for two nested Dask spans."""
    name = f"nightly-{uuid.uuid4().hex[:8]}"
    result = "failure" if failed else "success"
    with tracing(exporter, resource) as start_span:
        root = start_span(
            name,
            kind=SpanKind.SERVER,
            attributes={
                semconv.SPAN_TYPE: "span",
                semconv.SPAN_NAME: name,
                semconv.SPAN_TAGS: [name],
                semconv.SPAN_RESULT: result,
                "dask.span.idle.time": idle,
                semconv.TASK_COUNT: 7,
            },
        )
        child = start_span(
            "load",
            context=trace.set_span_in_context(root),
            attributes={
                semconv.SPAN_TYPE: "span",
                semconv.SPAN_NAME: f"{name}/load",
                semconv.SPAN_TAGS: [name, "load"],
                semconv.SPAN_RESULT: result,
            },
        )
        if failed:
            root.set_status(Status(StatusCode.ERROR, "1 task failed"))
        child.end()
        root.end()
    above, below = root.get_span_context(), child.get_span_context()
    return Tree(above.trace_id, above.span_id, below.span_id, name)


def check_tree(spans: list[Span], tree: Tree) -> bool:
    """Check a tree that failed, as a backend has it: ids, errors, and types of values."""
    by_name = {span.name: span for span in spans}
    assert by_name.keys() == {tree.name, "load"}
    root, child = by_name[tree.name], by_name["load"]
    assert [
        (one.trace_id, one.span_id, one.parent_id, one.status == 2) for one in (root, child)
    ] == [
        (tree.trace_id, tree.root_id, None, True),
        (tree.trace_id, tree.child_id, tree.root_id, False),
    ]
    assert root.attributes[semconv.TASK_COUNT] == 7
    assert root.attributes["dask.span.idle.time"] == 90.5
    assert child.attributes[semconv.SPAN_TAGS] == (tree.name, "load")
    return True


def failed_spans(count: int, resource: Resource, stacktrace: int = 8192) -> list[ReadableSpan]:
    """One trace of so many spans; all but the root have a stack trace of that size."""
    memory = InMemorySpanExporter()
    with tracing(memory, resource) as start_span:
        root = start_span("root", kind=SpanKind.SERVER)
        context = trace.set_span_in_context(root)
        for number in range(count - 1):
            child = start_span(f"load-{number}", context=context)
            frames = f'  File "load.py", line {number}, in load\n' * (stacktrace // 30)
            child.add_event("exception", {semconv.EXCEPTION_STACKTRACE: frames[:stacktrace]})
            child.set_status(Status(StatusCode.ERROR, "1 task failed"))
            child.end()
        root.end()
        return list(memory.get_finished_spans())


# ------------------------------------------------------------------- metrics built by hand


def counter(
    metric: semconv.Metric,
    points: Sequence[tuple[int, float]],
    attributes: Mapping[str, str],
    start_ns: int,
) -> Metric:
    """A cumulative monotone sum; `points` are (time in ns, value), in the order to be sent."""
    data = [
        NumberDataPoint(
            attributes=dict(attributes),
            start_time_unix_nano=start_ns,
            time_unix_nano=time_ns,
            value=value,
        )
        for time_ns, value in points
    ]
    return Metric(
        name=metric.name,
        description=metric.description,
        unit=metric.unit,
        data=Sum(
            data_points=data,
            aggregation_temporality=AggregationTemporality.CUMULATIVE,
            is_monotonic=True,
        ),
    )


def export_metrics(to: Running, resource: Resource, *requests: list[Metric]) -> None:
    """Send requests by the SDK's exporter, to a Collector by gRPC or straight to Prometheus."""
    exporter: MetricExporter = (
        GrpcMetricExporter(endpoint=to.grpc, insecure=True)
        if to.grpc
        else HttpMetricExporter(endpoint=to.otlp_metrics)
    )
    for metrics in requests:
        scope = ScopeMetrics(InstrumentationScope(semconv.SCOPE_NAME), metrics, "")
        data = MetricsData([ResourceMetrics(resource, [scope], "")])
        assert exporter.export(data) is MetricExportResult.SUCCESS
    exporter.shutdown()
