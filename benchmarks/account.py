"""Row 11: instructions of the whole scheduler process, per task and per idle second.

Valgrind's callgrind counts every instruction of a real ``dask scheduler`` with two real workers,
so that nothing the bridge costs can hide. Valgrind stretches time, and a scheduler works also when
nobody asks it to (heartbeats, timers): a stretch of idling is counted likewise, and subtracted in
proportion to the seconds of the run.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from distributed import Client

from benchmarks import marked, meter
from benchmarks.cluster import cluster, many_tasks, until
from benchmarks.instructions import EmptyPlugin, count, counted, run_tasks, write_sum
from benchmarks.results import Row, verdict
from benchmarks.simulated import SimulatedCluster
from benchmarks.sink import Sink

TASKS = 1500
WARM_UP = 300
IDLE_SECONDS = 20.0
#: Seconds after the last task: heartbeats, linger, export.
AFTER = 4.0
COLLECTIONS = "gc_collect_main"
ARMS: dict[str, tuple[str, ...]] = {
    "without": (),
    "with": ("--preload", "dask_otel"),
    "marked": ("--preload", "benchmarks.marked", "--preload", "dask_otel"),
}
VALGRIND = ("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes")


#: What was executed in a stretch of time: its seconds, the instructions of all threads (`total`),
#: of those beside the event loop (`threads`), and of C functions, inclusive, with their calls.
Stretch: TypeAlias = dict[str, float]


class Callgrind:
    """Counts what a process does between `begin` and `end`."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid = str(pid)
        self._folder = folder
        self._began = 0.0

    def _control(self, *options: str) -> None:
        subprocess.run(["callgrind_control", *options, self._pid], check=True, capture_output=True)

    def begin(self) -> None:
        """Count from zero."""
        self._control("-i", "on")
        self._control("-z")
        self._began = time.monotonic()

    def end(self) -> Stretch:
        """Return what was counted."""
        seconds = time.monotonic() - self._began
        before = {*self._folder.iterdir()}
        self._control("-d")
        self._control("-i", "off")
        found = Counter[str]()
        for path in {*self._folder.iterdir()} - before:
            text = path.read_text()
            if thread := re.search(r"-(\d+)$", path.name):
                total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
                costs = _inclusive(text)
                found += costs
                found["total"] += int(total[1]) if total else 0
                if thread[1] != "01":
                    found["threads"] += (int(total[1]) if total else 0) - costs[COLLECTIONS]
        if not found["total"]:
            raise RuntimeError("callgrind wrote nothing")
        return {**found, "seconds": seconds}


_WANTED = {COLLECTIONS, *(function for _, function in marked.KINDS.values())}


def _inclusive(text: str) -> Counter[str]:
    """Return the instructions of C functions with all that they call, and their calls."""
    names: dict[str, str] = {}
    found = Counter[str]()
    callee = ""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(("fn=", "cfn=")):
            number, _, name = line.partition("=")[2].partition(" ")
            name = names.setdefault(number, name)
            callee = name if line[0] == "c" else callee
        elif line.startswith("calls="):
            cost = int(next(lines).split()[-1])
            if callee in _WANTED:
                found[callee] += cost
                found[f"calls of {callee}"] += int(line.removeprefix("calls=").split()[0])
    return found


def tasks(client: Client, count: int) -> None:
    """Run tasks that do nothing, in one span, and wait until they are forgotten."""
    many_tasks(client, count)
    time.sleep(AFTER)


def measure(arm: str, more: Mapping[str, str]) -> dict[str, Stretch]:
    """Count a run, then idling; with marks, what they take themselves, and messages."""
    with tempfile.TemporaryDirectory() as name:
        within = (*VALGRIND, f"--callgrind-out-file={name}/callgrind.out")
        env = {**more, "PYTHONHASHSEED": "0"}
        with cluster(env, 2, *ARMS[arm], within=within) as client:
            callgrind = Callgrind(client.run_on_scheduler(os.getpid), Path(name))

            def stretch(call: Callable[[], object]) -> Stretch:
                callgrind.begin()
                call()
                return callgrind.end()

            tasks(client, WARM_UP)
            found = {
                "run": stretch(lambda: tasks(client, TASKS)),
                "idle": stretch(lambda: time.sleep(IDLE_SECONDS)),
            }
            if arm == "marked":
                found["empty"] = stretch(lambda: client.run_on_scheduler(marked.call_empty))
                running = client.submit(time.sleep, 60)
                until(client, meter.busy)
                found["messages"] = stretch(lambda: client.run_on_scheduler(marked.write_messages))
                running.cancel()
    return found


async def _dispatches(tasks: int) -> None:
    """Count the same tasks without another plugin and with one that does nothing."""
    for plugin in (None, None, EmptyPlugin()):
        async with SimulatedCluster(2) as simulated:
            if plugin is not None:
                simulated.scheduler.add_plugin(plugin, name="empty")
            # Collections are an item of their own.
            gc.collect()
            gc.disable()
            count(lambda: run_tasks(simulated, tasks))
            write_sum()


def dispatch(tasks: int = 500) -> float:
    """Return the instructions that a plugin with an empty ``transition`` costs a task."""
    _, (_, without, with_it) = counted(_dispatches, tasks)
    return (with_it - without) / tasks


def native(times: int = 4) -> float:
    """Return the CPU seconds of a task of a scheduler without the bridge and without valgrind."""
    with cluster({"PYTHONHASHSEED": "0"}) as client:
        tasks(client, WARM_UP)
        marks = [(time.monotonic(), client.run_on_scheduler(time.process_time))]
        for call in (lambda: tasks(client, times * TASKS), lambda: time.sleep(IDLE_SECONDS)):
            call()
            marks.append((time.monotonic(), client.run_on_scheduler(time.process_time)))
    (began, start), (between, middle), (ended, end) = marks
    idle = (end - middle) / (ended - between)
    return (middle - start - idle * (between - began)) / (times * TASKS)


def _per_task(one: Mapping[str, Stretch], what: str, each: float = 0.0) -> float:
    """Return the instructions of a task, without those of idling and of the marks' own calls."""

    def own(stretch: Stretch) -> float:
        return stretch.get(what, 0.0) - each * stretch.get(f"calls of {what}", 0.0)

    run, idle = one["run"], one["idle"]
    return (own(run) - own(idle) * run["seconds"] / idle["seconds"]) / TASKS


def _of_mark(one: Mapping[str, Stretch], function: str) -> float:
    """Return the instructions of a call of an empty function through a mark."""
    empty = one["empty"]
    return empty.get(function, 0.0) / (empty.get(f"calls of {function}") or 1.0)


def _resting(one: Mapping[str, Stretch]) -> dict[str, float]:
    """Return what a marked run says of our own code in an idle second, by kind of call."""
    idle, found = one["idle"], {}
    for kind, (_, function) in marked.KINDS.items():
        marks = _of_mark(one, function) * idle.get(f"calls of {function}", 0.0)
        found[kind] = (idle.get(function, 0.0) - marks) / idle["seconds"]
    return found


def _own(one: Mapping[str, Stretch]) -> dict[str, float]:
    """Return what a marked run says of our own code by kind of call, and of messages."""
    found = {
        kind: _per_task(one, function, _of_mark(one, function))
        for kind, (_, function) in marked.KINDS.items()
    }
    with_it, without = (one["messages"][marked.KINDS[kind][1]] for kind in marked.MESSAGES)
    return found | {"messages": (with_it - without) / marked.CALLS}


def attribution(
    found: Mapping[str, list[dict[str, Stretch]]], dispatched: float, seconds: float
) -> dict[str, Any]:
    """Return instructions of a task and of an idle second, and what the difference is made of.

    `dispatched` and `seconds` as `dispatch` and `native` return them.
    """

    def middle(arm: str, call: Callable[[dict[str, Stretch]], float]) -> float:
        return median(call(one) for one in found[arm])

    def added(call: Callable[[dict[str, Stretch]], float]) -> float:
        return middle("with", call) - middle("without", call)

    resting = [_resting(one) for one in found["marked"]]
    idle = {kind: median(run[kind] for run in resting) for kind in marked.KINDS}
    idle["threads"] = added(lambda one: one["idle"].get("threads", 0.0) / one["idle"]["seconds"])
    runs = [_own(one) for one in found["marked"]]
    parts = {kind: median(run[kind] for run in runs) for kind in runs[0]}
    parts["dispatch by Dask"] = dispatched
    totals = {
        arm: sorted(_per_task(one, "total") for one in found[arm]) for arm in ("without", "with")
    }
    without, with_it = (median(values) for values in totals.values())
    return {
        "without": without,
        "with": with_it,
        "parts": parts,
        "sum": sum(parts.values()),
        "sums of marked runs": [sum(run.values()) for run in runs],
        "totals": totals,
        # Any thread may set off a collection of garbage.
        "threads and collections": added(
            lambda one: _per_task(one, "threads") + _per_task(one, COLLECTIONS)
        ),
        "remainder": with_it - without - sum(parts.values()),
        "idle second": {
            arm: middle(arm, lambda one: one["idle"]["total"] / one["idle"]["seconds"])
            for arm in totals
        },
        "idle parts": idle,
        "tasks": TASKS,
        "pace": TASKS / (middle("marked", lambda one: one["run"]["seconds"]) - AFTER),
        "microseconds without": 1e6 * seconds,
        "load": os.getloadavg()[0],
    }


def rows(found: dict[str, Any]) -> list[Row]:
    """Return the lines of the table."""
    cost, without, idle = found["sum"], found["without"], found["idle second"]
    runs, share = found["sums of marked runs"], cost / without
    spread = (max(runs) - min(runs)) / 2 / cost
    # Seconds of a core for each instruction.
    each = found["microseconds without"] / 1e6 / without
    more = sum(found["idle parts"].values())
    resting = ", ".join(f"{k} {v:,.0f}" for k, v in found["idle parts"].items() if v)
    busy = {rate: each * (cost * rate + more) for rate in (100, 1000)}
    parts = sorted(found["parts"].items(), key=lambda part: -part[1])
    low, high = (f"{one[0] / 1e6:.2f} to {one[-1] / 1e6:.2f}" for one in found["totals"].values())
    return [
        Row(
            "11",
            "instructions of the whole process per task",
            "≤ 2.2 %",
            f"{cost:,.0f}, {share:.1%} of {without:,.0f} without (own calls ± {spread:.1%})",
            verdict(share <= 0.022),
            found,
        ),
        Row(
            "11",
            f"what they are, at {found['pace']:.0f} tasks a second (valgrind slows it)",
            "",
            ", ".join(f"{k} {v:,.0f}" for k, v in parts if v),
            "info",
        ),
        Row(
            "11",
            "remainder of the difference of whole runs",
            "",
            f"{found['remainder']:,.0f}, of which threads and collections of garbage "
            f"{found['threads and collections']:,.0f} (million a task: {low} without, {high} with)",
            "info",
        ),
        Row(
            "11",
            "instructions of the bridge per idle second, all threads",
            "≤ 400,000",
            f"{more:,.0f} ({resting}), beside {idle['without']:,.0f} without; "
            f"the difference of whole runs is {idle['with'] - idle['without']:,.0f}",
            verdict(more <= 400_000),
        ),
        Row(
            "11",
            "of a core, with 100 and with 1,000 tasks a second",
            "",
            f"{busy[100]:.2%} and {busy[1000]:.1%}, where Dask itself takes "
            f"{found['microseconds without']:.0f} µs of CPU a task (load {found['load']:.1f})",
            "info",
            {"shares": list(busy.values())},
        ),
    ]


def run(quick: bool) -> list[Row]:
    """Count all arms in turn."""
    found: dict[str, list[dict[str, Stretch]]] = {arm: [] for arm in ARMS}
    with Sink() as sink:
        for arm in [*ARMS] * (1 if quick else 5):
            found[arm].append(measure(arm, sink.environment()))
    return rows(attribution(found, dispatch(), native()))
