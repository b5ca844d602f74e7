"""Row 5: finished Dask spans per second through the bridge, and bare spans through the SDK.

Both arms export the same spans (name, attributes, one event) with the same exporter, sink and
batch size, each in a process of its own that has exported some before. What the SDK gets is
ready to be sent; the bridge begins with the records of its event loop: it makes text and
attributes of them, asks the sampler, and pauses to let the event loop have the GIL.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.cluster import run_apart
from benchmarks.results import Row, balanced, verdict
from benchmarks.sink import Arrival, Sink
from dask_otel.core import identity
from dask_otel.core.records import FinishedSpan, SpanIdentity, TaskCounts
from dask_otel.core.traces.translate import translate

COUNT = 20_000
WARM_UP = 500
#: The SDK's default.
BATCH = 512

#: What is measured, and the batch size.
ARMS = {"sdk": BATCH, "bridge": BATCH, "small batches": 128}


def finished(number: int) -> FinishedSpan:
    """Return a span as workflows have them, without group spans."""
    dask_id = f"{number:08x}-0000-4000-8000-000000000000"
    return FinishedSpan(
        identity=SpanIdentity(
            dask_id, dask_id, ("etl", "load"), 1, identity.trace_id(dask_id),
            identity.span_id(dask_id), None,
        ),
        start=1.7e9, stop=1.7e9 + 5, first_start=1.7e9 + 1, result="success", complete=True,
        counts=TaskCounts(tasks=100, memory=100), output_bytes=12345, group_count=2,
        worker_count=2, thread_count=4, active_cpu=20.0, dask_idle=10.0,
        activities={"thread-cpu": 5.0, "thread-noncpu": 1.0, "executor": 0.2, "other": 0.1},
        collections=("Array",),
    )  # fmt: skip


def _bridge_arm() -> Callable[[int], None]:
    """Return what exports so many spans through the bridge's pump, as it does while it runs.

    It gets them in one burst.
    """
    from dask_otel.scheduler.wiring import make_pump
    from dask_otel.settings.reading import read_settings

    made = make_pump(read_settings({}), "benchmark", time.time_ns())
    assert made is not None
    pump = made.pump
    pump.start()
    spans = [finished(i) for i in range(COUNT)]

    def export(count: int) -> None:
        for one in spans[:count]:
            assert pump.spans.offer(one)
        while pump.spans.size:
            time.sleep(0.001)

    return export


def _sdk_arm() -> Callable[[int], None]:
    """Return what exports so many spans through the SDK's tracer, processor and exporter."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    tracer = provider.get_tracer("benchmark")
    (record,) = translate(finished(0))

    def export(count: int) -> None:
        for _ in range(count):
            span = tracer.start_span(record.name, attributes=dict(record.attributes))
            for event in record.events:
                span.add_event(event.name, dict(event.attributes), event.time_ns)
            span.end()
        provider.force_flush(120_000)

    return export


def measure(arm: str) -> dict[str, float]:
    """Return spans per second, and microseconds of this process's CPU per span."""
    export = _sdk_arm() if arm == "sdk" else _bridge_arm()
    export(WARM_UP)
    gc.collect()
    gc.freeze()
    began, cpu = time.perf_counter(), time.process_time()
    export(COUNT)
    cpu = time.process_time() - cpu
    return {"rate": COUNT / (time.perf_counter() - began), "cpu": 1e6 * cpu / COUNT}


def _run(arm: str, sink: Sink) -> dict[str, float]:
    """Measure in a fresh process; check that everything arrived."""
    more = sink.environment() | {
        # The queue may look one longer than it is while a span is being translated.
        "OTEL_BSP_MAX_QUEUE_SIZE": str(2 * COUNT),
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(ARMS[arm]),
        "OTEL_BSP_SCHEDULE_DELAY": "1000",
        "OTEL_METRICS_EXPORTER": "none",
    }
    result: dict[str, float] = run_apart(measure, arm, more=more)
    arrivals = sink.take()
    spans = sum(map(_spans, arrivals))
    if spans != WARM_UP + COUNT:
        raise RuntimeError(f"{spans} spans arrived, not {WARM_UP + COUNT} ({arm})")
    return result | {"bytes": sum(len(body) for _, _, body in arrivals) / spans}


def _spans(arrival: Arrival) -> int:
    request = ExportTraceServiceRequest.FromString(arrival[2])
    return sum(len(scope.spans) for r in request.resource_spans for scope in r.scope_spans)


def run(quick: bool) -> list[Row]:
    """Measure all arms in turn, forwards and backwards."""
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    with Sink() as sink:
        sink.take()
        for number in range(2 if quick else 6):
            for arm in reversed(ARMS) if number % 2 else ARMS:
                found[arm].append(_run(arm, sink))
    middle = {
        arm: {name: median(run[name] for run in runs) for name in ("rate", "cpu")}
        for arm, runs in found.items()
    }
    rates = {arm: [run["rate"] for run in runs] for arm, runs in found.items()}
    ratios = {arm: median(balanced(rates["sdk"], rates[arm])) for arm in ARMS}
    bridge, sdk = middle["bridge"], middle["sdk"]
    figure = (
        f"{ratios['bridge']:.2f} ({bridge['rate']:,.0f} Dask spans/s, {bridge['cpu']:.0f} µs CPU; "
        f"SDK {sdk['rate']:,.0f} spans/s, {sdk['cpu']:.0f} µs CPU)"
    )
    what = f"export throughput over the SDK's, batches of {BATCH}"
    met = verdict(ratios["bridge"] >= 1.3)
    small = f"{ratios['small batches']:.2f} ({middle['small batches']['cpu']:.0f} µs CPU)"
    return [
        Row("5", what, "≥ 1.3", figure, met, dict(found)),
        Row("5", "the same, with its own default of 128", "", small, "info"),
    ]
