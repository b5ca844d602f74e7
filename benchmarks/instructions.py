"""Row 1: instructions per task and per idle second of the bridge on the event loop.

No noise: a regression shows.

Valgrind's callgrind counts every instruction of a process, however busy the machine is. A real
scheduler with simulated workers runs some tasks, without the bridge and with it in turn; the
difference is the bridge's.
"""

from __future__ import annotations

import gc
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from distributed.diagnostics.plugin import SchedulerPlugin

from benchmarks.cluster import run_apart
from benchmarks.results import Row, verdict
from benchmarks.simulated import Needs, SimulatedCluster
from dask_otel import semconv
from dask_otel._dask.adapter import HOOKS
from dask_otel.core.records import FinishedGraph
from dask_otel.scheduler.bridge import IDLE_TICK, Bridge
from dask_otel.settings.reading import read_settings

TASKS = 1000
#: Pairs without the bridge and with it, after a first one that warms up.
PAIRS = 3
#: Tasks between two heartbeats: what row 1 has on a usual machine.
BEAT = 250
#: Seconds without tasks: what comes between two hand-overs of metrics.
IDLE: Final = 60
#: Growth from which `check` fails.
TOLERANCE = 0.05
#: What a simulated cluster does, given the bridge's tick; returns the number of tasks.
Work: TypeAlias = Callable[[SimulatedCluster, Callable[[], None]], int]


class Counted:
    """``Counted(call) @ None`` makes a call that callgrind counts; ``@=`` writes the sum.

    Options of callgrind name the C function that switches counting on and off, and the one that
    writes the sum. Nothing else in these programs multiplies matrices.
    """

    OPTIONS = (
        "--toggle-collect=PyNumber_MatrixMultiply",
        "--dump-after=PyNumber_InPlaceMatrixMultiply",
    )

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def __matmul__(self, other: None) -> None:
        self._call()

    def __imatmul__(self, other: None) -> Counted:
        return self


def count(call: Callable[[], Any]) -> None:
    """Make a call, counted."""
    Counted(call) @ None


def write_sum() -> None:
    """Let callgrind write the sum since the last time."""
    sink = Counted(lambda: None)
    sink @= None


def chain(number: int) -> Iterable[int]:
    """Let each task need the one before."""
    return [number - 1] if number else []


def run_tasks(
    cluster: SimulatedCluster,
    tasks: int,
    annotations: dict[str, Any] | None = None,
    needs: Needs | None = None,
) -> int:
    """Let workers do tasks of one span for a client, by turns; return their number.

    `needs` tells which earlier tasks one needs; the client wants those that no other one needs.
    """
    scheduler = cluster.scheduler
    # As usual: tasks beyond the workers' threads wait in the scheduler's queue.
    scheduler.WORKER_SATURATION = 1.1
    keys = cluster.submit(("benchmark",), tasks, annotations or {}, needs=needs)
    needed = {number for i in range(tasks) for number in needs(i)} if needs else ()
    wanted = [key for i, key in enumerate(keys) if i not in needed]
    scheduler.client_desires_keys(wanted, "client")
    for done in range(tasks):
        ws = scheduler.workers[cluster.addresses[done % len(cluster.addresses)]]
        if not ws.processing:
            # A task that needs others is where their data is.
            ws = next(one for one in scheduler.workers.values() if one.processing)
        task = next(iter(ws.processing))
        if not done % BEAT:
            cluster.heartbeat(ws.address, cluster.metered([task.key], 10))
        cluster.finish([task.key], seconds=1e-5)
    scheduler.client_releases_keys(wanted, "client")
    return tasks


def idle(cluster: SimulatedCluster, tick: Callable[[], None]) -> int:
    """Let time pass without tasks: heartbeats, as often as Dask's workers send them, and ticks."""
    for _ in range(round(IDLE / IDLE_TICK)):
        for address in cluster.addresses:
            cluster.heartbeat(address, {})
        tick()
    return 0


class EmptyPlugin(SchedulerPlugin):
    """Stands for the bridge's plugin where there is no bridge."""

    # That of the base class, with other parameters, costs Dask 3,000 instructions more a task.
    def transition(self, key: Hashable, start: str, finish: str, /, **info: Any) -> None:
        """Do nothing."""


class Exports:
    """Takes a bridge's exports in place of a pump, and counts tasks and notes of open spans."""

    takes_notes = True
    profiles = None

    def __init__(self) -> None:
        self.spans = self.logs = self.graphs = self
        self.spooled: Exports | None = None
        self.notices: list[Any] = []
        self.tasks = self.notes = 0
        #: Of roots whose graph log was recorded.
        self.recorded: list[FinishedGraph] = []

    def accepts_metrics(self) -> bool:
        return True

    def look(self) -> None:
        """Do nothing: no request is open."""

    def offer(self, item: Any, counted: bool = True) -> bool:
        """Discard a span, or an event, which no task makes; keep a graph log."""
        if isinstance(item, FinishedGraph):
            self.recorded.append(item)
        return True

    def note(self, note: Any) -> None:
        self.notes += 1

    def offer_metrics(self, batch: Any, last: bool = False) -> None:
        for series, count in batch.increments.items():
            if series[0] == semconv.TASK_FINISHED.name and series[-1] == "memory":
                self.tasks += int(count)


def observed(
    cluster: SimulatedCluster, settings: dict[str, Any] | None
) -> tuple[Bridge | None, Exports]:
    """Put a bridge of these settings on a cluster; None is no bridge."""
    # Without the bridge there is an empty plugin: Dask's calls of one are not the bridge's.
    plugin, exports, bridge = EmptyPlugin(), Exports(), None
    if settings is not None:
        bridge = Bridge(cluster.scheduler, read_settings(settings))
        exports.spooled = None if bridge.settings.spool.path is None else exports
        bridge.hand_over.begin(exports)
        bridge.adapter.attach()
        vars(plugin).update({name: getattr(bridge.adapter, name) for name in HOOKS})
    cluster.scheduler.add_plugin(plugin, name="counted")
    return bridge, exports


async def count_work(
    settings: dict[str, Any] | None, work: Work, make: Callable[[Callable[[], Any]], None] = count
) -> Exports:
    """Count some work on a fresh cluster with a bridge of these settings; None is no bridge.

    `make` makes the call that does the work, and counts it or what it calls.

    Raises
    ------
    RuntimeError
        If the bridge swallowed an error, or did not book every task.
    """
    async with SimulatedCluster(2) as cluster:
        bridge, exports = observed(cluster, settings)
        # Collections of garbage come by chance, and most of what they look at is Dask's.
        gc.collect()
        gc.disable()
        done = 0

        def run() -> None:
            nonlocal done
            done = work(cluster, bridge._tick if bridge else lambda: None)
            if bridge:
                bridge.adapter.lifecycle.close(time.time())
                list(bridge.hand_over.steps())

        make(run)
        write_sum()
        gc.enable()
        errors = bridge.boundary.take() if bridge else {}
        if errors or (bridge and exports.tasks != done):
            raise RuntimeError(f"the bridge booked {exports.tasks} of {done} tasks; {errors}")
    return exports


async def _pairs(tasks: int) -> None:
    for work in (lambda cluster, _: run_tasks(cluster, tasks), idle):
        for _ in range(1 + PAIRS):
            for settings in (None, {}):
                await count_work(settings, work)


def _sums(folder: str) -> list[int]:
    """Return what callgrind wrote, in order."""
    files = [path for path in Path(folder).iterdir() if path.suffix.lstrip(".").isdecimal()]
    files.sort(key=lambda path: int(path.suffix.lstrip(".")))
    found = [re.search(r"^totals: (\d+)", path.read_text(), re.MULTILINE) for path in files]
    return [int(match.group(1)) for match in found if match]


def counted(call: Callable[..., Any], *arguments: Any) -> tuple[Any, list[int]]:
    """Run a function under callgrind; return its result, and the sums that it had written.

    Raises
    ------
    RuntimeError
        If there is no valgrind on this machine, or it could not run the function.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise RuntimeError("valgrind is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = [valgrind, "-q", "--tool=callgrind", *Counted.OPTIONS]
        command += [f"--callgrind-out-file={folder}/callgrind"]
        more = {"PYTHONHASHSEED": "0"}
        return run_apart(call, *arguments, more=more, within=command), _sums(folder)


def measure(tasks: int = TASKS) -> dict[str, Any]:
    """Return instructions per task of the bridge, and of Dask without it.

    Raises
    ------
    RuntimeError
        If there is no valgrind on this machine, or it could not run the program.
    """
    _, sums = counted(_pairs, tasks)
    pairs = list(zip(sums[::2], sums[1::2], strict=False))
    if len(pairs) != 2 * (1 + PAIRS) or not all(sums):
        raise RuntimeError(f"callgrind wrote {len(sums)} sums")
    busy, quiet = pairs[1 : 1 + PAIRS], pairs[2 + PAIRS :]
    added = sorted((bridge - bare) / tasks for bare, bridge in busy)
    return {
        "per task": median(added),
        "pairs": added,
        "without": median(bare for bare, _ in busy) / tasks,
        "tasks": tasks,
        "per idle second": median(bridge - bare for bare, bridge in quiet) / IDLE,
        "idle without": median(bare for bare, _ in quiet) / IDLE,
        "on": _place(),
    }


def _place() -> dict[str, str]:
    """Return what instruction counts depend on, but for our own code."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "distributed": version("distributed"),
    }


def run(quick: bool) -> list[Row]:
    """Count the instructions of a task."""
    what = "instructions per task, detail group (event loop)"
    found = measure(TASKS // 4 if quick else TASKS)
    figure = (
        f"{found['per task']:,.0f} ({found['pairs'][0]:,.0f} to {found['pairs'][-1]:,.0f}), beside "
        f"{found['without']:,.0f} of Dask's"
    )
    resting = f"{found['per idle second']:,.0f}, beside {found['idle without']:,.0f} of Dask's"
    rest = "instructions per idle second, 2 workers (event loop)"
    goal = verdict(found["per idle second"] <= 250_000)
    return [
        Row("1", what, "", figure, "info", found),
        Row("1", rest, "≤ 250,000", resting, goal),
    ]


def check(published: list[Row]) -> str | None:
    """Compare with published figures; return what is wrong, None if nothing is.

    Raises
    ------
    RuntimeError
        If they can't be compared.
    """
    before = next((r.data for r in published if "per task" in r.data), None)
    if before is None:
        raise RuntimeError("the published results have no instruction counts")
    if before["on"] != _place():
        raise RuntimeError(f"published on {before['on']}, this is {_place()}: not comparable")
    now = measure(before["tasks"])
    for what in ("per task", "per idle second"):
        growth = now[what] / before[what] - 1
        print(f"instructions {what}: {now[what]:,.0f}, published {before[what]:,.0f}")
        if growth > TOLERANCE:
            return f"{growth:+.0%} instructions {what}; more than {TOLERANCE:.0%} is a regression"
    return None
