"""Faults that a spool is for: a scheduler that ends while its spans wait in it."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from tests.waiting import eventually

from chaos.scenario import scenario
from chaos.world import PATIENCE, World
from dask_otel._otel.sdk.encode import span_name

_SECTION = "The spool"


def _path(world: World) -> Path:
    return world.folder / "spool.db"


def _start(world: World) -> None:
    """Start a scheduler with the spool; the one before is over, and so are its workers."""
    world.close()
    while world.workers:
        world.workers.pop().kill()
    world.start({"DASK_OTEL__SPOOL__PATH": str(_path(world))}, workers=1)


def _names(world: World, is_open: bool | None = None) -> set[str]:
    """Return the names of the submitted spans that the file knows: ended, open, or both."""
    path = _path(world)
    if not path.exists():
        return set()
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        # Notes of earlier runs count as ended: they are sent.
        rows = connection.execute(
            "SELECT ids IS NOT NULL AND run = (SELECT max(id) FROM runs), body FROM rows"
        ).fetchall()
    except sqlite3.OperationalError:
        return set()
    finally:
        connection.close()
    found = {span_name(body) for open_, body in rows if is_open in (None, bool(open_))}
    return {name for name in found if name is not None and name in world.submitted}


def _all_wait(world: World) -> None:
    eventually(lambda: _names(world, False) == set(world.submitted), PATIENCE, "all of them wait")


@scenario(
    "spool-overlap",
    section=_SECTION,
    fault="A scheduler starts with the spool of one that still runs, with the collector down; then "
    "that one closes (SIGTERM), as where a rollout starts the new one first",
    promise="The second one logs once that it has no spool, and gets it when the first is gone: "
    "each span arrives, once, with the resource of its own run",
)
def _overlap(world: World) -> str:
    world.gate.mode = "closed"
    _start(world)
    world.work(5)
    _all_wait(world)
    first = world.scheduler
    # The second one writes a log of that name, too.
    first.log = first.log.rename(world.folder / "first.log")
    _start(world)
    (refused,) = eventually(
        lambda: world.logged("ERROR"), PATIENCE, "an error that it has no spool"
    )
    assert f"is in use by process {first.popen.pid}" in refused, refused
    code, closed = world.end(process=first)
    gone = time.monotonic()
    eventually(
        lambda: world.logged("INFO", "now uses the spool"), PATIENCE, "the second one has it"
    )
    took = time.monotonic() - gone
    world.work(3)
    _all_wait(world)
    world.gate.mode = "pass"
    world.all_spans_arrived()
    world.nothing_came_twice()
    assert len({one.resource["service.instance.id"] for one in world.spans()}) == 2
    eventually(lambda: not _names(world), PATIENCE, "nothing waits")
    assert world.logged("ERROR") == [refused]
    return (
        f"{len(world.submitted)} of {len(world.submitted)} spans, of 2 runs; the first closed in "
        f"{closed:.1f} s (exit code {code}), and the second had the spool {took:.1f} s later"
    )
