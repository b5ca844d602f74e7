"""Idle and lost seconds on real processes, one of which is killed.

Exact figures are in `tests/simulated/test_idle.py`. Here the tasks note when they ran, and no idle
second may be one of theirs.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from distributed import span, wait

from tests.cluster.conftest import Start
from tests.cluster.truth import described_spans
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


def noted(folder: str, number: int) -> None:
    """Run for a second at least, and note for how long."""
    began = time.time()
    time.sleep(1.0)
    path = Path(folder) / f"{number}-{os.getpid()}"
    path.write_text(str(time.time() - began))


def test_no_idle_second_is_one_that_a_task_has_used(start: Start, tmp_path: Path) -> None:
    with start(n_workers=2, threads_per_worker=2, processes=True) as bridged:
        client = bridged.client
        pids = client.run(os.getpid)
        with span("work") as span_id:
            futures = client.map(noted, [str(tmp_path)] * 12, range(12), key="noted")
            victim, seen = next(iter(pids)), bridged.bridge.adapter.task_events.under_way.seen
            eventually(lambda: seen, what="a heartbeat that lists a run")
            os.kill(pids[victim], signal.SIGKILL)
            wait(futures)
        # Of its successor, too.
        eventually(lambda: len(bridged.scheduler.workers) == 2, what="a new worker")
        received = bridged.exported()
        eventually(lambda: received.last("dask.cluster.inflight.time")[()] == 0, what="all is in")
        seconds = {
            dict(labels)["dask.activity"]: value
            for labels, value in received.last("dask.cluster.time").items()
        }
        described = client.run_on_scheduler(described_spans)[span_id]
        ran = sum(float(path.read_text()) for path in tmp_path.iterdir())
        there = 4 * (described["stop"] - described["enqueued"])
        assert seconds["idle"] <= there - ran
        assert seconds["lost"] > 0.0
        (exported,) = [one for one in received.spans if one.name == "work"]
        assert exported.attributes["dask.span.idle.time"] <= seconds["idle"]
