"""What heartbeats tell of runs that have no times of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_otel._dask.runs import RunsUnderWay
from dask_otel.core.life.open_span import Group, Limits
from tests.unit.simulation import Simulation

HERE: dict[Any, Any] = {"t": SimpleNamespace(address="w0")}


@pytest.fixture
def sim() -> Simulation:
    return Simulation(Limits())


@pytest.fixture
def runs(sim: Simulation) -> RunsUnderWay:
    return RunsUnderWay(sim.lifecycle)


def beat(
    sim: Simulation, runs: RunsUnderWay, executing: dict[Any, float], assigned: Any, age: float = 0
) -> None:
    sim.heartbeat("w0", age, 0)
    runs.heartbeat("w0", executing, assigned)


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
    sim.advance(1.0)
    beat(sim, runs, {"t": 1.0}, HERE)
    sim.advance(1.0)
    # Listed 0.3 s before it arrived, which is known.
    beat(sim, runs, {"t": 1.7}, HERE, age=0.3)
    seen = runs.ended("t")
    assert seen is not None
    assert seen.start == pytest.approx(start, abs=0.002)
    assert seen.last == pytest.approx(start + 1.7, abs=0.002)
    assert runs.ended("t") is None, "forgotten with its end"


def test_a_run_of_a_worker_that_it_was_taken_from_is_not_the_tasks(
    sim: Simulation, runs: RunsUnderWay
) -> None:
    beat(sim, runs, {"t": 1.0}, {"t": SimpleNamespace(address="w1")})
    beat(sim, runs, {"t": 1.0}, {})
    assert runs.ended("t") is None


def test_a_cancelled_run_that_the_next_heartbeat_lists_has_a_start(
    sim: Simulation, runs: RunsUnderWay
) -> None:
    group = cancelled(sim, runs)
    when = sim.now
    sim.advance(0.5)
    beat(sim, runs, {"t": 2.5}, {})
    assert (group.start, group.stop) == (pytest.approx(when - 2.0), when)
    assert group.span.first_start == group.start
    assert list(group.span.workers) == ["w0"]
    assert not runs._cancelled


def test_a_cancelled_task_that_never_ran_has_none_and_is_forgotten(
    sim: Simulation, runs: RunsUnderWay
) -> None:
    group = cancelled(sim, runs)
    for _ in range(2):
        assert runs._cancelled
        sim.advance(0.5)
        beat(sim, runs, {}, {})
    assert not runs._cancelled
    beat(sim, runs, {"t": 0.1}, {})
    assert (group.start, group.span.workers) == (0.0, {})


def test_what_a_lost_worker_ran_is_forgotten(sim: Simulation, runs: RunsUnderWay) -> None:
    cancelled(sim, runs)
    runs.worker_removed("w0")
    assert not runs._cancelled


def test_a_span_that_was_exported_is_not_changed(sim: Simulation, runs: RunsUnderWay) -> None:
    group = cancelled(sim, runs)
    sim.close()
    beat(sim, runs, {"t": 2.5}, {})
    assert group.start == 0.0
