"""The queue in front of a span sink: an outage drops nothing, poison costs itself alone."""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.core.records import Answer, Row
from dask_otel.pump.lanes import ASK_AGAIN, LAST_TRIES, SpanLane
from dask_otel.pump.limits import PumpLimits
from dask_otel.pump.policy import Policy
from dask_otel.pump.tally import Tally
from tests.unit.pumps import Spans, outcomes

Judge = Callable[[Collection[int]], object]


class Sink(Spans):
    """A sink that refuses some requests, by the numbers of their rows."""

    def __init__(self, refuses: Judge) -> None:
        super().__init__("a test sink")
        self.refuses = refuses
        self.tries: list[list[int]] = []

    def send(self, rows: Sequence[Row], longest: float) -> Answer:
        self.tries.append([row.body for row in rows])
        return self.no if self.refuses(self.tries[-1]) else super().send(rows, longest)


class Setup:
    """A lane without its thread: the time passes when there is nothing to do."""

    def __init__(
        self, refuses: Judge = lambda _: False, batch_size: int = 4, signal: str = "traces"
    ) -> None:
        self.time, self.sink, self.tally = 0.0, Sink(refuses), Tally()
        self.sink.signal = signal
        limits = PumpLimits(10**9, batch_size)
        self.lane = SpanLane(self.sink, "", False, limits, self.tally, list, lambda: self.time)

    @property
    def left(self) -> list[int]:
        return [row.body for row in self.lane.policy.queue]

    def put(self, numbers: Iterable[int]) -> None:
        self.lane.feed([Row(number) for number in numbers])

    def run(self, numbers: Iterable[int] = (), steps: int = 200) -> None:
        """Queue rows, and export as the thread does."""
        self.put(numbers)
        for _ in range(steps):
            if self.left and not self.lane.attempt():
                self.time = max(self.time, self.lane.policy.retry_at)
            self.time += 0.002

    def feed(self, until: int) -> None:
        """Let healthy records come, a few at a time, until so many were dropped."""
        for fresh in range(1000, 1900, 3):
            if self.dropped < until:
                self.run(range(fresh, fresh + 3), 20)
        assert self.dropped == until

    @property
    def dropped(self) -> int:
        return outcomes(self.tally).get("rejected", 0)


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "distributed.dask_otel")


@pytest.fixture
def setup() -> Setup:
    return Setup()


@pytest.mark.parametrize("error", [None, OSError, MemoryError, SystemExit, GeneratorExit])
def test_batches_go_out_in_order_and_an_outage_drops_nothing(
    setup: Setup, error: type[BaseException] | None
) -> None:
    setup.run(range(10))
    assert setup.sink.tries == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    setup.sink.ok, setup.sink.error = False, error and error("no way")
    setup.run(range(10, 50), 100)
    assert (len(setup.left), setup.time > 60) == (40, True)
    setup.sink.ok, setup.sink.error = True, None
    setup.run()
    assert sorted(setup.sink.exported) == list(range(50))
    assert outcomes(setup.tally) == {"exported": 50}
    # The failures of the outage are known, so that none of a single row is taken for its own fault.
    assert setup.lane.policy._innocent.count(False) > 3


def test_what_is_sent_after_a_close_is_left_to_the_end_which_has_a_deadline(setup: Setup) -> None:
    setup.sink.refuses = lambda _: setup.lane.close(1.0)
    setup.put(range(12))
    setup.lane.work()
    assert setup.sink.tries == [[0, 1, 2, 3]]


@pytest.mark.parametrize(("wanted", "given"), [(12.0, 12.0), (3600.0, 30.0)])
def test_a_server_is_left_alone_for_as_long_as_it_wants_within_bounds(
    setup: Setup, wanted: float, given: float
) -> None:
    setup.sink.ok, setup.sink.no = False, Answer(False, "busy", pause=wanted)
    setup.run([0], 1)
    assert setup.lane.policy.retry_at == given
    setup.time = given - 0.001
    assert not setup.lane.attempt()
    assert len(setup.sink.tries) == 1
    setup.time, setup.sink.ok = given, True
    setup.run()
    assert setup.sink.exported == [0]


def test_backoff_doubles_and_has_a_limit() -> None:
    setup = Setup(lambda _: True)
    setup.put([1])
    for expected in (1, 2, 4, 8, 16, 30, 30, 30, 30):
        assert not setup.lane.attempt()
        assert not setup.lane.attempt(), "not before its time"
        wait = setup.lane.policy.retry_at - setup.time
        assert 0.8 * expected <= wait <= 1.2 * expected
        setup.time = setup.lane.policy.retry_at
    assert len(setup.sink.tries) == 9


def test_poison_is_dropped_once_others_get_through() -> None:
    setup = Setup(lambda numbers: 0 in numbers)
    setup.run([0])
    assert setup.left == [0], "while it is alone, it may be an outage"
    setup.feed(until=1)


@pytest.mark.parametrize(("successes", "strikes"), [(128, 3), (0, 20)])
def test_three_failures_alone_are_no_chance_if_nothing_else_fails(
    successes: int, strikes: int
) -> None:
    policy, row = Policy(1), Row(0)
    policy._innocent.extend([True] * successes)
    assert [policy._is_no_chance(row) for _ in range(strikes)] == [False] * (strikes - 1) + [True]


@pytest.mark.parametrize(
    ("share", "each_second"),
    [(0.3, 0), (0.5, 1), (0.3, 40), ("every second one", 0), ("every second one", 5),
     ("every third one", 1)],
)  # fmt: skip
def test_a_flaky_endpoint_loses_nothing(share: float | str, each_second: int) -> None:
    """Nothing near full, and others get through all the time: no record is to blame."""
    dice = random.Random(1)
    turns = itertools.cycle([True, False] if share == "every second one" else [True, False, False])
    setup = Setup(
        lambda _: next(turns) if isinstance(share, str) else dice.random() < share, batch_size=16
    )
    random.seed(2)
    count = 0
    for _ in range(400):
        fresh = each_second or dice.random() < 0.2
        setup.put(range(count, count + fresh))
        count += fresh
        for _ in range(50):
            if not setup.lane.attempt():
                break
            setup.time += 0.005
        setup.time += 1.0
    setup.run(steps=5000)
    assert setup.dropped == 0
    assert sorted(setup.sink.exported) == list(range(count))


def test_after_an_outage_during_the_search_for_poison_batches_are_whole_again() -> None:
    setup = Setup(lambda numbers: 0 in numbers, batch_size=16)
    setup.put(range(40))
    while not setup.sink.exported:
        setup.run(steps=1)
    setup.sink.refuses = lambda _: True
    setup.time += 2.0
    setup.run(steps=20)
    setup.sink.refuses = lambda _: False
    setup.sink.tries.clear()
    setup.run()
    assert [len(rows) for rows in setup.sink.tries][-4:] == [1, 16, 16, 6]


@pytest.mark.parametrize(("blames", "sizes"), [(False, [4, 4, 4, 1]), (True, [4, 1])])
def test_a_sink_that_says_it_is_invalid_is_believed_sooner(blames: bool, sizes: list[int]) -> None:
    """The sizes of the first tries: from when on a single record is tried."""
    setup = Setup(lambda numbers: 0 in numbers)
    setup.sink.no = Answer(False, "no", blames=blames)
    setup.run(range(6))
    assert [len(batch) for batch in setup.sink.tries[: len(sizes)]] == sizes
    assert setup.dropped == blames


@pytest.mark.parametrize("took", [False, True])
def test_logs_that_an_endpoint_never_took_are_offered_again_each_hour(
    took: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One line, no alert. A proxy says 404, too, while its server restarts."""
    setup = Setup(signal="logs")
    setup.run([0] * took)
    setup.sink.ok, setup.sink.no = False, Answer(False, "not found", unsupported=True)
    for rows in ([1], range(2, 7)):
        setup.run(rows, 3)
    tries, counted = len(setup.sink.tries), outcomes(setup.tally, "logs")
    setup.sink.ok = True
    setup.time += ASK_AGAIN
    setup.run([7])
    if took:
        assert counted == {"exported": 1}
        assert sorted(setup.sink.exported) == [*range(8)]
    else:
        assert (tries, counted, setup.sink.exported) == (1, {"unsupported": 6}, [7])
        (record,) = caplog.records
        assert (record.levelno, "accepts no logs" in record.message) == (logging.INFO, True)
        assert setup.sink.destination.condition()["failing"] == []


def test_a_stream_of_poison_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(lambda numbers: set(numbers) & {*range(0, 30, 3)})
    setup.sink.no = Answer(False, "invalid", blames=True)
    setup.run(range(30))
    # The last ones show themselves next to others.
    setup.feed(until=10)
    assert [r.levelname for r in caplog.records if "dropped a span" in r.message] == ["WARNING"]


@pytest.mark.parametrize("refused", [True, False])
def test_an_answer_after_the_end_is_no_news(
    refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup(lambda _: not refused)
    # These are in the spool, so that the end itself is no news, but that of an outage would be, and
    # its begin.
    setup.lane.feed([Row(1, None, 1)])
    setup.run(steps=2)
    caplog.clear()

    def abandon(_: Collection[int]) -> bool:
        setup.lane.abandon()
        return refused

    setup.sink.refuses = abandon
    setup.lane.feed([Row(2, None, 2)])
    setup.run(steps=3)
    assert (setup.sink.tries[-1][-1:], caplog.records) == ([2], [])
    settled, counted = setup.lane.take_settled(), outcomes(setup.tally)
    assert (settled, counted) == (([1], {"exported": 1}) if refused else ([], {}))


def flaky() -> Judge:
    turns = itertools.cycle([True, True, False])
    return lambda _: next(turns)


@pytest.mark.parametrize(
    ("refuses", "tries", "left", "lost"),
    [
        (lambda _: True, LAST_TRIES, 40, 0),
        (flaky(), None, 0, 0),
        (lambda numbers: 2 in numbers, None, 0, 1),
    ],
    ids=["dead", "flaky", "poison"],
)
def test_at_the_end_all_is_tried_without_waiting(
    refuses: Judge, tries: int | None, left: int, lost: int
) -> None:
    random.seed(1)
    setup = Setup(refuses)
    setup.put(range(40))
    setup.lane.flush(until=1e9)
    assert (len(setup.left), 40 - len(setup.sink.exported)) == (left, left + lost)
    assert (len(setup.sink.tries), setup.time) == (tries or len(setup.sink.tries), 0)
    # A single row is next after the first failure, not after the third.
    assert [len(batch) for batch in setup.sink.tries[:2]] == [4, 1]


def test_at_the_end_each_request_gets_the_time_that_is_left(setup: Setup) -> None:
    send = setup.sink.send

    def slow(rows: Sequence[Row], longest: float) -> Answer:
        assert longest == 2.5 - setup.time
        setup.time += 1.0
        return send(rows, longest)

    setup.sink.send = slow  # type: ignore[method-assign]
    setup.put(range(40))
    setup.lane.flush(until=2.5)
    assert len(setup.sink.exported) == 12


@given(
    count=st.integers(1, 60),
    batch_size=st.integers(1, 16),
    most=st.integers(1, 16),
    refused=st.sets(st.integers(0, 59), max_size=8),
    outages=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=5),
    seed=st.integers(0, 1000),
)
def test_every_record_is_exported_once_or_dropped_for_its_own_fault(
    count: int,
    batch_size: int,
    most: int,
    refused: set[int],
    outages: list[tuple[int, int]],
    seed: int,
) -> None:
    """Also by a server that accepts only `most` in one request."""
    random.seed(seed)
    setup = Setup(lambda numbers: refused & {*numbers} or len(numbers) > most, batch_size)
    setup.put(range(count))
    for up, down in outages:
        for setup.sink.ok, steps in ((True, up), (False, down)):
            # Between two tries there is time: an outage does not begin within a millisecond.
            setup.time += 2.0
            setup.run(steps=steps)
    setup.sink.ok = True
    # Good records to the end: they show that the sink is alive.
    for fresh in range(1000, 1300):
        if any(number < 1000 for number in setup.left):
            setup.run([fresh], 10)
    setup.run()
    bad = refused & {*range(count)}
    exported = Counter(setup.sink.exported)
    assert max(exported.values(), default=1) == 1
    assert {n for n in exported if n < 1000} == {*range(count)} - bad
    assert outcomes(setup.tally) == Counter(exported=len(exported), rejected=len(bad))
    assert setup.left == []
