"""The diagnoses of given facts: each kind, its refuters, and the headline."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dask_otel.core.diagnosis import KINDS, Diagnosis, diagnose, ranked
from dask_otel.core.diagnosis.facts import (
    Death,
    Facts,
    FullestWorker,
    Link,
    RootFacts,
    SlowWorkers,
    SpanFacts,
    link_of,
)
from dask_otel.semconv import PATH_PARTS

ROOT = {"activities", "blocked", "starved", "starving", "transfers", "parts"}


def link(prefix: str, alike: int = 0, others: float | None = None, **parts: float) -> Link:
    return Link(prefix, parts, prefix, alike, others)


def run(
    name: str = "train",
    *,
    threads: float = 4.0,
    tasks: int = 40,
    work: dict[str, float] | None = None,
    idle: float | None = None,
    links: tuple[Link, ...] = (),
    span: dict[str, Any] | None = None,
    root: dict[str, Any] | None = None,
    **parts: float,
) -> Facts:
    """One root without spans below it, bounded by `parts`.

    Threads computed all the time, except where tasks waited that had one, or had no task.
    """
    seconds = sum(parts.values())
    waited = sum(parts.get(one, 0.0) for one in ("scheduler", "starting", "transfer", "report"))
    rest = threads * waited if idle is None else idle
    there = threads * (seconds - parts.get("client", 0.0) - parts.get("no_worker", 0.0))
    spent = {"thread-cpu": max(0.0, there - rest)} if work is None else work
    all_parts = dict.fromkeys(PATH_PARTS, 0.0) | parts
    left = max(0.0, there - sum(spent.values())) if idle is None else idle
    return Facts(
        seconds=seconds,
        workers=2,
        threads=max(2.0, threads / 2),
        roots={
            name: RootFacts(
                name, seconds, dict(all_parts), tasks, threads, spent, left, **(root or {})
            )
        },
        spans=[
            SpanFacts(
                name,
                name,
                seconds,
                all_parts,
                **{"tasks": tasks, "links": [*links], "work": {"f": spent}, **(span or {})},
            )
        ],
    )


def given(facts: Facts, **more: Any) -> Facts:
    """The same with more facts, of the run or of its roots."""
    of_roots = {name: more.pop(name) for name in ROOT & more.keys()}
    roots = {name: replace(one, **of_roots) for name, one in facts.roots.items()}
    return replace(facts, roots=roots, **more)


def said(facts: Facts) -> list[str]:
    return [one.kind for one in diagnose(facts)]


BUSY = {"no_thread": 8.0, "compute": 1.0}
ASLEEP = {"thread-cpu": 0.1, "thread-noncpu": 35.9}
HALF = {"thread-cpu": 9.0, "thread-noncpu": 27.0}
DEAD = Death("w2", "It was killed.", ["fit-3"])
GONE = {"retries": {"worker_lost": 2.0, "recomputed": 6.0}, "missing": 10.0}
SLOW = SlowWorkers(["w2"], "f", 8, 4.0, 1.0)
PAUSED = {"root": {"paused": 4.0}, "span": {"paused": 4.0}}
HELD = {"elsewhere": 30.0, "holders": {"alice": 28.0, "carol": 2.0}}
FLAKY = {"train": ["OSError: 503"], "parse": ["ValueError: a bad row"]}
PACKED = {("receive", "network"): 5.0, ("transmit", "serialize"): 4.9}

#: Facts, and the kinds in their order.
CASES: dict[str, tuple[Facts, list[str]]] = {
    # Which part it was, and what the threads did meanwhile.
    "threads": (run(**BUSY), ["threads"]),
    "a wave too many": (run(threads=4, tasks=5, idle=3.0, no_thread=1.0, compute=1.0), ["threads"]),
    "a little more": (run(transfer=2.05, client=2.08, compute=16.0), ["client", "transfer"]),
    "shown as equal": (run(transfer=2.081, client=2.084, compute=16.0), ["transfer", "client"]),
    "none of them has run yet": (run(no_thread=8.0), ["threads"]),
    "none of them ever ran": (run(no_thread=8.0, root={"cancelled": 30.0}), ["healthy"]),
    "client": (run(client=4.0, compute=1.0), ["client"]),
    "before the first task": (given(run(compute=1.0), before_first=8.0), ["client"]),
    "no workers": (run(no_worker=4.0, compute=1.0), ["no_workers"]),
    "uneven": (run(idle=18.0, uneven=4.0, compute=1.0), ["uneven"]),
    "queued while threads were free": (
        run(
            links=(link_of("f", {"uneven": 4.0, "compute": 1.0}, "f", 4, 4.0, 2.0, queued=4.0),),
            idle=18.0,
            uneven=4.0,
            compute=1.0,
        ),
        ["queued"],
    ),
    "queued while no thread was free, and then behind others": (
        run(
            links=(
                link_of("f", {"no_thread": 4.0, "uneven": 4.0}, "f", 40, 40.0, 2.0, queued=4.0),
            ),
            idle=18.0,
            no_thread=4.0,
            uneven=4.0,
            compute=1.0,
        ),
        ["uneven", "threads"],
    ),
    "behind tasks that fetch their data": (
        run(
            work={"thread-cpu": 0.1},
            idle=18.0,
            span={"before": {"f": {"transfer": 8.0}}},
            uneven=4.0,
            compute=1.0,
        ),
        ["transfer"],
    ),
    "behind tasks that have not begun": (
        given(run(work={"thread-cpu": 2.0}, idle=18.0, uneven=4.0, compute=1.0), fewest=2.0),
        ["starting"],
    ),
    "behind tasks of a worker whose loop was blocked for most of the time": (
        given(
            run(work={"thread-cpu": 12.0}, idle=18.0, uneven=4.0, compute=1.0),
            fewest=2.0,
            blocked={"worker": 12.0},
        ),
        ["worker_loop", "uneven"],
    ),
    "behind tasks that have not begun, for want of a resource": (
        given(
            run(
                work={"thread-cpu": 2.0},
                idle=18.0,
                uneven=4.0,
                compute=1.0,
                links=(link("f", uneven=4.0),),
                span={"restrictions": {"f": "resources"}},
            ),
            fewest=2.0,
        ),
        ["restricted"],
    ),
    # Others had a free thread for moments only.
    "hardly uneven": (run(idle=0.4, uneven=4.0, compute=1.0), ["healthy"]),
    "restricted": (
        run(
            idle=10.0,
            uneven=4.0,
            compute=1.0,
            links=(link("f", uneven=4.0),),
            span={"restrictions": {"f": "workers"}},
        ),
        ["restricted"],
    ),
    "a step without a restriction after one with it": (
        run(
            idle=20.0,
            uneven=4.0,
            compute=1.0,
            links=(link("f", uneven=0.1), link("g", uneven=3.9)),
            span={"restrictions": {"f": "workers"}},
        ),
        ["uneven"],
    ),
    "restricted, to tasks that sleep": (
        run(
            idle=10.0,
            work={"thread-noncpu": 10.0},
            uneven=4.0,
            compute=1.0,
            links=(link("f", uneven=4.0),),
            span={"restrictions": {"f": "workers"}},
        ),
        ["restricted", "off_cpu"],
    ),
    "one unit of a resource": (
        run(idle=18.0, no_thread=8.0, compute=1.0, span={"restrictions": {"f": "resources"}}),
        ["restricted"],
    ),
    "a resource, while other tasks keep threads busy": (
        run(
            threads=6.0,
            idle=3.6,
            no_thread=1.8,
            compute=0.8,
            span={"restrictions": {"f": "resources"}},
            links=(
                link("g", 24, 0.2, no_thread=0.8, compute=0.2)._replace(free=0.3),
                link("f", 12, 0.6, no_thread=1.0, compute=0.6)._replace(free=0.3),
            ),
        ),
        ["restricted", "threads"],
    ),
    "inner": (run(idle=15.0, inner=4.0, compute=1.0), ["inner"]),
    "inner tasks that hold all threads": (run(inner=4.0, compute=1.0), ["threads"]),
    # Submitted at once, they would take all threads for as long.
    "inner tasks on nearly all threads": (run(idle=6.0, inner=5.0, compute=1.0), ["inner"]),
    # The holder is named, not who waited. A few threads of others are no reason.
    "none of its tasks had a thread": (
        run(work={}, idle=0.0, no_thread=8.0, root={"cancelled": 30.0}),
        ["held"],
    ),
    "held": (run(work={"thread-cpu": 1.0}, idle=0.0, root=HELD, **BUSY), ["held"]),
    "hardly held": (run(root={"elsewhere": 1.0, "holders": {"alice": 1.0}}, **BUSY), ["threads"]),
    # All threads had tasks, and these did not compute: more threads do not help.
    "imports, many tasks": (
        run(work={"thread-cpu": 4.0}, idle=32.0, span={"queue": 6.0}, **BUSY),
        ["starting"],
    ),
    "imports before two rounds": (
        run(
            work={"thread-cpu": 32.0},
            idle=36.0,
            span={"queue": 8.0},
            no_thread=12.0,
            compute=4.0,
        ),
        ["starting", "threads"],
    ),
    "imports": (run(starting=4.0, compute=1.0), ["starting"]),
    "blocked later": (
        given(run(starting=4.0, compute=1.0), blocked={"worker": 4.0}),
        ["worker_loop"],
    ),
    "late news of ends from a loop that was not blocked": (
        run(report=4.0, compute=1.0, span={"queue": 0.5}),
        ["messages"],
    ),
    "late news of ends, and a loop that was blocked for some of it": (
        given(run(starting=4.0, report=4.0, compute=1.0), blocked={"worker": 3.0}),
        ["starting", "worker_loop"],
    ),
    "blocked before the first task": (
        given(run(starting=4.0, compute=1.0, span={"queue": 3.9}), blocked={"worker": 4.0}),
        ["starting"],
    ),
    "blocked scheduler": (
        given(
            run(scheduler=3.0, starting=2.0, compute=1.0), blocked={"scheduler": 5.0, "worker": 0.1}
        ),
        ["scheduler"],
    ),
    "a scheduler that does not hear the client": (
        given(
            run(client=2.0, starting=1.5, compute=0.5),
            blocked={"scheduler": 3.0, "worker": 4.0},
        ),
        ["graph"],
    ),
    "a large graph": (
        given(run(scheduler=4.0, compute=1.0, span={"queue": 4.0}), blocked={"scheduler": 4.1}),
        ["graph"],
    ),
    "large arguments": (
        given(
            run(starting=4.0, compute=1.0, span={"queue": 1.0}),
            blocked={"scheduler": 4.0, "worker": 5.0},
        ),
        ["graph"],
    ),
    "tiny tasks": (
        run(work={"thread-cpu": 0.4}, tasks=4000, scheduler=4.0, no_thread=6.0),
        ["tiny"],
    ),
    "long tasks of a slow scheduler": (
        given(
            run(work={"thread-cpu": 20.0}, tasks=40, scheduler=10.0, compute=0.5),
            blocked={"scheduler": 9.0},
        ),
        ["scheduler"],
    ),
    # Data.
    "transfer": (run(transfer=4.0, compute=1.0), ["transfer"]),
    "a transfer booked on another task": (
        run(
            starting=4.0,
            compute=1.0,
            links=(link("f", starting=4.0),),
            span={"before": {"f": {"transfer": 9.0}}},
        ),
        ["transfer"],
    ),
    "pickling": (given(run(transfer=4.0, compute=1.0), transfers=PACKED), ["pickle"]),
    "a transfer while the loops of all workers are a little late, as the scheduler's is": (
        given(
            run(transfer=4.0, compute=1.0), workers=40, blocked={"worker": 4.0, "scheduler": 0.1}
        ),
        ["transfer"],
    ),
    "data on a blocked worker": (
        given(run(transfer=4.0, compute=1.0), blocked={"worker": 4.1}),
        ["worker_loop"],
    ),
    "transfers on a busy machine": (
        given(
            run(idle=15.0, transfer=4.0, compute=1.0),
            blocked={"worker": 4.0, "scheduler": 1.5},
            starved=4.0,
        ),
        ["cpus"],
    ),
    "late loops of a busy machine": (
        given(
            run(idle=15.0, starting=4.0, compute=1.0),
            blocked={"worker": 4.0, "scheduler": 3.0},
            starved=4.0,
        ),
        ["cpus"],
    ),
    "a scheduler that sleeps on a busy machine": (
        given(
            run(idle=15.0, starting=4.0, compute=1.0),
            blocked={"worker": 1.0, "scheduler": 3.0},
            starved=4.0,
            starving=1.4,
        ),
        ["scheduler"],
    ),
    "a client that sleeps on a busy machine": (
        given(
            run(client=4.0, starting=0.1, compute=1.0),
            blocked={"worker": 4.0, "scheduler": 4.0},
            starved=9.0,
        ),
        ["client"],
    ),
    "data on a blocked worker of a busy machine": (
        given(
            run(idle=15.0, transfer=4.0, compute=1.0),
            blocked={"worker": 8.0, "scheduler": 0.5},
            starved=4.0,
        ),
        ["worker_loop"],
    ),
    "data on disk": (
        run(transfer=4.0, compute=1.0, span={"before": {"f": {"disk-read": 4.0}}}),
        ["spill"],
    ),
    "spilling threads": (
        run(work={"thread-cpu": 6.0, "disk-write": 30.0}, **BUSY),
        ["spill"],
    ),
    "shuffle": (
        run(compute=6.0, links=(link("shuffle-transfer", compute=6.0),), idle=12.0),
        ["shuffle"],
    ),
    # Dask fuses a rechunk with the steps before and after it, under their names.
    "a shuffle in fused tasks": (
        run(
            compute=6.0,
            links=(link("rechunk-merge-rechunk-transfer", compute=6.0),),
            idle=12.0,
            span={
                "work": {
                    "rechunk-merge-rechunk-transfer": {
                        "p2p-shard-partition-cpu": 2.0,
                        "thread-noncpu": 4.0,
                    }
                }
            },
        ),
        ["shuffle"],
    ),
    # Before its loop has noticed an end, a thread gets no other task.
    "a blocked loop keeps threads": (
        given(run(work={"thread-cpu": 18.0, "executor": 18.0}, **BUSY), blocked={"worker": 9.0}),
        ["worker_loop", "threads"],
    ),
    "tiny tasks without a free CPU": (
        given(run(work={"thread-cpu": 0.4}, tasks=200, scheduler=8.0), starved=9.0),
        ["tiny"],
    ),
    # Without a CPU, Dask's own work takes longer; that does not make tasks tiny.
    "tasks of 80 ms on a busy machine": (
        given(run(work={"thread-cpu": 32.0}, tasks=400, starting=40.0), starved=10.0),
        ["starting"],
    ),
    # Others of its root's are tiny.
    "few tasks that begin late": (
        run(work={"thread-cpu": 0.4}, tasks=400, starting=4.0, span={"tasks": 14}),
        ["starting"],
    ),
    "tasks that seceded and compute": (
        run(idle=0.0, inner=5.0, links=(link("f", inner=5.0),)),
        ["healthy"],
    ),
    # What tasks that hold threads wait for.
    "sleeping tasks": (run(work=ASLEEP, **BUSY), ["off_cpu"]),
    "a lock": (run(work=HALF, **BUSY), ["off_cpu", "threads"]),
    "GIL": (given(run(work=HALF, **BUSY), blocked={"worker": 9.0}), ["gil"]),
    "GIL held in C": (given(run(work=HALF, **BUSY), blocked={"worker": 17.0}), ["gil"]),
    "loops of a busy machine beside sleeping tasks": (
        given(run(work=ASLEEP, **BUSY), blocked={"worker": 5.0}, starved=2.0),
        ["off_cpu"],
    ),
    "a chain on a busy machine": (
        given(
            run(
                work={"thread-cpu": 3.0, "thread-noncpu": 6.0},
                tasks=12,
                compute=9.0,
                links=(link("f", compute=3.0),) * 3,
            ),
            blocked={"worker": 9.0},
            starved=4.0,
        ),
        ["cpus", "chain"],
    ),
    "loops were blocked for longer than tasks computed": (
        given(run(work={"thread-noncpu": 4.0}, idle=0.0, **BUSY), blocked={"worker": 17.0}),
        ["off_cpu"],
    ),
    "loops of a busy machine": (
        given(run(work=HALF, **BUSY), blocked={"worker": 9.0, "scheduler": 3.0}),
        ["off_cpu", "threads"],
    ),
    "a scheduler whose own work blocks its loop, and waits for no CPU": (
        given(run(work=HALF, **BUSY), blocked={"worker": 9.0, "scheduler": 3.0}, starving=0.5),
        ["gil"],
    ),
    "one thread has no GIL to wait for": (
        given(run(work=HALF, **BUSY), blocked={"worker": 9.0}, threads=1.0),
        ["off_cpu", "threads"],
    ),
    "CPUs": (given(run(work=HALF, **BUSY), starved=4.0), ["cpus"]),
    "CPUs that explain a tenth of the run": (
        given(run(work={"thread-cpu": 30.0, "thread-noncpu": 6.0}, **BUSY), starved=4.0),
        ["cpus"],
    ),
    "sleeping tasks on a busy machine": (
        given(run(work=ASLEEP, **BUSY), starved=4.0),
        ["off_cpu"],
    ),
    # Threads that were idle while the path computed.
    "skew": (
        run(idle=15.0, compute=5.0, links=(link("f", 12, 0.1, compute=5.0),)),
        ["long_task"],
    ),
    "its transfer was long, not its computing": (
        run(idle=15.0, transfer=4.9, compute=0.1, links=(link("f", 12, 0.1, compute=0.1),)),
        ["transfer"],
    ),
    "other tasks ran meanwhile": (
        run(idle=0.0, compute=5.0, links=(link("f", 12, 0.1, compute=5.0),)),
        ["healthy"],
    ),
    "a chain of functions that run once each": (
        run(idle=15.0, compute=5.0, links=tuple(link(f"f{n}", 1, compute=0.5) for n in range(10))),
        ["chain"],
    ),
    "chain": (
        run(idle=15.0, compute=5.0, links=tuple(link("f", 1, compute=0.5) for _ in range(10))),
        ["chain"],
    ),
    "a loop of the client is no chain": (
        run(
            idle=3.0,
            client=4.0,
            compute=1.0,
            links=tuple(link("f", 1, client=0.4, compute=0.1) for _ in range(10)),
        ),
        ["client"],
    ),
    "as many long tasks as half of the threads, which came late": (
        run(
            idle=8.0,
            no_worker=1.2,
            compute=2.0,
            threads=5.0,
            work={"thread-cpu": 8.0},
            links=(link("f", 4, 2.0, no_worker=1.2, compute=2.0),),
        ),
        ["no_workers", "long_task"],
    ),
    "two long tasks": (
        run(idle=30.0, threads=8, compute=5.0, links=(link("f", 2, 5.0, compute=5.0),)),
        ["long_task"],
    ),
    "slow worker": (run(idle=8.0, compute=5.0, uneven=3.0, span={"slow": [SLOW]}), ["slow_worker"]),
    # What went wrong comes first if it cost time.
    "lost": (
        given(run(root=GONE, span={"missing": 7.0}, repeated=2.0, **BUSY), deaths=[DEAD]),
        ["lost", "threads"],
    ),
    "a worker that had no task took its threads": (
        given(run(root={"missing": 18.0}, span={"missing": 9.0}, **BUSY), deaths=[DEAD]),
        ["lost", "threads"],
    ),
    "nobody waited for the threads of a dead worker": (
        given(run(root={"missing": 18.0}, compute=9.0), deaths=[DEAD]),
        ["healthy"],
    ),
    "tasks had waited for a thread, but before a worker died": (
        given(run(root={"missing": 18.0}, **BUSY), deaths=[DEAD]),
        ["threads"],
    ),
    "event loops wrote data to disk": (
        given(
            run(work={"thread-cpu": 12.0, "disk-write": 8.0}, idle=12.0, report=3.0, compute=5.0),
            blocked={"worker": 10.0},
        ),
        ["spill"],
    ),
    "a client restarted the workers between its steps": (
        given(
            run(
                root={"missing": 8.0, "unreported": 4.0},
                span={"missing": 2.0},
                no_worker=2.0,
                compute=8.0,
            ),
            deaths=[Death("w1", restarted=True)],
        ),
        ["no_workers"],
    ),
    "one thread computes again": (
        given(run(threads=1.0, tasks=8, root=GONE, compute=9.0), deaths=[DEAD]),
        ["lost"],
    ),
    **{
        f"others wait behind what a worker computes again{beside}": (
            given(
                run(
                    root={"retries": {"recomputed": 8.0}},
                    span={"restrictions": restrictions},
                    links=(link("f", 40, 3.0, **waits, compute=3.0),),
                    idle=4.0,
                    **waits,
                    compute=3.0,
                ),
                deaths=[DEAD],
                fewest=2.0,
            ),
            kinds,
        )
        for beside, waits, restrictions, kinds in (
            ("", {"uneven": 1.3}, {}, ["lost"]),
            (", as for its threads", {"no_thread": 1.0, "uneven": 1.3}, {}, ["lost"]),
            (", and longer", {"uneven": 2.0}, {}, ["lost", "uneven"]),
            (" for them", {"uneven": 1.3}, {"f": "workers"}, ["lost", "restricted"]),
        )
    },
    "a death of which nothing else is known": (
        replace(run(client=4.0, no_worker=4.0), roots={}, deaths=[DEAD._replace(roots=[])]),
        ["no_workers", "client"],
    ),
    "killed for its memory": (
        given(run(root=GONE, repeated=2.0, **BUSY), deaths=[DEAD], terminated=["w2"]),
        ["memory", "threads"],
    ),
    "all workers died, and later ones came": (
        given(
            run(
                root=GONE,
                repeated=1.0,
                no_worker=5.0,
                compute=1.0,
                links=(link("f", repeated=1.0, no_worker=5.0),),
            ),
            deaths=[DEAD],
        ),
        ["lost"],
    ),
    "retired in order": (run(root=GONE, repeated=0.1, **BUSY), ["threads"]),
    "a death of others": (
        given(run(**BUSY), deaths=[DEAD._replace(roots=["alice"])]),
        ["threads"],
    ),
    "flaky": (
        given(run(root={"retries": {"error": 4.0}}, repeated=3.0, **BUSY), causes=FLAKY),
        ["repeated", "threads"],
    ),
    "flaky beside others": (
        run(
            work={"thread-cpu": 18.0, "failed": 18.0},
            root={"retries": {"error": 9.0}},
            **BUSY,
        ),
        ["repeated", "threads"],
    ),
    "p2p asks to be rescheduled": (
        run(
            repeated=1.0,
            compute=5.0,
            idle=10.0,
            links=(link("p2pshuffle", repeated=1.0, compute=5.0),),
        ),
        ["shuffle"],
    ),
    "paused": (
        given(run(**PAUSED, starting=4.0, compute=1.0), pauses=["w1"]),
        ["paused"],
    ),
    "one worker was paused while another one imported": (
        given(
            run(
                **PAUSED,
                starting=4.0,
                compute=1.0,
                links=(link("f", starting=4.0)._replace(worker="w2"),),
            ),
            pauses=["w1"],
        ),
        ["starting"],
    ),
    "paused while the others worked": (
        given(run(**PAUSED, idle=8.0, **BUSY), pauses=["w1"], workers=2),
        ["paused", "threads"],
    ),
    "tasks had waited for a thread, but before a pause": (
        given(run(root={"paused": 4.0}, **BUSY), pauses=["w1"], workers=2),
        ["threads"],
    ),
    "paused, but nobody waited": (
        given(run(**PAUSED, idle=0.0, compute=5.0), pauses=["w1"]),
        ["healthy"],
    ),
    "failed": (given(run(**BUSY), failed=2, exceptions=["KeyError"]), ["failed", "threads"]),
    # Neither.
    "healthy": (run(idle=0.0, compute=5.0), ["healthy"]),
    # A worker left before it had reported the seconds of the long task: they were not idle.
    "unreported": (
        run(
            work={"thread-cpu": 10.0},
            idle=0.2,
            root={"unreported": 9.8},
            compute=5.0,
            links=(link("f", alike=2, others=0.5, compute=5.0),),
        ),
        ["healthy"],
    ),
    "short": (run(no_thread=0.02, compute=0.02), ["short"]),
    "short and failed": (given(run(compute=0.02), failed=1), ["failed"]),
    "nothing at all": (Facts(), ["short"]),
    "sizing": (
        run(root={"fullest": FullestWorker(0.2, "w0", 40)}, idle=0.0, compute=5.0),
        ["healthy", "sizing"],
    ),
    "notices are last": (
        given(run(**BUSY), gaps=["3 items (queue_full)"], open=["late"], merged=[("train", "b")]),
        ["threads", "open", "gaps", "merged"],
    ),
}


GIB = 1024.0**3


def sized(
    share: float, beats: int = 100, tasks: int | None = None, when: Any = (), **more: Any
) -> Facts:
    """A run whose fullest worker of 8 GiB and 4 threads had so much at most."""
    fullest = FullestWorker(share, "w0", beats, tasks, *when)
    facts = replace(run(root={"fullest": fullest}, compute=5.0), threads=4.0, limits=[8 * GIB])
    return given(facts, **{"fewest": 4.0 * (tasks is not None), **more})


def both(first: Facts, second: Facts, **more: Any) -> Facts:
    """The spans of both, one after another."""
    seconds = first.seconds + second.seconds
    roots, spans = first.roots | second.roots, first.spans + second.spans
    return replace(first, **{"seconds": seconds, "roots": roots, "spans": spans, **more})


def asleep(name: str, prefix: str | None) -> Facts:
    # What a worker did not report before it closed is known of no function.
    return run(name, work=ASLEEP, span={"work": {prefix: ASLEEP} if prefix else {}}, **BUSY)


HELD_MEMORY = {"memory": 10 * GIB, "holder": ("merge", 7.1 * GIB)}
MERGE = "Results took 10.0 GiB of memory at most, of that merge 7.1 GiB (71%).|"
RESTARTED = Death("w2", "It was restarted.", restarted=True)
NO_PATH = "What the run waited for is not known: its spans have no path"
#: Facts, and a part of the lines of their diagnoses: kind|span|seconds|title|evidence|next step.
SAID: list[tuple[Facts, str]] = [
    *(
        (CASES[name][0], f"|{title}")
        for name, title in [
            ("held", "train waited 7.74 s of 9.00 s for threads that alice held"),
            ("lost", "train lost about 3.21 s of 11.0 s because worker w2 died"),
            ("lost", "It was killed. Suspected: fit-3.|"),
            ("imports", "train waited 4.00 s of 5.00 s for workers to begin its tasks||If"),
            ("blocked before the first task", "Event loops of workers were blocked for 4.00 s.|If"),
            (
                "skew",
                "train waited for 1 task of f (5.00 s) while threads were idle: splitting can save "
                "about 3.75 s of 5.00 s",
            ),
            ("paused", "train waited 4.00 s of 5.00 s while 1 worker was paused: w1"),
            (
                "flaky",
                "train lost about 3.00 s of 12.0 s to runs that were repeated: OSError: 503|",
            ),
            ("failed", "2 tasks failed for good"),
            ("before the first task", "The run waited 8.00 s of 9.00 s for its client"),
            ("healthy", "Nothing is in the way: computing 100%"),
            (
                "tiny tasks",
                "train spent 9.90 s of 10.0 s on Dask's own work for 4,000 tasks of <1 ms",
            ),
            ("slow worker", "train waited 8.00 s for tasks that take longer on w2"),
            (
                "a wave too many",
                "train waited for a free thread: doubling the threads can save about 1.00 s",
            ),
        ]
    ),
    # The share of the time that was reported.
    *(
        (
            run(work={"thread-cpu": spent}, idle=0.0, compute=5.0, root={"unreported": 20 - spent}),
            f"Nothing is in the way{percent}|",
        )
        for spent, percent in [(19.0, ": computing 95%"), (10.0, "")]
    ),
    # Without a path, and an open span whose scheduler was killed before it said more.
    (
        Facts(5.0, {"train": RootFacts("train", 5.0)}, [SpanFacts("train", "train", 5.0)]),
        f"short||0|{NO_PATH}",
    ),
    (given(run(compute=0.001), open=["train"]), f"short||0|{NO_PATH}|"),
    (run(no_thread=0.02, compute=0.02), "short||0|The run is too short to judge: 40 ms"),
    (
        replace(run(root=GONE, repeated=4.0, compute=1.0), deaths=[RESTARTED]),
        "runs that were repeated: a client restarted worker w2|It was restarted.|",
    ),
    (replace(run(root=GONE, repeated=4.0, compute=1.0), deaths=[RESTARTED, DEAD]), "lost|train|"),
    # Of many events a few, and first of all why.
    (
        given(
            run(root=GONE, repeated=4.0, compute=1.0),
            deaths=[Death(f"w{number}", f"{number} ended.") for number in range(9)],
            terminated=["w7"],
        ),
        "workers w0, w1, w2, w3, w4, and 4 more ran out of memory|7 ended. 0 ended.|",
    ),
    (
        given(run(root=GONE, repeated=2.0, **BUSY), deaths=[DEAD], terminated=["w7"]),
        "lost|train|",
    ),
    # Each cure alone can use the 3 s for which a thread was idle: the waiting, or half of the task.
    *(
        (
            run(
                threads=2.0,
                idle=6.0,
                uneven=2.5,
                compute=5.0,
                links=(link("f", 2, 2.0, uneven=2.5, compute=2.0), link("g", 1, compute=3.0)),
            ),
            text,
        )
        for text in ("uneven|train|2.5|", "long_task|train|1.5|")
    ),
    # Who had the memory.
    (
        given(
            run(root=HELD_MEMORY | {"retries": {"worker_lost": 2.0}}, idle=16.0, repeated=4.0),
            deaths=[Death("w1")],
            terminated=["w1"],
        ),
        MERGE,
    ),
    (
        given(
            run(root=HELD_MEMORY | {"paused": 4.0}, span={"paused": 4.0}, starting=4.0),
            pauses=["w1"],
        ),
        MERGE,
    ),
    (run(root=HELD_MEMORY, work={"disk-write": 15.0, "thread-cpu": 5.0}, compute=5.0), MERGE),
    # Threads, also while the client thought and there were none.
    (run(threads=1.0, **BUSY), " s on 1 thread.|"),
    (run(threads=4.0, **BUSY), " s on 4 threads.|"),
    (
        replace(
            run(threads=0.5, work={"thread-cpu": 8.0}, idle=0.0, client=12.0, **BUSY), fewest=2.0
        ),
        "|Its tasks took 8.00 s on 2 threads.|",
    ),
    (run(**BUSY), ": doubling the threads can save"),
    (run(**BUSY, work=HALF), ": once the other causes are gone, doubling the threads can save"),
    # Functions: those that the time is of, together no more than all of it.
    (
        run(
            idle=30.0,
            compute=5.0,
            threads=8,
            links=(link("f", 12, 0.1, compute=2.0), link("g", 12, 0.1, compute=3.0)),
        ),
        "|3.75|train waited for 1 task of g (3.00 s), 1 task of f (2.00 s) while threads were idle",
    ),
    *(
        (
            run(
                no_worker=4.0,
                compute=1.0,
                links=(link("f", no_worker=took), link("g", no_worker=4.0 - took)),
            ),
            f"|{evidence}|",
        )
        for took, evidence in [(3.9, "Most of that concerns 1 task of f."), (2.0, "")]
    ),
    *(
        (
            both(asleep("etl", first), asleep("load", second)),
            f" while tasks of {named} used no CPU|",
        )
        for first, second, named in [
            ("f", "g", "f, g"),
            ("f", None, "f, unknown functions"),
            (None, None, "unknown functions"),
        ]
    ),
    # A task of other functions counts once, also if two groups were slow on its worker.
    (
        run(
            idle=8.0,
            compute=20.0,
            span={"slow": [SLOW._replace(prefix=one, runs=2) for one in "fg"]},
            links=(link("h", compute=4.0)._replace(worker="w2"),),
        ),
        "|7.5|train waited 7.50 s of 20.0 s for tasks that take longer on w2",
    ),
    # No task of load ran, since what it needs failed; all the time was that of fit.
    (
        run(
            idle=10.0,
            uneven=4.0,
            compute=1.0,
            links=(link("fit", uneven=4.0),),
            span={
                "restrictions": {"fit": "workers", "load": "resources"},
                "unfinished": ["load"],
                "work": {"fit": ASLEEP},
            },
        ),
        "|Loosen workers= of fit, or let more",
    ),
    # Several spans; a remainder of others does not hide the span.
    *(
        (
            both(run(name, client=4.0), run(other, client=2.0)),
            f"client|{common}|6|{common or 'The run'} waited 6.00 s for its client|"
            f"4.00 s of it passed in {name}.|",
        )
        for name, other, common in [
            ("etl", "load", ""),
            (r"a\/b", r"a\/c", ""),
            (r"a\/b/c", r"a\/b/d", r"a\/b"),
        ]
    ),
    (
        both(
            run("query", client=5.0, compute=1.0),
            run("etl", client=0.4, compute=1.0),
            before_first=0.1,
        ),
        "client|query|5|query waited 5.00 s of 6.00 s for its client||",
    ),
    (
        run("default", client=4.0, compute=1.0),
        "client|default|4|Work outside spans (default) waited 4.00 s of 5.00 s for its client|",
    ),
    # The size of workers.
    (
        sized(0.39),
        "|No worker used more than 3.1 of 8.0 GiB (39%): 5.2 GiB would have done, without spilling"
        "|That was worker w0, in train: the most at 100 heartbeats.|",
    ),
    (
        sized(0.39, when=(["train/join", "train/load"], 4.11)),
        "|That was worker w0, in train/join, train/load, 4.11 s after train began: the most at 100 "
        "heartbeats.|",
    ),
    (
        sized(0.94, beats=3),
        "|A worker used 7.5 of 8.0 GiB (94%): it was about to be restarted"
        "|That was worker w0, in train: the most at 3 heartbeats.|",
    ),
    (
        sized(0.39, tasks=2),
        "|No worker used more than 3.1 of 8.0 GiB (39%) and 2 of 4 threads: 5.2 GiB and 2 threads",
    ),
    (sized(0.39, tasks=2), "None ran more than 2 tasks at any of 100 heartbeats.|"),
    (sized(0.6, tasks=1), "|No worker used more than 1 of 4 threads: 1 thread would have done"),
    (sized(0.6, tasks=1), "None ran more than 1 task at any of 100 heartbeats.|"),
    (sized(0.39, tasks=2, fewest=2.0), "3.1 of 8.0 GiB (39%): 5.2 GiB would have done, without "),
    # A larger one used more bytes with less of its memory.
    (
        sized(0.39, limits=[8 * GIB, 64 * GIB]),
        "|No worker used more than 39% of its memory: 65% of it would have done, without spilling|",
    ),
    (sized(0.94, limits=[0.0, 8 * GIB]), "|A worker used 94% of its memory: it was about to be "),
]


@pytest.mark.parametrize(("facts", "words"), SAID)
def test_what_is_said(facts: Facts, words: str) -> None:
    lines = (
        "|".join((one.kind, one.span, f"{one.seconds:.3g}", one.title, one.evidence, one.next))
        for one in diagnose(facts)
    )
    assert words in "\n".join(lines)


@pytest.mark.parametrize(
    "facts",
    [
        sized(0.39, beats=39),
        sized(0.39, activities={"disk-write": 0.1}),
        *(sized(share) for share in (0.5, 0.85)),
        sized(0.39, pauses=["w1"]),
        sized(0.94, terminated=["w1"]),
        sized(0.39, deaths=[Death("w1")]),
        *(sized(0.6, tasks=tasks) for tasks in (0, 4)),
        sized(0.6, tasks=2, fewest=2.0),
        sized(0.6, tasks=2, workers=6),
        sized(0.6, tasks=2, pauses=["w1"]),
        # Roots that are open at the same time have the same heartbeats.
        both(
            sized(0.39, beats=30),
            run("etl", root={"fullest": FullestWorker(0.38, "w0", 30)}, compute=5.0),
            seconds=5.0,
        ),
        # Of a worker without a limit, no share is known.
        sized(0.39, tasks=2, limits=[0.0, 8 * GIB]),
        # Tasks that waited for a free thread needed all of them for a moment.
        *(
            given(
                sized(0.6, tasks=2),
                parts=dict.fromkeys(PATH_PARTS, 0.0) | {"compute": 5.0, part: 0.06},
            )
            for part in ("no_thread", "uneven")
        ),
    ],
)
def test_workers_have_the_right_size(facts: Facts) -> None:
    assert "sizing" not in said(facts)


@pytest.mark.parametrize("name", CASES)
def test_facts_have_their_causes(name: str) -> None:
    facts, kinds = CASES[name]
    found = diagnose(facts)
    assert [one.kind for one in found] == kinds
    # Whatever is said, the causes together do not save more than the run took.
    assert sum(one.seconds for one in found) <= facts.seconds + facts.before_first + 1e-9


def test_every_kind_is_decided_somewhere_and_has_an_entry_with_its_next_step() -> None:
    assert {kind for _, kinds in CASES.values() for kind in kinds} == {*KINDS}
    page = Path(__file__).parents[2].joinpath("docs", "diagnoses.md").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL))
    assert [*entries] == [*KINDS]
    # Backticks are not in the report.
    cures = {
        kind: " ".join(entry.partition("**Next step:** ")[2].replace("`", "").split())
        for kind, entry in entries.items()
    }
    assert cures == {kind: one.next.format(what="workers= of fit") for kind, one in KINDS.items()}


def test_at_most_five_causes_are_said() -> None:
    parts = ("client", "no_worker", "uneven", "transfer", "starting", "inner")
    assert len(said(run(idle=12.0, **dict.fromkeys(parts, 1.0)))) == 5


def test_each_alert_has_the_kinds_that_it_corresponds_to() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = docs.joinpath("diagnoses.md").read_text(encoding="utf-8").partition("## Alerts")[2]
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| [")]
    alerts = [row[1].strip().partition("]")[0].strip("[") for row in rows]
    pages = {path.stem for path in docs.joinpath("runbooks").glob("*.md")} - {"README"}
    assert alerts == sorted(pages)
    kinds = {kind.strip().strip("`") for row in rows for kind in row[2].split(",")} - {""}
    assert kinds < KINDS.keys()


@pytest.mark.parametrize(
    ("found", "saved", "expected"),
    [
        # Bounds keep their order, and so do savings that are shown as equal.
        ("threads client", {}, "threads client"),
        ("threads client", {"threads": 20.0, "client": 20.01}, "threads client"),
        ("threads client chain", {"threads": 20.0, "client": 60.0, "chain": 40.0},
         "client chain threads"),
        # A bound keeps its place among them, but is not before a larger saving.
        ("threads client chain", {"threads": 20.0, "chain": 60.0}, "chain client threads"),
        ("client threads", {"threads": 60.0}, "threads client"),
        ("client threads spill", {"threads": 20.0, "spill": 60.0}, "spill client threads"),
        # What saves little, or nothing, comes after all others.
        ("threads client chain", {"threads": 9.0, "chain": 30.0}, "chain client threads"),
        ("threads client", {"threads": -10.0}, "client threads"),
        # What went wrong stays first, and notices stay last.
        ("failed lost threads", {"failed": 5.0, "threads": 90.0}, "failed lost threads"),
        ("lost chain threads gaps", {"chain": 2.0}, "lost threads chain gaps"),
    ],
)  # fmt: skip
def test_diagnoses_are_in_the_order_of_what_was_saved(
    found: str, saved: dict[str, float], expected: str
) -> None:
    bounds = [Diagnosis(kind, "train", 50.0, f"{kind}: can save", "", "") for kind in found.split()]
    measured = {(kind, "train"): ("without it", took) for kind, took in saved.items()}
    assert [(one.kind, one.seconds, one.experiment) for one in ranked(bounds, measured, 100.0)] == [
        (kind, max(0.0, saved.get(kind, 50.0)), "without it" if kind in saved else None)
        for kind in expected.split()
    ]


@pytest.mark.parametrize("kind", ["threads", "chain", "long_task", "restricted", "client"])
def test_the_title_of_a_measured_cause_has_no_estimate(kind: str) -> None:
    words = {"span": "train", "what": "3 tasks of fit: x", "took": "2 s"}
    one = Diagnosis(kind, "train", 2.0, KINDS[kind].title.format(**words), "", "")
    (got,) = ranked([one], {(kind, "train"): ("a change", 1.5)}, 8.0)
    assert "can save" not in got.title
    assert one.title.startswith(got.title)
    assert ("can save" in one.title) == (got.title != one.title)
    assert got.saving == "Measured by replay, a change: 1.50 s less."
    # The truth can be more: two causes can share seconds, of which only one of them has them.
    assert one.saving == "The cure can save about 2.00 s."


def test_threads_of_paused_workers_are_there() -> None:
    root = run(no_worker=4.0, compute=4.0).roots["train"]
    assert (root.present, replace(root, paused=4.0).present) == (8.0, 4.0)


@pytest.mark.parametrize(
    ("open_", "said"), [(["fit"], "It is fit."), (["fit", "load"], "They are fit, load.")]
)
def test_open_spans_are_named_in_a_sentence(open_: list[str], said: str) -> None:
    """On the page, the next step follows on the same line."""
    (found,) = [one for one in diagnose(given(run(**BUSY), open=open_)) if one.kind == "open"]
    assert found.evidence == said
