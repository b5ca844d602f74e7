"""The feeder of spans with a spool, and its lanes: a spool in memory fails on demand."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any
from unittest.mock import PropertyMock

import pytest

from dask_otel import semconv
from dask_otel.core.records import Origin, Row
from dask_otel.pump.limits import PumpLimits
from dask_otel.pump.pump import Pump
from dask_otel.pump.spooled import Spool
from tests.unit import pumps
from tests.unit.pumps import (
    LIMITS,
    Metrics,
    Spans,
    beat,
    closes,
    note,
    offer,
    outcomes,
    turn,
)
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What a person would wait a second for takes no time."""
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    monkeypatch.setattr("dask_otel.pump.spooled.ALIVE", 0.0)
    monkeypatch.setattr("dask_otel.pump.spooled.MOMENT", 0.1)
    monkeypatch.setattr("dask_otel.pump.policy.FIRST_BACKOFF", 0.0)
    monkeypatch.setattr("dask_otel.pump.spool_health.FIRST_RETRY", 0.0)
    monkeypatch.setattr("dask_otel.pump.spooled.LONGEST_RETRY", 0.0)


#: A lane whose window is small, so that what waits is in the spool.
SMALL = PumpLimits(queue_size=10, batch_size=4, schedule_delay=0.01)


def ids(number: int) -> bytes:
    return b"%032x%016x" % (1, number)


class Memory:
    """A spool that is a few dicts; several runs can have it, one after the other."""

    recovered = last = alive = writes = reads = 0

    def __init__(self, most: int = 10**9) -> None:
        self.most = most
        self.rows: dict[int, tuple[str, Row]] = {}
        self.notes: dict[tuple[str, bytes | None], int] = {}
        #: While it can't be opened or used.
        self.error: Exception | None = None
        #: While it can be written; while rows can only be removed.
        self.unreadable: Exception | None = None
        self.full: Exception | None = None
        self.closed: list[bool] = []
        #: Bodies of all notes that were ever written.
        self.noted: set[int] = set()
        #: Cleared: writes hang.
        self.go_on = threading.Event()
        self.go_on.set()

    def put(self, sink: str, body: int | None, origin: Origin | None = None) -> None:
        """Let a finished span wait."""
        self.last += 1
        self.rows[self.last] = (sink, Row(body, origin, self.last))

    def write(
        self,
        rows: Sequence[tuple[str, bytes | None, int]],
        *,
        over: Sequence[bytes],
        settled: Sequence[int],
        fed: Mapping[str, int],
        alive_ns: int,
    ) -> tuple[int, Sequence[Any]]:
        self.writes += 1
        self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        if self.full and rows:
            raise self.full
        self.alive = alive_ns
        self.rows = {key: row for key, row in self.rows.items() if key not in settled}
        self.notes = {key: body for key, body in self.notes.items() if key[1] not in over}
        self.notes |= {(sink, key): body for sink, key, body in rows if key is not None}
        self.noted.update(self.notes.values())
        ended = [row for row in rows if row[1] is None]
        excess = max(0, len(self.rows) + len(ended) - self.most)
        gone = [n for n, (sink, _) in self.rows.items() if n > fed.get(sink, 0)][:excess]
        self.rows = {key: row for key, row in self.rows.items() if key not in gone}
        left_out = ended[: excess - len(gone)]
        for sink, _, body in ended[len(left_out) :]:
            self.put(sink, body)
        return len(gone), left_out

    def waiting(self, sink: str, after: int, limit: int) -> list[Row]:
        self.reads += 1
        if error := self.error or self.unreadable:
            raise error
        found = [row for key, row in self.rows.values() if key == sink and row.number > after]
        return [Row(row.body, row.origin, row.number) for row in found[:limit]]

    def open(self) -> Memory:
        if self.error is not None:
            raise self.error
        return self

    @property
    def count(self) -> int:
        return len(self.rows)

    size = count

    def close(self, clean: bool) -> None:
        self.closed.append(clean)
        if clean:
            self.notes.clear()


@contextmanager
def pumping(
    store: Memory,
    *spans: Spans,
    metrics: Sequence[Metrics] = (),
    limits: PumpLimits = LIMITS,
    keys: Sequence[str] | None = None,
    running: bool = False,
) -> Iterator[Pump]:
    """A pump with a spool, mostly without its threads; it is closed at the end."""
    for number, sink in enumerate(spans):
        sink.key = keys[number] if keys else f"other {number}" if number else "otlp"
    made = pumps.running if running else pumps.pumping
    spool: Any = Spool("there.db", store.most, store.open)  # type: ignore[arg-type]
    with made(spans, metrics, limits, spool=spool) as pump:
        try:
            yield pump
            if not running:
                closes(pump, 1)
        finally:
            store.go_on.set()


@pytest.fixture
def store() -> Memory:
    return Memory()


@pytest.fixture
def spans() -> Spans:
    return Spans()


def turns(pump: Pump) -> None:
    """Let the threads do all that they can do now: write, send, remove."""
    for _ in range(3):
        turn(pump)


def noted(pump: Any, *numbers: int) -> None:
    """Note open spans, as the event loop does."""
    for number in numbers:
        pump.spooled.note(note(number))


# ------------------------------------------------------------------------------- the good way


def test_what_is_exported_does_not_stay_in_the_spool(store, spans):
    """Spans that are not sampled, not translated or not encoded are neither written nor noted."""
    with pumping(store, spans) as pump:
        noted(pump, -1, 404, 500, 1)
        turns(pump)
        assert (store.notes.keys(), outcomes(pump)) == ({("otlp", ids(1))}, {})
        # Once more, and pending when the span ends.
        noted(pump, 1)
        assert all(offer(pump, 404, 500, -1, -2, *range(1, 21), groups=1))
        turns(pump)
        assert spans.exported == [n for n in range(1, 21) for _ in range(2)]
        assert (store.rows, store.notes) == ({}, {})
    assert (store.last, store.noted, store.closed) == (40, {1}, [True])
    assert outcomes(pump) == {"exported": 40, "untranslatable": 4, "unencodable": 2}


def test_a_note_goes_also_where_nobody_wants_the_span_itself():
    store, spans, unwanted = Memory(), Spans(), set()
    spans.wants = lambda record: record.span_id not in unwanted  # type: ignore[method-assign]
    with pumping(store, spans) as pump:
        noted(pump, 1)
        turn(pump)
        assert ("otlp", ids(1)) in store.notes
        unwanted.add(1)
        offer(pump, 1)
        turns(pump)
        assert (store.notes, spans.exported) == ({}, [])


def test_a_span_for_which_there_was_no_room_keeps_no_note_that_says_it_was_lost(
    store, spans, monkeypatch
):
    monkeypatch.setattr("dask_otel.pump.pump.BACKLOG", 3)
    with pumping(store, spans) as pump:
        noted(pump, 1)
        turn(pump)
        assert all(offer(pump, 11, 12, 13))
        assert not pump.spooled.takes_notes
        # One whose note is written, and one whose note still waits itself.
        noted(pump, 2)
        assert offer(pump, 1, 2) == [False, False]
        turns(pump)
        assert pump.spooled.takes_notes
        noted(pump, 3)
        turn(pump)
        assert store.notes.keys() == {("otlp", ids(3))}
        assert 2 not in store.noted
        assert outcomes(pump) == {"exported": 3, "queue_full": 2}


def test_while_a_span_is_open_there_are_signs_of_life(store):
    with pumping(store, Spans()) as pump:
        for wait in (60.0, 0.0, 0.0):
            before = store.alive
            assert pump.spooled.work() == wait
            assert (store.alive > before) is (wait == 0)
            noted(pump, 1)


def test_sinks_without_a_spool_go_on_as_before_and_each_settles_its_own():
    store, one, other, plain = Memory(), Spans("one"), Spans("other"), Spans("plain")
    other.ok = False
    with pumping(store, one, other, plain, keys=["otlp", "zipkin", ""]) as pump:
        assert all(offer(pump, *range(1, 6)))
        turns(pump)
        assert (len(one.exported), len(plain.exported), store.count) == (5, 5, 5)
    assert {key for key, _ in store.rows.values()} == {"zipkin"}
    assert outcomes(pump) == {"exported": 10}


# ---------------------------------------------------------------------------- the dead collector


def test_what_a_dead_collector_has_not_taken_waits_for_the_next_run(caplog):
    """Damaged rows are removed and counted."""
    store, dead, alive = Memory(), Spans(), Spans()
    dead.ok = False
    with pumping(store, dead) as pump:
        turn(pump)
        # Also those of the last moment.
        offer(pump, *range(1, 151), groups=1)
    assert (store.count, store.closed, outcomes(pump)) == (300, [True], {})
    assert "300 spans remain in the spool there.db" in caplog.text
    assert "could not be exported" not in caplog.text
    for _ in range(2):
        store.put("otlp", None)
    with pumping(store, alive) as pump:
        for _ in range(3):
            turns(pump)
        assert "spans of earlier runs: 302, open" in pump.open_spool(30)
    assert Counter(alive.exported) == Counter(2 * list(range(1, 151)))
    assert (store.rows, outcomes(pump)) == ({}, {"exported": 300, "unreadable": 2})


def test_where_no_time_is_left_for_exporters_the_last_spans_are_written_all_the_same(
    store, spans, monkeypatch
):
    # No machine needs that long.
    monkeypatch.setattr("dask_otel.pump.spooled.MOMENT", 60.0)
    with pumping(store, spans, running=True) as pump:
        spans.go_on.clear()
        store.go_on.clear()
        # More than two writes take, of which the first one hangs until the time is over.
        offer(pump, *range(1001, 1901))
        pump.request_close(0.0)
        store.go_on.set()
        eventually(lambda: pump.spooled.written)
        pump.release()
        spans.go_on.set()
        eventually(lambda: pump.closed)
    assert len(spans.exported) >= outcomes(pump).total() == outcomes(pump)["exported"]
    left = {row.body for _, row in list(store.rows.values())}
    assert left | set(spans.exported) == set(range(1001, 1901))


def test_at_the_end_the_lanes_wait_for_what_is_written_last(store, spans):
    with pumping(store, spans, running=True) as pump:
        store.go_on.clear()
        offer(pump, *range(1, 41))
        pump.request_close(60)
        eventually(lambda: store.writes)
        assert not spans.shut.is_set(), "it has closed before"
        store.go_on.set()
        eventually(lambda: pump.closed)
    assert (spans.exported, store.rows) == (list(range(1, 41)), {})


def test_what_is_sent_after_the_spool_was_closed_is_not_counted_as_it_will_be_sent_again(
    store, spans
):
    spans.go_on.clear()
    with pumping(store, spans, running=True) as pump:
        offer(pump, 1)
        eventually(lambda: spans.calls and store.count == 1)
        # Nobody but the feeder lets go of the lane.
        pump.request_close(0.05)
        eventually(lambda: store.closed == [True])
        spans.go_on.set()
        eventually(lambda: pump.closed)
        assert (spans.exported, store.count, outcomes(pump)) == ([1], 1, {})


# -------------------------------------------------------------------------------- the full spool


@pytest.mark.parametrize("comes_back", [True, False])
def test_spans_without_room_in_the_spool_wait_in_the_lane_until_its_end(comes_back):
    store, spans = Memory(most=20), Spans()
    spans.ok = False
    with pumping(store, spans) as pump:
        offer(pump, *range(1, 41))
        turn(pump)
        # The lane's queue has all of them, and the spool the first ones.
        assert (pump.condition()["waiting"], outcomes(pump)) == (20, {})
        spans.ok = comes_back
        turns(pump)
    assert sorted(spans.exported) == (list(range(1, 41)) if comes_back else [])
    assert outcomes(pump) == ({"exported": 40} if comes_back else {"shutdown": 20})
    assert store.count == (0 if comes_back else 20)


def test_the_oldest_rows_that_are_in_no_queue_are_dropped_and_counted(caplog):
    """In an outage that is longer than queue and spool allow."""
    store, spans, metrics = Memory(most=30), Spans(), Metrics()
    spans.ok = False
    with pumping(store, spans, metrics=[metrics], limits=SMALL) as pump:
        for n in range(1, 201, 20):
            offer(pump, *range(n, n + 20))
            turn(pump)
        # All of it is in the spool: nothing waits that could get lost.
        assert (outcomes(pump), pump.condition()["waiting"]) == ({"spool_full": 170}, 0)
        beat(pump)
        turn(pump)
        assert metrics.value(semconv.OTEL_SPOOL_SIZE.name, "traces") == 30
        assert metrics.value(semconv.OTEL_QUEUE_SIZE.name, "traces") == 0
        spans.ok = True
        for _ in range(5):
            turn(pump)
        offer(pump, 201)
        turns(pump)
        # The lane's queue had the first ones.
        assert sorted(spans.exported) == [*range(1, 11), *range(181, 202)]
        assert outcomes(pump) == {"exported": 31, "spool_full": 170}
    assert caplog.text.count("is full") == 1
    assert caplog.text.count("has room again") == 1


# --------------------------------------------------------------------------------- disk trouble


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("it is in use"), "spool there.db (otel.spool.path): it is in use"),
        (RuntimeError("a bug"), "caught an error in its spool"),
    ],
)
def test_until_it_can_be_opened_spans_are_exported_without_it(store, spans, error, said, caplog):
    store.put("otlp", 100)
    store.error = error
    with pumping(store, spans) as pump:
        offer(pump, 1)
        turns(pump)
        assert spans.exported == [1]
        assert (pump.spooled.takes_notes, pump.condition()["spool"]["usable"]) == (False, False)
        assert caplog.text.count(said) == 1
        store.error = None
        turns(pump)
        assert spans.exported == [1, 100]
        assert pump.spooled.takes_notes
    assert (
        "now uses the spool there.db (spans of earlier runs: 1, open at their end: 0)"
        in caplog.text
    )
    assert store.closed == [True]


NO_SPACE, BROKEN, BUG = OSError(28, "no space left"), OSError(5, "error"), RuntimeError("a bug")


@pytest.mark.parametrize(
    ("fails", "error", "message", "later"),
    [
        # A note that could not be removed stays, and one that came meanwhile is written later.
        ("error", NO_SPACE, "can't use its spool", {50}),
        # A full disk takes the removal of rows, which is no sign of room.
        ("full", NO_SPACE, "can't use its spool", {50}),
        # A retry would fail again: the notes are lost.
        ("error", BUG, "caught an error in its spool", set()),
    ],
)
def test_a_disk_in_trouble_costs_no_span_and_is_reported_once(
    store, spans, fails, error, message, later, caplog
):
    with pumping(store, spans) as pump:
        noted(pump, 1)
        turn(pump)
        setattr(store, fails, error)
        for n in range(1, 31):
            offer(pump, n)
            turn(pump)
            assert n in spans.exported
        assert (caplog.text.count(message), "again" in caplog.text) == (1, False)
        assert pump.condition()["spool"]["usable"] == (error is BUG)
        assert store.notes.keys() == {("otlp", ids(1))}
        noted(pump, 50)
        turn(pump)
        setattr(store, fails, None)
        turns(pump)
        assert store.notes.keys() == {("otlp", ids(number)) for number in later}
        offer(pump, 31)
        for _ in range(3):
            turns(pump)
        assert (sorted(spans.exported), store.rows) == (list(range(1, 32)), {})
        assert outcomes(pump) == {"exported": 31}
        assert caplog.text.count(message) == 1
        assert caplog.text.count("uses its spool there.db again") == (error is not BUG)


def test_rows_that_cannot_be_read_keep_no_new_span_back(store, spans):
    for n in range(1, 31):
        store.put("otlp", n)
    store.unreadable = BROKEN
    with pumping(store, spans) as pump:
        turn(pump)
        for n in range(31, 41):
            offer(pump, n)
            turn(pump)
            assert n in spans.exported
        assert (sorted(spans.exported), store.reads > 3) == (list(range(31, 41)), True)
        store.unreadable = None
        for _ in range(3):
            turns(pump)
        assert (sorted(spans.exported), store.rows) == (list(range(1, 41)), {})
        assert outcomes(pump) == {"exported": 40}


def test_in_trouble_the_queue_is_as_bounded_as_without_a_spool(store, spans):
    spans.ok, store.error = False, BROKEN
    with pumping(store, spans, limits=SMALL) as pump:
        for n in range(1, 31):
            offer(pump, n)
            turn(pump)
        assert outcomes(pump) == {"queue_full": 20}
    assert outcomes(pump) == {"queue_full": 20, "shutdown": 10}


def test_an_error_of_ours_after_the_write_loses_no_span(store, spans, monkeypatch):
    size = PropertyMock(side_effect=chain([RuntimeError("a bug")], repeat(0)))
    monkeypatch.setattr(Memory, "size", size)
    with pumping(store, spans) as pump:
        offer(pump, 1)
        turn(pump)
        size.assert_called_once()
        offer(pump, 2)
        turns(pump)
        assert (sorted(spans.exported), store.rows) == ([1, 2], {})
        assert outcomes(pump) == {"exported": 2}


def test_a_disk_that_breaks_before_the_close_does_not_hold_it_up(store, spans):
    with pumping(store, spans, limits=SMALL) as pump:
        spans.ok = False
        offer(pump, *range(1, 101))
        turn(pump)
        spans.ok, store.error = True, BROKEN
        closes(pump, 60)
        assert (store.count, pump.closed) == (100, True)
        assert outcomes(pump) == {"exported": len(spans.exported)}


def test_a_disk_that_hangs_holds_up_neither_the_loop_nor_the_close(store, spans, monkeypatch):
    monkeypatch.setattr("dask_otel.pump.pump.BACKLOG", 100)
    store.go_on.clear()
    with pumping(store, spans, running=True) as pump:
        offer(pump, 1)
        eventually(lambda: store.writes)
        # The first one is in hand.
        assert all(offer(pump, *range(2, 101)))
        assert offer(pump, 101) == [False]
        pump.request_close(0.1)
        eventually(lambda: all(lane.closed.is_set() for lane in pump.spans.lanes))
        pump.release()
        # What it had not taken in is counted; it will not be written any more.
        assert outcomes(pump) == {"queue_full": 1, "shutdown": 99}
        store.go_on.set()
        eventually(lambda: pump.closed)
        assert outcomes(pump)["shutdown"] == 99, "it is counted once"
    assert store.count + len(spans.exported) == 1
    assert store.closed == [False]


@pytest.mark.parametrize("stored", [False, True])
def test_a_span_whose_translation_does_not_return_is_counted_once(
    store, spans, stored, monkeypatch, caplog
):
    """As may happen with the operator's function (`otel.redact`)."""
    begun, go_on, translate = threading.Event(), threading.Event(), pumps.translate

    def hanging(item: Any) -> Any:
        begun.set()
        go_on.wait(60)
        return translate(item)

    monkeypatch.setattr(pumps, "translate", hanging)
    sinks = spans, Spans()
    made = pumping(store, *sinks, running=True) if stored else pumps.running(sinks)
    with made as pump:
        try:
            assert all(offer(pump, 1, 2, groups=1))
            begun.wait(30)
            pump.request_close(0.05)
            eventually(lambda: all(lane.closed.is_set() for lane in pump.spans.lanes))
            pump.release()
            assert outcomes(pump) == {"shutdown": 8}
            assert "4 spans could not be" in caplog.text
        finally:
            go_on.set()
        eventually(lambda: pump.closed)
        assert outcomes(pump) == {"shutdown": 8}
    assert (spans.exported, store.rows) == ([], {})


@pytest.mark.parametrize("seed", range(5))
def test_each_record_is_exported_or_counted_once_whatever_fails(seed):
    rng, offered = random.Random(seed), 0
    store, spans = Memory(most=60), Spans()
    with pumping(store, spans, limits=SMALL) as pump:
        for _ in range(60):
            what = rng.random()
            if what < 0.2:
                spans.ok = not spans.ok
            elif what < 0.3:
                store.error = None if store.error else BROKEN
            elif what < 0.8:
                rng.choice([pump.spooled, *pump.spans.lanes]).work()
            for _ in range(rng.randrange(12)):
                offered += 1
                noted(pump, offered)
                offer(pump, offered)
        store.error = None
    counted = outcomes(pump)
    assert len(spans.exported) == len(set(spans.exported)) == counted["exported"]
    # What is left is in the spool, and nothing is both there and counted.
    left = {row.body for _, row in list(store.rows.values())}
    assert counted.total() + len(left - set(spans.exported)) == offered
    assert not store.notes
