"""Workers' clocks against made-up workers that know the truth, and against noise."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, nan

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dask_otel.core.life.clock_offsets import DRIFT, SAMPLES, ClockOffsets, WorkerOffset, shifted

#: Of times since the epoch, with a sum or two.
ROUNDING = 5e-6

EPOCH = 1_763_746_621.0


def read(message: str) -> float | None:
    """Return when a message was made."""
    return None if message == "nothing" else float(message)


delays = st.one_of(st.sampled_from([0.0, 1e-4, 0.002]), st.floats(0.0, 3.0))


@dataclass
class Beat:
    """A heartbeat, or registration: its way there, and the way of its answer."""

    there: float
    back: float
    #: What the worker does before it asks, and counts as part of the round trip.
    before: float
    measured: bool


@dataclass
class Run:
    """A run: what passes until it begins, its length, and until its end is noticed, and known."""

    there: float
    length: float
    unnoticed: float
    back: float


#: For so long nothing happens.
pauses = st.one_of(st.just(0.0), st.floats(0.0, 5000.0))
beats = st.builds(Beat, delays, delays, delays, st.booleans())
runs = st.builds(Run, delays, st.floats(0.0, 50.0), delays, delays)
events = st.lists(st.tuples(pauses, st.one_of(beats, runs)), max_size=25)


class Worker:
    """A worker whose clock is known, and which estimates the scheduler's as Dask's do."""

    def __init__(self, offset: float, drift: float = 0.0) -> None:
        self.now = EPOCH
        self.clocks = ClockOffsets(float)
        #: The known bounds of its clock.
        self.known = self.clocks._workers.setdefault("w", WorkerOffset())
        self._offset = offset
        self._drift = drift
        self._estimate = 0.0
        self._waited: float | None = None
        #: What may be wrong by rounding, and by drifting while a message or a run lasts.
        self.slack = ROUNDING

    def offset(self, at: float) -> float:
        """The scheduler's clock less the worker's."""
        return self._offset + self._drift * (at - EPOCH)

    def clock(self, at: float) -> float:
        """The worker's clock."""
        return at - self.offset(at)

    def step(self, seconds: float) -> None:
        """Set the worker's clock forward."""
        self._offset -= seconds

    def beat(self, beat: Beat) -> None:
        sent = self.now
        received = sent + beat.before + beat.there
        answered = received + beat.back
        waited = self._waited if beat.measured else None
        self.clocks.heartbeat("w", received, received - self.clock(sent), waited)
        self._waited = self.clock(answered) - self.clock(sent)
        self._estimate = received - (self.clock(sent) + self.clock(answered)) / 2
        self._passed(answered)

    def run(self, run: Run) -> tuple[tuple[float, float], tuple[float, float], float, float]:
        """Return what is shown, what was true, when it was sent, and when received."""
        sent = self.now
        began = sent + run.there
        ended = began + run.length
        made = ended + run.unnoticed
        received = made + run.back
        reported = self.clock(began) + self._estimate, self.clock(ended) + self._estimate
        shown = self.clocks.corrected("w", *reported, repr(self.clock(made)), sent, received)
        self._passed(received)
        return shown, (began, ended), sent, received

    def _passed(self, now: float) -> None:
        self.slack = max(self.slack, ROUNDING + 2 * abs(self._drift) * (now - self.now))
        self.now = now

    def send(self, *messages: Beat | Run) -> None:
        for message in messages:
            self.beat(message) if isinstance(message, Beat) else self.run(message)

    def assert_known(self) -> None:
        """The truth lies within the bounds, which are those of the last message."""
        slack = self.slack + DRIFT * max(0.0, self.now - self.known._at)
        assert self.known.lower - slack <= self.offset(self.now) <= self.known.upper + slack


QUICK_BEAT = Beat(0.001, 0.001, 0.0, True)
QUICK_RUN = Run(0.001, 0.1, 0.0, 0.001)


@given(
    offset=st.floats(-1e5, 1e5),
    drift=st.just(0.0) | st.floats(-0.4 * DRIFT, 0.4 * DRIFT),
    history=events,
)
@example(0.05, 0.0, [(0.0, Beat(0.1, 0.0, 0.0, True)), (0.0, Run(0.013, 0.1, 0.0, 0.001))])
# A run may have begun before it was sent: it was cancelled, and asked for again while it ran.
@example(0.0, 0.0, [(0.0, Beat(0.001, 0.001, 0.0, True)), (0.0, Run(-4.0, 10.0, 0.0, 0.002))])
@example(0.05, 0.0, [(0.0, Beat(0.1, 0.0, 0.0, True)), *[(0.0, Run(0.01, 0.1, 0.5, 0.001))] * 9])
def test_the_truth_is_always_within_the_bounds(offset, drift, history):
    worker = Worker(offset, drift)
    unnoticed = 0.0
    for pause, event in history:
        worker.now += pause
        if isinstance(event, Beat):
            worker.beat(event)
            worker.assert_known()
            continue
        (start, stop), (began, ended), sent, received = worker.run(event)
        worker.assert_known()
        slack = worker.slack
        assert start <= stop <= received
        assert stop - start == pytest.approx(ended - began, abs=slack)
        # By a clock that drifts it may have been longer than that.
        if stop - start <= received - sent:
            assert sent - ROUNDING <= start
        # No further from the truth than the bounds are apart, and an end went unnoticed.
        unnoticed = max(unnoticed, event.unnoticed)
        apart = worker.known.upper - worker.known.lower
        slack += DRIFT * (received - worker.known._at)
        assert -apart - slack <= stop - ended <= apart + unnoticed + slack


@pytest.mark.parametrize(
    ("offset", "messages", "lower", "upper"),
    [
        (-7.0, [], None, None),
        (-7.0, [Beat(0.3, 0.3, 0.0, True)], None, -6.7),
        (-7.0, [Beat(0.3, 0.3, 0.0, True), Run(0.2, 1.0, 0.0, 0.1)], -7.2, -6.9),
        (
            -7.0,
            [Beat(0.3, 0.3, 0.0, True), Run(0.2, 1.0, 0.0, 0.1), Run(0.05, 1.0, 0.05, 0.2)],
            *(-7.1, -6.9),
        ),
        # Heartbeats alone bound it on both sides.
        (3.0, [Beat(0.02, 0.01, 0.0, True)] * 5, 2.99, 3.02),
    ],
)
def test_every_message_narrows_the_bounds(offset, messages, lower, upper):
    worker = Worker(offset)
    worker.send(*messages)
    expected = [bound and pytest.approx(bound, abs=3 * DRIFT) for bound in (lower, upper)]
    assert [*worker.clocks.bounds("w")] == expected


def test_most_runs_are_shifted_by_what_the_quickest_messages_showed():
    worker = Worker(0.0)
    worker.beat(Beat(0.19, 0.0, 0.0, True))
    worker.send(*(Run(0.001, 0.1, unnoticed, 0.001) for unnoticed in (0.05, 0.0, 0.05)))
    # Not 0.05 late. With the next heartbeat the worker adds something else: a message is read.
    for event, unnoticed, read in ((None, 0.05, False), (Beat(0.0, 0.1, 0.0, True), 0.0, True)):
        worker.send(*[event] * read)
        learned = worker.known._at
        shown, true, *_ = worker.run(Run(0.02, 0.1, unnoticed, 0.001))
        assert (shown, worker.known._at > learned) == (pytest.approx(true, abs=0.002), read)


@given(
    offset=st.floats(-1e3, 1e3),
    step=st.floats(10.0, 1e4) | st.floats(-1e4, -10.0),
    before=st.lists(st.one_of(beats, runs), max_size=10),
    after=st.lists(st.one_of(beats, runs), max_size=10),
)
def test_a_stepped_clock_starts_over(offset, step, before, after):
    quick = Run(0.5, 1.0, 0.1, 0.5)
    worker = Worker(offset)
    worker.send(*before, quick)
    worker.step(step)
    for number, event in enumerate((quick, *after)):
        if isinstance(event, Beat):
            worker.beat(event)
            continue
        (start, stop), (_, ended), sent, received = worker.run(event)
        assert sent - ROUNDING <= start <= stop <= received
        # One run is enough, before there was any heartbeat since.
        assert number or abs(stop - ended) <= 1.1 + ROUNDING
        worker.assert_known()
    worker.assert_known()


@pytest.mark.parametrize(
    ("before", "step", "then", "run", "within"),
    [
        # It queued on the worker, which says little of its clock.
        ([QUICK_BEAT], 0.0, [], Run(there=30.0, length=0.1, unnoticed=0.0, back=0.002), 0.005),
        # It took 0.19 s to register, and the answer came at once: the worker's estimate is off by
        # 0.095 s, which is put right with the first run.
        ([Beat(0.19, 0.0, 0.0, measured=False)], 0.0, [], Run(0.013, 0.05, 0.0, 0.001), 0.00101),
        # The scheduler's own clock is set. All the times that are said from then on are its: it is
        # the worker that is off.
        *(
            ([QUICK_BEAT, QUICK_RUN] * 3, step, [Beat(0.002, 0.001, 0.0, True)], QUICK_RUN, 0.003)
            for step in (-3600.0, -2.0, 2.0, 3600.0)
        ),
    ],
)
def test_a_run_is_shown_near_the_truth(before, step, then, run, within):
    worker = Worker(0.0)
    worker.send(*before)
    worker.step(step)
    worker.send(*then)
    shown, true, *_ = worker.run(run)
    assert shown == pytest.approx(true, abs=within)


@pytest.mark.parametrize("step", [-2.0, 2.0])
def test_a_step_in_the_middle_of_a_run_is_over_with_the_next(step):
    worker = Worker(0.0)
    worker.send(QUICK_BEAT, QUICK_RUN)
    sent, began = worker.now, worker.clock(worker.now)
    worker.now += 1.0
    worker.step(step)
    made = worker.clock(worker.now)
    start, stop = worker.clocks.corrected("w", began, made, repr(made), sent, worker.now)
    assert start <= stop <= worker.now
    shown, true, *_ = worker.run(QUICK_RUN)
    assert shown == pytest.approx(true, abs=0.002)


def test_runs_that_began_before_a_heartbeat_do_not_show_what_the_worker_assumes_after_it():
    worker = Worker(0.0)
    worker.send(QUICK_BEAT)
    worker.step(2.0)
    began, assumed = worker.now, worker._estimate
    worker.send(QUICK_BEAT)
    for _ in range(SAMPLES):
        worker.now += 0.5
        start, stop = (worker.clock(at) + assumed for at in (began, worker.now))
        worker.clocks.corrected("w", start, stop, repr(worker.clock(worker.now)), began, worker.now)
    shown, true, *_ = worker.run(Run(there=30.0, length=0.1, unnoticed=0.0, back=0.001))
    assert shown == pytest.approx(true, abs=0.01)


@pytest.mark.parametrize(
    ("beats", "round_trip", "travelled"),
    [
        # The worker's clock is behind by two hours from the fifth second on; then one is late.
        *(
            ([*((n, 7200.0 * (n >= 5)) for n in range(10)), (20, 7207.0)], known, [*[0.0] * 10, 7])
            for known in (None, 0.002)
        ),
        # The second heartbeat after a small step is not late.
        ([(n, 3.0 * (n > 5)) for n in range(9)], 0.002, [*[0.0] * 6, 3.0, 0.0, 0.0]),
    ],
)
def test_a_late_heartbeat_travelled_long_unless_a_clock_was_set(beats, round_trip, travelled):
    offset = WorkerOffset()
    found = [offset.heartbeat(1e6 + at, 0.001 + late, round_trip) for at, late in beats]
    assert found == pytest.approx(travelled, abs=0.01)


numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0, 0.0, -1, nan, inf, -inf, EPOCH, EPOCH + 0.1, 1e308, -1e308, 1 << 63]),
)


@given(
    noise=st.lists(
        st.tuples(st.just("run"), numbers, numbers, numbers, numbers)
        | st.tuples(st.just("beat"), numbers, st.none() | numbers),
        max_size=15,
    )
)
def test_noise_neither_raises_nor_stays(noise):
    clocks = ClockOffsets(read)
    clocks.heartbeat("w", EPOCH, 0.001, None)
    now = EPOCH
    for what, *values in noise:
        now += 1.0
        if what == "beat":
            clocks.heartbeat("w", now, *values)
            continue
        for message in (repr(values[2]), "nothing"):
            start, stop = clocks.corrected("w", *values[:2], message, values[3], now)
            assert start <= stop <= now
    now += 10.0
    made = now - 0.001
    # Two messages that make sense are enough to be right again.
    for _ in range(3):
        shown = clocks.corrected("w", made - 0.1, made, repr(made), now - 0.102, now)
        clocks.heartbeat("w", now, 0.001, 0.002)
    assert shown == pytest.approx((made - 0.1, made), abs=0.01)


@given(start=numbers, stop=numbers)
def test_without_a_clock_a_run_is_shifted_only(start, stop):
    shown = shifted(start, stop, EPOCH)
    assert shown[0] <= shown[1] <= EPOCH
    if isfinite(start) and isfinite(stop) and start <= stop <= EPOCH:
        assert shown[1] == stop


@pytest.mark.parametrize(
    ("worker", "message"), [("unknown", repr(EPOCH)), ("w", "nothing"), (None, repr(EPOCH))]
)
def test_a_run_from_the_future_keeps_its_length(worker, message):
    clocks, times = ClockOffsets(read), (EPOCH + 1.0, EPOCH + 1.5)
    clocks.heartbeat("w", EPOCH, 0.0, None)
    assert clocks.corrected(worker, *times, message, 0.0, EPOCH) == (EPOCH - 0.5, EPOCH)


def test_a_clock_of_which_a_heartbeat_alone_is_known_is_taken_at_its_upper_bound():
    clocks = ClockOffsets(lambda message: float(message.rpartition("-")[2]))
    found = [clocks.offset("w")]
    clocks.heartbeat("w", 1000.0, 100.5, None)
    found.append(clocks.offset("w"))
    # A run of one second that took 10 ms both ways: the worker takes the offset for 100.
    for _ in range(3):
        clocks.corrected("w", 1000.995, 1001.995, "task-finished-901.995", 1000.99, 1002.0)
    found.append(clocks.offset("w"))
    for _ in range(2):
        clocks.left("w")
    assert found == [None, 100.5, pytest.approx(100.0, abs=0.006)]
    assert (clocks.offset("w"), clocks.bounds("w")) == (None, (None, None))
