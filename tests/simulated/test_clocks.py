"""Times that are shown against the workers' own clocks, which are wrong on purpose.

Tasks read the simulation's clock, and so know when they really ran. Their workers' clocks are off,
or set; a worker takes the scheduler's time from heartbeats, and errs where these take longer there
than back.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from distributed import span, wait

from dask_otel._dask.stimuli import stimulus_time
from dask_otel.core.life.clock_offsets import DRIFT
from dask_otel.lab.clock import EPOCH, present
from tests.simulated.observed import Simulated

#: Seconds that a heartbeat takes to the scheduler, and others nothing: workers err by half of it.
SLOW = 0.3
#: The floats of wall clocks, and a message that waits for the batch before it.
CLOSE = 0.0021


def now() -> float:
    """Return the real time, whatever the clock of this machine says."""
    return EPOCH + present().loop.time()


def timed(_: int, seconds: float) -> tuple[float, float]:
    """Return when it ran."""
    start = now()
    time.sleep(seconds)
    return start, now()


def fail(seconds: float) -> None:
    """Fail after a while, and say when."""
    time.sleep(seconds)
    raise ValueError(now())


def add_worker(o: Simulated, name: str, shift: float) -> None:
    """Add a worker with slow heartbeats and a clock that is off."""
    o.cluster.heartbeats[name] = lambda: SLOW
    o.cluster.add_worker(name, 1, shift=shift)
    # It has taken the scheduler's time from a slow heartbeat.
    time.sleep(2.0)
    delay = o.cluster.workers[name].scheduler_delay
    assert delay == pytest.approx(SLOW / 2 - shift, abs=CLOSE)


def run(o: Simulated, name: str, worker: str, tasks: int = 4) -> None:
    """Run some tasks in a span, and compare what is shown with what they saw."""
    with span(name):
        futures = o.client.map(
            timed, range(tasks), seconds=0.25, pure=False, workers=[worker], key=name
        )
        wait(futures)
    ran = o.client.gather(futures)
    del futures
    o.quiet()
    finished = o.named(name)
    start, stop = min(start for start, _ in ran), max(stop for _, stop in ran)
    (group,) = finished.groups
    shown = (finished.first_start, group.start, group.stop)
    assert shown == pytest.approx((start, start, stop), abs=CLOSE)
    assert finished.start <= finished.first_start
    assert finished.stop == group.stop


@pytest.mark.options(workers=0, within=2 * SLOW)
def test_a_failure_is_shown_when_it_happened(o: Simulated) -> None:
    add_worker(o, "w", 0.0)
    run(o, "before", "w")
    with span("failed"):
        future = o.client.submit(fail, 0.25, workers=["w"])
        wait(future)
    (failed,) = future.exception().args
    del future
    o.quiet()
    finished = o.named("failed")
    (group,) = finished.groups
    shown = finished.failures[0].time, group.start
    assert shown == pytest.approx((failed, failed - 0.25), abs=CLOSE)


@pytest.mark.options(workers=0, within=4 * SLOW)
@pytest.mark.parametrize("shift", [-2.0, 2.0])
def test_workers_with_other_clocks_also_set_ones_are_shown_on_the_schedulers(
    o: Simulated, shift: float
) -> None:
    add_worker(o, "right", 0.0)
    add_worker(o, "late", shift)
    run(o, "right", "right")
    run(o, "late", "late")
    run(o, "right again", "right")
    run(o, "late again", "late")
    o.cluster.machines["late"].shift = 0.0
    run(o, "set", "late")
    run(o, "long after", "late", tasks=8)
    o.cluster.machines["late"].shift = shift
    run(o, "as before", "late")


@pytest.mark.options(workers=0)
def test_a_clock_that_drifts_is_followed(o: Simulated) -> None:
    """As far as clocks do. All that is known of it is true; see `Simulated.check_clocks`."""
    add_worker(o, "drifts", 2.0)
    for _ in range(80):
        time.sleep(0.25)
        o.cluster.machines["drifts"].shift += 0.4 * 0.25 * DRIFT
        o.client.submit(timed, 0, 0.1, pure=False).result()
    run(o, "drifts", "drifts")


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
def test_only_the_end_of_a_run_tells_a_time(message: str, made: Any) -> None:
    assert stimulus_time(message) == made
