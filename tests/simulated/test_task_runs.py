"""The records of single runs: what they say is what happened."""

from __future__ import annotations

import time
from pickle import dumps
from typing import Any

import pytest
from distributed import wait
from lab.programs import fail, flaky

from dask_otel import span
from dask_otel.core.records import FinishedTask
from dask_otel.core.traces.translate import translate
from tests.simulated.observed import QUICK, Simulated


def nap(seconds: float, *after: Any) -> bytes:
    time.sleep(seconds)
    return b"x" * 1000


def found(o: Simulated) -> dict[Any, FinishedTask]:
    o.quiet()
    (finished,) = o.exported
    tasks = {task.run.key: task for task in finished.tasks}
    assert len(tasks) == len(finished.tasks)
    return tasks


@pytest.mark.options(workers=1, threads=1, limits=QUICK)
def test_a_run_that_is_exported_for_the_path_says_all_that_others_say(o: Simulated) -> None:
    """Three of a group: one is the slowest, and another one ended last."""
    o.scheduler.WORKER_SATURATION = 1.0
    with span("path"):
        wait(o.client.map(nap, [1.0, 3.0, 2.0], key=[f"nap-{n}" for n in range(3)]))
    tasks = found(o)
    assert [task.run.seconds for task in tasks.values()] == pytest.approx([3.0, 2.0])
    assert [task.path is None for task in tasks.values()] == [True, False]
    for run in [task.run for task in tasks.values()]:
        assert (run.worker, run.attempt, run.type, run.nbytes) == ("w0", 1, "bytes", 1000)
    queued = {key: task.run.queued for key, task in tasks.items()}
    assert queued == pytest.approx({"nap-1": 1.0, "nap-2": 4.0}, abs=0.0021)
    sizes = [one.attributes.get("dask.task.output.size") for one in translate(o.exported[0])]
    assert sizes.count(1000) == 2


@pytest.mark.options(limits=QUICK)
def test_a_failure_that_a_client_has_retried_is_exported_as_a_failure_or_not_at_all(
    o: Simulated,
) -> None:
    """Another run ended after it, so it stays on the path."""
    with span("forgiven"):
        bad = o.client.submit(flaky, 0.5, key="fails")
        wait(bad)
        wait(o.client.submit(nap, 0.2, key="between"))
        bad.retry()
        wait(bad)
    o.quiet()
    (finished,) = o.exported
    assert finished.result == "success"
    runs = [task.run for task in finished.tasks if task.run.key == "fails"]
    assert sorted(run.attempt or 0 for run in runs) == [1, 2]
    assert {run.attempt: run.failure is None for run in runs} == {1: False, 2: True}


@pytest.mark.options(limits=QUICK, workers=0)
def test_a_run_of_an_earlier_generation_does_not_number_later_ones(o: Simulated) -> None:
    """Of a failure that is retried, and of a result that is computed again."""
    for name in ("gone", "stays"):
        o.cluster.add_worker(name, 1)
    with span("again"):
        bad = o.client.submit(fail, 0.5, key="fails", workers=["stays"])
        lost = o.client.submit(nap, 0.5, key="lost", workers=["gone"], allow_other_workers=True)
        wait([bad, lost])
    for _ in range(2):
        o.quiet()
        bad.retry()
        wait(bad)
    bad.retry()
    wait(bad)
    o.quiet()
    o.cluster.kill("gone")
    time.sleep(1.0)
    wait(lost)
    o.quiet()
    runs = [[(t.run.key, t.run.attempt) for t in one.tasks] for one in o.exported]
    assert [sorted(one) for one in runs] == [
        [("fails", 1), ("lost", 1)],
        [("fails", 1)],
        [("fails", 2)],
        [("lost", 1)],
    ]


@pytest.mark.options(limits=QUICK, within=1.0)
def test_the_times_of_another_run_become_no_span(o: Simulated) -> None:
    """Of a message that no end of a run has caused; Dask makes such ones for results it has."""
    o.is_derivable = False
    events = o.adapter.task_events
    with span("repeated"):
        future = o.client.submit(nap, 0.5, key="repeated")
        time.sleep(0.2)
        (address,) = {ws.address for ws in o.scheduler.workers.values() if ws.processing}
        times = {"action": "compute", "start": time.time() - 0.2, "stop": time.time()}
        assert "repeated" in events.ready
        message = {"nbytes": 8, "type": dumps(bytes), "typename": "bytes", "metadata": {}}
        message |= {"run_id": o.scheduler.tasks["repeated"].run_id, "thread": 1}
        o.scheduler.handle_task_finished(
            "repeated", address, "compute-task-1", startstops=[times], **message
        )
        wait(future)
    o.quiet()
    (finished,) = o.exported
    assert finished.path is not None
    assert len(finished.tasks) == 0
