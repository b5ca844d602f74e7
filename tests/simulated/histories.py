"""Random programs against the truth; ``python -m tests.simulated SEED`` runs one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from lab.programs import Enter, Program, draw, heavy, plainly, run, shared, shrink
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import dask_otel
from dask_otel.lab.cluster import simulate
from tests.simulated.observed import BATCH, QUICK, Endless, Simulated

#: Simulated seconds that no program needs.
LONGEST = 300.0


@contextmanager
def called(client: Any, name: str) -> Iterator[None]:
    """Enter a span as an instrumented application does, in a trace of its own."""
    trace_id = 0xA << 64 | ord(name)
    caller = NonRecordingSpan(SpanContext(trace_id, ord(name), False, TraceFlags(1)))
    with client.as_current(), use_span(caller), dask_otel.span(name):
        yield


def check(program: Program, enter: Enter = plainly) -> None:
    """Run a program, and check all that the bridge says of it."""
    # A message's way is no one's time: that of a task, of its end, of a cancellation, of a
    # heartbeat. What floats add up to is less than 0.1 ms.
    within = 1e-4 + 6 * program.latency
    # When a stopped machine goes on, messages wait for the batch before them.
    within += BATCH * sum(name == "stop" for _, name, _ in program.events)
    o = Simulated(limits=QUICK, within=within, longest=LONGEST, **program.options())
    o.run(lambda: run(program, o.cluster, enter))


def examine(program: Program) -> None:
    """Run a program as its seed says, and check it: each second one is instrumented."""
    if program.seed % 2 == 0:
        check(program)
        return
    dask_otel.instrument()
    try:
        check(program, called)
    finally:
        dask_otel.uninstrument()


def fault(program: Program) -> str | None:
    """Return the difference between a program's truth and the bridge's numbers."""
    try:
        examine(program)
    except Exception as error:
        # Dask itself fails in some, or sends tasks to and fro without end.
        alone = type(error) is Endless or type(error) is failure(program)
        return None if alone else f"{type(error).__name__}: {error}"
    return None


def failure(program: Program) -> type[Exception] | None:
    """Return how a program fails without the bridge."""
    try:
        simulate(lambda cluster: run(program, cluster), longest=LONGEST, **program.options())
    except Exception as error:
        return type(error)
    return None


def drawn(seed: int) -> Program:
    """Return the program of a seed; each fourth has results of all sizes, another fourth the same
    tasks for all users, and the workers of an eighth pause.
    """
    change = {2: shared, 3: heavy, 4: paused, 6: shared, 7: heavy}.get(seed % 8)
    return change(draw(seed)) if change else draw(seed)


def paused(program: Program) -> Program:
    """Return a program on workers that pause."""
    rng = random.Random(program.seed)
    pauses = [
        (rng.choice([0.05, 0.3, 0.8]), "pause", (rng.randint(0, 9), rng.choice([0.1, 1.0, 3.0])))
        for _ in range(3)
    ]
    return replace(program, events=tuple(sorted([*program.events, *pauses], key=repr)))


def faults(seeds: Iterable[int]) -> list[str]:
    """Run the programs of some seeds; return the smallest part of each that fails."""
    found = []
    for seed in seeds:
        program = drawn(seed)
        if fault(program) is not None:
            small = shrink(program, lambda one: fault(one) is not None)
            found.append(f"python -m tests.simulated {seed}\n{small}\n{fault(small)}")
    return found
