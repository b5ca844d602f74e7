"""What stays true where workers leave: tasks run again, and every number is Dask's own."""

from __future__ import annotations

from chaos.world import World

#: What is promised where a worker is cut off.
RECONCILED = (
    "Each span once; every number is what the workers reported to Dask; where the time went adds "
    "up at every export"
)
#: What is observed of numbers that reconcile.
CLOSES = "every metric equals Dask's own, and the sum closes"


def reconciled(world: World) -> str:
    """Wait until each span is there, once, and every number is Dask's; returns spans and runs."""
    world.all_spans_arrived()
    world.nothing_came_twice()
    runs, tasks = world.all_tasks_counted(exactly=False), sum(world.submitted.values())
    assert runs >= tasks, f"{runs} runs of {tasks} tasks"
    world.clean_log()
    spans = len(world.submitted)
    return f"{spans} of {spans} spans; {runs} runs of {tasks} tasks"
