"""The page for scrapers is renewed with every batch, and delays and changes no export."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from dask_otel import semconv
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import Answer, MetricRecord
from dask_otel.pump import lanes
from dask_otel.pump.pump import MAX_METRIC_BATCHES, Pump, PumpLimits
from tests.waiting import eventually

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
IDLE = semconv.CLUSTER_TIME.name


class Sink:
    """Keeps what it gets; it may hang."""

    advice = ""
    patience = 0.0

    def __init__(self, name: str) -> None:
        self.name = name
        self.exports: list[Sequence[MetricRecord]] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def send(self, records: Sequence[MetricRecord], longest: float) -> Answer:
        self.exports.append(records)
        return Answer(self.go_on.wait(60))

    def close(self) -> None:
        """Nothing to release."""

    def values(self, metric: str) -> list[float]:
        """The values of a metric in the last export, zero points left out."""
        last = {
            tuple(point.attributes.items()): point.value
            for record in self.exports[-1]
            if record.name == metric
            for point in record.points
        }
        return list(last.values())


@contextmanager
def running(sink: Sink, page: Sink, interval: float) -> Iterator[Pump]:
    pump = Pump(
        [],
        [(sink, MetricState(START))],
        lambda finished: [],
        PumpLimits(max_points=1),
        page=(page, MetricState(START)),
        metric_interval=interval,
    )
    pump.start()
    try:
        yield pump
    finally:
        sink.go_on.set()
        pump.request_close(10)
        eventually(lambda: pump.closed)


def batch(number: int) -> MetricBatch:
    increments = {(IDLE, activity): 1.0 for activity in ("idle", "unused", "lost")}
    return MetricBatch(time_ns=START + number * SECOND, increments=increments)


def offer(pump: Pump, page: Sink, number: int) -> None:
    """Hand over a batch and wait until the page has it."""
    pump.offer_metrics(batch(number))
    eventually(lambda: len(page.exports) == number)


def test_exports_keep_their_interval_and_the_last_one_has_everything() -> None:
    sink, page = Sink("sink"), Sink("page")
    with running(sink, page, interval=3600.0) as pump:
        for number in (1, 2, 3):
            offer(pump, page, number)
            assert page.values(IDLE) == [number] * 3
        assert sink.exports == []
    sent = [point.value for records in sink.exports for r in records for point in r.points]
    assert sorted(sent) == [0.0] * 3 + [3.0] * 3


def test_a_sink_may_take_every_batch_for_a_while() -> None:
    """Files do, until the first one is full; an endpoint beside them keeps to its interval."""
    sink, file = Sink("sink"), Sink("file")
    left = [True, True, False]
    pump = Pump(
        [],
        [(sink, MetricState(START)), (file, MetricState(START))],
        lambda finished: [],
        PumpLimits(),
        metric_interval=3600.0,
        hurried={"file": lambda: left[0]},
    )
    pump.start()
    try:
        for number in (1, 2):
            pump.offer_metrics(batch(number))
            eventually(lambda number=number: len(file.exports) == number)
            left.pop(0)
        pump.offer_metrics(batch(3))
        eventually(lambda: not any(lane._batches for lane in pump._metrics))
        assert (len(file.exports), len(sink.exports)) == (2, 0)
    finally:
        pump.request_close(10)
        eventually(lambda: pump.closed)
    for one in (sink, file):
        assert one.values(IDLE) == [3] * 3


def test_the_page_has_all_points_at_once() -> None:
    sink, page = Sink("sink"), Sink("page")
    with running(sink, page, interval=0.0) as pump:
        for number in (1, 2, 3):
            offer(pump, page, number)
            assert page.values(IDLE) == [number] * 3


def test_while_an_exporter_hangs_the_page_goes_on_and_what_waits_stays_bounded() -> None:
    sink, page = Sink("sink"), Sink("page")
    sink.go_on.clear()
    with running(sink, page, interval=0.0) as pump:
        hanging = pump._metrics[0]
        for number in range(1, 10 * MAX_METRIC_BATCHES):
            assert pump.accepts_metrics()
            offer(pump, page, number)
            assert page.values(IDLE) == [number] * 3
            assert len(hanging._batches) <= MAX_METRIC_BATCHES
    # And nothing was lost for the one that hung.
    last = {
        tuple(point.attributes.values()): point.value
        for records in sink.exports
        for record in records
        if record.name == IDLE
        for point in record.points
    }
    assert last == {(kind,): number for kind in ("idle", "unused", "lost")}


def test_an_error_while_batches_are_made_one_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> MetricBatch:
        raise RuntimeError("broken by the test")

    sink, page = Sink("sink"), Sink("page")
    sink.go_on.clear()
    with running(sink, page, interval=0.0) as pump:
        with monkeypatch.context() as patched:
            patched.setattr(lanes, "merge", broken)
            for number in range(1, 2 * MAX_METRIC_BATCHES):
                offer(pump, page, number)
        offer(pump, page, number + 1)
        assert page.values(IDLE) == [number + 1] * 3
        errors = semconv.OTEL_INTERNAL_ERRORS.name
        eventually(lambda: page.values(errors))
    sent = [record for records in sink.exports for record in records if record.name == IDLE]
    assert max(point.value for record in sent for point in record.points) == number + 1


def test_while_every_sink_hangs_batches_are_refused() -> None:
    sink, page = Sink("sink"), Sink("page")
    sink.go_on.clear()
    page.go_on.clear()
    with running(sink, page, interval=0.0) as pump:
        pump.offer_metrics(batch(1))
        eventually(lambda: sink.exports and page.exports)
        for number in range(2, 2 + MAX_METRIC_BATCHES):
            assert pump.accepts_metrics()
            pump.offer_metrics(batch(number))
        assert not pump.accepts_metrics()
        page.go_on.set()
        eventually(pump.accepts_metrics)


def test_the_page_counts_as_no_export() -> None:
    sink, page = Sink("sink"), Sink("page")
    with running(sink, page, interval=3600.0) as pump:
        offer(pump, page, 1)
        offer(pump, page, 2)
        assert page.values(semconv.OTEL_EXPORTED.name) == []
