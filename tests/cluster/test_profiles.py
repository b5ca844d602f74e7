"""Profiles of real processes: the planted line is the widest, and what is missing is said."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from distributed import get_worker, span

import dask_otel
from dask_otel import semconv
from dask_otel._wire import Refusal, profile_loop
from dask_otel.cli import main
from dask_otel.core.profiles.pprof import Profile, SpanStacks, decoded
from dask_otel.core.profiles.stacks import TOPIC, Frame, Sampled, packed, unpacked
from dask_otel.worker.sampling import Sampler
from tests.cluster.conftest import Bridged, Start
from tests.waiting import eventually

# One process of the tests starts the server that forks workers.
pytestmark = pytest.mark.xdist_group("processes")


def timed(call: Callable[[], object]) -> tuple[str, float]:
    """Call a function of this file until it was sampled; return its name and its seconds."""
    worker: Any = get_worker()
    began, enough = time.perf_counter(), worker.samples + ENOUGH
    while worker.samples < enough:
        call()
    return call.__name__, time.perf_counter() - began


async def awaited(call: Callable[[], Any]) -> tuple[str, float]:
    """Await a function of this file until it was sampled; return its name and its seconds."""
    worker: Any = get_worker()
    began, enough = time.perf_counter(), worker.samples + ENOUGH
    while worker.samples < enough:
        await call()
    return call.__name__, time.perf_counter() - began


def count_samples(dask_worker: Any) -> None:
    """Let a worker count the looks of its sampler, which wait while the machine is busy."""
    taken = Sampler._sample

    def counted(self: Sampler, now: float) -> None:
        taken(self, now)
        dask_worker.samples += 1

    dask_worker.samples = 0
    Sampler._sample = counted  # type: ignore[method-assign]


def counts() -> None:
    total = 0
    for number in range(4_000_000):
        total += number * number


def naps() -> None:
    time.sleep(1.0)


def multiplies() -> None:
    import numpy

    matrix = numpy.ones((900, 900))
    for _ in range(4):
        matrix = matrix @ matrix / 900.0


def holds() -> None:
    # In C: no other thread of the process runs meanwhile, the sampler neither. Only the last call
    # of a task may go unseen.
    for _ in range(10):
        sum(range(2_000_000))


async def sleeps() -> None:
    await asyncio.sleep(1.0)


async def counts_on_loop() -> None:
    # A moment without `await`: nothing else runs on the worker's event loop.
    total = 0
    for number in range(4_000_000):
        total += number * number


#: The first of them can be before the function begins.
ENOUGH = 3
PLANTED = (counts, naps, multiplies, holds, sleeps, counts_on_loop)


@contextmanager
def profiled(start: Start, folder: Path, **more: Any) -> Any:
    config = {
        "files": {"path": str(folder)},
        "profiles": {"enabled": True},
        "spans": {"linger": "2s"},
    }
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": True}
    with start(config=config, **options, **more) as bridged:
        await_sampler(bridged)
        yield bridged


def await_sampler(cluster: Bridged) -> None:
    eventually(lambda: [*cluster.client.run(_samples).values()] == [True], what="the sampler")
    cluster.client.run(count_samples)


def _samples(dask_worker: Any) -> bool:
    plugin = dask_worker.plugins.get("dask-otel")
    return plugin is not None and plugin.hooks is not None and plugin.profiles is not None


def written(folder: Path, is_wanted: Callable[[Profile], bool]) -> Profile:
    """Wait for the only file of a folder, with a content that is wanted."""
    found = eventually(lambda: [*filter(is_wanted, profiles(folder))], what="the profile's file")
    return found[0]


def profiles(folder: Path) -> list[Profile]:
    return [decoded(path.read_bytes()) for path in folder.glob("*-profile.pb.gz")]


def is_complete(profile: Profile) -> bool:
    return bool(profile.about["complete"])


def leaves(one: SpanStacks) -> Counter[str]:
    """Seconds by the innermost function of this file."""
    found: Counter[str] = Counter()
    for stack, micros in one.stacks.items():
        ours = [frame.function for frame in stack if frame.file == "cluster/test_profiles.py"]
        found[ours[-1] if ours else ""] += micros / 1e6
    return found


def test_a_planted_line_is_the_widest_of_its_span(start: Start, tmp_path: Path) -> None:
    took: dict[str, Counter[str]] = {}
    with profiled(start, tmp_path) as cluster:
        places = cluster.bridge.hand_over._pump.profiles._store._of

        def samples_come(span_id: str) -> None:
            eventually(lambda: span_id in places, what="its samples")

        with dask_otel.span("root"):
            for call in PLANTED:
                with span(call.__name__) as span_id:
                    took[call.__name__] = _took(cluster, call, 2)
                    # It is open until they are there, however late.
                    samples_come(span_id)
            # Its samples come when it has ended.
            with span("late") as late:
                cluster.client.submit(int).result()
            eventually(lambda: late not in cluster.bridge.adapter.lifecycle.open, what="its end")
            cluster.client.run(sends, late)
            samples_come(late)
            # Two spans that share a function.
            with span("both") as span_id:
                took["both"] = _took(cluster, counts, 1) + _took(cluster, naps, 2)
                samples_come(span_id)
        spans = cluster.exported().spans
        profile = written(tmp_path, is_complete)
    assert profile.about["root"] == "root"
    assert (profile.about["left_out"], profile.about["cut_off"]) == (0, [])
    assert {one.name.rpartition("/")[2] for one in profile.spans} == {*took, "late"}
    for one in profile.spans:
        if one.dask_id == late:
            continue
        found, truth = leaves(one), took[one.name.rpartition("/")[2]]
        assert found.most_common(1)[0][0] == truth.most_common(1)[0][0], found
        assert {*truth} <= {*found}
        # On the span itself: its file, and how much of it was sampled, by Dask's own seconds.
        (exported,) = [it for it in spans if it.attributes.get(semconv.SPAN_ID) == one.dask_id
                       and it.type == "span"]  # fmt: skip
        attributes = exported.attributes
        assert (tmp_path / attributes[semconv.SPAN_PROFILE]).exists()
        sampled = one.stacks.total() / 1e6
        threads = (".thread-cpu", ".thread-noncpu", ".executor")
        # Asynchronous tasks have no thread: Dask has all their seconds as off the CPU.
        ran = sum(attributes.get(semconv.SPAN_ACTIVITY_TIME + end, 0.0) for end in threads)
        # What had come when it was exported.
        seconds = attributes[semconv.SPAN_PROFILE_TIME]
        assert 0 < seconds <= sampled + 1e-6
        # Both times are rounded to the microsecond.
        exact = pytest.approx(seconds / ran, abs=2e-6 / ran)
        share = attributes.get(semconv.SPAN_PROFILE_COVERAGE)
        # After a stall of the machine, one sample can stand for more than all tasks ran.
        assert share == exact if share is not None else seconds > ran
        # The line itself, which the test reads in its own source.
        inner = max(one.stacks, key=one.stacks.__getitem__)[-1]
        if inner.file == "cluster/test_profiles.py":
            source = Path(__file__).read_text().splitlines()[inner.at - 1]
            words = ("total +=", "range", "sleep", "@", "sum(")
            assert any(word in source for word in words), inner


def sends(span_id: str, dask_worker: Any) -> None:
    """Send a sample of a span."""
    (message,) = packed([Sampled(span_id, (Frame("int"),), 1, 20_000)], 1)
    dask_worker.log_event(TOPIC, message)


def _took(cluster: Bridged, call: Callable[[], object], tasks: int) -> Counter[str]:
    # Each task has a group of its own: a group belongs to one span. Dask leaves out a last part.
    keys = [f"{call.__name__}_{uuid4().hex}" for _ in range(tasks)]
    run = awaited if inspect.iscoroutinefunction(call) else timed
    found: Counter[str] = Counter()
    for name, seconds in cluster.client.gather(cluster.client.map(run, [call] * tasks, key=keys)):
        found[name] += seconds
    return found


def waits(folder: str) -> None:
    """Wait as long as the file of this process is the newest: until another process runs it."""
    own = Path(folder) / str(os.getpid())
    own.touch()
    while len([*Path(folder).iterdir()]) == 1:
        time.sleep(0.01)


def test_a_killed_worker_is_named_and_the_last_samples_come_before_the_bridge_goes(
    start: Start, tmp_path: Path, capsys: Any
) -> None:
    """Meanwhile, the file is what a killed scheduler would leave, and says so."""
    folder, ours = tmp_path / "files", tmp_path / "ours"
    ours.mkdir()
    with profiled(start, folder) as cluster:
        (address,) = cluster.scheduler.workers
        with dask_otel.span("root"):
            with span("first"):
                _took(cluster, naps, 2)

            def has_first(profile: Profile) -> bool:
                (first,) = [one for one in profile.spans if one.name == "root/first"]
                return leaves(first).most_common(1)[0][0] == "naps"

            left = written(folder, has_first)
            with span("second"):
                # Samples of this task may come, and be written, or not.
                future = cluster.client.submit(waits, str(ours))
                (pid,) = eventually(lambda: [*ours.iterdir()], what="the task")
                assert main(["profile", str(folder)]) == 0
                os.kill(int(pid.name), signal.SIGKILL)
                future.result()
        profile = written(folder, is_complete)
        await_sampler(cluster)
        with dask_otel.span("later"):
            took = _took(cluster, naps, 2)
            assert dask_otel.unregister(cluster.client) == "stopped"
            (later,) = [one for one in profiles(folder) if one.about["root"] == "later"]
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "root had not ended when its profile was written: the rest is missing."
    assert (left.about["root"], left.about["complete"]) == ("root", False)
    assert profile.about["cut_off"] == [address]
    assert has_first(profile)
    assert (later.about["complete"], later.about["cut_off"]) == (True, [])
    # Of the last moment of each task there may be no sample.
    assert leaves(later.spans[0])["naps"] > 0.5 * took["naps"]


def has_naps(profile: Profile) -> bool:
    return leaves(profile.spans[0])["naps"] > 0


def test_a_profile_says_that_nobody_read_the_last_samples(start: Start, tmp_path: Path) -> None:
    folder, ours = tmp_path / "files", tmp_path / "ours"
    ours.mkdir()
    with profiled(start, folder) as cluster, dask_otel.span("root"):
        (address,) = cluster.scheduler.workers
        _took(cluster, naps, 2)
        written(folder, has_naps)
        future = cluster.client.submit(waits, str(ours))
        (pid,) = eventually(lambda: [*ours.iterdir()], what="the task")
        # Dask takes the plugin from the bridge, which does not know.
        cluster.client.unregister_scheduler_plugin("dask-otel")
        profile = written(folder, is_complete)
        # It never ends: the bridge would not have its seconds.
        future.cancel()
        os.kill(int(pid.name), signal.SIGKILL)
    assert profile.about["cut_off"] == [address]


def blocks(dask_scheduler: Any) -> None:
    began = time.perf_counter()
    while time.perf_counter() - began < 0.1:
        sum(range(100))


def test_an_event_loop_is_sampled_on_request(start: Start, capsys: Any) -> None:
    with start() as cluster:
        client, answers = cluster.client, list[Any]()
        asked = threading.Thread(
            target=lambda: answers.append(client.run_on_scheduler(profile_loop, seconds=1.0))
        )
        asked.start()
        refused = None
        while asked.is_alive():
            client.run_on_scheduler(blocks)
            refused = refused or client.run_on_scheduler(profile_loop, seconds=0.0)
        assert isinstance(refused, Refusal)
        (blobs,) = answers
        found = [stack for blob in blobs for stack in unpacked(blob, [""])]
        # All of the time is there, and most of it is what blocked the loop.
        assert sum(one.micros for one in found) >= 999_000
        busy = Counter[bool]()
        for one in found:
            if one.stack[0].function == "busy":
                busy["blocks" in [frame.function for frame in one.stack]] += one.micros
        assert busy[True] > busy[False]
        assert {one.stack[0].function for one in found} <= {"busy", "idle"}
        address = cluster.cluster.scheduler_address
        for more in ([], ["--workers"]):
            assert main(["profile", "--scheduler", address, "--seconds", "0.2", *more]) == 0
            assert capsys.readouterr().out.startswith("event loops: ")
        # Nothing stays of it, and without `otel.profiles.enabled` tasks are not sampled.
        names = {"dask-otel-loop", "dask-otel-profiles"}
        eventually(
            lambda: not names & {one.name for one in threading.enumerate()},
            what="the end of the threads",
        )
        (worker, *_) = cluster.cluster.workers.values()
        assert not _samples(worker)
        assert cluster.bridge.wired.pump.profiles is None
