"""What only real processes, sockets and disks show of spans: kills, the nanny, spilling.

Figures are exact in simulated time (`tests/simulated`). Here the parts of paths are held against
what the tasks took at least: a busy machine makes them longer, never shorter.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import wait

from dask_otel import semconv, span
from dask_otel._dask.runs import SEEN
from tests.cluster.conftest import Bridged, Start
from tests.cluster.tasks import nap
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    # One process of the tests starts the server that forks workers.
    pytest.mark.xdist_group("processes"),
]

#: Between a task's own look at the clock and its worker's.
READING = 0.005


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


def cut(folder: str, number: int) -> None:
    """Run for a second at least, and until a worker was killed."""
    time.sleep(1.0)
    while not (Path(folder) / "killed").exists():
        time.sleep(0.05)


def spilled(b: Bridged, folder: Path) -> None:
    (here, *_) = b.scheduler.workers
    large = []
    for number in range(2):
        # The second one moves the first to the disk.
        large.append(b.client.submit(Large, 0.5, key=f"large-{number}", workers=[here]))
        wait(large)
    wait(b.client.submit(nap, 0.5, large[0], key="read", workers=[here]))


def killed(b: Bridged, folder: Path) -> None:
    futures = b.client.map(cut, [str(folder)] * 8, range(8), key="cut")
    victim, *_ = b.client.run(os.getpid).values()
    ready = b.bridge.adapter.task_events.ready
    eventually(
        lambda: any(one[SEEN] for one in [*ready.values()]), what="a heartbeat that lists a run"
    )
    os.kill(victim, signal.SIGKILL)
    (folder / "killed").touch()
    wait(futures)


#: By history, the least seconds of some parts of its path.
HISTORIES = {
    spilled: {"transfer": 0.5, "compute": 0.5},
    killed: {"compute": 1.0},
}


def test_no_second_is_missing_or_made_up(start: Start, tmp_path: Path) -> None:
    memory = {"target": 0.3, "spill": False, "pause": False, "terminate": False}
    config = {f"distributed.worker.memory.{key}": value for key, value in memory.items()}
    options = {"processes": True, "threads_per_worker": 2, "memory_limit": "400MB"}
    with dask.config.set(config), start(**options) as b:
        for make in HISTORIES:
            with span(make.__name__):
                make(b, tmp_path)
        eventually(lambda: len(b.scheduler.workers) == 2, what="a new worker")
        received = b.exported()
        for make, least in HISTORIES.items():
            check_path(received.named(make.__name__), least)


def check_path(found: Any, least: dict[str, float]) -> None:
    """Compare a span's path with what its tasks took."""
    name = semconv.SPAN_PATH_PART_TIME.format
    parts = {part: found.attributes[name(part)] for part in semconv.PATH_PARTS}
    took = (found.end_ns - found.start_ns) / 1e9
    assert sum(parts.values()) == pytest.approx(took, abs=1e-5), found
    for part, seconds in least.items():
        assert parts[part] >= seconds - READING, (found.name, parts)
