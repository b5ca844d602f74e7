"""What the export side promises, seen from outside: real exporters, real sockets.

Nothing here looks into pump or sinks. What goes in is what the event loop hands over; what is
asserted is what a server got, what the log says, and what the bridge counts about itself.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from dask_otel import semconv
from dask_otel._version import __version__
from dask_otel.core import identity
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.records import Failure
from tests.environment import run
from tests.otlp.pipeline import Export, T, make_batch, make_span
from tests.receiver import Receiver, Span, decode_points, silent_server
from tests.receiver import receiver as run_receiver
from tests.waiting import eventually

#: Seconds after which an exporter gives up. No machine is as slow in what does not wait for it.
HANGS = 10

T_NS = 1_700_000_000 * 10**9
SECOND = 10**9
EXECUTE = "dask.span.execute.time"

PROTOCOLS = ("grpc", "http/protobuf")
#: An HTTP status, and the gRPC status of the same meaning.
UNAVAILABLE = {"http/protobuf": 503, "grpc": "UNAVAILABLE"}
INTERNAL = {"http/protobuf": 500, "grpc": "INTERNAL"}


StartExport = Callable[[dict[str, str]], Export]


@pytest.fixture(params=PROTOCOLS)
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    """Run a receiver, once for each protocol."""
    with run_receiver(request.param) as made:
        yield made


def span_ids(receiver: Receiver) -> list[int]:
    return [span.span_id for span in receiver.spans if span.type == "span"]


def ids_of(*names: str) -> list[int]:
    return [identity.span_id(name) for name in names]


def own(receiver: Receiver, metric: str) -> dict[tuple[str, ...], int]:
    """Return the last values of one of the bridge's own counters, by label values."""
    return {tuple(v for _, v in labels): value for labels, value in receiver.last(metric).items()}


# -------------------------------------------------------------------------------- fidelity


def test_a_span_arrives_as_it_was(receiver: Receiver, export: StartExport) -> None:
    failure = Failure(T + 5, "load-1", "load", "tcp://w:1", "KeyError('b')", "Traceback …")
    who = replace(make_span().identity, generation=2, first=(11, 22), parent_span_id=33)
    export(receiver.environ).spans(
        make_span(groups=1, result="failure", failures=(failure,), identity=who)
    )
    eventually(lambda: len(receiver.spans) == 2)
    span, group = sorted(receiver.spans, key=lambda s: s.type, reverse=True)
    assert (group.type, group.parent_id) == ("group", who.span_id)
    assert "KeyError" in span.message
    assert replace(span, attributes={}, resource={}, message="") == Span(
        name="workflow",
        trace_id=who.trace_id,
        span_id=who.span_id,
        parent_id=33,
        kind=1,
        start_ns=T_NS,
        end_ns=T_NS + 10 * SECOND,
        attributes={},
        events=span.events,
        links=[(11, 22, span.links[0][2])],
        status=2,
        message="",
        resource={},
        scope=("dask_otel", __version__, semconv.SCHEMA_URL),
    )
    assert [(name, ns) for name, ns, _ in span.events] == [
        ("dask.span.start", T_NS + 5 * SECOND // 2),
        ("exception", T_NS + 5 * SECOND),
    ]
    values = ("failure", 3, 2.5, ("workflow",))
    names = (semconv.SPAN_RESULT, "dask.task.count", "dask.span.queue.time", "dask.span.tags")
    found = [span.attributes[name] for name in names]
    assert (*found, *map(type, found)) == (*values, *map(type, values))
    resource = {"service.name": "dask-scheduler", "service.instance.id": "Scheduler-1"}
    assert span.resource.items() >= resource.items()


def test_metrics_arrive_with_one_time_and_a_zero_point(
    receiver: Receiver, export: StartExport
) -> None:
    running = export(receiver.environ)
    time_ns = running.metrics(make_batch(1.5))
    zero, value = eventually(lambda: [p for p in receiver.points if p.metric == EXECUTE])
    assert (value.kind, value.monotonic, value.temporality, value.unit) == ("sum", True, 2, "s")
    assert (zero.value, value.value, value.is_int, value.time_ns) == (0.0, 1.5, False, time_ns)
    assert zero.start_ns == value.start_ns < zero.time_ns < value.time_ns
    assert {p.time_ns for p in receiver.points if p is not zero and p.value} == {time_ns}
    assert [e[:2] for e in value.exemplars] == [
        (identity.trace_id("root"), identity.span_id("root-0"))
    ]
    # The series goes on; cumulative.
    running.metrics(make_batch(2.0))
    eventually(lambda: list(receiver.last(EXECUTE).values()) == [3.5])
    assert sum(p.value == 0.0 for p in receiver.points if p.metric == EXECUTE) == 1


def test_deltas_come_in_parts_of_which_each_counts_once(
    receiver: Receiver, export: StartExport
) -> None:
    """In one request they could exceed a server's limit, for ever; and a part may be refused."""
    turns = itertools.count()

    def judge(signal: str, request: Any) -> int | str | None:
        large = signal == "metrics" and len(list(decode_points(request))) > 1000
        refuses = signal == "metrics" and next(turns) in (1, 3)
        too_large = {"grpc": "RESOURCE_EXHAUSTED", "http/protobuf": 413}[receiver.protocol]
        return too_large if large else UNAVAILABLE[receiver.protocol] if refuses else None

    receiver.judge = judge
    running = export(
        {**receiver.environ, "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}
    )
    metric, labels = "dask.task.finished", [f"prefix-{number}" for number in range(1500)]
    increments = {(metric, ("workflow",), label, "memory"): 1 for label in labels}
    times = {running.metrics(MetricBatch(increments=dict(increments)))}
    eventually(lambda: len(receiver.requests) > 8)
    times.add(running.metrics(MetricBatch(increments=dict(increments))))
    assert running.close(60) < 60
    points = [point for point in receiver.points if point.metric == metric]
    assert {(point.temporality, point.time_ns in times) for point in points if point.value} == {
        (1, True)
    }
    totals: Counter[str] = Counter()
    for point in points:
        totals[point.attributes["dask.task.prefix"]] += point.value
    assert totals == dict.fromkeys(labels, 2)
    assert len(receiver.accepted) > 8, "one request of thousands of points holds the GIL"


# ------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("statuses", [UNAVAILABLE, INTERNAL], ids=["retryable", "not retryable"])
def test_an_outage_loses_nothing_and_is_said_once(
    receiver: Receiver,
    export: StartExport,
    caplog: pytest.LogCaptureFixture,
    statuses: dict[str, int | str],
) -> None:
    caplog.set_level(logging.INFO)
    receiver.answer = statuses[receiver.protocol]
    running = export(receiver.environ | {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"})
    names = [f"root-{number}" for number in range(100)]
    assert all(running.spans(*[make_span(name) for name in names]))
    running.metrics(make_batch(1.0))
    eventually(lambda: len([s for s, _, _ in receiver.requests if s == "traces"]) >= 2)
    eventually(lambda: [s for s, _, _ in receiver.requests if s == "metrics"])
    running.metrics(make_batch(2.0))
    receiver.answer = None
    eventually(lambda: sorted(span_ids(receiver)) == sorted(ids_of(*names)), 60)
    running.metrics(make_batch(4.0))
    eventually(lambda: list(receiver.last(EXECUTE).values()) == [7.0])
    mine = [r for r in caplog.records if r.name == "distributed.dask_otel"]
    said = [r.getMessage() for r in mine if r.levelno == logging.WARNING]
    assert len(said) == 1, said
    assert receiver.endpoint in said[0]
    assert "has an internal error" in said[0]
    eventually(lambda: any("again" in r.getMessage() for r in caplog.records))
    assert not [r for r in caplog.records if r.name.startswith("opentelemetry")]
    running.metrics(make_batch(0.5))
    eventually(lambda: own(receiver, "dask.otel.exported").get(("traces",)) == 100)
    assert own(receiver, "dask.otel.dropped") == {}


def test_two_pumps_of_one_process_share_nothing(export: StartExport) -> None:
    with run_receiver("grpc") as one, run_receiver("http/protobuf") as other:
        pumps = [export(server.environ) for server in (one, other)]
        for number, running in enumerate(pumps):
            running.spans(make_span(f"root-{number}"))
            running.metrics(make_batch(1.0 + number))
            running.close(30)
        assert (span_ids(one), span_ids(other)) == (ids_of("root-0"), ids_of("root-1"))
        assert [[*server.last(EXECUTE).values()] for server in (one, other)] == [[1.0], [2.0]]


# ---------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_hanging_server_does_not_hold_up_the_end_of_the_process(protocol: str) -> None:
    script = """
        import os, sys, time
        from dask_otel.scheduler.wiring import make_pump
        from dask_otel.settings.keys import Settings
        from tests.otlp.pipeline import Export, make_batch, make_span

        made = make_pump(Settings(), "Scheduler-1", time.time_ns())
        made.pump.start()
        running = Export(made.pump)
        running.spans(*[make_span(str(number)) for number in range(100)])
        running.metrics(make_batch())
        print(running.close(1.0), flush=True)
        print(time.time(), flush=True)
    """
    with silent_server() as endpoint:
        done = run(
            "-c",
            textwrap.dedent(script),
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_EXPORTER_OTLP_TIMEOUT=str(10 * HANGS),
            PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
        )
        ended = time.time()
    took, closed = map(float, done.stdout.split())
    assert took < 5 * HANGS
    assert ended - closed < 5 * HANGS
    assert "Traceback" not in done.stderr
