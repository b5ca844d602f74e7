"""`dask_otel.why` in histories whose answer is known."""

from __future__ import annotations

import time
from typing import Any

import pytest
from distributed import span, wait

import dask_otel
from dask_otel import Reason, _wire
from dask_otel._dask import present
from dask_otel._dask.present import MOST
from dask_otel.lab.threads import burn
from dask_otel.semconv import PATH_PARTS
from tests.simulated.bridged import Bridged
from tests.simulated.tasks import apart, boom, nap

W0, W1 = "lab://w0", "lab://w1"

pytestmark = pytest.mark.options(threads=1)


def same(*values: Any) -> int:
    return len(values)


def answered(b: Bridged, asked: Any, *expected: tuple[str, str]) -> tuple[Reason, ...]:
    """Check that the reasons have these kinds and say this after the next heartbeat."""
    time.sleep(1.1)
    reasons = dask_otel.why(b.client, asked).reasons
    assert [one.kind for one in reasons] == [kind for kind, _ in expected], reasons
    assert all(text in one.what for one, (_, text) in zip(reasons, expected, strict=True)), reasons
    return reasons


def test_a_chain_leads_to_the_task_that_holds_it_up(b: Bridged) -> None:
    slow = b.client.submit(nap, 60, key="slow-1", workers=["w0"])
    both = b.client.submit(same, slow, key=("before", 0)), b.client.submit(same, 1, key="quick-1")
    after = b.client.submit(same, *both, key="after-1")
    # Not the dependency that is done.
    chain = (
        "1 of 2: ('before', 0) (waiting). Tasks before it that are ready or at work: 1. The "
        "most urgent is slow-1, at depth 2."
    )
    executing = ("executing", f"executing on {W0} for 1.1 s")
    _, running = answered(b, after, ("dependencies", chain), executing)
    about = (running.name, running.state, running.worker, running.seconds)
    assert about == ("slow-1", "processing", W0, pytest.approx(1.09))
    # The text of a key is a key.
    said = f"1 of 1: slow-1 (processing on {W0} for 2.2 s"
    answered(b, "('before', 0)", ("dependencies", said), ("executing", ""))


def test_long_chains_and_wide_fans_are_visited_in_part(b: Bridged) -> None:
    future = gate = b.client.submit(nap, 60, key="gate-1")
    wide = b.client.submit(same, b.client.map(same, [gate] * 2000, pure=False), key="wide-1")
    fan = (
        ", and 1,995 more. Tasks before it that are ready or at work: 1. The most urgent is gate-1"
    )
    answered(b, wide, ("dependencies", fan), ("executing", ""))
    for index in range(MOST + 50):
        future = b.client.submit(same, future, key=f"link-{index}")
    answered(b, "link-100", ("dependencies", "at depth 101"), ("executing", ""))
    answered(b, future, ("dependencies", f"visited ({MOST})"))


def test_restrictions_that_no_worker_meets(b: Bridged) -> None:
    answered(
        b,
        b.client.submit(same, resources={"GPU": 2}),
        ("restrictions", "asks for GPU = 2 (the most on a worker: 0)"),
    )
    answered(
        b,
        b.client.submit(same, 2, workers="nobody-here"),
        ("restrictions", "asks for a worker at nobody-here."),
    )
    # It is the most urgent one, also if others have waited longer.
    older = b.client.map(nap, [60] * 2, pure=False)
    time.sleep(1.0)
    nowhere = b.client.submit(same, 3, resources={"GPU": 2})
    both = b.client.submit(same, *older, nowhere)
    kinds = ("dependencies", "restrictions", "executing", "executing")
    answered(b, both, *[(kind, "") for kind in kinds])


def test_queued_behind_threads_that_are_busy(b: Bridged) -> None:
    futures = b.client.map(nap, [60] * 50, pure=False)
    answered(b, futures[0], ("executing", ""))
    # Two were sent to each worker, one more than it has threads.
    said = (
        "tasks before it: 45; tasks in the queue: 46. The running workers (2 of 2, threads: 2) are "
        "busy: 4 of nap."
    )
    answered(b, futures[-1], ("no free thread", said))


def test_tasks_that_are_submitted_in_a_loop_are_queued_in_its_order(b: Bridged) -> None:
    """They have one priority: the scheduler takes the oldest first."""
    futures = [b.client.submit(nap, 60, key=f"nap-{number}") for number in range(10)]
    time.sleep(0.1)
    assert len({b.scheduler.tasks[one.key].priority for one in futures}) == 1
    for number in (4, 9):
        said = f"tasks before it: {number - 4}; tasks in the queue: 6."
        answered(b, futures[number], ("no free thread", said))


def test_paused_workers(b: Bridged) -> None:
    busy = b.client.submit(nap, 60, workers=["w0"])
    answered(b, busy, ("executing", ""))
    sent = b.client.submit(same, 3, workers=["w0"])
    answered(b, sent, ("worker busy", "threads (1) execute 1 of nap, the longest for 2.2 s"))
    b.cluster.pause("w0", 60.0)
    answered(b, sent, ("worker paused", f"2.2 s ago to {W0}, which begins no task"))
    answered(b, busy, ("executing", ""))
    later = b.client.submit(same, 4, workers=["w0"])
    (reason,) = answered(b, later, ("workers not running", f"take no tasks: {W0} (paused)"))
    assert "dask_otel.held(client)" in reason.next_step
    b.cluster.pause("w1", 60.0)
    queued = b.client.map(same, range(50), pure=False)[-1]
    reason, *_ = answered(b, queued, ("workers not running", f" (paused), {W1} (paused)"))
    assert reason.state == "queued"


def test_a_silent_worker_is_the_most_urgent(b: Bridged) -> None:
    futures = [b.client.submit(nap, 60, name, workers=[name]) for name in ("w0", "w1")]
    both = b.client.submit(same, futures)
    answered(b, both, ("dependencies", ""), ("executing", ""), ("executing", ""))
    b.cluster.machines["w1"].stop(60.0)
    time.sleep(10.0)
    silent = ("worker silent", f" ago to {W1}, whose last heartbeat came 1")
    answered(b, both, ("dependencies", ""), silent, ("executing", W0))


def test_fetching_from_a_worker(b: Bridged) -> None:
    b.cluster.latency = lambda sender, receiver, message: (
        2.0 if type(message) is dict and message.get("data") else 0.0
    )
    data = b.client.submit(same, workers=["w0"])
    wait(data)
    user = b.client.submit(same, data, workers=["w1"])
    answered(b, user, ("fetching", f"1 of 1, from {W0} (running)"))
    wait(user)
    answered(b, user, ("done", f"result is on {W1}."))


def test_a_task_apart_and_tasks_that_have_ended(b: Bridged) -> None:
    answered(b, b.client.submit(apart, 60), ("seceded", ""))
    failed = b.client.submit(boom, key="fail-1")
    error = "ValueError('no\\x1b[31m\\nway')"
    answered(b, b.client.submit(same, failed), ("dependency failed", f"fail-1 failed: {error}"))
    answered(b, failed, ("failed", error))
    gone = b.client.submit(same, 5, key="gone-1", workers=["w0"])
    answered(b, gone, ("done", f"result is on {W0}."))
    kept = b.client.submit(same, gone)
    wait(kept)
    del gone
    answered(b, "gone-1", ("released", "no client wants one"))
    answered(b, "nobody\x1b", ("unknown", ""))


@pytest.mark.options(threads=1, unreconciled="a tag has a slash in it")
def test_a_span_by_id_and_by_name(b: Bridged) -> None:
    with span("train"), span("lo/ad") as loading:
        gate = b.client.submit(nap, 9, key="gate-2")
        last = b.client.map(same, [gate] * 3, pure=False)
    with span("train"), span("use"):
        used = b.client.submit(same, last, key="use-1")
    for asked in (loading, "train/lo\\/ad"):
        said = ("unfinished", "not done: 1 processing, 3 waiting.")
        first, second = answered(b, asked, said, ("executing", ""))
        assert (first.name, first.state, second.name) == ("train/lo\\/ad", "span", "gate-2")
    # It has no task at work, but the group that it depends on has.
    assert (
        answered(b, "train/use", ("unfinished", ": 1 waiting."), ("executing", ""))[1].name
        == "gate-2"
    )
    assert used.result() == 1
    answered(b, loading, ("no unfinished task", "No task is left to do"))


def test_a_text_of_megabytes_is_no_name_of_a_span(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client refuses it; the scheduler does not split it either."""
    split: list[str] = []
    monkeypatch.setattr(present, "span_tags", lambda name: split.append(name) or ())
    for text in ("train/load", "a/" * 500_000):
        answer = b.client.run_on_scheduler(_wire.why, asked=(text,))
        assert answer.reasons[0].kind == "unknown"
        assert ": unknown\n  The scheduler knows no task" in repr(answer)
        assert "(unknown)" not in repr(answer)
    assert split == ["train/load"]


@pytest.mark.options(threads=1, otel={"spans": {"linger": "10s"}})
def test_the_path_so_far_of_an_open_span(b: Bridged) -> None:
    with span("fit") as asked:
        wait(b.client.submit(nap, 0.5, key="before-1"))
        time.sleep(0.5)
        wait(b.client.submit(nap, 0.25, key="before-2"))
        gate = b.client.submit(nap, 9, key="gate-3")
        first, _ = answered(b, asked, ("unfinished", "Its path so far: "), ("executing", ""))
        # All of its time until the last task ended.
        known = {"client": 0.5, "compute": 0.75}
        assert first.path == pytest.approx({part: known.get(part, 0.0) for part in PATH_PARTS})
        later, _ = answered(b, asked, ("unfinished", ""), ("executing", ""))
        assert later.path == first.path, "a question changes nothing"
        assert dask_otel.why(b.client, gate).reasons[0].path is None
        wait(gate)
        answered(b, asked, ("no unfinished task", "Its path so far: "))


def test_an_open_span_has_its_diagnosis_so_far(b: Bridged) -> None:
    """Bob's tasks wait for two of Alice's, and two of his four have ended since."""
    with span("alice"):
        held = b.client.map(burn, [2.0] * 2, key=["alice-0", "alice-1"])
    with span("bob"):
        own = b.client.map(burn, [1.0] * 4, key=[f"bob-{number}" for number in range(4)])
    time.sleep(3.5)
    reason, *_ = dask_otel.why(b.client, "bob").reasons
    first, *others = reason.diagnosis
    # Until his first task began, the threads were Alice's.
    assert (first["kind"], first["seconds"]) == ("held", pytest.approx(2.0, abs=0.1))
    assert [one["kind"] for one in others] == ["threads"]
    assert first["title"] in reason.what
    wait(own + held)
    with span("carol") as carol:
        wait(b.client.submit(burn, 1.0, key="carol-0"))
    assert [one["kind"] for one in dask_otel.span_metrics(b.client, carol).diagnosis] == ["healthy"]


@pytest.mark.options(threads=4)
def test_a_long_task_is_compared_with_all_others_of_its_group(b: Bridged) -> None:
    """64 of them took longer than those that came later."""
    with span("train"):
        long = b.client.submit(burn, 30.0, key="fit-0")
        seconds = [0.2] * 64 + [0.1] * 200
        keys = [f"fit-{number}" for number in range(1, 1 + len(seconds))]
        others = b.client.map(burn, seconds, key=keys)
        last = b.client.submit(same, long, *others, key="last-0")
        wait(last)
        (reason, *_) = dask_otel.why(b.client, "train").reasons
    assert [one["kind"] for one in reason.diagnosis] == ["long_task"]
    assert reason.diagnosis[0]["evidence"] == "Others of fit took 124 ms on average."


@pytest.mark.options(
    workers=1,
    config={
        "distributed.scheduler.worker-saturation": "inf",
        "distributed.scheduler.work-stealing": False,
    },
)
@pytest.mark.parametrize(("workers", "kind"), [(None, "uneven"), (["w0"], "restricted")])
def test_an_open_span_waits_for_its_restrictions_only_if_it_has_some(
    b: Bridged, workers: Any, kind: str
) -> None:
    """All tasks are on one worker; another one that comes later has free threads."""
    with span("train"):
        futures = b.client.map(burn, [0.5] * 40, pure=False, workers=workers)
        time.sleep(0.3)
        b.cluster.add_worker("w1")
        time.sleep(5.0)
    reason, *_ = dask_otel.why(b.client, "train").reasons
    assert [one["kind"] for one in reason.diagnosis] == [kind]
    wait(futures)


@pytest.mark.options(threads=4, config={"distributed.scheduler.worker-saturation": 0.5})
def test_an_open_span_waits_on_the_queue_while_workers_get_too_few_tasks(b: Bridged) -> None:
    with span("train"):
        futures = b.client.map(burn, [0.5] * 48, pure=False)
        time.sleep(4.2)
    reason, *_ = dask_otel.why(b.client, "train").reasons
    assert [one["kind"] for one in reason.diagnosis] == ["queued"]
    wait(futures)
