"""Faults of the processes, and of the machine they run on."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from chaos.scenario import progress, scenario
from chaos.world import PATIENCE, World

#: Seconds after which what has ended must be at the collector: several intervals.
_SEEN = 5.0
_SECTION = "Processes"
_MACHINE = "The machine"
#: Seconds for which workers are killed; `CHAOS_SECONDS=30` for the short form.
_KILLING = float(os.environ.get("CHAOS_SECONDS", "300"))


def _ended_mid_run(world: World, number: signal.Signals) -> str:
    world.start({"DASK_OTEL__SPANS__LINGER": "60s"})
    world.work(3)
    name, futures = world.submit(20, seconds=0.5)
    world.wait_for_some(futures)
    code, closed = world.end(number)
    world.all_spans_arrived()
    world.nothing_came_twice()
    (cut,) = world.spans(name)
    assert cut.attributes["dask.span.complete"] is False, cut.attributes
    assert cut.attributes["dask.span.result"] == "error", cut.attributes
    running = world.collector.last("dask.otel.running")
    assert list(running.values()) == [0], running
    world.clean_log()
    return (
        f"{len(world.submitted)} of {len(world.submitted)} spans, the one that ran as "
        f"incomplete; exit code {code} after {closed:.1f} s"
    )


for _name, _words, _number in (
    ("sigterm", "SIGTERM", signal.SIGTERM),
    ("ctrl-c", "Ctrl-C", signal.SIGINT),
):
    scenario(
        _name,
        section=_SECTION,
        fault=f"The scheduler gets {_words} in the middle of a run",
        promise="Spans that linger and those with unfinished work are exported before it ends, the "
        "latter as incomplete; the last metrics report the close",
    )(partial(_ended_mid_run, number=_number))


@scenario(
    "sigkill-scheduler",
    section=_SECTION,
    fault="The scheduler is killed (SIGKILL, the OOM killer) in the middle of a run",
    promise="Can't be kept: its memory is lost, as there is no spool. Bound: spans that "
    "are open or linger, spans that ended within the last schedule delay, and what the "
    "counters grew by within the last export interval; with the collector down, all that waited",
    loses=True,
)
def _sigkill_scheduler(world: World) -> str:
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


def _worker_below(nanny: int) -> int | None:
    """Return the process of a nanny's worker, which is not Python's resource tracker."""
    for children in Path(f"/proc/{nanny}/task").glob("*/children"):
        for child in children.read_text().split():
            with suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None


@scenario(
    "sigkill-workers",
    section=_SECTION,
    fault="Workers are killed at random under load, again and again (SIGKILL)",
    promise="Each span once; every number is what the workers reported to Dask before they "
    "were killed; where the time went adds up at every export",
)
def _sigkill_workers(world: World) -> str:
    world.start(
        {
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1000",
            # Each span has a name of its own, and is compared with Dask's by it.
            "DASK_OTEL__METRICS__MAX_NAMES": "5000",
            "DASK_OTEL__METRICS__MAX_SERIES": "100000",
        },
        nannies=True,
    )
    chance = random.Random(15)
    until = time.monotonic() + _KILLING
    killed = 0
    while time.monotonic() < until:
        with world.under_way(40, seconds=0.05):
            victim = _worker_below(chance.choice(world.workers).popen.pid)
            if victim is not None:
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed += 1
        if killed % 100 == 99:
            progress(f"{killed} killed, {until - time.monotonic():.0f} s to go")
    assert killed, "nobody was killed"
    world.client.wait_for_workers(2, timeout=PATIENCE)
    return (
        f"{killed} killed in {_KILLING:.0f} s; {world.reconciled()}; "
        "every metric equals Dask's own, and the sum closes"
    )


@scenario(
    "no-descriptors",
    section=_MACHINE,
    fault="The scheduler has no file descriptor left, and the collector's connections break",
    promise="Each span and each increment arrives once there are some again; one warning, one "
    "line at the end",
)
def _no_descriptors(world: World) -> str:
    world.begin(3)
    before = resource.prlimit(world.pid, resource.RLIMIT_NOFILE)
    # A closed descriptor frees its number: none is to be had below this one.
    resource.prlimit(world.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    world.gate.mode = "closed"
    world.gate.mode = "pass"
    world.work(5)
    warning = world.warned()
    resource.prlimit(world.pid, resource.RLIMIT_NOFILE, before)
    world.work(2)
    arrived = world.all_arrived()
    world.one_message_each()
    # gRPC's message ends in characters of no meaning.
    words = warning.partition(": ")[2].partition(". ")[0].partition(" \ufffd")[0]
    return f"{arrived}; the log says: {words[:160]}"
