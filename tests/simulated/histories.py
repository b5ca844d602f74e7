"""Random programs against the truth; ``python -m tests.simulated SEED`` runs one."""

from __future__ import annotations

from collections.abc import Iterable

from lab.programs import Program, draw, run, shrink

from dask_otel.core.idle.worker_tasks import CLOCK_SLACK
from tests.simulated.observed import QUICK, Simulated


def check(program: Program) -> None:
    """Run a program, and check all that the bridge says of it."""
    # A message's way is no one's time: that of a task, of its end, of a cancellation, of a
    # heartbeat. What floats add up to is less than 0.1 ms.
    within = 1e-4 + 6 * program.latency
    steps = [abs(arguments[1]) for _, name, arguments in program.events if name == "shift"]
    # Of a clock that is set, a task's seconds are wrong by as much as a late heartbeat may be.
    within += CLOCK_SLACK * len(steps)
    o = Simulated(limits=QUICK, within=within, steps=sum(steps), longest=300.0, **program.options())
    o.run(lambda: run(program, o.cluster))


def fault(program: Program) -> str | None:
    """Return what is wrong with what the bridge says of a program."""
    try:
        check(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def faults(seeds: Iterable[int]) -> list[str]:
    """Run the programs of some seeds; return the smallest part of each that fails."""
    found = []
    for seed in seeds:
        program = draw(seed)
        if fault(program) is not None:
            small = shrink(program, lambda one: fault(one) is not None)
            found.append(f"python -m tests.simulated {seed}\n{small}\n{fault(small)}")
    return found
