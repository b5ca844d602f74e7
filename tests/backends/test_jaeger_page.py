"""What Jaeger makes of the bridge's own spans: warnings, references, names."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

import pytest

from dask_otel.core import identity
from dask_otel.core.records import Progress, SpanIdentity, SpanRecord, TaskCounts
from dask_otel.core.traces.translate import translate
from tests.otlp.pipeline import make_span
from tests.unit.finished import make_group
from tests.waiting import eventually

from .clients import JaegerClient
from .servers import Running
from .telemetry import new_resource, request, send

pytestmark = pytest.mark.backend

START = float(int(time.time()) - 3600)
SKEW = "clock skew adjustment disabled"
ORPHAN = "skipping clock skew adjustment"


def _spans(who: SpanIdentity, start: float, stop: float, **changes: Any) -> list[SpanRecord]:
    times = {"start": START + start, "stop": START + stop, "first_start": START + start}
    return translate(replace(make_span(), identity=who, **times, **changes))


def _page(client: JaegerClient, trace_id: int, count: int) -> dict[str, dict[str, Any]]:
    """What Jaeger's page is made of, by span id, once it has so many spans."""

    def page() -> dict[str, dict[str, Any]]:
        found = {span["spanID"]: span for span in client.page(trace_id)}
        assert len(found) == count
        return found

    return eventually(page)


def _warnings(page: dict[str, dict[str, Any]]) -> dict[str, set[str]]:
    """The warnings by name of the span: those that are known, by what is always in them."""
    found: dict[str, set[str]] = {}
    for span in page.values():
        of = found.setdefault(span["operationName"], set())
        for warning in span["warnings"] or ():
            of.add(next((known for known in (SKEW, ORPHAN) if known in warning), warning))
    return found


@pytest.mark.parametrize("early", [True, False], ids=["looked at early", "later"])
def test_a_job_of_ten_minutes_with_work_that_came_late(
    early: bool, jaeger: Running, jaeger_client: JaegerClient
) -> None:
    service, dask_id = f"dask-scheduler-{uuid.uuid4().hex[:8]}", f"nightly-{uuid.uuid4()}"
    ids = identity.trace_id(dask_id), identity.span_id(dask_id)
    who = SpanIdentity(dask_id, dask_id, ("load",), 1, *ids, None)
    resource = new_resource(**{"service.name": service})
    signs = [
        *translate(Progress(who, 0, START, START)),
        *translate(Progress(who, 1, START, START + 360, TaskCounts(tasks=3))),
    ]
    send(jaeger, "traces", request(signs, resource))
    if early:
        before = _warnings(_page(jaeger_client, ids[0], 2))
        assert before == {"load started": {ORPHAN}, "load running": {ORPHAN}}
        # What the pages of newer releases read.
        assert len(jaeger_client.trace(ids[0])) == 2

    # The second group has no length, and is at the very end.
    groups = [(1, START + 1, START + 9), (2, START + 600, START + 600)]
    tasks = tuple(
        make_group(name=f"load-{number}", start=start, stop=stop) for number, start, stop in groups
    )
    again = replace(
        who, generation=2, span_id=identity.span_id(dask_id, 2), first=ids, parent_span_id=ids[1]
    )
    late = replace(
        who, dask_id="late", tags=("load", "late"), span_id=identity.span_id("late"),
        parent_span_id=ids[1],
    )  # fmt: skip
    spans = [
        *_spans(who, 0, 600, groups=tasks),
        *_spans(again, 700, 800),
        *_spans(late, 900, 910, late=True),
    ]
    # A span that is sent again is shown once.
    for _ in range(2):
        send(jaeger, "traces", request(spans, resource))
    page = _page(jaeger_client, ids[0], 7)
    # The memory store keeps what has once been said of the signs. What comes later than its
    # parent, as the second generation of `load` and the late span, looks as if clocks differed.
    orphan = {ORPHAN} if early else set()
    assert _warnings(page) == {
        "load": {SKEW},
        "load tasks": set(),
        "load started": orphan,
        "load running": orphan,
        "late": {SKEW},
    }
    # Said, but not done: what is shown are the times that were sent.
    assert page[f"{late.span_id:016x}"]["startTime"] == (START + 900) * 1e6
    # The continuation of a root hangs below its first generation.
    (reference,) = page[f"{again.span_id:016x}"]["references"]
    assert (reference["refType"], reference["spanID"]) == ("FOLLOWS_FROM", f"{ids[1]:016x}")
    # Spans, their groups, and signs of life are operations of their own.
    assert jaeger_client.operations(service) == _warnings(page).keys()
    assert jaeger_client.search(service, operation="late", lookback="6h") == {ids[0]}
