"""The example: a request, its Dask spans, and the HTTP calls inside tasks are one trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.processes import cluster
from tests.environment import run
from tests.receiver import Receiver, Span, receiver
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "one_trace.py"


def run_example(received: Receiver, *arguments: str) -> int:
    """Run the example; return its trace."""
    environ = {
        **received.environ,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "DASK_OTEL__SPANS__LINGER": "200ms",
    }
    ran = run(str(EXAMPLE), *arguments, **environ)
    total, trace_id = ran.stdout.split(" in trace ")
    assert int(total) == 60
    return int(trace_id, 16)


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

    found = eventually(spans, 30, "all parts of the trace")
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


def test_over_separate_processes(tmp_path: Path) -> None:
    with receiver() as received, cluster(tmp_path) as processes:
        environ = {
            **received.environ,
            # At the end what Dask knows is compared with what was exported: not a minute later.
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "DASK_OTEL__SPANS__LINGER": "200ms",
        }
        processes.start_scheduler("--preload", "dask_otel.preload", env=environ)
        folder = str(EXAMPLE.parent)
        for name in ("a", "b"):
            processes.start_worker(name, env={**received.environ, "PYTHONPATH": folder})
        assert_one_trace(received, run_example(received, "--scheduler", processes.address))


@pytest.mark.unreconciled("the cluster is the example's own, and gone when it ends")
def test_over_a_local_cluster(tmp_path: Path) -> None:
    with receiver() as received:
        assert_one_trace(received, run_example(received))
