"""Runs a case, and keeps its telemetry as a user's run does: in files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dask_otel.core.diagnosis import Diagnosis
from dask_otel.report.document import read_report
from dask_otel.whatif.graph import read_graphs
from tests.planted import means, processes, simulated, unseen
from tests.planted.case import Case
from tests.simulated.bridged import AS_USERS, Bridged

CASES = {**simulated.SEEN, **processes.SEEN}
UNSEEN = {**unseen.UNSEEN}
#: Kinds whose cures leave the tasks and the threads as they are.
BESIDE = (
    *("restricted", "uneven", "starting", "worker_loop", "pickle", "transfer", "scheduler"),
    *("graph", "client", "messages"),
)
#: Prefixes of tasks that block event loops: they are the cause.
COROUTINES = ("hog", "poll")


def judged(case: Case, folder: Path, *, replay: bool = False) -> tuple[list[Diagnosis], list[str]]:
    """Run a case, and return the diagnoses of its report, and their faults."""
    record(case, folder)
    (account,) = read_report(folder, replay=replay).accounts()
    said, faults = account.diagnoses, case.faults(account.diagnoses, account.seconds)
    # One of several roots can wait for others most of the time, and the client before all of them.
    promised = sum(one.seconds for one in said if one.kind not in ("held", "client"))
    if promised > account.seconds + 0.01 and not replay:
        faults.append(f"{promised:.3g} s are promised of {account.seconds:.3g} s")
    most = account.seconds - shortest(folder)
    faults += [
        f"{one.kind} promises {one.seconds:.3g} s, and its cure can save {most:.3g} s"
        for one in said
        if one.kind in BESIDE and one.span and one.seconds > most + 0.02 and not replay
    ]
    return said, faults


def shortest(folder: Path) -> float:
    """Return how long the recorded tasks of a single root take at least; 0.0 if unknown.

    They are the work of all threads, and the longest chain of tasks.
    """
    graph, *others = read_graphs(folder) or [None]
    if graph is None or others or any(one["came"] for one in graph.workers):
        return 0.0
    named = [(graph.prefixes[row.prefix], row) for row in graph.rows() if row.outcome == "m"]
    rows = [row for name, row in named if name not in COROUTINES]
    ends: dict[int, float] = {}
    for row in rows:
        ends[row.task] = row.seconds + max((ends.get(one, 0.0) for one in row.before), default=0.0)
    work = sum(row.seconds for row in rows) / sum(one["threads"] for one in graph.workers)
    return max(work, *ends.values(), 0.0)


def record(case: Case, folder: Path) -> None:
    """Run a case, and write its telemetry into a folder."""
    if case.real:
        processes.run(case, folder)
    else:
        simulate(case, folder)


def simulate(case: Case, folder: Path) -> None:
    """Run it in simulated time; the exports must agree with Dask's own numbers."""
    b = Bridged(
        otel={"files": {"path": str(folder)}, "environment": AS_USERS, "spans": {"linger": "2s"}},
        workers=case.workers,
        threads=case.threads,
        # Blocked event loops are diagnosed.
        config={"distributed.admin.tick.interval": "100ms", **case.config},
    )

    def program() -> Any:
        case.run(b.client, b.cluster)
        # The last heartbeats come in.
        time.sleep(2.5)

    try:
        b.run(program)
    finally:
        means.forget()
