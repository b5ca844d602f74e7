"""One trace over processes: the example, and an application that knows nothing of the bridge."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.processes import ran
from tests.cluster.truth import tree
from tests.environment import run
from tests.receiver import Receiver, receiver
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("the cluster is the application's own, and gone when it ends"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "one_trace.py"
QUICK = {"DASK_OTEL__SPANS__LINGER": "200ms"}


def one_trace(received: Receiver, trace_id: int) -> bool:
    """Assert the trace as the tree that a person sees."""
    found = [s for s in received.spans if s.trace_id == trace_id]
    shown = Counter(tree(found, ("span", "group", "task", "None")).splitlines())
    # The slowest task, and the last one on the path, which may be another.
    assert shown.pop("      fetch task", 0) in (1, 2), shown
    assert shown == {
        "request": 1, "  report success": 1, "    fetch tasks": 1,
        "    GET": 4, "      GET /price": 4,
    }  # fmt: skip
    services = Counter(s.resource["service.name"] for s in found if s.type == "None")
    assert services == {"report": 1, "report-worker": 4, "shop": 4}
    (tenant,) = {s.attributes["tenant"] for s in found if s.type == "span"}
    return bool(tenant == "acme")


@pytest.mark.xdist_group("forked")
def test_a_request_its_dask_spans_and_calls_inside_tasks(tmp_path: Path) -> None:
    with receiver() as received:
        variables = {**received.environ, **QUICK, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        said = ran(EXAMPLE, folder=tmp_path, **variables)
        (trace_id,) = re.findall(r"^60 in trace (\w+)$", said, re.MULTILINE)
        eventually(lambda: one_trace(received, int(trace_id, 16)), what="all of the trace")


INSTRUMENT = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
APPLICATION = """
from distributed import Client, LocalCluster, span
from opentelemetry import trace

def current(number):
    context = trace.get_current_span().get_span_context()
    return context.trace_id, context.span_id

if __name__ == "__main__":
    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0",
                      scheduler_kwargs={"dashboard": False}) as cluster:
        with Client(cluster) as client:
            tracer = trace.get_tracer("app")
            with tracer.start_as_current_span("request"), span("outer"), span("etl"):
                print(*client.submit(current, 1).result())
"""


def test_opentelemetry_instrument_and_the_preload_give_one_trace(tmp_path: Path) -> None:
    """The bridge's spans go through the application's provider, under its service's name."""
    with receiver() as received:
        (tmp_path / "app.py").write_text(APPLICATION)
        variables = {
            **received.environ,
            **QUICK,
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            # Its handler starts a thread at the end, which Python 3.12 does not let it.
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "logging",
            "OTEL_SERVICE_NAME": "shop",
            "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "['dask_otel.preload']",
        }
        done = run("-c", INSTRUMENT, sys.executable, "app.py", within=tmp_path, **variables)
        assert "Traceback" not in done.stderr, done.stderr
        inside = tuple(map(int, done.stdout.splitlines()[-1].split()))
        (caller,) = [s for s in received.spans if s.name == "request"]
        outer, etl = received.named("outer"), received.named("etl")
        (group,) = [s for s in received.spans if s.type == "group"]
        ours = (caller, outer, etl, group)
        assert {s.trace_id for s in ours} == {caller.trace_id}
        assert [s.parent_id for s in ours[1:]] == [s.span_id for s in ours[:-1]]
        assert {s.resource["service.name"] for s in ours} == {"shop"}
        assert inside == (caller.trace_id, etl.span_id)
