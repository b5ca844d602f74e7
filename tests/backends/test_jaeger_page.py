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
from tests.otlp.pipeline import make_group, make_span
from tests.waiting import eventually

from .clients import JaegerClient
from .servers import Running
from .telemetry import new_resource, request, send

pytestmark = pytest.mark.backend

START = float(int(time.time()) - 3600)
SKEW = "clock skew adjustment disabled"
ORPHAN = "skipping clock skew adjustment"


class Job:
    """A job of ten minutes, with work that came late: the records of all that is exported of it."""

    def __init__(self, **attributes: str) -> None:
        dask_id = f"nightly-{uuid.uuid4()}"
        self.resource = new_resource(**attributes)
        self.trace_id = identity.trace_id(dask_id)
        self.who = SpanIdentity(
            dask_id=dask_id,
            root_id=dask_id,
            tags=("load",),
            generation=1,
            trace_id=self.trace_id,
            span_id=identity.span_id(dask_id),
            parent_span_id=None,
        )
        signs = (
            Progress(self.who, 0, START, START),
            Progress(self.who, 1, START, START + 360, TaskCounts(tasks=3)),
        )
        self.signs = [record for sign in signs for record in translate(sign)]
        groups = (
            replace(make_group(1), start=START + 1, stop=START + 9),
            replace(make_group(2), start=START + 600, stop=START + 600),
        )
        #: The span, a group in it, and a group of no length at its very end.
        self.span = self._records(0, 600, {}, groups=groups)
        again = identity.span_id(dask_id, 2)
        below = {"parent_span_id": self.who.span_id}
        first = (self.trace_id, self.who.span_id)
        self.continuation = self._records(
            700, 800, {**below, "generation": 2, "span_id": again, "first": first}
        )
        late = {"dask_id": "late", "tags": ("load", "late"), "span_id": identity.span_id("late")}
        self.late_child = self._records(900, 910, {**below, **late}, late=True)

    def _records(
        self, start: float, stop: float, who: dict[str, Any], **changes: Any
    ) -> list[SpanRecord]:
        times = {"start": START + start, "stop": START + stop, "first_start": START + start}
        made = replace(make_span(), identity=replace(self.who, **who), **times, **changes)
        return translate(made)


def _send(jaeger: Running, job: Job, *records: SpanRecord) -> None:
    send(jaeger, "traces", request(records, job.resource))


def _page(client: JaegerClient, job: Job, count: int) -> dict[str, dict[str, Any]]:
    """What Jaeger's page is made of, by span id, once it has so many spans."""

    def page() -> dict[str, dict[str, Any]]:
        found = {span["spanID"]: span for span in client.page(job.trace_id)}
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


def test_warnings_of_a_long_job(jaeger: Running, jaeger_client: JaegerClient) -> None:
    service = f"dask-scheduler-{uuid.uuid4().hex[:8]}"
    job = Job(**{"service.name": service})
    _send(jaeger, job, *job.signs)
    before = _warnings(_page(jaeger_client, job, 2))
    assert before == {"load started": {ORPHAN}, "load running": {ORPHAN}}
    # What the pages of newer releases read.
    assert len(jaeger_client.trace(job.trace_id)) == 2

    # What is sent again is shown once.
    for _ in range(2):
        _send(jaeger, job, *job.span, *job.continuation, *job.late_child)
    page = _page(jaeger_client, job, 7)
    after = _warnings(page)
    # The memory store keeps what has once been said of the signs. What comes later than its
    # parent, as the second generation of `load` and the late span, looks as if clocks differed.
    assert after == {
        "load": {SKEW},
        "load tasks": set(),
        "load started": {ORPHAN},
        "load running": {ORPHAN},
        "late": {SKEW},
    }
    # Said, but not done: what is shown are the times that were sent.
    (late,) = (span for span in page.values() if span["operationName"] == "late")
    assert late["startTime"] == (START + 900) * 1e6
    # The continuation of a root hangs below its first generation.
    (reference,) = page[f"{identity.span_id(job.who.dask_id, 2):016x}"]["references"]
    assert (reference["refType"], reference["spanID"]) == (
        "FOLLOWS_FROM", f"{job.who.span_id:016x}"
    )  # fmt: skip
    # Spans, their groups, and signs of life are operations of their own.
    assert jaeger_client.operations(service) == after.keys()
    for name in after:
        assert jaeger_client.search(service, operation=name, lookback="6h") == {job.trace_id}


def test_a_trace_that_nobody_looked_at_early_has_no_orphans(
    jaeger: Running, jaeger_client: JaegerClient
) -> None:
    job = Job()
    _send(jaeger, job, *job.signs)
    _send(jaeger, job, *job.span)
    warnings = _warnings(_page(jaeger_client, job, 5))
    assert set().union(*warnings.values()) == set()
