"""The Dask span of a task is the current OpenTelemetry span of the code in it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, span

import dask_otel
from dask_otel.core import identity
from tests.cluster import tasks
from tests.cluster.conftest import Bridged, Start
from tests.cluster.processes import cluster
from tests.receiver import receiver
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

MODULE = "dask_otel.preload"
HOOKED = {"execute": True, "actor_execute": True, "submit": True}
LEFT_ALONE = {"execute": False, "actor_execute": False, "submit": False}
#: What `tasks.plugins` finds where the package can't be imported, and on other workers.
NOTHING = ["dask-otel: WorkerPlugin"]
BROUGHT = ["dask-otel: TaskContextPlugin"]


def everywhere(client: Client) -> tuple[dict[str, Any], Any]:
    """Run user code in all places, and return what was current there, and the actor."""
    # The scheduler knows of these blocks: they do not end in a pause between two submissions.
    with dask_otel.span("outer"), dask_otel.span("etl"):
        with dask.annotate(executor="offload"):
            pool = client.submit(tasks.current, "pool")
        futures = {
            "thread": client.submit(tasks.current, "thread"),
            "async": client.submit(tasks.current_async, "async"),
            "pool": pool,
            "seceded": client.submit(tasks.seceded),
            "worker_client": client.submit(tasks.by_worker_client),
            "get_client": client.submit(tasks.by_get_client),
        }
        actor = client.submit(tasks.Counter, actor=True).result()
        friend = client.submit(tasks.Counter, actor=True, key="friend").result()
        found = client.gather(futures)
    # After the block, and from outside: an actor's methods belong to the span that created it.
    found["actor"] = [
        actor.when_made().result(),
        actor.sync().result(),
        actor.asynchronous().result(),
        actor.sync(separate_thread=False).result(),
        actor.other(friend).result(),
    ]
    with pytest.raises(ValueError, match="as asked"):
        actor.fails().result()
    return found, actor


def flat(found: Any) -> Iterator[Any]:
    for value in found:
        if isinstance(value, list):
            yield from value
        else:
            yield value


# Dask 2025.1 warns of itself where an actor calls another one.
@pytest.mark.filterwarnings("ignore:The `Worker.actors` attribute:FutureWarning")
@pytest.mark.options(n_workers=1, threads_per_worker=4)
def test_in_threads_async_tasks_nested_work_and_actors(bridged: Bridged) -> None:
    found, actor = everywhere(bridged.client)
    default = bridged.client.submit(tasks.current_by_default).result()
    parent, inside, after = bridged.client.submit(tasks.with_span_of_own).result()
    own_thread = bridged.client.submit(tasks.in_own_thread).result()
    by_run = bridged.client.run(tasks.current)
    del actor
    etl = bridged.received.named("etl").ids
    assert list(flat(found.values())) == [etl] * len(list(flat(found.values())))
    assert len(list(flat(found.values()))) == 15
    defaults = {(s.trace_id, s.span_id, 1) for s in bridged.exported().spans if s.name == "default"}
    assert default in defaults
    # The user's own span is a child, in the same trace, and gone when it is over.
    assert parent in defaults
    assert parent == after
    assert inside is not None
    assert inside[0] == parent[0]
    assert inside[1] != parent[1]
    # Documented as left out.
    assert own_thread is None
    assert set(by_run.values()) == {None}


def test_tasks_in_process_pools_run_without_a_context_and_are_counted(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Documented as left out: of the context nothing gets there, and nothing breaks."""
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
        start({"logs": {"inject": True}}, n_workers=1, threads_per_worker=2) as bridged,
    ):
        client = bridged.client
        (worker,) = bridged.cluster.workers.values()
        worker.executors["processes"] = pool
        with dask_otel.span("pooled"):
            with dask.annotate(executor="processes"):
                futures = client.map(tasks.current, range(3))
                bad = client.submit(tasks.logs_and_fails, "as asked")
                process = client.submit(os.getpid)
            beside = client.submit(tasks.current_by_default)
            assert client.gather(futures) == [None] * 3
            assert process.result() != os.getpid()
            with pytest.raises(ValueError, match="as asked"):
                bad.result()
            found = beside.result()
        del futures, bad, process, beside
        pooled = bridged.received.named("pooled").ids
        assert found == pooled, "a task in a thread beside them has its context"
        received = bridged.exported()
        (own,) = [s for s in received.spans if (s.trace_id, s.span_id, 1) == pooled]
        counts = {k: own.attributes[f"dask.task.{k}count"] for k in ("", "memory.", "erred.")}
        assert counts == {"": 6, "memory.": 5, "erred.": 1}
        (failed,) = [s for s in received.spans if s.name == "logs_and_fails task"]
        assert failed.attributes["error.type"] == "ValueError"
    assert not [r for r in caplog.records if "dask-otel" in r.getMessage() and r.levelno > 20]


@pytest.mark.options(n_workers=1)
def test_a_task_that_joins_another_span_s_group(bridged: Bridged) -> None:
    """Dask books it on that span, and no annotation says of which trace that is."""
    client = bridged.client
    with dask_otel.span("outer"), dask_otel.span("etl"):
        first = client.submit(tasks.current, "first")
        first.result()
        # Another thread has no annotations of this one's; the block keeps the span open.
        with ThreadPoolExecutor(1) as thread:
            outside = "outside of every span"
            joined = thread.submit(lambda: client.submit(tasks.current, outside).result())
        joined = joined.result()
    assert joined == first.result() == bridged.received.named("etl").ids


@pytest.mark.unreconciled("nothing is exported")
@pytest.mark.options({"workers": {"context": False}}, n_workers=1)
def test_it_can_be_switched_off(bridged: Bridged) -> None:
    assert bridged.client.submit(tasks.current_by_default).result() is None
    with dask.annotate(team="risk"):
        carried = bridged.client.submit(tasks.annotations, key="annotated").result()
    assert {name: value for name, value in carried.items() if "dask_otel" not in name} == {
        "team": "risk"
    }
    assert set(bridged.client.run(tasks.hooked).popitem()[1].values()) == {False}
    assert not bridged.client.run_on_scheduler(brought)


# ------------------------------------------------------------------- how it reaches workers


def blocked(folder: Path) -> dict[str, str]:
    """Return the environment of a worker on which the package can't be imported."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'dask_otel':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@pytest.mark.unreconciled("the bridge is stopped")
def test_a_running_cluster_gets_it_and_is_left_as_it_was(tmp_path: Path) -> None:
    """With a nannied worker that restarts between, and one where the package is not."""
    with receiver() as received, cluster(tmp_path) as dask_processes:
        dask_processes.start_scheduler(env={"DASK_OTEL__SPANS__LINGER": "100ms"})
        dask_processes.start_worker("plain")
        without = dask_processes.start_worker("without", env=blocked(tmp_path / "without"))
        dask_processes.start_worker("nannied", nanny=True)
        with Client(dask_processes.address) as client:
            client.wait_for_workers(3)

            def by_name(function: Any) -> dict[str, Any]:
                workers = client.scheduler_info()["workers"]
                return {workers[a]["name"]: found for a, found in client.run(function).items()}

            nothing: dict[str, list[str]] = {"plain": [], "without": [], "nannied": []}
            assert by_name(tasks.plugins) == nothing
            config = {"environment": received.environ}
            assert dask_otel.register(client, config) == "started"
            there = {"plain": BROUGHT, "without": NOTHING, "nannied": BROUGHT}
            eventually(lambda: by_name(tasks.plugins) == there)
            (nannied,) = [
                a for a, w in client.scheduler_info()["workers"].items() if w["nanny"] is not None
            ]
            assert client.restart_workers([nannied]) == {nannied: "OK"}
            eventually(lambda: by_name(tasks.plugins) == there)
            hooks = {"plain": HOOKED, "without": LEFT_ALONE, "nannied": HOOKED}
            assert by_name(tasks.hooked) == hooks
            found = {
                name: client.submit(tasks.current_by_default, workers=[name], key=name).result()
                for name in hooks
            }
            assert {name for name, ids in found.items() if ids is None} == {"without"}

            assert dask_otel.unregister(client) == "stopped"
            # Each gives it back with its next heartbeat.
            eventually(lambda: by_name(tasks.plugins) == nothing)
            assert by_name(tasks.hooked) == dict.fromkeys(hooks, LEFT_ALONE)
            assert client.run_on_scheduler(brought) == []
            assert client.submit(tasks.current, "after").result() is None
        assert "Traceback" not in without.output


def brought(dask_scheduler: Any) -> list[str]:
    return [name for name in dask_scheduler.worker_plugins if name.startswith("dask-otel")]


@pytest.mark.unreconciled("no bridge runs at first")
def test_by_the_preload_of_worker_or_nanny_and_never_twice(tmp_path: Path) -> None:
    preload = ("--preload", MODULE)
    with receiver() as received, cluster(tmp_path) as dask_processes:
        dask_processes.start_scheduler()
        nannies = [
            dask_processes.start_worker("by-worker", *preload, nanny=True),
            dask_processes.start_worker("by-nanny", "--preload-nanny", "dask_otel", nanny=True),
            dask_processes.start_worker(
                "by-both", "--preload", "dask_otel", "--preload-nanny", MODULE, nanny=True
            ),
        ]
        preloaded = ["dask-otel-preload: TaskContextPlugin"]
        with Client(dask_processes.address) as client:
            client.wait_for_workers(3)
            eventually(lambda: list(client.run(tasks.plugins).values()) == [preloaded] * 3)
            # Each says what it does.
            for nanny, said in zip(nannies, (0, 1, 1), strict=True):
                eventually(lambda nanny=nanny: nanny.output.count("Workers export nothing") == 1)
                assert nanny.output.count("by this nanny's worker, too") == said
            assert dask_otel.register(client, {"environment": received.environ}) == "started"
            eventually(
                lambda: (
                    list(client.run(tasks.plugins).values()) == [[*preloaded, *BROUGHT]] * 3
                    or list(client.run(tasks.plugins).values()) == [[*BROUGHT, *preloaded]] * 3
                )
            )
            # One hook: under it is Dask's own method.
            assert set(client.run(wrapped_by_dasks_own).values()) == {True}
            assert dask_otel.unregister(client) == "stopped"
            # Each gives it back with its next heartbeat.
            eventually(lambda: list(client.run(tasks.plugins).values()) == [preloaded] * 3)
            assert list(client.run(tasks.hooked).values()) == [HOOKED] * 3
            assert client.submit(tasks.current_by_default).result() is not None


def wrapped_by_dasks_own(dask_worker: Any) -> bool:
    own = vars(type(dask_worker))["execute"]
    return getattr(dask_worker.execute.__wrapped__, "__func__", None) is own


@pytest.mark.unreconciled("about what travels with nested work")
@pytest.mark.options(n_workers=1, threads_per_worker=2, processes=True)
def test_what_a_task_submits_from_a_worker_process_has_its_context(bridged: Bridged) -> None:
    with span("etl") as span_id:
        carrier = bridged.client.submit(tasks.nested_carrier, key="outer").result()
    ids = identity.trace_id(span_id), identity.span_id(span_id)
    traceparent = f"00-{ids[0]:032x}-{ids[1]:016x}-01"
    assert carrier == {"traceparent": traceparent, "nested": "1"}
