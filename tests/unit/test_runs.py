"""What heartbeats tell of runs that have no times of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_otel._dask.runs import RunsUnderWay
from dask_otel.core.life.open_span import Group, Limits
from tests.unit.simulation import Simulation

HERE: Any = SimpleNamespace(address="w0")
ELSEWHERE: Any = SimpleNamespace(address="w1")


@pytest.fixture
def sim() -> Simulation:
    return Simulation(Limits())


@pytest.fixture
def runs(sim: Simulation) -> RunsUnderWay:
    return RunsUnderWay(sim.lifecycle)


def beat(sim: Simulation, runs: RunsUnderWay, executing: dict[Any, float], age: float = 0) -> None:
    sim.heartbeat("w0", age, 0)
    runs.heartbeat("w0", executing)


def cancelled(sim: Simulation, runs: RunsUnderWay) -> Group:
    """A task that was sent to a worker, and was cancelled."""
    task = sim.submit(sim.create(None), "f")
    group = sim.groups[task.span, "f"]
    sim.advance(3.0)
    sim.cancel(task, "w0")
    runs.cancelled("t", "w0", group, sim.now)
    return group


def test_a_run_is_as_old_as_the_quickest_heartbeat_says(
    sim: Simulation, runs: RunsUnderWay
) -> None:
    start = sim.now
    runs.assigned["t"] = (HERE, 0.0, None)
    sim.advance(1.0)
    beat(sim, runs, {"t": 1.0})
    sim.advance(1.0)
    # Listed 0.3 s before it arrived, which is known.
    beat(sim, runs, {"t": 1.7}, age=0.3)
    assert runs.seen == {"t": pytest.approx((start, start + 1.7), abs=0.002)}


def test_a_run_of_a_worker_that_it_was_taken_from_is_not_the_tasks(
    sim: Simulation, runs: RunsUnderWay
) -> None:
    runs.assigned["t"] = (ELSEWHERE, 0.0, None)
    beat(sim, runs, {"t": 1.0})
    del runs.assigned["t"]
    beat(sim, runs, {"t": 1.0})
    assert runs.seen == {}


@pytest.mark.parametrize("exported", [False, True])
def test_a_cancelled_run_that_the_next_heartbeat_lists_has_a_start(
    sim: Simulation, runs: RunsUnderWay, exported: bool
) -> None:
    group = cancelled(sim, runs)
    when = sim.now
    if exported:
        sim.close()
    sim.advance(0.5)
    beat(sim, runs, {"t": 2.5})
    if exported:
        assert group.start == 0.0
        return
    assert (group.start, group.stop) == (pytest.approx(when - 2.0), when)
    assert (group.span.first_start, list(group.span.workers)) == (group.start, ["w0"])
    # It is forgotten with that.
    beat(sim, runs, {"t": 9.0})
    assert group.start == pytest.approx(when - 2.0)


@pytest.mark.parametrize("lost", [False, True])
def test_a_cancelled_task_that_never_ran_has_none_and_is_forgotten(
    sim: Simulation, runs: RunsUnderWay, lost: bool
) -> None:
    group = cancelled(sim, runs)
    if lost:
        runs.worker_removed("w0")
    else:
        for _ in range(2):
            sim.advance(0.5)
            beat(sim, runs, {})
    beat(sim, runs, {"t": 0.1})
    assert (group.start, group.span.workers) == (0.0, {})
