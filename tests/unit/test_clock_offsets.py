"""Workers' clocks against noise; true ones: `test_late_heartbeats.py`, `test_clocks.py`."""

from __future__ import annotations

from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel._dask.stimuli import stimulus_time
from dask_otel.core.life.clock_offsets import SAMPLES, ClockOffsets, WorkerOffset, shifted

EPOCH = 1_763_746_621.0


def read(message: str) -> float | None:
    """Return when a message was made."""
    return None if message == "nothing" else float(message)


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
        # In two hours, the worker's clock falls behind as fast as quartz can, or gets ahead; then
        # one is late.
        *(
            (
                [*((n, off * n) for n in range(0, 7200, 60)), (7200, off * 7200 + 7.0)],
                0.002,
                [*[0.0] * 120, 7.0],
            )
            for off in (5e-5, -5e-5)
        ),
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
    clocks.of("w").heartbeat(EPOCH, 0.001, None)
    now = EPOCH
    for what, *values in noise:
        now += 1.0
        if what == "beat":
            clocks.of("w").heartbeat(now, *values)
            continue
        for message in (repr(values[2]), "nothing"):
            start, stop = clocks.corrected("w", *values[:2], message, values[3], now)
            assert start <= stop <= now
    now += 10.0
    made = now - 0.001
    # Two messages that make sense are enough to be right again.
    for _ in range(3):
        shown = clocks.corrected("w", made - 0.1, made, repr(made), now - 0.102, now)
        clocks.of("w").heartbeat(now, 0.001, 0.002)
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
    clocks.of("w").heartbeat(EPOCH, 0.0, None)
    assert clocks.corrected(worker, *times, message, 0.0, EPOCH) == (EPOCH - 0.5, EPOCH)


def test_a_correction_is_settled_by_several_runs_after_each_heartbeat():
    clocks, settled = ClockOffsets(read), []
    for beat in (1000.0, 2000.0):
        clocks.of("w").heartbeat(beat, 100.5, None)
        for _ in range(SAMPLES):
            made, times = repr(beat - 98.005), (beat + 0.995, beat + 1.995)
            clocks.corrected("w", *times, made, beat + 0.99, beat + 2.0)
            settled.append(clocks.of("w").settled < inf)
    assert settled == [*[False] * (SAMPLES - 1), True] * 2


def test_a_clock_of_which_a_heartbeat_alone_is_known_is_taken_at_its_upper_bound():
    messages: list[str] = []
    clocks = ClockOffsets(lambda message: messages.append(message) or float(message[14:]))
    found = [clocks.offset("w")]
    clocks.of("w").heartbeat(1000.0, 100.5, None)
    found.append(clocks.offset("w"))
    # A run of one second that took 10 ms both ways: the worker takes the offset for 100.
    for _ in range(3):
        clocks.corrected("w", 1000.995, 1001.995, "task-finished-901.995", 1000.99, 1002.0)
    found.append(clocks.offset("w"))
    assert len(messages) == SAMPLES
    for _ in range(2):
        clocks.worker_removed("w")
    assert found == [None, 100.5, pytest.approx(100.0, abs=0.006)]
    assert (clocks.offset("w"), clocks.bounds("w")) == (None, (None, None))


@pytest.mark.parametrize(
    ("message", "made"),
    [
        ("task-finished-1763746621.25", 1763746621.25),
        ("task-erred-1763746621.25", 1763746621.25),
        # It repeats what a worker said, to the scheduler's question.
        ("compute-task-1763746621.25", None),
        ("task-finished-soon", None),
        ("", None),
    ],
)
def test_only_the_end_of_a_run_tells_a_time(message: str, made: float | None) -> None:
    assert stimulus_time(message) == made
