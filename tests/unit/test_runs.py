"""What heartbeats tell of runs that have no times of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_otel._dask.runs import SEEN, RunsUnderWay
from dask_otel.core.life.open_span import Group
from tests.unit.driven import Driven

HERE: Any = SimpleNamespace(address="w0")


class Runs(Driven):
    """Its heartbeats list runs."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = RunsUnderWay(self.lifecycle)

    def lists(self, executing: dict[Any, float], after: float = 0.0, age: float = 0.0) -> None:
        self.now += after
        self.lifecycle.reports.heartbeat("w0", self.now - age, 0)
        self.runs.heartbeat("w0", executing)

    def cancelled(self) -> Group:
        """A task that was sent to a worker, and was cancelled."""
        group = self.task(self.span())
        self.now += 3.0
        self.lifecycle.outcomes.cancelled(group, "w0", self.now)
        self.runs.cancelled("t", "w0", group, self.now)
        return group


@pytest.fixture
def core() -> Runs:
    return Runs()


def test_a_run_is_as_old_as_the_quickest_heartbeat_says(core: Runs) -> None:
    start = core.now
    core.runs.ready["t"] = record = [None, None, 0.0, HERE, None, 0.0, None, None]
    core.lists({"t": 1.0}, after=1.0)
    # Listed 0.3 s before it arrived, which is known.
    core.lists({"t": 1.6}, after=1.0, age=0.3)
    assert record[SEEN] == pytest.approx((start, start + 1.7), abs=0.002)


@pytest.mark.parametrize("exported", [False, True])
def test_a_cancelled_run_that_the_next_heartbeat_lists_has_a_start(
    core: Runs, exported: bool
) -> None:
    group, when = core.cancelled(), core.now
    if exported:
        core.lifecycle.close(core.now)
    # It is forgotten with the first.
    for age in (2.5, 9.0):
        core.lists({"t": age}, after=0.5)
    start = 0.0 if exported else pytest.approx(when - 2.0)
    assert (group.start, group.stop) == (start, 0.0 if exported else when)
    assert exported or (group.span.first_start, [*group.span.workers]) == (group.start, ["w0"])


@pytest.mark.parametrize("lost", [False, True])
def test_a_cancelled_task_that_never_ran_has_none_and_is_forgotten(core: Runs, lost: bool) -> None:
    group = core.cancelled()
    if lost:
        core.runs.worker_removed("w0")
    for _ in range(0 if lost else 2):
        core.lists({}, after=0.5)
    core.lists({"t": 0.1})
    assert (group.start, group.span.workers) == (0.0, {})
