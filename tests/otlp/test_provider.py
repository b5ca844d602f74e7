"""The tracer provider that an application has set: our ids, its sampler, never shut down."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from dask_otel._otel.sdk.spans import ProviderSpanSink
from dask_otel.core import identity
from dask_otel.core.context import Caller, Traceparent
from dask_otel.core.records import Answer
from dask_otel.core.trace import Trace
from tests.environment import inherited
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


def test_spans_go_through_it_with_our_ids_and_times() -> None:
    provider, exporter = make()
    sink = ProviderSpanSink(provider, "1.2.3")
    # Children come before their parents.
    assert send(sink, [CHILD, ROOT]) == Answer(True)
    child, root = exporter.get_finished_spans()
    for span, record in ((child, CHILD), (root, ROOT)):
        assert (span.context.trace_id, span.context.span_id) == (record.trace_id, record.span_id)
        assert (span.start_time, span.end_time) == (record.start_ns, record.end_ns)
        assert dict(span.attributes) == dict(record.attributes)
        assert span.resource.attributes["service.name"] == "app"
    assert root.parent is None
    assert child.parent.span_id == ROOT.span_id
    assert (root.kind, child.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    assert (child.status.status_code, child.status.description) == (StatusCode.ERROR, CHILD.error)
    assert root.status.status_code is StatusCode.UNSET
    assert [(e.name, e.timestamp) for e in root.events] == [
        ("dask.span.start", ROOT.events[0].time_ns)
    ]
    assert [(link.context.trace_id, link.context.span_id) for link in root.links] == [(7, 8)]
    assert root.instrumentation_scope.name == "dask_otel"


def test_it_is_not_shut_down_and_keeps_its_own_ids() -> None:
    provider, exporter = make()
    sink = ProviderSpanSink(provider, "1")
    send(sink, [ROOT])
    sink.close()
    with provider.get_tracer("the application").start_as_current_span("its own"):
        pass
    with provider.get_tracer("dask_otel").start_as_current_span("under our name"):
        pass
    _, own, named = exporter.get_finished_spans()
    assert len({ROOT.span_id, own.context.span_id, named.context.span_id}) == 3
    assert ROOT.trace_id not in (own.context.trace_id, named.context.trace_id)


def test_its_sampler_decides_for_whole_traces() -> None:
    provider, exporter = make(ParentBased(TraceIdRatioBased(0.25)))
    sink = ProviderSpanSink(provider, "1")
    for n in range(400):
        trace_id = identity.trace_id(f"{n}")
        pair = [replace(CHILD, trace_id=trace_id), replace(ROOT, trace_id=trace_id)]
        send(sink, [record for record in pair if sink.wants(record)])
    spans = exporter.get_finished_spans()
    roots = {s.context.trace_id for s in spans if s.parent is None}
    children = {s.context.trace_id for s in spans if s.parent is not None}
    assert roots == children, "no child without its root"
    assert 60 < len(roots) < 140


@pytest.mark.parametrize("flags", [0x00, 0x01, 0x02, 0x03])
def test_a_caller_s_trace_goes_on_in_it(flags: int) -> None:
    """Its sampler goes by parents, and would sample nothing else."""
    provider, exporter = make(ParentBased(TraceIdRatioBased(0.0)))
    sink = ProviderSpanSink(provider, "1")
    trace = Trace(ROOT.trace_id, "nightly", Caller(Traceparent(ROOT.trace_id, 99, flags), "x=1"))
    root = replace(ROOT, trace_id=trace, parent_span_id=99, remote_parent=True)
    child = replace(CHILD, trace_id=trace)
    send(sink, [record for record in (child, root) if sink.wants(record)])
    spans = exporter.get_finished_spans()
    assert len(spans) == (2 if flags & 1 else 0)
    for span, record in zip(spans, (child, root), strict=False):
        assert (span.context.trace_id, span.context.span_id) == (trace, record.span_id)
        assert type(span.context.trace_id) is int
        assert span.parent.span_id == record.parent_span_id
        assert span.parent.is_remote is (record is root)
        assert span.context.trace_state.get("x") == "1"


def test_its_limits_apply() -> None:
    provider = TracerProvider(span_limits=SpanLimits(max_attributes=2), shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    send(ProviderSpanSink(provider, "1"), [ROOT])
    (span,) = exporter.get_finished_spans()
    assert len(span.attributes) == 2


def test_two_bridges_share_its_tracer_and_not_their_ids() -> None:
    provider, exporter = make()
    sinks = [ProviderSpanSink(provider, "1"), ProviderSpanSink(provider, "1")]
    start = threading.Barrier(2)

    def export(number: int) -> None:
        start.wait()
        for n in range(300):
            ids = {"trace_id": number, "span_id": number * 1000 + n}
            send(sinks[number - 1], [replace(ROOT, name=str(ids["span_id"]), **ids)])

    threads = [threading.Thread(target=export, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = exporter.get_finished_spans()
    assert len(spans) == 600
    for span in spans:
        assert span.name == str(span.context.span_id)
        assert span.context.trace_id == span.context.span_id // 1000


def test_a_processor_that_raises_loses_one_span_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(SpanProcessor):
        def on_start(self, span, parent_context=None) -> None:  # type: ignore[no-untyped-def]
            if span.name == "bad":
                raise RuntimeError("a bug of the application")

    provider, exporter = make()
    provider.add_span_processor(Failing())
    sink = ProviderSpanSink(provider, "1")
    caplog.set_level(logging.WARNING, "distributed.dask_otel")
    for _ in range(2):
        records = [ROOT, replace(CHILD, name="bad"), CHILD]
        assert send(sink, records) == Answer(True, lost=1)
    assert [s.name for s in exporter.get_finished_spans()] == ["nightly", "load"] * 2
    assert len(caplog.records) == 1


PROGRAM = """
    import sys
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    import dask
    from distributed import Client, LocalCluster, span
    from dask_otel.core import identity

    if __name__ == "__main__":
        provider, exporter = TracerProvider(), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        dask.config.set({"distributed.scheduler.preload": ["dask_otel.preload"]})
        with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
            with Client(cluster) as client, span("outer"), span("inner"):
                client.submit(sum, [1, 2]).result()
            spans = cluster.scheduler.extensions["spans"].spans
            wanted = {s.name[-1]: s.id for s in spans.values()}
        with trace.get_tracer("app").start_as_current_span("after"):
            pass
        got = {s.name: s for s in exporter.get_finished_spans()}
        assert set(got) >= {"outer", "inner", "sum tasks", "after"}, sorted(got)
        for name in ("outer", "inner"):
            assert got[name].context.span_id == identity.span_id(wanted[name])
            assert got[name].context.trace_id == identity.trace_id(wanted["outer"])
        print("result=all is well")
"""


def run(folder: Path, program: str, **environ: str) -> Mapping[str, str]:
    """Run a program in a process of its own: the global provider can be set only once."""
    file = folder / "program.py"
    file.write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        env=inherited(**environ),
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_the_global_provider_of_a_process_is_used(tmp_path: Path) -> None:
    said = run(tmp_path, PROGRAM, OTEL_METRICS_EXPORTER="none")
    assert said == {"result": "all is well"}


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


def test_an_applications_provider_is_left_alone_where_the_bridge_is_to_have_its_own(
    tmp_path: Path,
) -> None:
    with receiver() as received:
        said = run(tmp_path, OWN, **received.environ, OTEL_SERVICE_NAME="shop")
        spans = {s.name: s for s in received.spans if s.type == "span"}
    assert (said["name"], said["service"], said["environment"]) == ("request", "shop", "shop")
    assert spans.keys() == {"etl"}
    etl = spans["etl"]
    assert etl.resource["service.name"] == "dask-scheduler"
    assert etl.resource["service.instance.id"].startswith("Scheduler-")
    assert (etl.trace_id, etl.parent_id) == (int(said["trace"]), int(said["span"]))
    assert {p.resource["service.name"] for p in received.points} == {"dask-scheduler"}
