"""What heartbeats tell of runs that have no times of their own."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.mark.parametrize(
    ("then", "listed", "ago"),
    [
        # It is forgotten with the first heartbeat that lists it.
        (lambda core: None, [{"t": 2.5}, {"t": 9.0}], 2.0),
        (lambda core: core.lifecycle.close(core.now), [{"t": 2.5}, {"t": 9.0}], None),
        (lambda core: core.runs.worker_removed("w0"), [{"t": 0.1}], None),
        # It never ran.
        (lambda core: None, [{}, {}, {"t": 0.1}], None),
    ],
)
def test_a_cancelled_run_that_the_next_heartbeat_lists_has_a_start(
    core: Runs, then: Callable[[Runs], None], listed: list[dict[Any, float]], ago: float | None
) -> None:
    group, when = core.cancelled(), core.now
    then(core)
    for executing in listed:
        core.lists(executing, after=0.5)
    times = (0.0, 0.0) if ago is None else (pytest.approx(when - ago), when)
    assert (group.start, group.stop) == times
    workers = [] if ago is None else ["w0"]
    assert (group.span.first_start, [*group.span.workers]) == (group.start, workers)
