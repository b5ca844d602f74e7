"""The pump, with sinks that fail, hang and raise; where threads matter, with its threads."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest

from dask_otel import semconv
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.records import Answer, ClusterEvent, MetricRecord, NumberPoint
from dask_otel.pump import destination
from dask_otel.pump.limits import PumpLimits
from dask_otel.pump.metrics import MAX_METRIC_BATCHES
from dask_otel.pump.parts import parts as parts_of
from dask_otel.pump.pump import MetricExport, Pump, RecordExport
from tests.limits import make_state
from tests.unit.pumps import (
    DROPPED,
    EXPORTED,
    LIMITS,
    SPILLED,
    FakeSink,
    Metrics,
    Spans,
    beat,
    closes,
    offer,
    outcomes,
    pumping,
    running,
    turn,
)
from tests.waiting import eventually

AGE, SIZE = semconv.OTEL_EXPORT_LAST_SUCCESS_AGE.name, semconv.OTEL_QUEUE_SIZE.name


@pytest.fixture(autouse=True)
def _logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Let tests see what people see, and not wait before a second attempt."""
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    monkeypatch.setattr("dask_otel.pump.policy.FIRST_BACKOFF", 0.0)


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records]


def exports(pump: Pump, value: float = 0) -> None:
    """Hand over a batch of metrics, and export it."""
    beat(pump, value)
    turn(pump)


# ------------------------------------------------------------------------------------ spans


@pytest.mark.parametrize("sinks", [1, 2])
def test_the_queue_is_bounded_and_what_does_not_fit_is_counted(
    spans: Spans, metrics: Metrics, sinks: int
) -> None:
    """In front of the lanes, and in them; for each exporter."""
    spans.ok = False
    with pumping([spans] * sinks, [metrics]) as pump:
        assert offer(pump, *range(100), groups=1) == [True] * 25 + [False] * 75
        exports(pump)
        assert metrics.value(DROPPED, "traces", "queue_full") == 150 * sinks
        assert metrics.value(SIZE, "traces") == 50
        assert offer(pump, 100) == [False]
        assert pump.notices[0] == (semconv.OTEL_QUEUE_FULL, {semconv.OTEL_SIGNAL: "traces"})
        assert [name for name, _ in pump.notices].count(semconv.OTEL_QUEUE_FULL) == 1


@pytest.mark.parametrize(
    ("delay", "offered", "awake"), [(3600.0, 3, False), (3600.0, 4, True), (0.0, 1, True)]
)
def test_only_a_full_batch_or_one_without_a_delay_wakes_a_lane(
    spans: Spans, delay: float, offered: int, awake: bool
) -> None:
    with pumping([spans], limits=PumpLimits(batch_size=4, schedule_delay=delay)) as pump:
        offer(pump, *range(offered))
        pump.spans.work()
        (lane,) = pump.spans.lanes
        assert lane.wake.is_set() is awake
        # More than a batch, a span with more groups than the queue: nothing of it waits.
        assert offer(pump, *range(4, 45)) == [True] * 41
        turn(pump)
        assert offer(pump, 1, groups=3000) == [True]
        turn(pump)
        assert len(spans.exported) == offered + 41 + 3001
        assert lane.work() == max(0.05, delay)


def test_a_dead_sink_neither_blocks_nor_doubles_another() -> None:
    """And what was sanitised is counted once for all of them."""
    dead, hanging, alive = Spans("dead"), Spans("hanging"), Spans("alive")
    dead.ok = False
    hanging.go_on.clear()
    limits = PumpLimits(batch_size=4, schedule_delay=0)
    with running([dead, hanging, alive], limits=limits, sanitized=lambda: {"nul": 1}) as pump:
        assert all(offer(pump, *range(20)))
        eventually(lambda: len(alive.exported) == 20)
        assert hanging.exported == dead.exported == []
        hanging.go_on.set()
        eventually(lambda: len(hanging.exported) == 20)
        assert pump.counts()[semconv.OTEL_SANITIZED.name, "nul"] == 20
    assert alive.exported == hanging.exported == list(range(20))


@pytest.mark.parametrize("error", [KeyError, SystemExit, MemoryError])
def test_the_thread_survives_what_should_not_happen(
    spans: Spans,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where there is no memory to count the error."""
    monkeypatch.setattr("dask_otel.pump.thread._AFTER_ERROR", 0.01)
    with running([spans]) as pump:
        (lane,) = pump.spans.lanes
        outcome = chain([error] * 3, itertools.repeat(DEFAULT))
        monkeypatch.setattr(lane, "attempt", Mock(wraps=lane.attempt, side_effect=outcome))
        offer(pump, 1)
        eventually(lambda: outcomes(pump) == {"exported": 1})
        assert pump.counts()[semconv.OTEL_INTERNAL_ERRORS.name, "export"] == 3
        with monkeypatch.context() as patch:
            patch.setattr(lane, "_tally", Mock(add=Mock(side_effect=MemoryError)))
            assert lane._guarded(Mock(side_effect=error)) == 0.01
    assert len([r for r in caplog.records if "caught an error" in r.message]) == 1


# ---------------------------------------------------------------------------------- metrics


def test_while_an_exporter_hangs_batches_are_refused_and_nothing_is_lost() -> None:
    metrics, kept = Metrics(), 0
    with pumping(metrics=[metrics]) as pump:
        for _ in range(20):
            kept += 1
            if pump.accepts_metrics():
                beat(pump, kept)
                kept = 0
        assert kept == 20 - MAX_METRIC_BATCHES
        turn(pump)
        assert pump.accepts_metrics()
        exports(pump, kept)
        assert metrics.value() == 20


@pytest.mark.parametrize("error", [None, RuntimeError("down"), asyncio.CancelledError()])
def test_a_failing_exporter_loses_no_metrics(
    metrics: Metrics, error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    metrics.ok, metrics.error = False, error
    with running(metrics=[metrics]) as pump:
        for n in range(1, 6):
            beat(pump, 1)
            eventually(lambda n=n: metrics.calls == n)
        metrics.ok, metrics.error = True, None
        beat(pump, 1)
        eventually(lambda: metrics.value() == 6)
        eventually(lambda: levels(caplog) == ["WARNING", "INFO"])


@pytest.mark.parametrize("blames", [True, False])
def test_a_request_refused_for_its_zero_points_is_sent_once_more_without(
    metrics: Metrics, blames: bool
) -> None:
    """And none that is refused for another reason."""
    metrics.ok, metrics.refuse_zeros = blames, blames
    with pumping(metrics=[metrics]) as pump:
        exports(pump, 5)
        assert (metrics.calls, metrics.value()) == (1 + blames, 5 * blames)
        metrics.ok, metrics.refuse_zeros = True, False
        exports(pump)
        assert (metrics.calls, metrics.value()) == (2 + blames, 5)


def test_the_age_of_the_last_success_is_that_of_each_signal_and_of_its_worst_exporter() -> None:
    """Traces that nobody takes are seen, though metrics go on."""
    spans, others, metrics = Spans(), Spans("other"), Metrics()
    others.yes = Answer(True, lost=10**6, said="too many")
    with pumping([spans, others], [metrics]) as pump:

        def ages(number: int = 0) -> list[float]:
            offer(pump, *range(number))
            exports(pump, 1)
            # No test takes hours.
            return [round(metrics.last.get((AGE, (s,)), -1e4), -4) for s in ("traces", "metrics")]

        assert ages() == [-1e4, -1e4], "nothing was sent yet"
        for hours in (0, 3, -3):
            # The clock is set, which is no age of an export.
            pump.offer_metrics(MetricBatch(time_ns=time.time_ns() + hours * 3600 * 10**9))
            turn(pump)
        assert ages(1) == [-1e4, 0], "one of them took no span of a request that it took"
        others.yes = Answer(True)
        assert ages(1) == [0, 0]
        others.ok = False
        lane: Any = pump.spans.lanes[1]
        lane.succeeded_at -= 1e4
        assert ages(1) == [1e4, 0]
        others.ok = True
        assert ages(1) == [0, 0]


@pytest.mark.parametrize("lost", [1, 10**6])
def test_what_a_server_took_only_in_part_is_counted_and_said_once(
    caplog: pytest.LogCaptureFixture, lost: int
) -> None:
    """It can't have lost more than it got, whatever it says."""
    spans, metrics = Spans("one"), Metrics("other")
    spans.yes = metrics.yes = Answer(True, lost=lost, said="no room for it")
    with pumping([spans], [metrics]) as pump:
        for number in (1, 2):
            offer(pump, number, groups=1)
            exports(pump, 1)
        points = sum(len(record.points) for records in metrics.requests for record in records)
        refused = min(2 * lost, 4)
        assert outcomes(pump) == Counter(exported=4 - refused, error=refused)
        refused = min(2 * lost, points)
        assert outcomes(pump, "metrics") == Counter(exported=points - refused, rejected=refused)
    assert levels(caplog) == ["WARNING"] * 2
    assert caplog.text.count("no room for it") == 2


def test_each_request_is_a_line_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "distributed.dask_otel")
    spans = Spans()
    with pumping([spans]) as pump:
        for spans.ok in (True, False):
            offer(pump, 1)
            turn(pump)
        lines = [text for text in caplog.messages if "request of spans to sink took" in text]
        assert [text.partition(" s: ")[2] for text in lines] == ["accepted", "refused by the test"]


def test_a_flaky_endpoint_gets_the_metrics_behind_a_request_that_failed() -> None:
    """Not: nothing behind the first of many requests that fails, at each export."""
    metrics, answers = Metrics(), itertools.cycle([Answer(True), Answer(False, "at times")])
    metrics.answer, metrics.max_points = lambda: next(answers), 4  # type: ignore[method-assign]
    labels = [f"activity-{n}" for n in range(40)]
    with pumping(metrics=[metrics]) as pump:
        for _ in range(2):
            increments = {(SPILLED, label): 1.0 for label in labels}
            pump.offer_metrics(MetricBatch(time.time_ns(), increments=increments))
            turn(pump)
        assert len([label for label in labels if metrics.value(SPILLED, label)]) >= 15


@pytest.mark.parametrize(("pause", "calls"), [(0.0, 3), (3600.0, 1)])
def test_a_server_that_is_absent_or_wants_a_pause_is_not_asked_for_each_request(
    metrics: Metrics, pause: float, calls: int
) -> None:
    metrics.ok, metrics.no, metrics.max_points = False, overloaded(pause), 1
    with pumping(metrics=[metrics]) as pump:
        batch = MetricBatch(time.time_ns())
        for activity in ("disk-read", "disk-write", "memory-read", "memory-write"):
            batch.add(SPILLED, activity)
        pump.offer_metrics(batch)
        turn(pump)
        assert metrics.calls == calls
        metrics.ok = True
        exports(pump, 1)
        assert metrics.value() == (0 if pause else 2), "not before the end of the pause"
        # Its answer at the end of the pause.
        pump._metrics[0]._not_before = time.monotonic()
        exports(pump)
        assert metrics.value() == 2


def records(*counts: int) -> list[MetricRecord]:
    """Records of so many series, each with its zero point."""
    return [
        MetricRecord(f"m{i}", "s", "", "counter", "cumulative",
                     tuple(NumberPoint({"l": n}, 1, 2, v) for n in range(count) for v in (0, 1)))
        for i, count in enumerate(counts)
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [2, 6, 10, 44, 1000, None])
def test_requests_are_as_large_as_they_may_be(limit: int | None) -> None:
    given = records(1, 1, 3, 2, 1, 1, 20)
    parts = list(parts_of(given, limit, lambda record: len(record.points)))
    assert [r for part in parts for r in part] == given
    sizes = [sum(len(r.points) for r in part) for part in parts]
    most = limit or sum(sizes)
    assert all(size <= most or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    following = (part[0] for part in parts[1:])
    assert all(s + len(r.points) > most for s, r in zip(sizes, following, strict=False))


@pytest.mark.parametrize("name", sorted(semconv.WRITTEN))
def test_what_workers_and_users_write_leaves_half_of_the_queue_to_events(name: str) -> None:
    """The queue of logs has levels of its own."""
    sink, metrics, weight = Spans(), Metrics(), 50 if name == semconv.WORKER_LOG else 1
    sink.signal = "logs"
    logs = RecordExport([sink], lambda _: [], PumpLimits(queue_size=200))
    pump = Pump(RecordExport(), MetricExport([(metrics, make_state(0))]), logs)
    offer, of = pump.logs.offer, 100 // weight
    written, event = (
        ClusterEvent(1.0, one, {}, weight=weight if one == name else 1)
        for one in (name, semconv.CLIENT_ADDED)
    )
    assert [offer(written) for _ in range(of + 1)] == [True] * of + [False]
    # One that is offered again later is not lost.
    assert not offer(written, counted=False)
    assert [offer(event) for _ in range(101)] == [True] * 100 + [False]
    assert outcomes(pump, "logs") == {"queue_full": weight + 1}
    exports(pump)
    assert offer(written)
    exports(pump)
    assert metrics.value(semconv.OTEL_QUEUE_CAPACITY.name, "logs") == 200
    assert metrics.value(SIZE, "logs") == 0
    assert (AGE, ("logs",)) not in metrics.last, "events are rare"


# ------------------------------------------------------------------------------------ close


@pytest.mark.parametrize("ok", [True, False])
def test_close_exports_or_counts_what_is_left_and_shuts_the_sinks_down(
    spans: Spans, metrics: Metrics, ok: bool
) -> None:
    spans.ok = ok
    with pumping([spans], [metrics], PumpLimits(schedule_delay=3600)) as pump:
        offer(pump, *range(20))
        beat(pump, 1, last=True)
        # The thread of the metrics wakes before it is asked to close: it waits for the spans.
        turn(pump)
        closes(pump)
        assert outcomes(pump) == ({"exported": 20} if ok else {"shutdown": 20})
        counted = (EXPORTED, "traces") if ok else (DROPPED, "traces", "shutdown")
        assert (metrics.value(*counted), metrics.value(SIZE, "traces")) == (20, 0)
        assert (len(spans.exported), metrics.value()) == (20 * ok, 1)
        assert (spans.shut.is_set(), metrics.shut.is_set()) == (True, True)


def test_a_hanging_sink_does_not_hold_the_close_nor_the_last_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spans, metrics, stuck = Spans(), Metrics("elsewhere"), Metrics("nowhere")
    for sink in (spans, stuck):
        sink.go_on.clear()
    with running([spans], [metrics, stuck]) as pump:
        offer(pump, *range(20))
        beat(pump)
        eventually(lambda: spans.calls and stuck.calls)
        daemons = {thread.name for thread in threading.enumerate() if thread.daemon}
        assert daemons >= {"dask-otel-traces", "dask-otel-metrics"}, "the process could not end"
        beat(pump, 1)
        pump.request_close(1.0)
        eventually(metrics.shut.is_set)
        assert not pump.closed
        assert metrics.value() == 1
        assert metrics.value(DROPPED, "traces", "shutdown") == 20
        pump.release()
        pump.release()
        # What happens to it later is counted nowhere, and said nowhere.
        spans.go_on.set()
        stuck.go_on.set()
        eventually(lambda: pump.closed)
        assert outcomes(pump) == {"shutdown": 20}
    assert sorted(r.message for r in caplog.records if r.levelno == logging.WARNING) == [
        f"dask-otel: {what} could not be exported to {where} within otel.close-timeout"
        for what, where in (("20 spans", "sink"), ("the last metrics", "nowhere"))
    ]


def test_threads_end_if_another_one_cannot_start(
    spans: Spans, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pumping([spans], [metrics]) as pump:
        first, second, *_ = pump._threads
        with monkeypatch.context() as patch:
            patch.setattr(second, "start", Mock(side_effect=RuntimeError("no new thread")))
            with pytest.raises(RuntimeError, match="no new thread"):
                pump.start()
        assert first.closed.wait(60)
        assert spans.shut.is_set()


@pytest.mark.parametrize("known", [False, True])
def test_last_metrics_that_a_server_refuses_are_no_secret(
    metrics: Metrics, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with pumping(metrics=[metrics]) as pump:
        for metrics.ok in (True, not known, False):
            exports(pump, 1)
        caplog.clear()
        closes(pump)
    # At once: not after a time.
    said = "the last metrics could not be exported to sink: refused by the test"
    assert said in caplog.messages[-1]


@pytest.mark.parametrize("beside", [False, True])
def test_a_request_that_stays_open_is_told_once(
    beside: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A timeout may be of hours. A second exporter to that place hides none."""
    endpoint = Endpoint("http://there", "HTTP")
    spans, metrics, other = Spans(str(endpoint), endpoint), Metrics("elsewhere"), Spans()
    other.destination = spans.destination
    spans.go_on.clear()
    with running([spans, other] if beside else [spans], [metrics]) as pump:
        offer(pump, 1)
        beat(pump, 1)
        eventually(lambda: spans.calls and metrics.last and (other.exported or not beside))
        pump.look()
        assert caplog.messages == [], "it has not been open for long"
        monkeypatch.setattr(destination, "LONG", 0.0)
        pump.look()
        pump.look()
        (text,) = caplog.messages
        assert "can't export spans to http://there (OTLP over HTTP): no answer within" in text
        assert "OTEL_EXPORTER_OTLP_TIMEOUT" in text
        assert [one["failing"] for one in pump.condition()["destinations"]] == [["spans"], []]
        spans.go_on.set()
        eventually(lambda: "again" in caplog.text)
    assert spans.exported == [1]


def overloaded(pause: float) -> Answer:
    """Return the answer of a server that is there, and wants to be left alone."""
    return Answer(False, "refused by the test", pause=pause)


def refuse(no: Answer, *sinks: FakeSink) -> None:
    """Let sinks fail until further notice."""
    for sink in sinks:
        sink.ok, sink.no = False, no


@pytest.mark.parametrize(
    "no",
    [Answer(False, "refused by the test", absent=True), overloaded(3600.0)],
    ids=["nobody", "more time than there is"],
)
def test_at_the_end_a_server_that_is_no_use_is_asked_once(
    spans: Spans, metrics: Metrics, no: Answer
) -> None:
    refuse(no, spans, metrics)
    with pumping([spans], [metrics]) as pump:
        offer(pump, 1)
        beat(pump, 1)
        closes(pump, 20)
    assert (spans.calls, metrics.calls) == (1, 1)


def test_at_the_end_a_server_is_asked_again_after_its_pause() -> None:
    spans, metrics, pause = Spans(), Metrics(), 0.05
    refuse(overloaded(pause), spans, metrics)
    # Spans wait for the close.
    with running([spans], [metrics], replace(LIMITS, schedule_delay=1000.0)) as pump:
        offer(pump, 1)
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
    # The first request may come before the close, which asks every server at once.
    assert min(b - a for a, b in itertools.pairwise(spans.times[1:])) >= pause


def test_without_sinks_everything_is_taken_and_closed() -> None:
    with running() as pump:
        assert offer(pump, 1) == [True]
        assert pump.accepts_metrics()
        beat(pump)
        assert pump.closed


# ----------------------------------------------------------------------------------- the page


def test_a_page_and_an_eager_sink_get_every_batch_and_others_keep_their_interval() -> None:
    """Files are eager until the first one is full. At the end everybody has everything."""
    sink, file, page = Metrics("sink"), Metrics("file"), Metrics("page")
    sink.max_points, file.max_points, page.max_points = 1, 1, None
    eager = [True]
    file.destination.eager = lambda: eager[0]
    options = {"page": (page, make_state(0)), "interval": 3600.0}
    with pumping(metrics=[sink, file], **options) as pump:
        for number, eager[0] in enumerate((True, True, False), start=1):
            exports(pump, 1)
            # All points in one request, whatever the limit of others is.
            assert (page.value(), page.calls) == (number, number)
            assert file.value() == min(number, 2)
        assert sink.calls == 0
        exported = sum(len(r.points) for records in file.requests for r in records)
        assert page.value(EXPORTED, "metrics") <= exported, "the page counts as no export"
        assert [one.name for one in pump.destinations] == ["sink", "file"]
        closes(pump)
    assert sink.value() == file.value() == 3


def test_another_pump_keeps_what_waits_bounded_while_all_exporters_hang() -> None:
    sink, memory = Metrics("sink"), Metrics("memory")
    with pumping(metrics=[sink]) as pump, pumping(metrics=[memory]) as recorded:
        recorded.relieve(pump)
        for _ in range(10 * MAX_METRIC_BATCHES):
            beat(pump, 1)
            beat(recorded, 1)
            recorded._metrics[0].work()
        assert len(pump._metrics[0]._batches) <= MAX_METRIC_BATCHES
        turn(pump)
        assert sink.value() == memory.value() > 0


def test_while_an_exporter_hangs_the_page_goes_on_and_what_waits_stays_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It hangs in the first of several requests: the next ones lack nothing."""
    sink, page = Metrics("sink"), Metrics("page")
    sink.max_points = 1
    with pumping(metrics=[sink], page=(page, make_state(0))) as pump:
        hanging, shown = pump._metrics

        def hangs() -> Answer:
            monkeypatch.undo()
            for _ in range(10 * MAX_METRIC_BATCHES):
                assert pump.accepts_metrics()
                beat(pump, 1)
                shown.work()
            assert len(hanging._batches) <= MAX_METRIC_BATCHES
            return Answer(True)

        monkeypatch.setattr(sink, "answer", hangs)
        beat(pump, 1)
        turn(pump)
        turn(pump)
        assert sink.value() == page.value() > 10 * MAX_METRIC_BATCHES
