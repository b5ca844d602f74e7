"""The tracer provider that an application has set: our ids, its sampler, never shut down."""

from __future__ import annotations

import logging
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    ParentBased,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode

from dask_otel import semconv
from dask_otel._otel.sdk.sampling import TraceSampler
from dask_otel._otel.sdk.spans import ProviderSpanSink
from dask_otel.core.context import Caller, Traceparent
from dask_otel.core.records import Answer
from dask_otel.core.trace import Trace
from tests.cluster.processes import ran
from tests.otlp.conftest import send
from tests.otlp.records import CHILD, ROOT
from tests.receiver import receiver


def make(sampler: Sampler | None = None) -> tuple[TracerProvider, InMemorySpanExporter]:
    provider = TracerProvider(
        resource=Resource({"service.name": "app"}), sampler=sampler, shutdown_on_exit=False
    )
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def sink_of(provider: TracerProvider, version: str = "1") -> ProviderSpanSink:
    return ProviderSpanSink(provider, version, TraceSampler(provider.sampler))


def test_spans_go_through_it_with_our_ids_and_times() -> None:
    provider, exporter = make()
    sink = sink_of(provider, "1.2.3")
    # Children come before their parents.
    assert send(sink, [CHILD, ROOT]) == Answer(True)
    child, root = exporter.get_finished_spans()
    for span, record in ((child, CHILD), (root, ROOT)):
        assert (
            (span.context.trace_id, span.context.span_id),
            (span.start_time, span.end_time),
            dict(span.attributes),
        ) == (
            (record.trace_id, record.span_id),
            (record.start_ns, record.end_ns),
            dict(record.attributes),
        )
        assert span.resource.attributes["service.name"] == "app"
    assert root.parent is None
    assert (
        child.parent.span_id,
        (root.kind, child.kind),
        (child.status.status_code, child.status.description),
    ) == (ROOT.span_id, (SpanKind.SERVER, SpanKind.INTERNAL), (StatusCode.ERROR, CHILD.error))
    assert root.status.status_code is StatusCode.UNSET
    assert (
        [(e.name, e.timestamp) for e in root.events],
        [(link.context.trace_id, link.context.span_id) for link in root.links],
    ) == ([("dask.span.start", ROOT.events[0].time_ns)], [(7, 8)])
    assert root.instrumentation_scope.name == "dask_otel"


def test_without_a_processor_nothing_is_exported_and_nothing_lost() -> None:
    """The application may add one later."""
    provider = TracerProvider(shutdown_on_exit=False)
    sink, exporter = sink_of(provider), InMemorySpanExporter()
    assert send(sink, [ROOT]) == Answer(False, "it has no span processor, so its spans go nowhere")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    assert (send(sink, [ROOT]), [span.name for span in exporter.get_finished_spans()]) == (
        Answer(True),
        [ROOT.name],
    )


def test_it_is_not_shut_down_and_keeps_its_own_ids() -> None:
    provider, exporter = make()
    sink = sink_of(provider)
    send(sink, [ROOT])
    sink.close()
    with provider.get_tracer("the application").start_as_current_span("its own"):
        pass
    with provider.get_tracer("dask_otel").start_as_current_span("under our name"):
        pass
    _, own, named = exporter.get_finished_spans()
    assert len({ROOT.span_id, own.context.span_id, named.context.span_id}) == 3
    assert ROOT.trace_id not in (own.context.trace_id, named.context.trace_id)


@pytest.mark.parametrize("sampler", [ParentBased(TraceIdRatioBased(0.0)), ALWAYS_ON])
@pytest.mark.parametrize("flags", [0x00, 0x01, 0x02, 0x03])
def test_a_caller_s_trace_goes_on_in_it(flags: int, sampler: Sampler) -> None:
    """One goes by parents, and would sample nothing else; the other takes all of it."""
    provider, exporter = make(sampler)
    sink = sink_of(provider)
    trace = Trace(ROOT.trace_id, "nightly", Caller(Traceparent(ROOT.trace_id, 99, flags), "x=1"))
    root = replace(ROOT, trace_id=trace, parent_span_id=99, remote_parent=True)
    child = replace(CHILD, trace_id=trace)
    send(sink, [record for record in (child, root) if sink.wants(record)])
    spans = exporter.get_finished_spans()
    assert len(spans) == (2 if flags & 1 or sampler is ALWAYS_ON else 0)
    for span, record in zip(spans, (child, root), strict=False):
        assert (span.context.trace_id, span.context.span_id) == (trace, record.span_id)
        assert type(span.context.trace_id) is int
        assert span.parent.span_id == record.parent_span_id
        assert span.parent.is_remote is (record is root)
        assert span.context.trace_state.get("x") == "1"
        sampled, others = span.context.trace_flags & 1, span.context.trace_flags & 2
        assert (sampled, others) in ((1, 0), (1, flags & 2))


def test_two_bridges_share_its_tracer_and_not_their_ids() -> None:
    provider, exporter = make()
    sinks = [sink_of(provider), sink_of(provider)]
    start = threading.Barrier(2)

    def export(number: int) -> None:
        start.wait()
        for n in range(300):
            ids = {"trace_id": number, "span_id": number * 1000 + n}
            send(sinks[number - 1], [replace(ROOT, name=str(ids["span_id"]), **ids)])

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(export, (1, 2))] == [None, None]
    spans = exporter.get_finished_spans()
    assert len(spans) == 600
    for span in spans:
        assert (span.name, span.context.trace_id) == (
            str(span.context.span_id),
            span.context.span_id // 1000,
        )


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("hook", ["on_start", "on_end"])
def test_a_processor_that_raises_loses_one_span_and_is_said_once(
    error: type[BaseException], hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any, span: Any, parent_context: Any = None) -> None:
        if span.name == "bad":
            raise error("a bug of the application")

    Failing = type("Failing", (SpanProcessor,), {hook: fail})

    provider, exporter = make()
    provider.add_span_processor(Failing())
    sink = sink_of(provider)
    caplog.set_level(logging.WARNING, "distributed.dask_otel")
    for _ in range(2):
        assert send(sink, [ROOT, replace(CHILD, name="bad"), CHILD]) == Answer(True, lost=1)
    taken = [s.name for s in exporter.get_finished_spans() if s.name != "bad"]
    assert (taken, len(caplog.records)) == (["nightly", "load"] * 2, 1)


def test_spans_that_its_processors_start_under_our_name_have_ids_and_a_sampler_of_their_own() -> (
    None
):
    provider, exporter = make(TraceIdRatioBased(0.0))
    sink = sink_of(provider)

    started = []
    starts = Mock(spec=SpanProcessor)
    starts.on_start = lambda *_, **options: started.append(
        provider.get_tracer("dask_otel", "1", schema_url=semconv.SCHEMA_URL).start_span("its own")
    )
    provider.add_span_processor(starts)
    assert send(sink, [ROOT]).taken
    assert [s.name for s in exporter.get_finished_spans()] == ["nightly"]
    (own,) = started
    assert not own.is_recording(), "as the provider's sampler has it"
    assert own.get_span_context().trace_id != ROOT.trace_id


def test_what_a_provider_does_not_record_is_not_counted_as_exported() -> None:
    provider, exporter = make()
    sink = sink_of(provider)
    off = SpanContext(1, 2, is_remote=False)
    sink._tracer = SimpleNamespace(start_span=lambda *args, **options: NonRecordingSpan(off))
    assert send(sink, [ROOT, CHILD]) == Answer(True, lost=2)
    assert not exporter.get_finished_spans()


OWN = """
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    import os
    import dask
    from distributed import Client, LocalCluster
    import dask_otel

    if __name__ == "__main__":
        provider, exporter = TracerProvider(), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        dask_otel.instrument()
        dask.config.set({
            "distributed.scheduler.preload": ["dask_otel.preload"],
            "otel.provider": "own",
            "otel.environment": {"OTEL_SERVICE_NAME": "dask-scheduler"},
            "otel.close-timeout": "60s",
        })
        with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
            with Client(cluster) as client:
                with trace.get_tracer("app").start_as_current_span("request") as request:
                    with dask_otel.span("etl"):
                        client.submit(sum, [1, 2]).result()
        (own,) = exporter.get_finished_spans()
        print(f"name={own.name}")
        print(f"service={own.resource.attributes['service.name']}")
        print(f"trace={own.context.trace_id}")
        print(f"span={own.context.span_id}")
        print(f"environment={os.environ['OTEL_SERVICE_NAME']}")
"""


# One process of the tests starts the server that forks processes.
@pytest.mark.xdist_group("forked")
def test_an_applications_provider_is_left_alone_where_the_bridge_is_to_have_its_own(
    tmp_path: Path,
) -> None:
    # The global provider can be set only once in a process.
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(OWN))
    with receiver() as received:
        variables = {**received.environ, "OTEL_SERVICE_NAME": "shop"}
        written = ran(program, folder=tmp_path, **variables)
        spans = {s.name: s for s in received.spans if s.type == "span"}
    assert "Traceback" not in written, written
    said = dict(line.split("=", 1) for line in written.splitlines() if "=" in line)
    assert ((said["name"], said["service"], said["environment"]), spans.keys()) == (
        ("request", "shop", "shop"),
        {"etl"},
    )
    etl = spans["etl"]
    assert etl.resource["service.name"] == "dask-scheduler"
    assert etl.resource["service.instance.id"].startswith("Scheduler-")
    assert (
        (etl.trace_id, etl.parent_id),
        {p.resource["service.name"] for p in received.points},
    ) == ((int(said["trace"]), int(said["span"])), {"dask-scheduler"})
