"""Long spans as a backend receives them: before they end, at their end, and cut off."""

from __future__ import annotations

import operator

import pytest
from distributed import Event, span

from dask_otel.core import identity
from tests.cluster.conftest import QUICK, Bridged
from tests.receiver import Receiver, Span
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

SOON = {"spans": {**QUICK["spans"], "progress-after": "300ms", "progress-interval": "1s"}}
ENVIRON = {"OTEL_BSP_SCHEDULE_DELAY": "100"}


def of_type(received: Receiver, kind: str) -> list[Span]:
    return [s for s in received.spans if s.type == kind]


def wait_for(event: str, timeout: float = 30.0) -> bool:
    return Event(event).wait(timeout)


@pytest.mark.options(SOON, ENVIRON)
def test_a_long_span_is_visible_before_it_ends(bridged: Bridged) -> None:
    received = bridged.received
    with span("long") as span_id, span("step"):
        future = bridged.client.submit(wait_for, "go", timeout=60)
        done = bridged.client.submit(operator.neg, 1)
        done.result()
    eventually(
        lambda: {s.name for s in of_type(received, "progress")} == {"long running", "step running"},
        what="progress",
    )
    early = list(received.spans)
    assert {s.attributes["dask.span.type"] for s in early} == {"marker", "progress"}
    assert {s.name for s in early} == {
        "long started", "long running", "step started", "step running",
    }  # fmt: skip
    for s in early:
        assert s.trace_id == identity.trace_id(span_id)
        assert s.attributes["dask.span.root.id"] == span_id
        assert s.attributes["dask.span.root.name"] == "long"
        assert "dask.span.result" not in s.attributes

    def done_shows() -> bool:
        step = [s for s in of_type(received, "progress") if s.name == "step running"][-1]
        assert step.attributes["dask.task.count"] == 2
        return bool(step.attributes["dask.task.memory.count"] == 1)

    eventually(done_shows)
    Event("go", client=bridged.client).set()
    future.result()
    bridged.exported()
    check_whole(received)


def check_whole(received: Receiver) -> None:
    """Each sign hangs below a span that came in the end, and lies within it."""
    spans = {s.span_id: s for s in of_type(received, "span")}
    ids = [s.span_id for s in received.spans]
    assert len(ids) == len(set(ids)), "sent twice"
    signs = [*of_type(received, "marker"), *of_type(received, "progress")]
    assert signs
    for sign in signs:
        above = spans[sign.parent_id]
        assert sign.attributes["dask.span.id"] == above.attributes["dask.span.id"]
        assert above.start_ns <= sign.start_ns < sign.end_ns <= above.end_ns
        if sign.attributes["dask.span.type"] == "marker":
            assert (sign.start_ns, sign.end_ns) == (above.start_ns, above.start_ns + 1)
