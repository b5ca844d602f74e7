"""The pump's threads, with sinks that fail, hang and raise."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from dask_otel import semconv
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import (
    Answer,
    MetricRecord,
    NumberPoint,
)
from dask_otel.pump import health
from dask_otel.pump.parts import parts as parts_of
from dask_otel.pump.pump import MAX_METRIC_BATCHES, Pump, PumpLimits
from tests.unit.pumps import (
    DROPPED,
    EXPORTED,
    LIMITS,
    SPILLED,
    FakeSink,
    Metrics,
    Spans,
    beat,
    finished,
    offer,
    running,
    translate,
)
from tests.waiting import eventually

AGE = semconv.OTEL_EXPORT_LAST_SUCCESS_AGE.name

# ------------------------------------------------------------------------------------ spans


def test_spans_arrive_and_are_counted_in_the_metrics() -> None:
    spans, metrics = Spans(), Metrics()
    with running([spans], [metrics]) as pump:
        assert all(offer(pump, *range(10)))
        eventually(lambda: len(spans.exported) == 10)
        beat(pump)
        eventually(lambda: metrics.value(EXPORTED, "traces") == 10)
        assert metrics.value(semconv.OTEL_QUEUE_CAPACITY.name, "traces") == LIMITS.queue_size
        assert metrics.value(semconv.OTEL_QUEUE_SIZE.name, "traces") == 0
        # A metrics export counts itself in the next one.
        beat(pump)
        eventually(lambda: metrics.value(EXPORTED, "metrics") > 0)
    assert spans.exported == list(range(10))


def test_the_queue_is_bounded_and_what_does_not_fit_is_counted() -> None:
    spans, metrics = Spans(), Metrics()
    spans.ok = False
    with running([spans], [metrics]) as pump:
        taken = [pump.offer_span(finished(n, groups=1)) for n in range(100)]
        assert taken == [True] * 25 + [False] * 75
        eventually(lambda: spans.calls)
        beat(pump)
        eventually(lambda: metrics.value(DROPPED, "traces", "queue_full") == 150)
        assert metrics.value(semconv.OTEL_QUEUE_SIZE.name, "traces") == 50
        assert not pump.offer_span(finished(100)), "what is in the outlet counts as well"


def test_a_span_with_more_groups_than_the_queue_gets_through() -> None:
    spans = Spans()
    with running([spans]) as pump:
        assert pump.offer_span(finished(1, groups=70))
        eventually(lambda: len(spans.exported) == 71)


def test_only_a_full_batch_does_not_wait_for_the_delay() -> None:
    spans = Spans()
    with running([spans], limits=PumpLimits(batch_size=4, schedule_delay=3600)) as pump:
        offer(pump, *range(3))
        assert spans.exported == []
        pump.offer_span(finished(3))
        eventually(lambda: len(spans.exported) == 4)
        # More than a batch, offered before the first one is through: nothing of it waits.
        spans.go_on.clear()
        offer(pump, *range(4, 45))
        eventually(lambda: pump._spans[0].size == 41)
        spans.go_on.set()
        eventually(lambda: len(spans.exported) == 45)


def test_without_a_delay_each_span_goes_at_once() -> None:
    spans = Spans()
    with running([spans], limits=PumpLimits(schedule_delay=0)) as pump:
        pump.offer_span(finished(1))
        eventually(lambda: spans.exported == [1])


@pytest.mark.parametrize(
    ("offered", "dropped"),
    [
        # Not sampled: neither exported nor dropped.
        ([404], {}),
        ([-1, -2], {("traces", "untranslatable"): 4}),
        ([500], {("traces", "unencodable"): 2}),
    ],
)
def test_what_is_not_exported_costs_itself_alone(
    offered: list[int], dropped: dict[tuple[str, ...], float]
) -> None:
    spans, metrics = Spans(), Metrics()
    with running([spans], [metrics]) as pump:
        for n in (1, *offered, 2):
            pump.offer_span(finished(n, groups=1))
        eventually(lambda: spans.exported == [1, 1, 2, 2])
        beat(pump)
        eventually(lambda: metrics.value(EXPORTED, "traces") == 4)
        assert {
            labels: n for (name, labels), n in metrics.last.items() if name == DROPPED
        } == dropped


def test_a_dead_sink_neither_blocks_nor_doubles_another() -> None:
    dead, hanging, alive = Spans("dead"), Spans("hanging"), Spans("alive")
    dead.ok = False
    hanging.go_on.clear()
    with running([dead, hanging, alive], limits=PumpLimits(batch_size=4, schedule_delay=0)) as pump:
        assert all(offer(pump, *range(20)))
        eventually(lambda: len(alive.exported) == 20)
        assert hanging.exported == dead.exported == []
        hanging.go_on.set()
        eventually(lambda: len(hanging.exported) == 20)
    assert alive.exported == hanging.exported == list(range(20))


def test_what_was_sanitised_is_counted_once_for_two_sinks() -> None:
    spans, metrics = [Spans("a"), Spans("b")], Metrics()
    with running(spans, [metrics], sanitized=lambda: {"nul": 1}) as pump:
        offer(pump, *range(3))
        eventually(lambda: all(len(s.exported) == 3 for s in spans))
        beat(pump)
        eventually(lambda: metrics.value(semconv.OTEL_SANITIZED.name, "nul") == 3)


@pytest.mark.parametrize("error", [KeyError, SystemExit, MemoryError])
def test_the_thread_survives_what_should_not_happen(
    error: type[BaseException], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is no memory to count the error."""
    spans, metrics = Spans(), Metrics()
    monkeypatch.setattr("dask_otel.pump.thread._AFTER_ERROR", 0.01)
    with running([spans], [metrics]) as pump:
        left = [error] * 3
        lane, add = pump._spans[0], pump._tally.add
        take_in = lane._take_in

        def failing() -> None:
            if left:
                raise left.pop()
            take_in()

        def counting(*series: Any, **count: int) -> None:
            if error is MemoryError and left:
                raise error
            add(*series, **count)

        monkeypatch.setattr(lane, "_take_in", failing)
        monkeypatch.setattr(pump._tally, "add", counting)
        pump.offer_span(finished(1))
        eventually(lambda: spans.exported == [1])
        beat(pump)
        # The last error finds memory again.
        counted = 1 if error is MemoryError else 3
        eventually(lambda: metrics.value(EXPORTED, "traces") == 1)
        assert metrics.value(semconv.OTEL_INTERNAL_ERRORS.name, "export") == counted
        assert not left
    assert len([r for r in caplog.records if "swallowed" in r.message]) == 1


#: None of these is to end a thread of ours: Python does it without a word.
ENDINGS: list[type[BaseException]] = [
    SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError,
]  # fmt: skip


# ---------------------------------------------------------------------------------- metrics


def test_while_an_exporter_hangs_batches_are_refused_and_nothing_is_lost() -> None:
    metrics = Metrics()
    with running(metrics=[metrics]) as pump:
        metrics.go_on.clear()
        beat(pump, 1)
        eventually(lambda: metrics.calls == 1)
        total, kept = 1.0, 0.0
        for _ in range(20):
            kept += 1
            if pump.accepts_metrics():
                beat(pump, kept)
                total, kept = total + kept, 0.0
        assert not pump.accepts_metrics()
        assert kept == 20 - MAX_METRIC_BATCHES
        metrics.go_on.set()
        eventually(pump.accepts_metrics)
        beat(pump, kept)
        eventually(lambda: metrics.value(SPILLED, "disk-write") == 21)


@pytest.mark.parametrize("error", [None, RuntimeError("down"), *(end() for end in ENDINGS)])
def test_a_failing_exporter_loses_no_metrics(
    error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    metrics = Metrics()
    metrics.ok, metrics.error = False, error
    with running(metrics=[metrics]) as pump:
        for n in range(1, 6):
            beat(pump, 1)
            eventually(lambda n=n: metrics.calls == n)
        metrics.ok, metrics.error = True, None
        beat(pump, 1)
        eventually(lambda: metrics.value(SPILLED, "disk-write") == 6)
        eventually(lambda: len(caplog.records) == 2)
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize("blames", [True, False])
def test_a_request_refused_for_its_zero_points_is_sent_once_more_without(blames: bool) -> None:
    """And none that is refused for another reason."""
    metrics = Metrics()
    metrics.ok, metrics.refuse_zeros = blames, blames
    with running(metrics=[metrics]) as pump:
        beat(pump, 5)
        eventually(lambda: metrics.calls == 1 + blames)
        if not blames:
            metrics.ok = True
            beat(pump)
        eventually(lambda: metrics.value(SPILLED, "disk-write") == 5)
        assert metrics.calls == 2


def test_hours_by_which_the_clock_is_set_are_no_age_of_an_export() -> None:
    metrics = Metrics()
    with running(metrics=[metrics]) as pump:
        for count, hours in enumerate((0, 3, -3, 0), start=1):
            batch = MetricBatch(time_ns=time.time_ns() + hours * 3600 * 10**9)
            batch.add(SPILLED, "disk-write")
            pump.offer_metrics(batch)
            eventually(lambda n=count: metrics.calls >= n, 30, "an export")
            assert 0 <= metrics.value(AGE, "metrics") < 600


def test_the_age_of_the_last_success_is_that_of_each_signal_and_of_its_worst_exporter() -> None:
    """Traces that nobody takes are seen, though metrics go on."""
    spans, others, metrics = Spans(), Spans("other"), Metrics()
    others.yes = Answer(True, lost=10**6, said="too many")
    with running([spans, others], [metrics]) as pump:

        def ages() -> tuple[float, float]:
            taken = metrics.taken
            beat(pump, 1)
            eventually(lambda: metrics.taken > taken, what="an export of metrics")
            traces, of_metrics = (metrics.last.get((AGE, (s,)), -1) for s in ("traces", "metrics"))
            return traces, of_metrics

        assert ages() == (-1, -1), "nothing was sent yet"
        pump.offer_span(finished(1))
        eventually(lambda: spans.exported == [1] and others.calls > 0)
        traces, of_metrics = ages()
        assert traces == -1 < of_metrics, "one of them took no span of a request that it took"
        others.yes = Answer(True)
        pump.offer_span(finished(2))
        eventually(lambda: ages()[0] >= 0)
        others.ok = False
        pump.offer_span(finished(3))
        eventually(lambda: ages()[0] > 0.3, what="the age of the last success grows")
        traces, of_metrics = ages()
        assert 0 <= of_metrics < traces
        others.ok = True
        began = time.monotonic()
        pump.offer_span(finished(4))
        eventually(lambda: spans.exported[-1] == others.exported[-1] == 4)
        assert 0 <= ages()[0] <= time.monotonic() - began


def test_what_a_server_took_only_in_part_is_counted_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spans, metrics = Spans("one"), Metrics("other")
    spans.yes = metrics.yes = Answer(True, lost=1, said="no room for it")
    with running([spans], [metrics]) as pump:
        for number in (1, 2):
            offer(pump, number, groups=1)
            beat(pump, 1)
            eventually(lambda n=number: len(spans.exported) == 2 * n and metrics.taken == n)
        counts = pump.counts()
    assert (counts[EXPORTED, "traces"], counts[DROPPED, "traces", "error"]) == (2, 2)
    points = sum(len(record.points) for records in metrics.requests[:2] for record in records)
    assert (counts[EXPORTED, "metrics"], counts[DROPPED, "metrics", "rejected"]) == (points - 2, 2)
    said = [(r.levelname, "no room for it" in r.getMessage()) for r in caplog.records]
    assert said == [("WARNING", True)] * 2


class FlakyMetrics(Metrics):
    """Says no to every second request."""

    def answer(self) -> Answer:
        self.ok = self.calls % 2 == 0
        return super().answer()


def test_a_flaky_endpoint_gets_the_metrics_behind_a_request_that_failed() -> None:
    """Not: nothing behind the first of many requests that fails, at each export."""
    metrics = FlakyMetrics()
    labels = [f"activity-{n}" for n in range(40)]
    with running(metrics=[metrics], limits=PumpLimits(max_points=4)) as pump:
        for _ in range(2):
            calls = metrics.calls
            increments = {(SPILLED, label): 1.0 for label in labels}
            pump.offer_metrics(MetricBatch(time.time_ns(), increments=increments))
            # A request for each two series with their zeros, and more for what is the pump's own.
            eventually(lambda calls=calls: metrics.calls >= calls + 10)
    arrived = [label for label in labels if metrics.value(SPILLED, label)]
    assert len(arrived) >= 15


def test_an_endpoint_that_is_not_there_is_not_asked_for_each_request() -> None:
    metrics = Metrics()
    metrics.ok = False
    with running(metrics=[metrics], limits=PumpLimits(max_points=1)) as pump:
        beat(pump, 1)
        eventually(lambda: metrics.calls)
    assert metrics.calls <= 2 * 3, "three at the export, and at the last one"


def test_two_metric_sinks_have_totals_and_counts_of_their_own() -> None:
    dead, alive = Metrics("dead"), Metrics("alive")
    dead.ok = False
    spans = Spans()
    with running([spans], [dead, alive]) as pump:
        pump.offer_span(finished(1))
        eventually(lambda: spans.exported)
        for _ in range(3):
            beat(pump, 1)
        eventually(lambda: alive.value(SPILLED, "disk-write") == 3)
        dead.ok = True
        beat(pump)
        eventually(lambda: dead.value(SPILLED, "disk-write") == 3)
        for sink in (dead, alive):
            eventually(lambda sink=sink: sink.value(EXPORTED, "traces") == 1)


def point(label: str, value: float) -> NumberPoint:
    return NumberPoint({"l": label}, 1, 2, value)


def records(*counts: int) -> list[MetricRecord]:
    """Records of so many series, each with its zero point."""
    return [
        MetricRecord(f"m{i}", "s", "", "counter", "cumulative",
                     tuple(point(str(n), v) for n in range(count) for v in (0, 1)))
        for i, count in enumerate(counts)
    ]  # fmt: skip


def size_of(record: MetricRecord) -> int:
    return len(record.points)


@pytest.mark.parametrize("limit", [2, 6, 10, 44, 1000])
def test_requests_are_as_large_as_they_may_be(limit: int) -> None:
    given = records(1, 1, 3, 2, 1, 1, 1)
    parts = list(parts_of(given, limit, size_of))
    assert [r for part in parts for r in part] == given
    sizes = [sum(len(r.points) for r in part) for part in parts]
    assert all(size <= limit or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    for size, (_, after) in zip(sizes, itertools.pairwise(parts), strict=False):
        assert size + len(after[0].points) > limit


def test_without_a_limit_all_goes_in_one_request() -> None:
    assert list(parts_of(records(3, 20, 1), None, size_of)) == [records(3, 20, 1)]


# ------------------------------------------------------------------------------------ close


def test_close_exports_what_is_left_and_its_counts_and_shuts_the_sinks_down() -> None:
    spans, metrics = Spans(), Metrics()
    with running([spans], [metrics], limits=PumpLimits(schedule_delay=3600)) as pump:
        offer(pump, *range(20))
        beat(pump, 1)
        pump.request_close(30)
        eventually(lambda: pump.closed)
        assert len(spans.exported) == metrics.value(EXPORTED, "traces") == 20
        assert (spans.shut.is_set(), metrics.shut.is_set()) == (True, True)
        assert metrics.value(SPILLED, "disk-write") == 1


def test_a_failing_sink_drops_the_rest_at_close_and_it_is_counted() -> None:
    spans, metrics = Spans(), Metrics()
    spans.ok = False
    with running([spans], [metrics]) as pump:
        offer(pump, *range(20))
        eventually(lambda: spans.calls)
        beat(pump)
        pump.request_close(30)
        eventually(lambda: pump.closed)
        assert metrics.value(DROPPED, "traces", "shutdown") == 20
        assert metrics.value(semconv.OTEL_QUEUE_SIZE.name, "traces") == 0


def test_a_hanging_sink_does_not_hold_the_close_nor_the_last_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    spans, metrics = Spans(), Metrics("elsewhere")
    spans.go_on.clear()
    with running([spans], [metrics]) as pump:
        offer(pump, *range(20))
        eventually(lambda: spans.calls)
        daemons = {thread.name for thread in threading.enumerate() if thread.daemon}
        assert daemons >= {"dask-otel-traces", "dask-otel-metrics"}, "the process could not end"
        beat(pump, 1)
        pump.request_close(1.0)
        eventually(metrics.shut.is_set)
        assert not pump.closed
        assert metrics.value(SPILLED, "disk-write") == 1
        assert metrics.value(DROPPED, "traces", "shutdown") == 20
        pump.release()
        # What happens to it later is counted nowhere, and said nowhere.
        spans.go_on.set()
        eventually(lambda: pump.closed)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "20 spans could not be exported" in caplog.text


def test_hanging_metrics_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "distributed.dask_otel")
    metrics = Metrics()
    metrics.go_on.clear()
    with running(metrics=[metrics]) as pump:
        beat(pump, 1)
        eventually(lambda: metrics.calls)
        pump.request_close(0.01)
        pump.release()
        pump.release()
    assert [r.levelname for r in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("known", [False, True])
def test_last_metrics_that_a_server_refuses_are_no_secret(
    known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    metrics = Metrics()
    metrics.ok = False
    with running(metrics=[metrics]) as pump:
        beat(pump, 1)
        eventually(lambda: metrics.calls)
        caplog.clear()
        if not known:
            metrics.ok = True
            beat(pump, 1)
            eventually(lambda: metrics.taken)
            metrics.ok = False
            beat(pump, 1)
        pump.request_close(30)
        eventually(lambda: pump.closed)
        pump.release()
    assert "the last metrics could not be exported to sink" in caplog.messages[-1]
    assert "refused by the test" in caplog.messages[-1]


def test_a_request_that_stays_open_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A timeout may be of hours, and nothing is said before it is over."""
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    spans, metrics = Spans("http://there (OTLP over HTTP)"), Metrics("elsewhere")
    spans.go_on.clear()
    with running([spans], [metrics]) as pump:
        offer(pump, 1)
        beat(pump, 1)
        eventually(lambda: spans.calls and metrics.taken)
        pump.look()
        assert caplog.messages == [], "it has not been open for long"
        monkeypatch.setattr(health, "LONG", 0.0)
        pump.look()
        pump.look()
        (text,) = caplog.messages
        assert "can't export spans to http://there (OTLP over HTTP): no answer within" in text
        assert "OTEL_EXPORTER_OTLP_TIMEOUT" in text
        assert [one["failing"] for one in pump.condition()["destinations"]] == [["spans"], []]
        spans.go_on.set()
        eventually(lambda: "again" in caplog.text)
    assert spans.exported == [1]


#: Spans wait for the close.
RARELY = replace(LIMITS, schedule_delay=1000.0)


#: Of an endpoint where nobody is.
NOBODY = Answer(False, "refused by the test", absent=True)


def refuse(no: Answer, patience: float, *sinks: FakeSink) -> None:
    """Let sinks fail until further notice."""
    for sink in sinks:
        sink.ok, sink.no, sink.patience = False, no, patience


def overloaded(pause: float) -> Answer:
    """Return the answer of a server that is there, and wants to be left alone."""
    return Answer(False, "refused by the test", pause=pause)


@pytest.mark.parametrize(
    ("no", "patience"),
    [(NOBODY, 0.0), (overloaded(3600.0), 60.0)],
    ids=["nobody is worth a wait", "more time than there is"],
)
def test_at_the_end_a_server_that_is_no_use_is_asked_once(no: Answer, patience: float) -> None:
    spans, metrics = Spans(), Metrics()
    refuse(no, patience, spans, metrics)
    with running([spans], [metrics], RARELY) as pump:
        pump.offer_span(finished(1))
        beat(pump, 1)
        pump.request_close(20)
        eventually(lambda: pump.closed)
        pump.release()
    assert (spans.calls, metrics.calls) == (1, 1)


@pytest.mark.parametrize("pause", [0.0, 0.2], ids=["nobody", "overloaded"])
def test_at_the_end_a_server_is_asked_again_after_its_pause(pause: float) -> None:
    spans, metrics = Spans(), Metrics()
    refuse(overloaded(pause) if pause else NOBODY, 60.0, spans, metrics)
    with running([spans], [metrics], RARELY) as pump:
        pump.offer_span(finished(1))
        pump.request_close(60)
        # As the bridge does. Metrics wait for what becomes of the spans.
        beat(pump, 1)
        eventually(lambda: spans.calls >= 3)
        spans.ok = True
        eventually(lambda: metrics.calls >= 2)
        metrics.ok = True
        eventually(lambda: pump.closed)
    assert spans.exported == [1]
    assert metrics.value(EXPORTED, "traces") == 1
    assert min(after - before for before, after in pairwise(spans.times)) >= pause


def test_without_sinks_everything_is_taken_and_closed() -> None:
    with running() as pump:
        assert pump.offer_span(finished(1))
        assert pump.accepts_metrics()
        beat(pump)
        assert pump.closed


def test_metrics_leave_a_server_alone_for_as_long_as_it_wants() -> None:
    metrics = Metrics()
    refuse(overloaded(3600.0), 0.0, metrics)
    # Not started: the calls are this thread's.
    pump = Pump([], [(metrics, MetricState(0))], translate, replace(LIMITS, max_points=1))
    (lane,) = pump._metrics
    pump.offer_metrics(MetricBatch(increments={(SPILLED, "disk-read"): 1.0}, time_ns=1))
    beat(pump, 1)
    lane.work()
    assert metrics.calls == 1, "nor are the other requests of that export sent"
    beat(pump, 1)
    lane.work()
    assert metrics.calls == 1
    # Its answer at the end of the pause.
    lane._not_before = time.monotonic()
    metrics.ok = True
    lane.work()
    assert metrics.value(SPILLED, "disk-write") == 2


# ----------------------------------------------------------------------------------- the page


def test_a_page_and_a_hurried_sink_get_every_batch_and_others_keep_their_interval() -> None:
    """Files are in a hurry until the first one is full. At the end everybody has everything."""
    sink, file, page = Metrics("sink"), Metrics("file"), Metrics("page")
    in_a_hurry = [True]
    with running(
        metrics=[sink, file],
        limits=PumpLimits(max_points=1),
        page=(page, MetricState(0)),
        metric_interval=3600.0,
        hurried={"file": lambda: in_a_hurry[0]},
    ) as pump:
        for number in (1, 2, 3):
            if number == 3:
                in_a_hurry[0] = False
            beat(pump, 1)
            eventually(lambda number=number: page.value(SPILLED, "disk-write") == number)
            # All points in one request, whatever the limit of others is.
            assert page.calls == number
            hurried = min(number, 2)
            eventually(lambda hurried=hurried: file.value(SPILLED, "disk-write") == hurried)
        assert sink.calls == 0
        exported = sum(len(r.points) for records in file.requests for r in records)
        assert page.value(EXPORTED, "metrics") <= exported, "the page counts as no export"
        pump.request_close(10)
        eventually(lambda: pump.closed)
    assert sink.value(SPILLED, "disk-write") == file.value(SPILLED, "disk-write") == 3


@pytest.mark.parametrize("broken", [False, True])
def test_while_an_exporter_hangs_the_page_goes_on_and_what_waits_stays_bounded(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after an error while batches are made one: nothing is lost for the one that hung."""
    sink, page = Metrics("sink"), Metrics("page")
    sink.go_on.clear()
    with running(metrics=[sink], page=(page, MetricState(0))) as pump:

        def offer(count: int) -> None:
            for _ in range(count):
                taken = page.taken
                assert pump.accepts_metrics()
                beat(pump, 1)
                eventually(lambda taken=taken: page.taken > taken)

        if broken:
            with monkeypatch.context() as patched:
                patched.setattr("dask_otel.pump.lanes.merge", None)
                offer(2 * MAX_METRIC_BATCHES)
        for _ in range(10 * MAX_METRIC_BATCHES):
            offer(1)
            assert len(pump._metrics[0]._batches) <= MAX_METRIC_BATCHES
        assert (page.value(semconv.OTEL_INTERNAL_ERRORS.name, "export") > 0) is broken
        sink.go_on.set()
        total = page.value(SPILLED, "disk-write")
        eventually(lambda: sink.value(SPILLED, "disk-write") == total)
