"""Clocks that are set by hours in the middle of a run, of real processes."""

from __future__ import annotations

import mmap
import os
import struct
import time
from functools import partial
from pathlib import Path

from chaos.scenario import HTTP, scenario
from chaos.world import World

_SHIFTED = Path(__file__).parent / "shifted"
#: Hours from the true time, one after the other.
_HOURS = (3, -3, 1, 0)
#: Dask itself takes workers for dead whose last heartbeat is hours old by the scheduler's clock.
_NO_TTL = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "null"}
#: Seconds that nothing takes here which began and ended between two steps.
_SHORT = 120.0


class Clock:
    """The wall clock of some processes.

    Parameters
    ----------
    path
        A file that the processes map into their memory.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(struct.pack("d", 0.0))
        with path.open("r+b") as file:
            self._held = mmap.mmap(file.fileno(), 8)
        paths = (str(_SHIFTED), os.environ.get("PYTHONPATH", ""))
        #: Makes a process read it.
        self.environ = {
            "CHAOS_CLOCK": str(path),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }

    def set(self, hours: int) -> None:
        """Set it to so many hours from the true time."""
        struct.pack_into("d", self._held, 0, hours * 3600.0)


def _fail(x: int, seconds: float) -> int:
    time.sleep(seconds)
    raise ValueError(x)


def _in_order(world: World) -> int:
    """Check the times within each span that was received; returns how many there are."""
    spans = world.collector.spans
    for one in spans:
        assert 0 < one.start_ns <= one.end_ns, f"{one.name}: {one.start_ns} to {one.end_ns}"
        for event, at, _ in one.events:
            assert one.start_ns <= at <= one.end_ns, f"{event} of {one.name} is at {at}"
    return len(spans)


def _true(world: World, names: set[str], hours: int, since: float) -> None:
    """Check spans that began and ended between two steps: they have the clock's times."""
    for one in world.collector.spans:
        if one.path not in names:
            continue
        seconds = (one.end_ns - one.start_ns) / 1e9
        assert seconds < _SHORT, f"{one.name} ({one.type}) took {seconds:.0f} s"
        began = one.start_ns / 1e9 - hours * 3600
        assert since - 1 < began < time.time() + 1, f"{one.name} ({one.type}) began {began:.0f}"


def _failing(world: World) -> None:
    """Let tasks fail, again and for good: spans have events then."""
    world.wait(world.submit(4, seconds=0.1, call=_fail, retries=1)[1])


def _stepped(world: World, by_scheduler: bool) -> str:
    clock = Clock(world.folder / "clock")
    mine, workers = (clock.environ, {}) if by_scheduler else ({}, {1: clock.environ})
    world.start({**mine, **_NO_TTL}, worker_env=workers)
    world.work(2)
    world.all_arrived()
    lengths = []
    for hours in _HOURS:
        with world.under_way(40, seconds=0.1) as across:
            clock.set(hours)
        _failing(world)
        before, since = set(world.submitted), time.time()
        world.work(3)
        _failing(world)
        # Nobody waits for hours: what has ended is exported before the next step.
        world.all_arrived()
        _in_order(world)
        _true(world, world.submitted.keys() - before, hours if by_scheduler else 0, since)
        (one,) = world.spans(across)
        lengths.append(f"{(one.end_ns - one.start_ns) / 1e9:.0f} s ({hours:+d} h)")
    spans = _in_order(world)
    arrived = world.all_arrived()
    world.clean_log()
    assert world.logged("WARNING", "swallowed") == []
    return (
        f"{arrived}; the times of {spans} spans are in order; spans that were open when the "
        f"clock was set are shown with {', '.join(lengths)}"
    )


_PROMISE = (
    "No negative duration, no event outside its span, no counter that goes back; each span and "
    "each increment once, and no later than ever; where the time went adds up at every export; "
    "nothing is raised. What begins after a step has right times"
)


for _name, _whose, _by_scheduler, _more in (
    ("clock-scheduler", "The scheduler's clock", True,
     "; a span that is open during a step can be wrong by the step"),
    ("clock-worker", "The clock of one of two workers", False, ""),
):  # fmt: skip
    scenario(
        _name,
        section="Clocks",
        fault=f"{_whose} is set to 3 h ahead, 3 h behind, 1 h ahead, and right again, each in the "
        "middle of a run",
        promise=_PROMISE + _more,
        protocols=(HTTP,),
    )(partial(_stepped, by_scheduler=_by_scheduler))
