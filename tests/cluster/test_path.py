"""What bounded a span, on real processes, sockets and disks.

The parts are exact in simulated time (`tests/simulated/test_path.py`). Here they are held against
what the tasks themselves noted: a busy machine makes them longer, never shorter.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from distributed import wait

from dask_otel import span
from dask_otel.core.life.open_span import Limits, TaskLimits
from dask_otel.semconv import PATH_PARTS
from tests.cluster.observed import Observed, observed
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("workers die here; others compare the seconds of such runs"),
]

LIMITS = Limits(linger=0.1, settle_timeout=5.0, tasks=TaskLimits(slowest=1))
#: Between a task's own look at the clock and its worker's.
READING = 0.005


def nap(seconds: float, *after: Any) -> float:
    time.sleep(seconds)
    return seconds


class Slow:
    """Takes long to arrive."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return arrive, (type(self), self.seconds)


def arrive(kind: type[Slow], seconds: float) -> Slow:
    time.sleep(seconds)
    return kind(seconds)


class Large(Slow):
    """Takes long to be read from the disk, to which it is moved for its size."""

    def __sizeof__(self) -> int:
        return 100_000_000


def dies_once(path: str, seconds: float) -> None:
    time.sleep(seconds)
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)


def fetched(o: Observed, folder: str) -> None:
    here, there = o.scheduler.workers
    data = o.client.submit(Slow, 0.5, key="data", workers=[here])
    wait(o.client.submit(nap, 0.3, data, key="moved", workers=[there]))


def spilled(o: Observed, folder: str) -> None:
    (here, *_) = o.scheduler.workers
    large = []
    for number in range(2):
        # The second one moves the first to the disk.
        large.append(o.client.submit(Large, 1.0, key=f"large-{number}", workers=[here]))
        wait(large)
    wait(o.client.submit(nap, 0.5, large[0], key="read", workers=[here]))


def lost(o: Observed, folder: str) -> None:
    wait(o.client.submit(dies_once, f"{folder}/ran", 0.5, key="lost"))


def restarted(o: Observed, folder: str) -> None:
    wait(o.client.submit(nap, 0.3, key="before-restart"))
    cut = o.client.submit(nap, 60.0, key="cut-off")
    eventually(lambda: "cut-off" in o.scheduler.tasks, what="a task that was submitted")
    o.client.restart()
    del cut
    wait(o.client.submit(nap, 0.4, key="after-restart"))


#: By history, the least seconds of some parts.
HISTORIES = {
    fetched: {"transfer": 0.5, "compute": 0.3},
    spilled: {"transfer": 1.0, "compute": 0.5},
    lost: {"repeated": 0.5, "compute": 0.5},
    restarted: {"compute": 0.7},
}


def test_parts_are_no_less_than_what_the_tasks_took(tmp_path: Path) -> None:
    memory = {"target": 0.3, "spill": False, "pause": False, "terminate": False}
    config = {f"distributed.worker.memory.{key}": value for key, value in memory.items()}
    with observed(LIMITS, config=config, processes=True, memory_limit="400MB") as o:
        for make in HISTORIES:
            with span(make.__name__):
                make(o, str(tmp_path))
        o.quiet()
        for make, least in HISTORIES.items():
            finished = o.named(make.__name__)
            assert finished.path is not None
            parts = dict(zip(PATH_PARTS, finished.path.parts, strict=True))
            took = finished.stop - finished.start
            assert sum(parts.values()) == pytest.approx(took, abs=1e-6)
            for part, seconds in least.items():
                assert parts[part] >= seconds - READING, (make.__name__, parts)
        assert not o.adapter.task_events.paths.waits
