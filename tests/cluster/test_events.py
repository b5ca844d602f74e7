"""How processes of workers ended: only their nannies know. The rest is in simulated time."""

from __future__ import annotations

import os
import re
import signal
import time

import dask
import pytest

from dask_otel import semconv
from dask_otel._dask import events
from tests.cluster.conftest import Start
from tests.receiver import Log
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    # One process of the tests starts the server that forks workers.
    pytest.mark.xdist_group("processes"),
    pytest.mark.unreconciled("it looks at events, not at numbers"),
]

REASON = semconv.WORKER_REMOVAL_REASON

#: By a worker's end, the words about it; those of other signals are in `tests/unit`.
ENDS = {
    3: "Its process ended itself, with exit code 3.",
    -signal.SIGKILL: "Its process was killed with SIGKILL: by the kernel when memory ran out",
}


def leave(code: int) -> None:
    if code < 0:
        # It reaches another thread.
        os.kill(os.getpid(), -code)
        time.sleep(600)
    os._exit(code)


def hog() -> None:
    taken = []
    while True:
        taken.append(b"x" * 40_000_000)
        time.sleep(0.05)


def test_each_end_of_a_process_is_said(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        # However long a new process takes to start, its nanny stays.
        "distributed.deploy.lost-worker-timeout": "1 day",
        "distributed.scheduler.allowed-failures": 0,
        "distributed.worker.memory.terminate": 0.8,
    }
    workers = {"n_workers": 2, "processes": True, "memory_limit": "500 MB"}
    with dask.config.set(config), start(**workers) as bridged:
        received = bridged.received
        received.keeps = frozenset({"logs"})

        def said(name: str, number: int = 0) -> Log:
            """Wait for the event of that name and number."""

            def found() -> list[Log]:
                return [log for log in received.logs if log.name == name][number:]

            return eventually(found, what=name)[0]

        with monkeypatch.context() as patch:
            # The nanny says it as soon as it is asked.
            patch.setattr(events, "PATIENCE", 600.0)
            for number, (code, words) in enumerate(ENDS.items()):
                future = bridged.client.submit(leave, code, pure=False)
                log = said(semconv.WORKER_REMOVED, number)
                assert f"was lost: its connection dropped without notice. {words}" in log.body
                about = (log.attributes[REASON], log.attributes[semconv.WORKER_EXIT_CODE])
                assert about == ("lost", code)
                future.cancel()
                bridged.client.wait_for_workers(2)
        kept = bridged.client.scatter(bytes(5_000_000))
        (there,) = bridged.client.who_has([kept])[kept.key]
        future = bridged.client.submit(hog, workers=[there])
        log = said(semconv.WORKER_REMOVED, 2)
        assert log.attributes[REASON] == "memory"
        held = r"killed by its nanny: its process held \d.* of 477 MiB\."
        assert re.search(held, log.body)
        assert "Results there: `bytes` 4.8 MiB." in log.body
        kept.release()
        word, rss = said(semconv.WORKER_TERMINATED), log.attributes[semconv.WORKER_NANNY_MEMORY]
        assert "is being terminated by its nanny for memory" in word.body
        assert rss == word.attributes[semconv.WORKER_NANNY_MEMORY] > 0.8 * 500_000_000
        assert "memory limit is 477 MiB." in said(semconv.WORKER_ADDED).body
        future.cancel()
    assert received.logs[-1].name == semconv.SCHEDULER_CLOSING
