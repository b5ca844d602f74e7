"""One trace over processes: the example, and an application that knows nothing of the bridge."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.environment import run, run_instrumented
from tests.receiver import Receiver, Span, receiver
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("the cluster is the application's own, and gone when it ends"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "one_trace.py"
QUICK = {"DASK_OTEL__SPANS__LINGER": "200ms"}


def assert_one_trace(received: Receiver, trace_id: int) -> None:
    """Assert the trace as the tree that a person sees."""

    def spans() -> list[Span]:
        found = [s for s in received.spans if s.trace_id == trace_id]
        services = [s.resource["service.name"] for s in found]
        assert services.count("shop") == 4, services
        assert services.count("report-worker") == 4, services
        types = [s.type for s in found]
        # The slowest task, and the last one on the path, which may be another.
        assert (types.count("span"), types.count("group")) == (1, 1), types
        assert types.count("task") in (1, 2), types
        assert [s for s in found if s.name == "request"]
        return found

    found = eventually(spans, what="all parts of the trace")
    (request,) = [s for s in found if s.name == "request"]
    assert request.parent_id is None
    (report,) = [s for s in found if s.type == "span"]
    assert (report.name, report.parent_id) == ("report", request.span_id)
    assert report.attributes["tenant"] == "acme"
    (group,) = [s for s in found if s.type == "group"]
    assert (group.name, group.parent_id) == ("fetch tasks", report.span_id)
    tasks = [s for s in found if s.type == "task"]
    assert {s.parent_id for s in tasks} == {group.span_id}
    asked = {s.span_id: s for s in found if s.resource["service.name"] == "report-worker"}
    assert {s.parent_id for s in asked.values()} == {report.span_id}
    served = [s for s in found if s.resource["service.name"] == "shop"]
    assert {s.parent_id for s in served} == set(asked)
    assert len(found) == 1 + 2 + len(tasks) + 4 + 4, "nothing else"


def test_a_request_its_dask_spans_and_calls_inside_tasks() -> None:
    with receiver() as received:
        ran = run(str(EXAMPLE), **received.environ, **QUICK, OTEL_BSP_SCHEDULE_DELAY="100")
        total, trace_id = ran.stdout.split(" in trace ")
        assert int(total) == 60
        assert_one_trace(received, int(trace_id, 16))


APPLICATION = """
from distributed import Client, LocalCluster, span
from opentelemetry import trace

def current(number):
    context = trace.get_current_span().get_span_context()
    return context.trace_id, context.span_id

if __name__ == "__main__":
    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            tracer = trace.get_tracer("app")
            with tracer.start_as_current_span("request"), span("outer"), span("etl"):
                print(*client.submit(current, 1).result())
"""


def test_opentelemetry_instrument_and_the_preload_give_one_trace(tmp_path: Path) -> None:
    """The bridge's spans go through the application's provider, under its service's name."""
    with receiver() as received:
        variables = {
            **received.environ,
            **QUICK,
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_SERVICE_NAME": "shop",
            "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "['dask_otel.preload']",
        }
        printed = run_instrumented(tmp_path, APPLICATION, variables)
        inside = tuple(map(int, printed[-1].split()))
        (caller,) = [s for s in received.spans if s.name == "request"]
        outer, etl = received.named("outer"), received.named("etl")
        (group,) = [s for s in received.spans if s.type == "group"]
        ours = (caller, outer, etl, group)
        assert {s.trace_id for s in ours} == {caller.trace_id}
        assert [s.parent_id for s in ours[1:]] == [s.span_id for s in ours[:-1]]
        assert {s.resource["service.name"] for s in ours} == {"shop"}
        assert inside == (caller.trace_id, etl.span_id)
