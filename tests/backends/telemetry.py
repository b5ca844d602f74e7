"""Spans and metrics in the shape of the contract, by the bridge's own encoder and transports."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import grpc
import requests

from dask_otel import semconv
from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.transport import GrpcTransport, HttpTransport
from dask_otel.core.records import Event, MetricRecord, NumberPoint, Row, SpanRecord
from tests.otlp.records import CHILD, ROOT
from tests.receiver import Span

from .servers import Running

SECOND = 1_000_000_000

Resource = Mapping[str, str]


def send(to: Running, signal: str, *messages: bytes, protocol: str = "grpc") -> None:
    """Send requests; each must be accepted. To Prometheus by HTTP alone."""
    made = (
        GrpcTransport(signal, {}, 60, partial(grpc.insecure_channel, to.grpc.split("//")[-1]))
        if protocol == "grpc" and to.grpc
        else HttpTransport(signal, {}, 60, requests.Session, f"{to.http}/v1/{signal}")
    )
    with closing(made):
        for message in messages:
            answer = made.send(message, 60)
            assert answer.taken, answer


def new_resource(**attributes: str) -> Resource:
    """A scheduler that no other test has: its own cluster name and instance id."""
    unique = uuid.uuid4().hex[:12]
    return {
        "service.name": "dask-scheduler",
        "service.instance.id": f"Scheduler-{unique}",
        "dask.cluster.name": f"cluster-{unique}",
        **attributes,
    }


def request(records: Iterable[SpanRecord], resource: Resource) -> bytes:
    encoder = Encoder(resource, "0")
    return encoder.request([Row(encoder.span(record)) for record in records])


def now_ns() -> int:
    """The time in whole milliseconds, which is all that Prometheus keeps."""
    return time.time_ns() // 1_000_000 * 1_000_000


def new_tree(failed: bool = True) -> tuple[SpanRecord, SpanRecord]:
    """A root with one child, as the bridge has them for two nested Dask spans."""
    name, now, trace_id = f"nightly-{uuid.uuid4().hex[:8]}", now_ns(), uuid.uuid4().int
    of = {semconv.SPAN_TYPE: "span", semconv.SPAN_RESULT: "failure" if failed else "success"}
    own = {"dask.span.idle.time": 90.5, semconv.TASK_COUNT: 7, semconv.SPAN_TAGS: (name,)}
    root = replace(
        ROOT, trace_id=trace_id, span_id=random.getrandbits(63), name=name, start_ns=now,
        end_ns=now + SECOND, attributes={**of, semconv.SPAN_NAME: name, **own}, events=(),
        links=(), error="1 task failed" if failed else None,
    )  # fmt: skip
    below = {**of, semconv.SPAN_NAME: f"{name}/load", semconv.SPAN_TAGS: (name, "load")}
    child = replace(
        root, span_id=random.getrandbits(63), parent_span_id=root.span_id, name="load",
        kind="internal", attributes=below, error=None,
    )  # fmt: skip
    return root, child


def check_tree(spans: list[Span], tree: Sequence[SpanRecord]) -> bool:
    """Check a tree, as a backend has it: ids, errors, and types of values."""
    found = {
        one.name: (one.trace_id, one.span_id, one.parent_id, one.status == 2, one.attributes)
        for one in spans
    }
    assert found == {
        one.name: (
            one.trace_id, one.span_id, one.parent_span_id, one.error is not None, one.attributes
        )
        for one in tree
    }  # fmt: skip
    return True


def failed_spans(count: int, stacktrace: int = 8192) -> list[SpanRecord]:
    """One trace of so many spans; all but the root have a stack trace of that size."""
    root, _ = new_tree()
    frames = ('  File "load.py", line 7, in load\n' * (stacktrace // 30))[:stacktrace]
    event = Event("exception", root.start_ns, {semconv.EXCEPTION_STACKTRACE: frames})
    return [
        root,
        *(
            replace(CHILD, trace_id=root.trace_id, span_id=random.getrandbits(63), events=(event,))
            for _ in range(count - 1)
        ),
    ]


def counter(
    metric: semconv.Metric,
    points: Sequence[tuple[int, float]],
    attributes: Mapping[str, str],
    start_ns: int,
) -> MetricRecord:
    """A cumulative monotone sum; `points` are (time in ns, value), in the order to be sent."""
    made = [NumberPoint(attributes, start_ns, time_ns, value) for time_ns, value in points]
    return MetricRecord(
        metric.name, metric.unit, metric.description, "counter", "cumulative", tuple(made)
    )


def export_metrics(to: Running, resource: Resource, *batches: list[MetricRecord]) -> None:
    """Send a request of each batch, to a Collector by gRPC or straight to Prometheus."""
    encoder = Encoder(resource, "0")
    send(to, "metrics", *(encoder.metrics(batch, lambda: None) for batch in batches))
