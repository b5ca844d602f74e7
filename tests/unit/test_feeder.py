"""The journal and the lanes that it feeds, with a spool in memory that fails on demand."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from dask_otel import semconv
from dask_otel.core.records import Answer, Origin, Row
from dask_otel.pump.feeder import MOMENT, Spool
from dask_otel.pump.health import Health, Tally
from dask_otel.pump.lanes import SpanLane
from dask_otel.pump.pump import Pump, PumpLimits
from tests.unit import pumps
from tests.unit.pumps import (
    DROPPED,
    EXPORTED,
    LIMITS,
    Metrics,
    Spans,
    beat,
    finished,
    note,
    offer,
)
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person would wait a second for takes a moment."""
    monkeypatch.setattr("dask_otel.pump.feeder.ALIVE", 0.05)
    monkeypatch.setattr("dask_otel.pump.policy.FIRST_BACKOFF", 0.05)
    monkeypatch.setattr("dask_otel.pump.spool_health.FIRST_RETRY", 0.05)
    monkeypatch.setattr("dask_otel.pump.feeder.LONGEST_RETRY", 0.05)


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
        #: While it can't be opened; while it can't be written.
        self.busy: Exception | None = None
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
        for number in settled:
            self.rows.pop(number, None)
        self.notes = {key: body for key, body in self.notes.items() if key[1] not in over}
        self.notes |= {(sink, key): body for sink, key, body in rows if key is not None}
        self.noted.update(self.notes.values())
        ended = [row for row in rows if row[1] is None]
        excess = max(0, len(self.rows) + len(ended) - self.most)
        gone = [n for n, (sink, _) in self.rows.items() if n > fed.get(sink, 0)][:excess]
        for number in gone:
            del self.rows[number]
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

    @property
    def count(self) -> int:
        return len(self.rows)

    size = count

    def close(self, clean: bool) -> None:
        self.closed.append(clean)
        if clean:
            self.notes.clear()


def spool(store: Memory, keys: Sequence[str] = ("otlp",)) -> Spool:
    def opened() -> Memory:
        if store.busy is not None:
            raise store.busy
        return store

    return Spool("there.db", store.most, opened, keys)


@contextmanager
def running(
    store: Memory,
    *spans: Spans,
    metrics: Metrics | None = None,
    limits: PumpLimits = LIMITS,
    keys: Sequence[str] | None = None,
    seconds: float = 30.0,
) -> Iterator[Pump]:
    """A pump with a spool, which is closed at the end as the bridge does it."""
    keys = ["otlp", *(f"other {i}" for i in range(1, len(spans)))] if keys is None else keys
    given = [] if metrics is None else [metrics]
    with pumps.running(spans, given, limits, spool=spool(store, keys)) as pump:
        try:
            yield pump
            closes(pump, seconds)
        finally:
            store.go_on.set()


def closes(pump: Pump, seconds: float) -> None:
    pump.request_close(seconds)
    last(seconds, lambda: pump.closed)
    last(MOMENT, lambda: pump.feeder.written)
    pump.release()


def last(seconds: float, over: Callable[[], bool]) -> None:
    """Wait no longer than that, whether it is over or not."""
    deadline = time.monotonic() + seconds
    while not over() and time.monotonic() < deadline:
        time.sleep(0.005)


def totals(pump: Pump) -> Counter[tuple[str, ...]]:
    """What was exported and dropped, by reason."""
    return Counter(
        {
            tuple(map(str, reason)) or ("exported",): int(count)
            for (name, signal, *reason), count in pump.counts().items()
            if name in (EXPORTED, DROPPED) and signal == "traces"
        }
    )


# ------------------------------------------------------------------------------- the good way


def test_what_is_exported_does_not_stay_in_the_spool():
    """Spans that are not sampled, not translated or not encoded are neither written nor noted."""
    store, spans = Memory(), Spans()
    with running(store, spans) as pump:
        for n in (404, 500, 1):
            pump.feeder.note(note(n))
        eventually(lambda: store.notes.keys() == {("otlp", ids(1))})
        # Once more, and pending when the span ends.
        pump.feeder.note(note(1))
        for n in (404, 500, -1, -2, *range(1, 31)):
            assert pump.offer_span(finished(n, groups=1))
        eventually(lambda: len(spans.exported) == 60 and not store.rows and not store.notes)
    assert spans.exported == [n for n in range(1, 31) for _ in range(2)]
    assert (store.last, store.noted, store.closed) == (60, {1}, [True])
    assert totals(pump) == {("exported",): 60, ("untranslatable",): 4, ("unencodable",): 2}


def test_a_note_goes_also_where_nobody_wants_the_span_itself():
    store, spans = Memory(), Spans()
    unwanted = set()
    spans.wants = lambda record: record.span_id not in unwanted  # type: ignore[method-assign]
    with running(store, spans) as pump:
        pump.feeder.note(note(1))
        eventually(lambda: ("otlp", ids(1)) in store.notes)
        unwanted.add(1)
        pump.offer_span(finished(1))
        eventually(lambda: not store.notes)
    assert spans.exported == []


def test_a_span_for_which_there_was_no_room_keeps_no_note_that_says_it_was_lost(monkeypatch):
    store, spans = Memory(), Spans()
    monkeypatch.setattr("dask_otel.pump.feeder._BACKLOG", 3)
    with running(store, spans) as pump:
        pump.feeder.note(note(1))
        eventually(lambda: ("otlp", ids(1)) in store.notes)
        store.go_on.clear()
        writes = store.writes
        pump.offer_span(finished(10))
        eventually(lambda: store.writes > writes)
        assert all(pump.offer_span(finished(n)) for n in (11, 12, 13))
        assert not pump.feeder.takes_notes
        # One whose note is written, and one whose note still waits itself.
        pump.feeder.note(note(2))
        assert not pump.offer_span(finished(1))
        assert not pump.offer_span(finished(2))
        store.go_on.set()
        eventually(lambda: pump.feeder.takes_notes)
        pump.feeder.note(note(3))
        eventually(lambda: store.notes.keys() == {("otlp", ids(3))})
        assert 2 not in store.noted
    assert totals(pump) == {("exported",): 4, ("queue_full",): 2}


def test_while_a_span_is_open_there_are_signs_of_life():
    store, spans = Memory(), Spans()
    with running(store, spans) as pump:
        pump.feeder.note(note(1))
        eventually(lambda: store.notes)
        for _ in range(2):
            before = store.alive
            eventually(lambda before=before: store.alive > before, 30, "a sign of life")


def test_sinks_without_a_spool_go_on_as_before_and_each_settles_its_own():
    store, one, other, plain = Memory(), Spans("one"), Spans("other"), Spans("plain")
    other.ok = False
    with running(store, one, other, plain, keys=["otlp", "zipkin", ""], seconds=60.0) as pump:
        assert all(offer(pump, *range(1, 6)))
        eventually(lambda: len(one.exported) == len(plain.exported) == store.count == 5)
    assert {key for key, _ in store.rows.values()} == {"zipkin"}
    assert totals(pump) == {("exported",): 10}


# ---------------------------------------------------------------------------- the dead collector


def test_what_a_dead_collector_has_not_taken_waits_for_the_next_run(caplog):
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    store, dead = Memory(), Spans()
    dead.ok = False
    with running(store, dead, seconds=60.0) as pump:
        # Also those of the last moment.
        offer(pump, *range(1, 151), groups=1)
    assert (store.count, store.closed) == (300, [True])
    assert totals(pump) == {}
    assert "300 spans remain in the spool there.db" in caplog.text
    assert "could not be exported" not in caplog.text

    alive = Spans()
    with running(store, alive) as pump:
        assert "300 spans of earlier runs wait" in pump.feeder.found
        eventually(lambda: not store.rows)
    assert Counter(alive.exported) == Counter(2 * list(range(1, 151)))
    assert totals(pump) == {("exported",): 300}


def test_where_no_time_is_left_for_exporters_the_last_spans_are_written_all_the_same(monkeypatch):
    # No machine needs that long.
    monkeypatch.setattr("dask_otel.pump.feeder.MOMENT", 60.0)
    monkeypatch.setattr("tests.unit.test_feeder.MOMENT", 60.0)
    store, spans = Memory(), Spans()
    with running(store, spans, seconds=0.0) as pump:
        spans.go_on.clear()
        offer(pump, *range(1, 301))
    assert store.count >= 300 - LIMITS.batch_size
    counted = totals(pump)
    assert counted.keys() <= {("exported",)}
    assert len(spans.exported) >= counted["exported",]
    left = {row.body for _, row in list(store.rows.values())}
    assert left | set(spans.exported) == set(range(1, 301))


def test_damaged_rows_are_removed_and_counted():
    store, spans = Memory(), Spans()
    for body in (1, None, 2, None):
        store.put("otlp", body)
    with running(store, spans) as pump:
        eventually(lambda: not store.rows)
    assert spans.exported == [1, 2]
    assert totals(pump) == {("exported",): 2, ("unreadable",): 2}


def test_at_the_end_the_lanes_wait_for_what_is_written_last():
    store, spans = Memory(), Spans()
    with running(store, spans) as pump:
        store.go_on.clear()
        offer(pump, *range(1, 41))
        pump.request_close(60)
        assert not spans.shut.wait(0.2), "it has closed before"
        store.go_on.set()
        eventually(lambda: pump.closed)
    assert (spans.exported, store.rows) == (list(range(1, 41)), {})


def test_what_is_sent_after_the_lane_was_given_up_is_neither_counted_nor_removed():
    tally, spans = Tally(), Spans()
    lane = SpanLane(spans, "otlp", True, LIMITS, tally, Health("sink"), lambda: None)

    def abandoned(*_: Any) -> Answer:
        lane.abandon()
        return Answer(True)

    spans.send = abandoned  # type: ignore[method-assign]
    lane.feed([Row(1, None, 1), Row(2)])
    lane.work()
    assert lane.take_settled() == []
    assert tally.since({}) == {(DROPPED, "traces", "shutdown"): 1}


def test_what_is_sent_after_the_spool_was_closed_is_not_counted_as_it_will_be_sent_again():
    store, spans = Memory(), Spans()
    spans.go_on.clear()
    with running(store, spans) as pump:
        pump.offer_span(finished(1))
        eventually(lambda: spans.calls and store.count == 1)
        # Nobody but the journal lets go of the lane.
        pump.request_close(0.05)
        eventually(lambda: store.closed == [True])
        spans.go_on.set()
        eventually(lambda: pump.closed)
        assert spans.exported == [1]
        assert store.count == 1
        assert totals(pump) == {}


# -------------------------------------------------------------------------------- the full spool


@pytest.mark.parametrize("comes_back", [True, False])
def test_spans_without_room_in_the_spool_wait_in_the_lane_until_its_end(comes_back):
    store, spans = Memory(most=20), Spans()
    spans.ok = False
    limits = PumpLimits(queue_size=50, batch_size=4, schedule_delay=0.01)
    with running(store, spans, limits=limits, seconds=60.0) as pump:
        offer(pump, *range(1, 41))
        # The lane's queue has all of them, and the spool the first ones.
        eventually(lambda: pump.condition()["waiting"] == 20)
        assert totals(pump) == {}
        spans.ok = comes_back
        eventually(lambda: not (comes_back and store.rows))
    assert sorted(spans.exported) == (list(range(1, 41)) if comes_back else [])
    assert totals(pump) == ({("exported",): 40} if comes_back else {("shutdown",): 20})
    assert store.count == (0 if comes_back else 20)


def test_the_oldest_rows_that_are_in_no_queue_are_dropped_and_counted(caplog):
    """In an outage that is longer than queue and spool allow."""
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    store, spans, metrics = Memory(most=30), Spans(), Metrics()
    spans.ok = False
    with running(store, spans, metrics=metrics, limits=SMALL) as pump:
        for n in range(1, 201):
            pump.offer_span(finished(n))
            if n % 20 == 0:
                eventually(lambda n=n: store.last >= n)
        eventually(lambda: totals(pump)["spool_full",] == 170)
        # All of it is in the spool: nothing waits that could get lost.
        assert pump.condition()["waiting"] == 0
        beat(pump)
        eventually(lambda: metrics.value(semconv.OTEL_SPOOL_SIZE.name, "traces") == 30)
        assert metrics.value(semconv.OTEL_QUEUE_SIZE.name, "traces") == 0
        spans.ok = True
        eventually(lambda: not store.rows)
        pump.offer_span(finished(201))
        eventually(lambda: 201 in spans.exported)
    # The lane's queue had the first ones.
    assert sorted(spans.exported) == [*range(1, 11), *range(181, 202)]
    assert totals(pump) == {("exported",): 31, ("spool_full",): 170}
    assert caplog.text.count("is full") == 1
    assert caplog.text.count("has room again") == 1


# --------------------------------------------------------------------------------- disk trouble


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("it is in use"), "otel.spool.path is there.db, and it is in use"),
        (RuntimeError("a bug"), "an error in its spool was swallowed"),
    ],
)
def test_until_it_can_be_opened_spans_are_exported_without_it(error, said, caplog):
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    store, spans = Memory(), Spans()
    store.put("otlp", 100)
    store.busy = error
    with running(store, spans) as pump:
        pump.offer_span(finished(1))
        eventually(lambda: spans.exported == [1])
        assert (pump.feeder.takes_notes, pump.condition()["spool"]["usable"]) == (False, False)
        assert caplog.text.count(said) == 1
        store.busy = None
        eventually(lambda: spans.exported == [1, 100])
        assert pump.feeder.takes_notes
        words = "now uses the spool there.db, in which a span of an earlier run waits"
        assert words in caplog.text
    assert store.closed == [True]


def works_again(pump: Pump, caplog: pytest.LogCaptureFixture, count: int) -> int:
    """Offer spans, of which there were `count`, until it is told; return how many there are."""
    while "uses its spool there.db again" not in caplog.text:
        count += 1
        assert pump.offer_span(finished(count))
        eventually(lambda: not pump.feeder.size)
    return count


def test_a_disk_in_trouble_costs_nothing_and_is_told_once(caplog):
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    store, spans = Memory(), Spans()
    with running(store, spans) as pump:
        pump.feeder.note(note(1))
        eventually(lambda: store.notes)
        store.error = OSError(28, "no space left")
        for n in range(1, 31):
            assert pump.offer_span(finished(n))
            eventually(lambda n=n: n in spans.exported)
        # Still there, as it could not be removed.
        assert store.notes
        pump.feeder.note(note(50))
        store.error = None
        eventually(lambda: store.notes.keys() == {("otlp", ids(50))}, 60, "what was held back")
        pump.offer_span(finished(31))
        eventually(lambda: 31 in spans.exported and not store.rows)
        count = works_again(pump, caplog, 31)
    assert spans.exported == list(range(1, count + 1))
    assert totals(pump) == {("exported",): count}
    assert caplog.text.count("can't use its spool") == 1
    assert caplog.text.count("uses its spool there.db again") == 1


def test_a_full_disk_that_takes_the_removal_of_rows_is_told_once(caplog):
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    store, spans = Memory(), Spans()
    store.full = OSError(28, "no space left")
    with running(store, spans) as pump:
        for n in range(1, 6):
            assert pump.offer_span(finished(n))
            eventually(lambda n=n: n in spans.exported)
            eventually(lambda: pump.condition()["spool"]["usable"])
    assert totals(pump) == {("exported",): 5}
    assert len(caplog.messages) == 1
    assert "can't use its spool" in caplog.text


def test_rows_that_cannot_be_read_keep_no_new_span_back_and_are_told_once(caplog):
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    store, spans = Memory(), Spans()
    for n in range(1, 31):
        store.put("otlp", n)
    store.unreadable = OSError(5, "database disk image is malformed")
    with running(store, spans) as pump:
        eventually(lambda: store.reads)
        for n in range(31, 41):
            pump.offer_span(finished(n))
            # Each time that it is tried again, too.
            eventually(lambda n=n: n in spans.exported)
        eventually(lambda: store.reads > 3)
        assert sorted(spans.exported) == list(range(31, 41))
        assert caplog.text.count("can't use its spool") == 1
        assert "uses its spool there.db again" not in caplog.text
        store.unreadable = None
        eventually(lambda: not store.rows)
        count = works_again(pump, caplog, 40)
    assert sorted(spans.exported) == list(range(1, count + 1))
    assert totals(pump) == {("exported",): count}
    assert caplog.text.count("uses its spool there.db again") == 1


def test_in_trouble_the_queue_is_as_bounded_as_without_a_spool():
    store, spans = Memory(), Spans()
    spans.ok = False
    store.error = OSError(5, "input/output error")
    with running(store, spans, limits=SMALL, seconds=60.0) as pump:
        for n in range(1, 31):
            pump.offer_span(finished(n))
            eventually(lambda n=n: pump.feeder._inbox._taken == n)
        eventually(lambda: sum(totals(pump).values()) == 20)
    assert totals(pump) == {("queue_full",): 20, ("shutdown",): 10}


def test_an_error_of_ours_in_the_spool_loses_no_span(caplog):
    store, spans = Memory(), Spans()
    store.error = RuntimeError("a bug")
    with running(store, spans) as pump:
        pump.feeder.note(note(9))
        offer(pump, *range(1, 6))
        eventually(lambda: len(spans.exported) == 5)
    assert totals(pump) == {("exported",): 5}
    assert caplog.text.count("an error in its spool was swallowed") == 1


def test_an_error_of_ours_after_the_write_loses_no_span(monkeypatch):
    store, spans = Memory(), Spans()
    with running(store, spans) as pump:
        raised: list[int] = []

        def raises_once(self: Memory) -> int:
            if self.writes and not raised:
                raised.append(1)
                raise RuntimeError("a bug")
            return len(self.rows)

        monkeypatch.setattr(Memory, "size", property(raises_once))
        pump.offer_span(finished(1))
        eventually(lambda: raised)
        pump.offer_span(finished(2))
        eventually(lambda: sorted(spans.exported) == [1, 2] and not store.rows)
    assert totals(pump) == {("exported",): 2}


def test_a_disk_that_breaks_before_the_close_does_not_hold_it_up():
    store, spans = Memory(), Spans()
    with running(store, spans, limits=SMALL, seconds=120.0) as pump:
        spans.go_on.clear()
        offer(pump, *range(1, 101))
        eventually(lambda: store.count == 100)
        store.error = OSError(5, "input/output error")
        spans.go_on.set()
        began = time.monotonic()
        closes(pump, 120.0)
        # A tenth of what it would wait for.
        assert time.monotonic() - began < 60
    assert store.count == 100
    assert totals(pump) == {("exported",): len(spans.exported)}


def test_a_disk_that_hangs_holds_up_neither_the_loop_nor_the_close(monkeypatch):
    monkeypatch.setattr("dask_otel.pump.feeder._BACKLOG", 100)
    store, spans = Memory(), Spans()
    with running(store, spans, seconds=0.5) as pump:
        store.go_on.clear()
        pump.offer_span(finished(1))
        eventually(lambda: store.writes)
        assert all(offer(pump, *range(2, 102)))
        assert not pump.offer_span(finished(102))
        closes(pump, 0.5)
        # What it had not taken in is counted; it will not be written any more.
        assert totals(pump) == {("queue_full",): 1, ("shutdown",): 100}
        store.go_on.set()
        eventually(lambda: pump.closed)
    assert store.count + len(spans.exported) == 1
    assert store.closed == [False]


@pytest.mark.parametrize("seed", range(5))
def test_each_record_is_exported_or_counted_once_whatever_fails(seed):
    import random

    rng = random.Random(seed)
    store, spans = Memory(most=60), Spans()
    offered = 0
    with running(store, spans, limits=SMALL, seconds=60.0) as pump:
        for _ in range(40):
            what = rng.random()
            if what < 0.2:
                spans.ok = not spans.ok
            elif what < 0.3:
                store.error = None if store.error else OSError(5, "input/output error")
            for _ in range(rng.randrange(12)):
                offered += 1
                pump.feeder.note(note(offered))
                pump.offer_span(finished(offered))
            time.sleep(0.003)
        store.error = None
    counted = totals(pump)
    assert len(spans.exported) == len(set(spans.exported)) == counted["exported",]
    # What is left is in the spool, and nothing is both there and counted.
    left = {row.body for _, row in list(store.rows.values())}
    assert sum(counted.values()) + len(left - set(spans.exported)) == offered
    assert not store.notes
