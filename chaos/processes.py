"""Faults of the processes, and of the machine they run on."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.cluster.processes import Process
from tests.waiting import eventually

from chaos.disks import fill, small_disk
from chaos.gate import Gate
from chaos.reconciled import CLOSES, RECONCILED, reconciled
from chaos.scenario import HTTP, progress, scenario
from chaos.world import PATIENCE, World, ended

#: Seconds after which what has ended must be at the collector: several intervals.
_SEEN = 5.0
_SECTION = "Processes"
_MACHINE = "The machine"
#: Seconds for which workers are killed; `CHAOS_SECONDS=30` for the short form.
_KILLING = float(os.environ.get("CHAOS_SECONDS", "300"))


def _ended_mid_run(world: World, number: signal.Signals) -> str:
    world.gate.mode = "pass"
    world.start({"DASK_OTEL__SPANS__LINGER": "60s"})
    world.work(3)
    name, futures = world.submit(20, seconds=0.5)
    world.wait_for_some(futures)
    code, closed = ended(world.scheduler, number)
    world.all_spans_arrived()
    world.nothing_came_twice()
    (cut,) = [one for one in world.spans() if one.path == name]
    assert cut.attributes["dask.span.complete"] is False, cut.attributes
    assert cut.attributes["dask.span.result"] == "error", cut.attributes
    running = world.collector.last("dask.otel.running")
    assert list(running.values()) == [0], running
    world.clean_log()
    return (
        f"{len(world.submitted)} of {len(world.submitted)} spans, the one that ran as "
        f"incomplete; exit code {code} after {closed:.1f} s"
    )


_CLOSE = (
    "Spans that linger and those with unfinished work are exported before it ends, the latter as "
    "incomplete; the last metrics say that it has closed"
)


@scenario(
    "sigterm",
    section=_SECTION,
    fault="The scheduler gets SIGTERM in the middle of a run",
    promise=_CLOSE,
)
def _sigterm(world: World) -> str:
    return _ended_mid_run(world, signal.SIGTERM)


@scenario(
    "ctrl-c",
    section=_SECTION,
    fault="The scheduler gets Ctrl-C in the middle of a run",
    promise=_CLOSE,
)
def _ctrl_c(world: World) -> str:
    return _ended_mid_run(world, signal.SIGINT)


@scenario(
    "sigkill-scheduler",
    section=_SECTION,
    fault="The scheduler is killed (SIGKILL, the OOM killer) in the middle of a run",
    promise="Can't be kept: what it knew is lost, as there is no spool. Bound: spans that "
    "are open or linger, spans that ended within the last schedule delay, and what the "
    "counters grew by within the last export interval; with the collector down, all that waited",
    loses=True,
)
def _sigkill_scheduler(world: World) -> str:
    world.gate.mode = "pass"
    world.start()
    world.work(5)
    known, counted = set(world.submitted), sum(world.submitted.values())
    name, _futures = world.submit(20, seconds=2.0)
    # What is promised, and time for a machine that does other things.
    time.sleep(_SEEN)
    world.work(1)
    world.scheduler.kill()
    # Nothing is sent any more.
    there = {one.path for one in world.spans()}
    assert there >= known, f"missing {sorted(known - there)}"
    found = round(sum(world.collector.last("dask.task.finished").values()))
    assert found >= counted, f"{found} of {counted}"
    assert name not in there
    last = "there" if there - known else "lost"
    return (
        f"of what ended {_SEEN:.0f} s before, {len(known)} of {len(known)} spans and all of their "
        f"tasks are there; the span that ended at the kill is {last}; the one that was open is lost"
    )


def _stopped(world: World, which: Callable[[], Process]) -> None:
    """Work, and stop one of the processes in the middle of it."""
    world.gate.mode = "pass"
    world.start()
    world.work(2)
    _, futures = world.submit(40, seconds=0.1)
    world.wait_for_some(futures)
    stopped = which().popen
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(8)
    stopped.send_signal(signal.SIGCONT)
    world.client.gather(futures)
    world.work(2)


@scenario(
    "sigstop-worker",
    section=_SECTION,
    fault="A worker is stopped for 8 s in the middle of a run (SIGSTOP, then SIGCONT)",
    promise="Each span and each increment once; where the time went adds up at every export",
)
def _sigstop_worker(world: World) -> str:
    _stopped(world, lambda: world.workers[0])
    said = world.all_arrived()
    world.clean_log()
    return said


@scenario(
    "sigstop-scheduler",
    section=_SECTION,
    fault="The scheduler is stopped for 8 s in the middle of a run (SIGSTOP, then SIGCONT)",
    promise="Each span and each increment once; no counter goes back; where the time went "
    "adds up at every export",
)
def _sigstop_scheduler(world: World) -> str:
    _stopped(world, lambda: world.scheduler)
    # A request that was under way when it stopped has timed out, and is sent again.
    return world.all_arrived(again=world.copies() > 0)


def _partition(world: World, mode: str) -> str:
    gates: list[Gate] = []

    def between(port: int) -> Gate:
        gate = Gate(port, lambda: 0)
        gate.mode = "pass"
        gates.append(gate)
        return gate

    world.gate.mode = "pass"
    try:
        world.start(nannies=True, behind=between)
        world.work(2)
        _, futures = world.submit(60, seconds=0.1)
        world.wait_for_some(futures)
        (gate,) = gates
        gate.mode = mode
        time.sleep(8)
        gate.mode = "pass"
        world.client.gather(futures)
        # A worker leaves when its connection breaks, and its nanny with it: that is Dask's way.
        left = len(world.client.nthreads())
        assert left == (2 if mode == "hold" else 1), left
        world.work(2)
        said = reconciled(world)
    finally:
        for one in gates:
            one.close()
    return f"{said}; {left} of 2 workers are left; {CLOSES}"


@scenario(
    "partition",
    section=_SECTION,
    fault="The network between a worker and the scheduler stands still for 8 s",
    promise=RECONCILED,
    protocols=(HTTP,),
)
def _partition_short(world: World) -> str:
    return _partition(world, "hold")


@scenario(
    "partition-breaks",
    section=_SECTION,
    fault="The network between a worker and the scheduler swallows everything for 8 s, and its "
    "connections break",
    promise=RECONCILED,
    protocols=(HTTP,),
)
def _partition_long(world: World) -> str:
    return _partition(world, "silent")


def _children(pid: int) -> list[int]:
    """Return the processes below a process: a nanny's worker, and Python's resource tracker."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def _worker_below(nanny: int) -> int | None:
    for child in _children(nanny):
        with suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
    return None


@scenario(
    "sigkill-workers",
    section=_SECTION,
    fault="Workers are killed at random under load, again and again (SIGKILL)",
    promise="Each span once; every number is what the workers reported to Dask before they "
    "were killed; where the time went adds up at every export",
)
def _sigkill_workers(world: World) -> str:
    world.gate.mode = "pass"
    world.start(
        {
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1000",
            # Each span has a name of its own, and is compared with Dask's by it.
            "DASK_OTEL__METRICS__MAX_NAMES": "5000",
            "DASK_OTEL__METRICS__MAX_SERIES": "100000",
        },
        workers=2,
        nannies=True,
    )
    chance = random.Random(15)
    until = time.monotonic() + _KILLING
    killed = 0
    told = time.monotonic()
    while time.monotonic() < until:
        if time.monotonic() - told > 60:
            told = time.monotonic()
            progress(f"{killed} killed, {until - told:.0f} s to go")
        _, futures = world.submit(40, seconds=0.05)
        victim = _worker_below(chance.choice(world.workers).popen.pid)
        world.wait_for_some(futures)
        if victim is not None:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                killed += 1
        world.client.gather(futures)
        del futures
    assert killed, "nobody was killed"
    world.client.wait_for_workers(2, timeout=PATIENCE)
    return f"{killed} killed in {_KILLING:.0f} s; {reconciled(world)}; {CLOSES}"


@scenario(
    "no-descriptors",
    section=_MACHINE,
    fault="The scheduler has no file descriptor left, and the collector's connections break",
    promise="Each span and each increment arrives once there are some again; one warning, one "
    "line at the end",
)
def _no_descriptors(world: World) -> str:
    world.gate.mode = "pass"
    world.start()
    world.work(3)
    world.all_arrived()
    before = resource.prlimit(world.pid, resource.RLIMIT_NOFILE)
    # A closed descriptor frees its number: none is to be had below this one.
    resource.prlimit(world.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    world.gate.mode = "closed"
    world.gate.mode = "pass"
    world.work(5)
    warning = world.warned()
    resource.prlimit(world.pid, resource.RLIMIT_NOFILE, before)
    world.work(2)
    said = world.all_arrived()
    world.one_message_each()
    # What gRPC says ends in characters of no meaning.
    words = warning.partition(": ")[2].partition(". ")[0].partition(" \ufffd")[0]
    return f"{said}; the log says: {words[:160]}"


@scenario(
    "full-disk",
    section=_MACHINE,
    protocols=(HTTP,),
    fault="The disk of `otel.files.path` is full",
    promise="The endpoint gets everything; in the files each span is once and no line is "
    "half, once there is room again; one warning, one line at the end",
)
def _full_disk(world: World) -> str:
    with small_disk(world.folder) as disk:
        world.gate.mode = "pass"
        world.start({"DASK_OTEL__FILES__PATH": str(disk)})
        world.work(3)
        world.all_arrived()
        ballast = fill(disk)
        world.work(5)
        # The last page of a file may have had room for some.
        eventually(lambda: world.work(1) and world.logged("WARNING"), PATIENCE, "a warning")
        # Another destination goes on.
        world.all_arrived()
        ballast.unlink()
        world.work(2)
        said = world.all_arrived()

        def written() -> bool:
            names: Counter[str] = Counter()
            for path in disk.glob("*-traces.jsonl"):
                for line in path.read_text(encoding="utf-8").splitlines():
                    for of in json.loads(line)["resourceSpans"]:
                        for scope in of["scopeSpans"]:
                            names.update(one["name"] for one in scope["spans"])
            mine = {name: names[name] for name in world.submitted}
            assert mine == dict.fromkeys(world.submitted, 1), mine
            return True

        eventually(written, PATIENCE, "each span is in the files")
        again = lambda: [x for x in world.logged("INFO") if x.endswith(" again")]  # noqa: E731
        eventually(again, PATIENCE, "it says that it works again")
        world.one_message_each()
        world.close()
        world.scheduler.terminate(60)
    return f"{said}, at the endpoint and in the files; no line is half"
