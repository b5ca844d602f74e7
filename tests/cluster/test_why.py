"""`dask_otel.why` on real clusters: histories whose answer is known."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, Event, LocalCluster, Status, get_client, secede, span, wait

import dask_otel
from dask_otel import Reason, _wire
from dask_otel._dask import present
from dask_otel._dask.present import MOST
from dask_otel.cli import main
from dask_otel.semconv import PATH_PARTS
from tests.environment import OFF
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("nothing is exported; answers are compared with what was arranged"),
]

SETTINGS = {"environment": OFF}


class SlowToSend:
    """Takes its time when it is pickled."""

    def __reduce__(self) -> Any:
        time.sleep(2)
        return SlowToSend, ()


def gated(name: str, *_: Any) -> str:
    Event(name, client=get_client()).wait()
    return name


def apart(name: str) -> None:
    secede()
    gated(name)


def same(*values: Any) -> int:
    return len(values)


def fail() -> None:
    raise ValueError("no\x1b[31m\nway")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=":0"
    ) as local:
        yield local


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        assert dask_otel.register(client, SETTINGS) == "started"
        Event("go", client=client).clear()
        yield client
        Event("go", client=client).set()
        dask_otel.unregister(client)
    eventually(lambda: not cluster.scheduler.tasks, what="nothing is left")


@pytest.fixture
def addresses(client: Client) -> list[str]:
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def told(client: Client, asked: Any, *expected: tuple[str, str]) -> tuple[Reason, ...]:
    """Wait until the reasons have these kinds and say this; return them."""

    def answer() -> tuple[Reason, ...]:
        reasons = dask_otel.why(client, asked).reasons
        assert [one.kind for one in reasons] == [kind for kind, _ in expected], reasons
        assert all(text in one.what for one, (_, text) in zip(reasons, expected, strict=True))
        return reasons

    return eventually(answer, 30, str(expected))


def test_a_chain_leads_to_the_task_that_holds_it_up(client: Client, addresses: list[str]) -> None:
    began = time.time()
    slow = client.submit(gated, "go", key="slow-1", workers=addresses[0])
    before = client.submit(same, slow, key=("before", 0))
    after = client.submit(same, before, client.submit(same, 1, key="quick-1"), key="after-1")
    executing = ("executing", f"executing on {addresses[0]} for ")
    # Not the dependency that is done.
    chain = (
        "1 of 2: ('before', 0) (waiting). Tasks before it that are ready or at work: 1, most "
        "urgently slow-1, at depth 2."
    )
    _, running = told(client, after, ("dependencies", chain), executing)
    assert (running.name, running.state, running.worker) == ("slow-1", "processing", addresses[0])
    assert 0 < (running.seconds or 0) <= time.time() - began
    # The text of a key is a key.
    said = f"1 of 1: slow-1 (processing on {addresses[0]} for "
    told(client, "('before', 0)", ("dependencies", said), executing)


def test_long_chains_and_wide_fans_are_visited_in_part(client: Client) -> None:
    future = gate = client.submit(gated, "go", key="gate-1")
    wide = client.submit(same, client.map(same, [gate] * 2000, pure=False), key="wide-1")
    fan = (
        ", and 1,995 more. Tasks before it that are ready or at work: 1. The most urgent is gate-1"
    )
    told(client, wide, ("dependencies", fan), ("executing", ""))
    for index in range(MOST + 50):
        future = client.submit(same, future, key=f"link-{index}")
    told(client, "link-100", ("dependencies", "at depth 101"), ("executing", ""))
    told(client, future, ("dependencies", f"visited ({MOST})"))


def test_restrictions_that_no_worker_meets(client: Client) -> None:
    resources = client.submit(same, resources={"GPU": 2})
    told(client, resources, ("restrictions", "asks for GPU = 2 (the most on a worker: 0)"))
    nowhere = client.submit(same, 2, workers="nobody-here")
    told(client, nowhere, ("restrictions", "asks for a worker at nobody-here."))


def test_queued_behind_threads_that_are_busy(client: Client) -> None:
    futures = client.map(gated, ["go"] * 50, pure=False)
    told(client, futures[0], ("executing", ""))
    ahead = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.queued)) - 1
    # The others were sent, one more than it has threads to each worker.
    said = (
        f"behind {ahead} others; tasks in the queue: {ahead + 1}. The running workers (2 of 2, "
        f"threads: 2) are busy: {50 - ahead - 1} of gated."
    )
    told(client, futures[-1], ("no free thread", said))


def test_paused_workers(client: Client, addresses: list[str]) -> None:
    async def become(status: Status, dask_worker: Any) -> None:
        dask_worker.status = status

    busy = client.submit(gated, "go", workers=addresses[0])
    told(client, busy, ("executing", ""))
    sent = client.submit(same, 3, workers=addresses[0])
    told(client, sent, ("worker busy", "threads (1) execute 1 of gated, the longest for "))
    client.run(become, Status.paused, workers=addresses[:1])
    told(client, sent, ("worker paused", f" ago to {addresses[0]}, which begins no task"))
    told(client, busy, ("executing", ""))
    later = client.submit(same, 4, workers=addresses[0])
    told(client, later, ("workers not running", f"take no tasks: {addresses[0]} (paused)"))
    client.run(become, Status.paused, workers=addresses[1:])
    queued = client.map(same, range(50), pure=False)[-1]
    reason, *_ = told(client, queued, ("workers not running", " (paused), tcp://"))
    assert reason.state == "queued"
    client.run(become, Status.running)


def test_a_silent_worker_is_the_most_urgent(client: Client, addresses: list[str]) -> None:
    futures = [client.submit(gated, "go", where, workers=where) for where in addresses]
    both = client.submit(same, futures)
    told(client, both, ("dependencies", ""), ("executing", ""), ("executing", ""))
    pid = client.run(os.getpid)[addresses[1]]
    os.kill(pid, signal.SIGSTOP)
    try:
        silent = ("worker silent", f" ago to {addresses[1]}, whose last")
        told(client, both, ("dependencies", ""), silent, ("executing", addresses[0]))
    finally:
        os.kill(pid, signal.SIGCONT)


def test_fetching_from_a_worker(client: Client, addresses: list[str]) -> None:
    data = client.submit(SlowToSend, workers=addresses[0])
    wait(data)
    user = client.submit(same, data, workers=addresses[1])
    told(client, user, ("fetching", f"1 of 1, from {addresses[0]} (running)"))
    told(client, user, ("done", f"result is on {addresses[1]}."))


def test_a_task_apart_and_tasks_that_have_ended(client: Client, addresses: list[str]) -> None:
    told(client, client.submit(apart, "go"), ("seceded", ""))
    failed = client.submit(fail, key="fail-1")
    error = "ValueError('no\\x1b[31m\\nway')"
    told(client, client.submit(same, failed), ("dependency failed", f"fail-1 failed: {error}"))
    told(client, failed, ("failed", error))
    gone = client.submit(same, 5, key="gone-1", workers=addresses[0])
    told(client, gone, ("done", f"result is on {addresses[0]}."))
    kept = client.submit(same, gone)
    wait(kept)
    # A failed try above keeps it alive, in its traceback.
    gone.release()
    told(client, "gone-1", ("released", "no client wants one"))
    told(client, "nobody\x1b", ("unknown", ""))


def test_a_span_by_id_and_by_name(client: Client) -> None:
    with span("train"), span("lo/ad") as loading:
        gate = client.submit(gated, "go", key="gate-2")
        last = client.map(same, [gate] * 3, pure=False)
    with span("train"), span("use"):
        used = client.submit(same, last, key="use-1")
    for asked in (loading, "train/lo\\/ad"):
        said = ("unfinished", "not done: 1 processing, 3 waiting.")
        first, second = told(client, asked, said, ("executing", ""))
        assert (first.name, first.state, second.name) == ("train/lo\\/ad", "span", "gate-2")
    # It has no task at work, but the group that it depends on has.
    _, second = told(client, "train/use", ("unfinished", ": 1 waiting."), ("executing", ""))
    assert second.name == "gate-2"
    Event("go", client=client).set()
    assert used.result() == 1
    told(client, loading, ("no unfinished task", "No task is left to do"))


def test_a_text_of_megabytes_is_no_name_of_a_span(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client refuses it; the scheduler does not split it either."""
    split: list[int] = []

    def tags_of(name: str) -> tuple[str, ...]:
        split.append(len(name))
        return ()

    monkeypatch.setattr(present, "span_tags", tags_of)
    for text in ("train/load", "a/" * 500_000):
        answer = client.run_on_scheduler(_wire.why, asked=(text,))
        assert answer.reasons[0].kind == "unknown"
    assert split == [10]


def test_the_path_so_far_of_an_open_span(client: Client, capfd: Any) -> None:
    arguments = ["why", "--scheduler", client.cluster.scheduler_address, "fit"]
    with span("fit") as asked:
        wait(client.submit(time.sleep, 0.5, key="before-1"))
        time.sleep(0.5)
        wait(client.submit(time.sleep, 0.25, key="before-2"))
        gate = client.submit(gated, "go", key="gate-3")
        first, _ = told(client, asked, ("unfinished", "Its path so far: "), ("executing", ""))
        path = first.path or {}
        assert list(path) == list(PATH_PARTS)
        assert path["client"] >= 0.5
        assert path["compute"] >= 0.75
        # All of its time until the last task ended, which is not long ago.
        assert 1.25 <= sum(path.values()) <= 30
        later, _ = told(client, asked, ("unfinished", ""), ("executing", ""))
        assert later.path == path, "a question changes nothing"
        assert main(arguments) == 0
        assert re.search(
            r"path so far: .*compute \d+\.\d s.*; no task of it", capfd.readouterr().out
        )
        assert main([*arguments, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["reasons"][0]["path"] == path
        (task,) = dask_otel.why(client, gate).reasons
        assert task.path is None
        Event("go", client=client).set()
        wait(gate)
        told(client, asked, ("no unfinished task", "Its path so far: "))


def test_the_command(client: Client, capfd: Any) -> None:
    arguments = ["why", "--scheduler", client.cluster.scheduler_address, "cli-1"]
    future = client.submit(gated, "go", key="cli-1")
    told(client, future, ("executing", ""))
    assert main(arguments) == 0
    said = r"cli-1 \(processing\): executing\n  It has been executing on .*\n  next: Wait; .*\n"
    assert re.fullmatch(said, capfd.readouterr().out)
    assert main([*arguments[:-1], "nobody", "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["reasons"][0]["kind"] == "unknown"
    assert main([*arguments[:-1], "x" * 10_001]) == 1
    assert "at most 10,000 characters. Give it a future" in capfd.readouterr().err
    dask_otel.unregister(client)
    assert main(arguments) == 1
    assert "RuntimeError: dask-otel does not run on this scheduler: " in capfd.readouterr().err
