"""Row 1: instructions per task of the bridge on the event loop. No noise: a regression shows.

Valgrind's callgrind counts every instruction of a process, however busy the machine is. A real
scheduler with simulated workers runs some tasks; its calls are recorded, and replayed into
fresh bridges and into nothing. Only the replays are counted, see `Counted`.
"""

from __future__ import annotations

import asyncio
import gc
import platform
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.cluster import answer, run_program
from benchmarks.recording import Recorder, Replay
from benchmarks.results import Row
from benchmarks.simulated import SimulatedCluster

TASKS = 2000
#: Tasks between two heartbeats: what row 1 has on a usual machine.
BEAT = 250
#: Growth from which `check` fails.
TOLERANCE = 0.10


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


def run_tasks(cluster: SimulatedCluster, tasks: int) -> None:
    """Let workers do tasks of one span for a client, two at a time."""
    scheduler = cluster.scheduler
    keys = cluster.submit(("benchmark",), tasks)
    scheduler.client_desires_keys(keys, "client")
    for done in range(tasks):
        ws = scheduler.workers[cluster.addresses[done % len(cluster.addresses)]]
        task = next(iter(ws.processing))
        if not done % BEAT:
            cluster.heartbeat(ws.address, cluster.metered([task.key], 10))
        cluster.finish([task.key], seconds=1e-5)
    scheduler.client_releases_keys(keys, "client")


def record(
    cluster: SimulatedCluster, run: Callable[[SimulatedCluster, Recorder], None]
) -> Recorder:
    """Record what some work calls in a bridge."""
    # As usual: tasks beyond the workers' threads wait in the scheduler's queue.
    cluster.scheduler.WORKER_SATURATION = 1.1
    recorder = Recorder(cluster.scheduler)
    run(cluster, recorder)
    recorder.finish()
    return recorder


def replay(
    cluster: SimulatedCluster,
    recorder: Recorder,
    settings: dict[str, Any] | None,
    detail: str = "",
) -> Replay:
    """Replay into a fresh bridge, without settings into nothing; count all or one kind of calls."""
    # Collections of garbage are counted as they come, without the objects that exist already.
    gc.collect()
    gc.freeze()
    made = Replay(cluster.scheduler, recorder, settings is not None, settings)
    if detail:
        made.run_with(count, detail)
    else:
        count(made.run)
    write_sum()
    made.check()
    return made


async def _replays(tasks: int) -> dict[str, Any]:
    """Count all calls together, and those of each kind; return the order of the sums."""
    async with SimulatedCluster(2) as cluster:
        recorder = record(cluster, lambda cluster, _: run_tasks(cluster, tasks))
        details = Counter(call.detail for call in recorder.calls)
        # The first ones warm up the interpreter.
        order = ["", "", *details]
        for detail in order:
            replay(cluster, recorder, {}, detail)
            replay(cluster, recorder, None, detail)
    return {"order": order, "calls": details}


def _sums(folder: str) -> list[int]:
    """Return what callgrind wrote, in order."""
    files = [path for path in Path(folder).iterdir() if path.suffix.lstrip(".").isdecimal()]
    files.sort(key=lambda path: int(path.suffix.lstrip(".")))
    found = [re.search(r"^totals: (\d+)", path.read_text(), re.MULTILINE) for path in files]
    return [int(match.group(1)) for match in found if match]


def counted(program: str, tasks: int) -> tuple[dict[str, Any], list[int]]:
    """Run a program under callgrind; return its answer, and the sums that it had written.

    Raises
    ------
    RuntimeError
        If there is no valgrind on this machine, or it could not run the program.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise RuntimeError("valgrind is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = [valgrind, "-q", "--tool=callgrind", *Counted.OPTIONS]
        command += [f"--callgrind-out-file={folder}/callgrind"]
        more = {"PYTHONHASHSEED": "0"}
        return run_program(program, str(tasks), more=more, within=command), _sums(folder)


def measure(tasks: int = TASKS) -> dict[str, Any]:
    """Return instructions per task: of the bridge, by kind of call, and of the bare replay.

    Raises
    ------
    RuntimeError
        If there is no valgrind on this machine, or it could not run the program.
    """
    replays, sums = counted("benchmarks.instructions", tasks)
    pairs = list(zip(sums[::2], sums[1::2], strict=True))[1:]
    order = replays["order"][1:]
    if len(pairs) != len(order) or not pairs[0][0]:
        raise RuntimeError(f"callgrind wrote {len(sums)} sums, not {2 * len(order) + 2}")
    by_kind = {
        kind: (bridge - bare) / tasks
        for kind, (bridge, bare) in zip(order[1:], pairs[1:], strict=True)
    }
    return {
        "per task": (pairs[0][0] - pairs[0][1]) / tasks,
        "by kind": by_kind,
        "bare replay": pairs[0][1] / tasks,
        "calls": replays["calls"],
        "tasks": tasks,
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
    kinds = sorted(found["by kind"].items(), key=lambda item: -item[1])
    most = ", ".join(f"{kind} {number:,.0f}" for kind, number in kinds[:4])
    return [Row("1", what, "", f"{found['per task']:,.0f} ({most})", "info", found)]


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
    growth = now["per task"] / before["per task"] - 1
    print(f"instructions per task: {now['per task']:,.0f}, published {before['per task']:,.0f}")
    for kind, number in now["by kind"].items():
        print(f"  {kind:22} {number:8,.0f}, published {before['by kind'].get(kind, 0):8,.0f}")
    if growth > TOLERANCE:
        return f"{growth:+.0%} instructions per task; more than {TOLERANCE:.0%} is a regression"
    return None


if __name__ == "__main__":
    answer(asyncio.run(_replays(int(sys.argv[1]))))
