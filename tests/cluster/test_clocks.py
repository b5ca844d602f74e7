"""Times that are shown against the workers' own clocks.

On one machine there is one clock: tasks read it themselves, and so know when they really ran. What
Dask's workers say of it is made wrong on purpose: by heartbeats that take longer there than
back, and by clocks that are set apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from distributed import span, wait
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_otel._dask.stimuli import stimulus_time
from dask_otel.core.records import FinishedSpan
from tests.cluster.observed import Observed, observed
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

#: Each worker reads the shift of its clock when it starts, or is told another one later. Tasks,
#: which take the time from Python itself, don't see it.
PRELOAD = """
import asyncio
import sys
import time
from pathlib import Path

import distributed


def shifted():
    return time.time() + distributed.clock_shift


distributed.clock_shift = float(Path("FOLDER/shift").read_text())
for name, module in list(sys.modules.items()):
    if name.startswith("distributed") and vars(module).get("time") is time.time:
        module.time = shifted


def dask_setup(worker):
    async def slow(worker):
        await asyncio.sleep(SLOW)

    # What a heartbeat tells is gathered when its clock has been read.
    worker.metrics["slow"] = slow
"""

#: Seconds by which heartbeats take longer there than back; workers err by half of it.
SLOW = 0.3

#: Between a task's reading of the clock and its worker's, and the same on the scheduler.
READING = 0.005


def timed(_: int, seconds: float) -> tuple[float, float]:
    """Return when it ran."""
    start = time.time()
    time.sleep(seconds)
    return start, time.time()


def set_shift(seconds: float) -> None:
    """Set the clock of the worker on which it is run."""
    import distributed

    distributed.clock_shift = seconds


class Message(NamedTuple):
    """A worker's report of a run."""

    received: float
    #: Since the task was sent, without the run itself.
    took: float
    #: By the worker's clock.
    made: float


class Messages(SchedulerPlugin):
    """What messages took: the tolerance."""

    name = "messages"

    def __init__(self) -> None:
        self.sent: dict[Any, float] = {}
        #: By key.
        self.told: dict[Any, Message] = {}

    def transition(
        self,
        key: Any,
        start: str,
        finish: str,
        *args: Any,
        stimulus_id: str,
        startstops: Any = (),
        **kwargs: Any,
    ) -> None:
        now = time.time()
        if finish == "processing":
            self.sent[key] = now
        for action in startstops or ():
            if action["action"] == "compute" and start == "processing":
                length = action["stop"] - action["start"]
                took = now - self.sent[key] - length
                self.told[key] = Message(now, took, float(stimulus_id.rpartition("-")[2]))


class Clocks:
    """A cluster whose workers have clocks of their own."""

    def __init__(self, observed: Observed, folder: Path) -> None:
        self.observed = observed
        self.messages = Messages()
        self._shift = folder / "shift"
        self._workers: set[str] = set()
        observed.client.sync(self._add)

    async def _add(self) -> None:
        self.observed.cluster.scheduler.add_plugin(self.messages)

    def add_worker(self, shift: float) -> str:
        """Start a worker whose clock is shifted; return its address."""
        self._shift.write_text(str(shift))
        local = self.observed.cluster
        local.scale(len(self._workers) + 1)
        joined = eventually(lambda: set(local.scheduler.workers) - self._workers, 60, "it joined")
        self._workers |= joined
        (address,) = joined
        return address

    def await_estimate(self, worker: str) -> None:
        """Wait until a worker has taken the scheduler's time from a slow heartbeat."""
        state = self.observed.cluster.scheduler.workers[worker]
        eventually(lambda: "slow" in state.metrics, 30, "a slow heartbeat")

    def run(self, name: str, worker: str, shift: float = 0.0, tasks: int = 4) -> None:
        """Run some tasks in a span, and compare what is shown with what they saw."""
        client = self.observed.client
        with span(name):
            futures = client.map(
                timed, range(tasks), seconds=0.25, pure=False, workers=[worker], key=name
            )
        wait(futures)
        ran = client.gather(futures)
        # Of one thread's tasks the first waits for no other: its messages bound the clock. And an
        # end is as late as the worker's event loop noticed it.
        messages = [self.messages.told[future.key] for future in futures]
        took = min(messages, key=attrgetter("received")).took
        noticed = max(m.made - shift - stop for m, (_, stop) in zip(messages, ran, strict=True))
        tolerance = took + noticed + READING
        del futures
        finished = eventually(lambda: self.finished(name), 60, f"the export of {name}")
        start, stop = min(start for start, _ in ran), max(stop for _, stop in ran)
        assert finished.first_start == pytest.approx(start, abs=tolerance)
        (group,) = finished.groups
        assert group.start == pytest.approx(start, abs=tolerance)
        assert group.stop == pytest.approx(stop, abs=tolerance)
        assert finished.stop == group.stop
        assert finished.start <= finished.first_start

    def finished(self, name: str) -> FinishedSpan | None:
        """Return a span, if it has been exported."""
        spans = [s for s in self.observed.exported if s.identity.tags == (name,)]
        return spans[0] if spans else None


def fail(seconds: float) -> None:
    """Fail after a while, and say when."""
    time.sleep(seconds)
    raise ValueError(time.time())


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Clocks]:
    """A cluster without workers."""
    text = PRELOAD.replace("SLOW", str(SLOW)).replace("FOLDER", str(tmp_path))
    (tmp_path / "clock.py").write_text(text)
    with observed(n_workers=0, processes=True, preload=[str(tmp_path / "clock.py")]) as o:
        yield Clocks(o, tmp_path)
        o.quiet()


def test_a_failure_is_shown_when_it_happened(c):
    worker = c.add_worker(0.0)
    c.await_estimate(worker)
    c.run("before", worker)
    client = c.observed.client
    with span("failed"):
        future = client.submit(fail, 0.25, workers=[worker])
    wait(future)
    (failed,) = future.exception().args
    message = c.messages.told[future.key]
    del future
    finished = eventually(lambda: c.finished("failed"), 60, "its export")
    tolerance = message.took + (message.made - failed) + READING
    assert finished.failures[0].time == pytest.approx(failed, abs=tolerance)
    assert finished.failures[0].time <= message.received
    (group,) = finished.groups
    assert group.start == pytest.approx(failed - 0.25, abs=tolerance)


@pytest.mark.parametrize("shift", [-2.0, 2.0])
def test_workers_with_other_clocks_also_set_ones_are_shown_on_the_schedulers(c, shift):
    right, late = c.add_worker(0.0), c.add_worker(shift)
    c.run("right", right)
    c.run("late", late, shift)
    c.run("right again", right)
    c.run("late again", late, shift)
    c.observed.client.run(set_shift, 0.0, workers=[late])
    c.run("set", late)
    c.run("long after", late, tasks=8)
    c.observed.client.run(set_shift, shift, workers=[late])
    c.run("as before", late, shift)


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
@pytest.mark.unreconciled("nothing runs")
def test_only_the_end_of_a_run_tells_a_time(message, made):
    assert stimulus_time(message) == made
