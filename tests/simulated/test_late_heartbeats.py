"""Heartbeats that come late, some at once; processes that stand still; clocks that are set.

Which of two runs of a task a cut lists, and which of its seconds are in which heartbeat, is then
known long after the scheduler has heard of their ends.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
from distributed import span, wait
from lab.programs import draw, run

from dask_otel.lab.clock import Machine
from tests.simulated.observed import QUICK, Simulated
from tests.simulated.tasks import fail
from tests.waiting import eventually

#: Seconds by which a heartbeat may be late.
LATE = 3.0


class Delays(dict[str, Callable[[], float | None]]):
    """The delays of each worker's heartbeats, by its name; of odd seeds, the first is on time."""

    def __init__(self, seed: int) -> None:
        self._chance, self._first = random.Random(seed), [0.0] * (seed % 2)

    def get(self, name: str, default: object = None) -> Callable[[], float | None]:  # type: ignore[override]
        """Return what gives the next delay of a worker."""
        if name not in self:
            late = self._chance.choices([0.0, LATE], [3, 1], k=self._chance.randint(1, 9))
            self[name] = cycle([*self._first, *late]).__next__
        return self[name]


@pytest.mark.parametrize("seed", [*range(4), *range(10, 14), 24, 37, 60, 68, 101])
def test_idle_is_true_where_heartbeats_are_late(seed: int) -> None:
    program = draw(seed)
    # Clocks are estimated by messages.
    within = 0.02 + 6 * program.latency
    o = Simulated(limits=QUICK, within=within, longest=300.0, **program.options())
    o.estimate = 0.0021

    def late() -> None:
        o.cluster.heartbeats, chance = Delays(seed), random.Random(seed)
        for name in o.cluster.workers:
            o.cluster.machines[name].shift = chance.uniform(-5.0, 5.0)
        run(program, o.cluster)

    o.run(late)


def test_heartbeats_may_come_with_the_name_of_a_worker(o: Simulated) -> None:
    handlers = o.scheduler.handlers
    handle = handlers["heartbeat_worker"]

    def named(address: str, **message: Any) -> Any:
        return handle(address=o.scheduler.workers[address].name, **message)

    handlers["heartbeat_worker"] = named
    with span("named"):
        wait(o.client.map(time.sleep, [1.5, 1.0, 0.2]))


def held(sender: Machine, receiver: Machine, message: object) -> float:
    """Let the network between one worker and the scheduler stand still for eight seconds."""
    is_between = {"w0", "scheduler"} == {sender.name, receiver.name}
    return max(0.0, 9.0 - sender.loop.now) if is_between and sender.loop.now > 1.0 else 0.0


@pytest.mark.parametrize(
    "stands",
    ["w0", "scheduler", pytest.param("", marks=pytest.mark.options(latency=held))],
)
def test_a_process_or_the_network_stands_still_for_seconds(o: Simulated, stands: str) -> None:
    with span("across"):
        futures = o.client.map(time.sleep, [0.1] * 60, pure=False)
        time.sleep(1.0)
        if stands:
            o.cluster.machines[stands].stop(8.0)
    wait(futures)
    o.quiet()
    assert o.named("across").counts.memory == 60


@pytest.mark.options(config={"distributed.scheduler.worker-ttl": None})
def test_the_schedulers_clock_is_set_by_hours(o: Simulated) -> None:
    """Dask itself gives up workers whose last heartbeat is hours old, unless configured otherwise.

    Thread-seconds are the truth's. A span that is open has the times that the clock showed: one
    that would end before it began lasts as long as its longest task.
    """
    o.is_derivable = False
    for number, hours in enumerate((3, -3, 1, 0)):
        with span(f"across {number}"):
            across = o.client.map(time.sleep, [0.5] * 11, pure=False)
            failing = o.client.submit(fail, 0.5)
        time.sleep(0.7)
        o.cluster.machines["scheduler"].shift = hours * 3600.0
        wait([*across, failing])
        del across, failing
        time.sleep(3.0)
        with span(f"after {number}"):
            after = o.client.map(time.sleep, [0.25] * 4, pure=False)
        wait(after)
        del after
        time.sleep(2.0)
    o.quiet()
    lengths = {one.identity.tags[0]: one.stop - one.start for one in o.exported}
    assert lengths == pytest.approx(
        {
            "across 0": 1.5 + 3 * 3600, "across 1": 0.5, "across 2": 1.5 + 4 * 3600,
            "across 3": 0.5, **{f"after {number}": 0.25 for number in range(4)},
        },
        # How many of the tasks are on one worker is Dask's choice.
        rel=0, abs=0.5,
    )  # fmt: skip


@pytest.mark.options(workers=1, threads=1)
def test_a_heartbeat_from_before_the_last_end_completes_no_span(o: Simulated) -> None:
    """It came after that end, but the seconds of the last task come with the next one."""
    delays = [0.15, 0.0]
    o.cluster.heartbeats["w0"] = lambda: delays.pop() if delays else 0.0
    eventually(lambda: len(delays) == 1)
    with span("job"):
        wait(o.client.map(time.sleep, [0.1, 0.42], pure=False))
    assert not delays
    o.quiet()
    assert sum(o.named("job").activities.values()) == pytest.approx(0.52)
