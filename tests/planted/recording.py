"""Runs a case, and keeps its telemetry as a user's run does: in files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dask_otel.core.diagnosis import Diagnosis
from dask_otel.report.document import read_report
from tests.planted import means, processes, simulated, unseen
from tests.planted.case import Case
from tests.simulated.bridged import Bridged

#: As for a user: the receiver of `Bridged` gets all more often by default.
VARIABLES = {
    "OTEL_METRIC_EXPORT_INTERVAL": "10000",
    "OTEL_BSP_SCHEDULE_DELAY": "5000",
    "OTEL_BLRP_SCHEDULE_DELAY": "1000",
}
CASES = {**simulated.SEEN, **processes.SEEN}
UNSEEN = {**unseen.UNSEEN}


def judged(case: Case, folder: Path, *, replay: bool = False) -> tuple[list[Diagnosis], list[str]]:
    """Run a case, and return the diagnoses of its report, and their faults."""
    record(case, folder)
    (account,) = read_report(folder, replay=replay).accounts()
    said, faults = account.diagnoses, case.faults(account.diagnoses, account.seconds)
    # One of several roots can wait for others most of the time, and the client before all of them.
    promised = sum(one.seconds for one in said if one.kind not in ("held", "client"))
    if promised > account.seconds + 0.01 and not replay:
        faults.append(f"{promised:.3g} s are promised of {account.seconds:.3g} s")
    return said, faults


def record(case: Case, folder: Path) -> None:
    """Run a case, and write its telemetry into a folder."""
    if case.real:
        processes.run(case, folder)
    else:
        simulate(case, folder)


def simulate(case: Case, folder: Path) -> None:
    """Run it in simulated time; the exports must agree with Dask's own numbers."""
    b = Bridged(
        otel={"files": {"path": str(folder)}, "environment": VARIABLES, "spans": {"linger": "2s"}},
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
