"""The queue in front of a span sink: an outage drops nothing, poison costs itself alone."""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_otel import semconv
from dask_otel.core.records import Answer, Row
from dask_otel.pump.health import QUIET, Health, Notices, Tally
from dask_otel.pump.outlet import LAST_TRIES, Outlet
from tests.unit.pumps import Spans


class Sink(Spans):
    """A sink that can be down, and does not take some rows."""

    def __init__(self, refused: Sequence[int] = (), raising: Sequence[int] = ()) -> None:
        super().__init__("a test sink")
        self.refused = set(refused)
        self.raising = set(raising)
        self.raises: type[BaseException] = OSError
        self.most = 10**9
        self.tries: list[list[int]] = []

    def send(self, rows: Sequence[Row], longest: float) -> Answer:
        numbers = [one.body for one in rows]
        self.tries.append(numbers)
        if self.raising & set(numbers):
            raise self.raises("no way")
        if self.refused & set(numbers) or len(numbers) > self.most:
            return self.no
        return super().send(rows, longest)


class Setup:
    def __init__(self, sink: Sink, batch_size: int = 4) -> None:
        self.time = 0.0
        self.sink = sink
        self.tally = Tally()
        self.outlet = Outlet(
            sink, batch_size, self.tally, Health(sink.name), lambda: self.time, list
        )

    def put(self, numbers: Sequence[int]) -> None:
        self.outlet.queue.extend(Row(n) for n in numbers)

    def run(self, steps: int = 200) -> None:
        """Pump as the thread does, and let the time pass when there is nothing to do."""
        for _ in range(steps):
            if not self.outlet.queue:
                return
            if not self.outlet.pump():
                self.time = max(self.time, self.outlet.policy.retry_at)
            self.time += 0.002

    def prove(self, requests: int = 128) -> None:
        """Export for a while without any trouble, as an endpoint does that works."""
        self.put(range(-4 * requests, 0))
        self.run(requests)
        assert len(self.sink.exported) == 4 * requests
        self.sink.exported.clear()
        self.sink.tries.clear()

    def feed(self, until: int, limit: int = 300) -> None:
        """Let healthy records come, a few at a time, until so many were dropped."""
        for fresh in range(1000, 1000 + 3 * limit, 3):
            if sum(self.dropped.values()) >= until:
                return
            self.put(range(fresh, fresh + 3))
            self.run(20)
        raise AssertionError(f"{self.dropped} of {until} dropped")

    @property
    def counts(self) -> dict[tuple[object, ...], float]:
        return dict(self.tally.since({}))

    @property
    def dropped(self) -> dict[object, float]:
        return {k[2]: v for k, v in self.counts.items() if k[0] == semconv.OTEL_DROPPED.name}

    @property
    def exported(self) -> float:
        return self.counts.get((semconv.OTEL_EXPORTED.name, "traces"), 0)


def test_batches_go_out_in_order_and_are_counted() -> None:
    setup = Setup(Sink())
    setup.put(range(10))
    setup.run()
    assert setup.sink.tries == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (setup.exported, setup.dropped) == (10, {})


@pytest.mark.parametrize("error", [None, OSError, MemoryError, SystemExit, GeneratorExit])
def test_an_outage_of_any_length_drops_nothing(error: type[BaseException] | None) -> None:
    setup = Setup(Sink(raising=range(40) if error else ()))
    setup.sink.ok, setup.sink.raises = False, error or OSError
    setup.put(range(40))
    setup.run(100)
    assert (len(setup.outlet.queue), setup.time > 60) == (40, True)
    setup.sink.ok = True
    setup.sink.raising.clear()
    setup.run()
    assert sorted(setup.sink.exported) == list(range(40))
    assert setup.dropped == {}


@pytest.mark.parametrize(("wanted", "given"), [(12.0, 12.0), (3600.0, 30.0)])
def test_a_server_is_left_alone_for_as_long_as_it_wants_within_bounds(
    wanted: float, given: float
) -> None:
    setup = Setup(Sink())
    setup.put(range(3))
    setup.sink.ok = False
    setup.sink.no = Answer(False, "busy", pause=wanted)
    setup.outlet.pump()
    assert setup.outlet.policy.retry_at == given
    setup.time = given - 0.001
    setup.outlet.pump()
    assert len(setup.sink.tries) == 1
    setup.time, setup.sink.ok = given, True
    setup.outlet.pump()
    assert setup.sink.exported == [0, 1, 2]


def test_backoff_doubles_and_has_a_limit() -> None:
    setup = Setup(Sink(refused=[1]))
    setup.put([1])
    waits = []
    for _ in range(9):
        before = setup.time
        assert not setup.outlet.pump()
        assert not setup.outlet.pump(), "not before its time"
        waits.append(setup.outlet.policy.retry_at - before)
        setup.time = setup.outlet.policy.retry_at
    for wait, expected in zip(waits, [1, 2, 4, 8, 16, 30, 30, 30, 30], strict=True):
        assert 0.8 * expected <= wait <= 1.2 * expected
    assert len(setup.sink.tries) == 9


def test_it_takes_three_failures_alone_between_successes_of_others() -> None:
    setup = Setup(Sink(refused=[0]))
    setup.prove()
    setup.put(range(6))
    setup.run()
    setup.feed(until=1)
    alone = [i for i, tried in enumerate(setup.sink.tries) if tried == [0]]
    others = {i for i, tried in enumerate(setup.sink.tries) if 0 not in tried}
    assert len([i for i in alone if {i - 1, i + 1} & others]) >= 3


def test_a_record_that_failed_alone_twice_and_then_got_through_is_no_poison() -> None:
    """What the endpoint does at times, it does not do because of the record."""
    setup = Setup(Sink(refused=[0]))
    setup.prove()
    setup.put(range(3))
    for fresh in range(1000, 1100):
        setup.run(1)
        if sum(tried == [0] for tried in setup.sink.tries) == 2:
            break
        setup.put([fresh])
    setup.sink.refused.clear()
    setup.run()
    assert 0 in setup.sink.exported
    assert setup.dropped == {}


class Flaky(Sink):
    """Fails now and then, whatever it gets."""

    def __init__(self, fails: Callable[[], bool]) -> None:
        super().__init__()
        self.fails = fails

    def send(self, rows: Sequence[Row], longest: float) -> Answer:
        return self.no if self.fails() else super().send(rows, longest)


@pytest.mark.parametrize("each_second", [0, 1, 5, 40])
@pytest.mark.parametrize("share", [0.3, 0.5, "every second one", "every third one"])
def test_a_flaky_endpoint_loses_nothing(share: float | str, each_second: int) -> None:
    """Nothing near full, and others get through all the time: no record is to blame."""
    dice = random.Random(1)
    turns = itertools.cycle([True, False] if share == "every second one" else [True, False, False])
    setup = Setup(
        Flaky(lambda: next(turns) if isinstance(share, str) else dice.random() < share), 16
    )
    random.seed(2)
    count = 0
    for _ in range(400):
        fresh = each_second or dice.random() < 0.2
        setup.put(range(count, count + fresh))
        count += fresh
        for _ in range(50):
            if not setup.outlet.pump():
                break
            setup.time += 0.005
        setup.time += 1.0
    setup.run(5000)
    assert setup.dropped == {}
    assert sorted(setup.sink.exported) == list(range(count))


def test_a_poisoned_record_that_is_alone_is_kept_until_another_one_shows_it() -> None:
    setup = Setup(Sink(refused=[7]))
    setup.put([7])
    setup.run(20)
    assert (len(setup.outlet.queue), setup.dropped) == (1, {})
    setup.feed(until=1)
    assert setup.dropped == {"rejected": 1}


def test_a_batch_that_is_too_large_goes_out_in_parts() -> None:
    setup = Setup(Sink(), batch_size=16)
    setup.sink.most = 3
    setup.put(range(40))
    setup.run(400)
    assert sorted(setup.sink.exported) == list(range(40))
    assert setup.dropped == {}


def test_after_an_outage_during_the_search_for_poison_batches_are_whole_again() -> None:
    setup = Setup(Sink(refused=[0]), batch_size=16)
    setup.put(range(40))
    while not setup.sink.exported:
        setup.outlet.pump()
        setup.time = max(setup.time, setup.outlet.policy.retry_at)
    setup.sink.ok = False
    setup.time += 2.0
    setup.run(20)
    setup.sink.ok = True
    setup.sink.refused.clear()
    setup.sink.tries.clear()
    setup.run()
    sizes = [len(rows) for rows in setup.sink.tries if rows[0] in setup.sink.exported]
    assert sizes[-4:] == [1, 16, 16, 6]


def test_a_sink_that_says_it_is_invalid_is_believed_sooner() -> None:
    slow, fast = Setup(Sink(refused=[0])), Setup(Sink(refused=[0]))
    fast.sink.no = Answer(False, "invalid", blames=True)
    for setup in (slow, fast):
        setup.put(range(6))
        setup.run()
    assert fast.dropped == {"rejected": 1}, "the answer blames it"
    assert slow.dropped == {}
    # How many records the first tries had: from when on a single one is tried.
    assert [len(batch) for batch in slow.sink.tries[:4]] == [4, 4, 4, 1]
    assert [len(batch) for batch in fast.sink.tries[:2]] == [4, 1]


def test_a_stream_of_poison_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    setup = Setup(Sink(refused=range(0, 30, 3)))
    setup.sink.no = Answer(False, "invalid", blames=True)
    setup.put(range(30))
    setup.run()
    # The last ones show themselves next to others.
    setup.feed(until=10)
    assert setup.dropped == {"rejected": 10}
    told = [r.levelname for r in caplog.records if "dropped a span" in r.getMessage()]
    assert told == ["WARNING"]


def blips(count: int) -> list[tuple[float, str, str]]:
    return [(n, what, "spans") for n in range(count) for what in ("failed", "ok")]


@pytest.mark.parametrize(
    ("told", "levels"),
    [
        # Of spans and metrics, which mostly go to the same place.
        (
            [(0, "failed", "spans"), (0, "failed", "metrics"), (0, "failed", "spans"),
             (0, "ok", "metrics"), (0, "ok", "spans")],
            {0: "WARNING", 4: "INFO"},
        ),
        # A flaky destination, once in a while.
        (blips(50), {0: "WARNING", 1: "INFO"}),
        (
            [*blips(2), (QUIET, "failed", "metrics"), (QUIET, "failed", "spans"),
             (QUIET, "ok", "spans"), (QUIET, "ok", "metrics")],
            {0: "WARNING", 1: "INFO", 4: "WARNING", 7: "INFO"},
        ),
        # An outage soon after a blip, when it lasts.
        (
            [*blips(1), *((n, "failed", "spans") for n in (1, QUIET - 1, QUIET, QUIET + 60))],
            {0: "WARNING", 1: "INFO", 4: "WARNING"},
        ),
    ],
)  # fmt: skip
def test_when_a_person_is_told_that_a_destination_fails_and_works_again(
    told: list[tuple[float, str, str]], levels: dict[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    now = 0.0
    health = Health("there", lambda: now)
    found = {}
    for step, (now, what, signal) in enumerate(told):  # noqa: B007 - the clock
        caplog.clear()
        health.ok(signal) if what == "ok" else health.failed(signal, "down")
        if caplog.records:
            (found[step],) = [record.levelname for record in caplog.records]
    assert found == levels


REFUSED, LATE, UNTRUSTED = "Connection refused", "timed out", "certificate verify failed"


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        # A server that restarts, and then has another certificate: each needs its own remedy.
        ([REFUSED, LATE, UNTRUSTED, REFUSED, UNTRUSTED], [REFUSED, UNTRUSTED]),
        # After a recovery, each kind has its ten minutes.
        ([LATE, "", REFUSED, UNTRUSTED, "", UNTRUSTED], [LATE, UNTRUSTED]),
        ([LATE, "", *[UNTRUSTED] * 4, "", UNTRUSTED, *[LATE] * 2], [LATE, UNTRUSTED, LATE]),
    ],
)
def test_another_kind_of_reason_is_told_once_more(
    reasons: list[str], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    notices: Notices = deque()
    health = Health("https://there:4317 (OTLP over gRPC)", lambda: now, notices=notices)
    for reason in reasons:
        now += QUIET / 7.5
        health.failed("spans", reason) if reason else health.ok("spans")
    assert [record.args[2] for record in caplog.records if record.levelname == "WARNING"] == told
    names = [name for name, _ in notices]
    assert names[::2] == ["dask.otel.export.failing"] * len(names[::2]), "one for each failure"


def test_flush_tries_a_dead_sink_a_few_times_only() -> None:
    setup = Setup(Sink())
    setup.sink.ok = False
    setup.put(range(10))
    setup.outlet.flush(until=1e9)
    assert len(setup.sink.tries) == LAST_TRIES
    assert len(setup.outlet.queue) == 10


def test_flush_gets_through_a_flaky_sink_and_isolates_poison_without_waiting() -> None:
    random.seed(1)
    turns = itertools.cycle([True, True, False])
    for sink, lost in ((Flaky(lambda: next(turns)), []), (Sink(refused=[2]), [2])):
        setup = Setup(sink)
        setup.put(range(40))
        setup.outlet.flush(until=1e9)
        assert sorted([*sink.exported, *lost]) == list(range(40))
        assert setup.time == 0


def test_flush_stops_at_its_deadline() -> None:
    sink = Sink()
    setup = Setup(sink)
    send = sink.send

    def slow(rows: Sequence[Row], longest: float) -> Answer:
        assert longest == 2.5 - setup.time
        setup.time += 1.0
        return send(rows, longest)

    sink.send = slow  # type: ignore[method-assign]
    setup.put(range(40))
    setup.outlet.flush(until=2.5)
    assert len(sink.exported) == 12


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 60),
    batch_size=st.integers(1, 16),
    refused=st.sets(st.integers(0, 59), max_size=8),
    outages=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=5),
    seed=st.integers(0, 1000),
)
def test_every_record_is_exported_once_or_dropped_for_its_own_fault(
    count: int,
    batch_size: int,
    refused: set[int],
    outages: list[tuple[int, int]],
    seed: int,
) -> None:
    random.seed(seed)
    setup = Setup(Sink(refused=sorted(refused)), batch_size)
    setup.put(range(count))
    for up, down in outages:
        setup.run(up)
        setup.sink.ok = False
        # Between two tries there is time: an outage does not begin within a millisecond.
        setup.time += 2.0
        setup.run(down)
        setup.sink.ok = True
        setup.time += 2.0
    # Good records to the end: they show that the sink is alive.
    fresh = 1000
    for _ in range(300):
        setup.run(10)
        if not any(one.body < 1000 for one in setup.outlet.queue):
            break
        setup.put([fresh])
        fresh += 1
    setup.run()
    bad = refused & set(range(count))
    exported = Counter(setup.sink.exported)
    assert max(exported.values(), default=1) == 1
    assert {n for n in exported if n < 1000} == set(range(count)) - bad
    assert sum(setup.dropped.values()) == len(bad)
    assert setup.exported == len(exported)
    assert not setup.outlet.queue
