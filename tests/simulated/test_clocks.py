"""Times that are shown after a worker's clock was set.

Tasks read the simulation's clock, and so know when they really ran. Their worker takes the
scheduler's time from heartbeats: until the next one it errs by all that its clock was set by.
"""

from __future__ import annotations

import time

import pytest
from distributed import span, wait

from dask_otel.lab.clock import EPOCH, present
from tests.simulated.observed import Simulated

#: Seconds that a heartbeat takes to the scheduler, and others nothing: workers err by half of it.
SLOW = 0.3
#: The floats of wall clocks, and a message that waits for the batch before it.
CLOSE = 0.0021


def timed(_: int, seconds: float) -> tuple[float, float]:
    """Return when it ran, whatever the clock of its machine says."""
    start = EPOCH + present().loop.time()
    time.sleep(seconds)
    return start, EPOCH + present().loop.time()


def run(o: Simulated, name: str, tasks: int = 4) -> None:
    """Run some tasks in a span, and compare what is shown with what they saw."""
    with span(name):
        futures = o.client.map(timed, range(tasks), seconds=0.25, pure=False, key=name)
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


@pytest.mark.options(workers=0, within=4 * SLOW)
@pytest.mark.parametrize("shift", [-2.0, 2.0])
def test_runs_are_shown_on_the_schedulers_clock_also_when_their_workers_is_set(
    o: Simulated, shift: float
) -> None:
    o.cluster.heartbeats["late"] = lambda: SLOW
    o.cluster.add_worker("late", 1, shift=shift)
    # It has taken the scheduler's time from a slow heartbeat.
    time.sleep(2.0)
    delay = o.cluster.workers["late"].scheduler_delay
    assert delay == pytest.approx(SLOW / 2 - shift, abs=CLOSE)
    run(o, "late")
    o.cluster.set_clock("late", -shift)
    run(o, "set")
    o.cluster.set_clock("late", shift)
    run(o, "as before", tasks=8)
