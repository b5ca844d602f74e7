"""Long spans as a backend receives them: before they end, and at their end."""

from __future__ import annotations

import operator
import time

import pytest
from distributed import span

from dask_otel.core import identity
from tests.simulated.bridged import Bridged
from tests.simulated.tasks import nap


@pytest.mark.options(otel={"spans": {"progress-after": "300ms", "progress-interval": "1s"}})
def test_a_long_span_is_visible_before_it_ends(b: Bridged) -> None:
    """Each sign hangs below a span that comes in the end, and lies within it."""
    with span("long") as span_id, span("step"):
        future = b.client.submit(nap, 3.0)
        b.client.submit(operator.neg, 1).result()
    time.sleep(2.0)
    early = list(b.received.spans)
    assert [(s.name, s.type) for s in early] == [
        ("long started", "marker"),
        ("step started", "marker"),
        ("long running", "progress"),
        ("step running", "progress"),
    ]
    for s in early:
        root = (s.attributes["dask.span.root.id"], s.attributes["dask.span.root.name"])
        assert (s.trace_id, *root) == (identity.trace_id(span_id), span_id, "long")
        # An unknown or undecided value is absent.
        assert not {"dask.span.result", "dask.span.complete"} & s.attributes.keys()
        assert ("dask.task.count" in s.attributes) == (s.type == "progress")
    step = [s for s in early if s.name == "step running"][-1]
    assert (step.attributes["dask.task.count"], step.attributes["dask.task.memory.count"]) == (2, 1)
    future.result()
    b.exported()
    (marker, *_) = [s for s in b.received.spans if s.type == "marker"]
    assert marker.end_ns == marker.start_ns + 1
