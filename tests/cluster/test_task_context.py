"""The Dask span of a task is the current OpenTelemetry span of the code in it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, span

import dask_otel
from dask_otel.core import identity
from dask_otel.core.context import CARRIER_KEY, DECISION_KEY, STATE_KEY
from tests.cluster import tasks
from tests.cluster.conftest import Start
from tests.cluster.processes import Cluster, cluster
from tests.receiver import Receiver, receiver
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

MODULE = "dask_otel.preload"
HOOKED = {"execute": True, "actor_execute": True, "submit": True}
LEFT_ALONE = {"execute": False, "actor_execute": False, "submit": False}
#: What `tasks.plugins` finds on a worker to which the bridge brought it.
BROUGHT = ["dask-otel: TaskContextPlugin"]


def exported(received: Receiver, name: str) -> tasks.Ids:
    """Return the ids that the bridge exported for the only Dask span of that name."""
    received.wait_for(lambda r: [s for s in r.spans if s.type == "span" and s.name == name])
    (found,) = [s for s in received.spans if s.type == "span" and s.name == name]
    return found.trace_id, found.span_id, 1


def everywhere(client: Client) -> tuple[dict[str, Any], Any]:
    """Run user code in all places, and return what was current there, and the actor."""
    # Blocks that the scheduler is told of: they do not end in a pause between two submissions.
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
def test_in_threads_async_tasks_nested_work_and_actors(start: Start) -> None:
    with start(n_workers=1, threads_per_worker=4) as bridged:
        found, actor = everywhere(bridged.client)
        default = bridged.client.submit(tasks.current_by_default).result()
        parent, inside, after = bridged.client.submit(tasks.with_span_of_own).result()
        own_thread = bridged.client.submit(tasks.in_own_thread).result()
        by_run = bridged.client.run(tasks.current)
        del actor
        etl = exported(bridged.received, "etl")
        assert list(flat(found.values())) == [etl] * len(list(flat(found.values())))
        assert len(list(flat(found.values()))) == 15
        defaults = {
            (s.trace_id, s.span_id, 1) for s in bridged.exported().spans if s.name == "default"
        }
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
        pooled = exported(bridged.received, "pooled")
        assert found == pooled, "a task in a thread beside them has its context"
        received = bridged.exported()
        (own,) = [s for s in received.spans if (s.trace_id, s.span_id, 1) == pooled]
        counts = {k: own.attributes[f"dask.task.{k}count"] for k in ("", "memory.", "erred.")}
        assert counts == {"": 6, "memory.": 5, "erred.": 1}
        (failed,) = [s for s in received.spans if s.name == "logs_and_fails task"]
        assert failed.attributes["error.type"] == "ValueError"
    assert not [r for r in caplog.records if "dask-otel" in r.getMessage() and r.levelno > 20]


def test_over_separate_processes_without_the_sdk_on_workers(tmp_path: Path) -> None:
    """And what joins later, or again, has it as well."""
    with receiver() as received, cluster(tmp_path) as dask_processes:
        start_scheduler(dask_processes, received)
        first = dask_processes.start_worker("first", nthreads=4)
        with Client(dask_processes.address) as client:
            client.wait_for_workers(1)
            found, actor = everywhere(client)
            etl = exported(received, "etl")
            assert set(flat(found.values())) == {etl}
            assert set(client.run(tasks.modules, "dask_otel._otel.api.current").popitem()[1])
            heavy = ("opentelemetry.sdk", "dask_otel.scheduler.plugin")
            assert client.run(tasks.modules, *heavy).popitem()[1] == []
            # A later one, alone.
            del actor
            dask_processes.start_worker("later")
            # One that the scheduler knows may not have put on yet what came with the answer.
            eventually(lambda: list(client.run(tasks.plugins).values()) == [BROUGHT] * 2)
            first.terminate()
            eventually(lambda: len(client.scheduler_info()["workers"]) == 1)
            with span("later"):
                found = client.submit(tasks.current_by_default).result()
            assert found == exported(received, "later")


def test_a_task_that_joins_another_span_s_group(start: Start) -> None:
    """Dask books it on that span, and no annotation says of which trace that is."""
    with start(n_workers=1) as bridged:
        client = bridged.client
        with dask_otel.span("outer"), dask_otel.span("etl"):
            first = client.submit(tasks.current, "first")
            first.result()
            # Another thread has no annotations of this one's; the block keeps the span open.
            with ThreadPoolExecutor(1) as thread:
                outside = "outside of every span"
                joined = thread.submit(lambda: client.submit(tasks.current, outside).result())
            joined = joined.result()
        assert joined == first.result() == exported(bridged.received, "etl")


def start_scheduler(
    dask_processes: Cluster, received: Receiver, env: dict[str, str] | None = None
) -> None:
    dask_processes.start_scheduler(
        "--preload",
        "dask_otel.preload",
        env={
            **received.environ,
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "DASK_OTEL__SPANS__LINGER": "100ms",
            **(env or {}),
        },
    )


@pytest.mark.unreconciled("no bridge runs")
def test_what_the_scheduler_decides_wins_and_garbage_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing that a user writes into the annotations reaches his task, or stops it."""
    garbage = ["", "00-0-0-00", 7, None, ["a"], {"a": 1}, "x" * 100_000]
    with (
        LocalCluster(
            n_workers=1,
            processes=False,
            dashboard_address=":0",
            silence_logs=False,
            preload=["dask_otel.preload"],
        ) as local,
        Client(local) as client,
    ):
        with dask.annotate(**{DECISION_KEY: f"00-{5:032x}-{6:016x}-00"}):
            assert client.submit(tasks.current_by_default).result() == (5, 6, 0)
        with span("garbled") as span_id:
            futures = []
            for value in garbage:
                with dask.annotate(**{DECISION_KEY: value, CARRIER_KEY: value, STATE_KEY: value}):
                    futures.append(client.submit(tasks.current, pure=False))
            found = client.gather(futures)
        assert set(found) == {(identity.trace_id(span_id), identity.span_id(span_id), 1)}
        (worker,) = local.workers.values()
        # None is the same as no annotation.
        counted = worker.plugins["dask-otel-preload"].hooks.context.contexts.garbage
        # Each is judged alone; a tracestate is any text of some length.
        assert counted == {"decision": len(garbage) - 1, "state": 4}
    assert len([r for r in caplog.records if "annotations of a task" in r.getMessage()]) == 2


@pytest.mark.unreconciled("the bridge is taken off")
def test_what_somebody_wrapped_around_ours_stays(start: Start) -> None:
    with start(n_workers=1) as bridged:
        (worker,) = bridged.cluster.workers.values()
        ours = worker.execute

        async def theirs(key: Any, **kwargs: Any) -> Any:
            return await ours(key, **kwargs)

        worker.execute = theirs
        assert dask_otel.unregister(bridged.client) == "stopped"
        assert worker.execute is theirs
        eventually(lambda: tasks.hooked(worker) == {**LEFT_ALONE, "execute": True})
        assert bridged.client.submit(tasks.current_by_default).result() is None
        del worker.execute


@pytest.mark.unreconciled("nothing is exported")
def test_it_can_be_switched_off(start: Start) -> None:
    with start({"workers": {"context": False}}, n_workers=1) as bridged:
        assert bridged.client.submit(tasks.current_by_default).result() is None
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


def older(folder: Path, plugin: str | None = None) -> dict[str, str]:
    """Return the environment of a worker with another version of the package."""
    package = folder / "dask_otel"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0'\n")
    if plugin is not None:
        (package / "worker").mkdir()
        (package / "worker" / "__init__.py").touch()
        (package / "worker" / "plugin.py").write_text(plugin)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@pytest.mark.unreconciled("the bridge is taken off")
def test_workers_without_the_package_or_with_another_version_of_it(tmp_path: Path) -> None:
    """They start, they work, and their tasks have no context."""
    with receiver() as received, cluster(tmp_path) as dask_processes:
        start_scheduler(dask_processes, received)
        without = dask_processes.start_worker("without", env=blocked(tmp_path / "without"))
        before = dask_processes.start_worker("older", env=older(tmp_path / "older"))
        broken = dask_processes.start_worker(
            "broken", env=older(tmp_path / "broken", "raise RuntimeError('half installed')\n")
        )
        with Client(dask_processes.address) as client:
            client.wait_for_workers(3)
            nothing = ["dask-otel: WorkerPlugin"]
            eventually(lambda: list(client.run(tasks.plugins).values()) == [nothing] * 3)
            with span("bare"):
                futures = client.map(tasks.current, range(12), pure=False)
            assert set(client.gather(futures)) == {None}
            assert all(
                client.run(tasks.hooked)[worker] == LEFT_ALONE for worker in client.nthreads()
            )
            assert dask_otel.unregister(client) == "stopped"
            eventually(lambda: not any(client.run(tasks.plugins).values()))
        for process, said in ((without, ""), (before, ""), (broken, "half installed")):
            assert process.popen.poll() is None
            assert ("Traceback" in process.output) == bool(said)
            assert said in process.output


@pytest.mark.unreconciled("the bridge is taken off")
def test_a_running_cluster_gets_it_and_is_left_as_it_was(tmp_path: Path) -> None:
    """With a nannied worker that restarts between."""
    with receiver() as received, cluster(tmp_path) as dask_processes:
        dask_processes.start_scheduler(env={"DASK_OTEL__SPANS__LINGER": "100ms"})
        dask_processes.start_worker("plain")
        dask_processes.start_nanny("nannied")
        with Client(dask_processes.address) as client:
            client.wait_for_workers(2)
            assert set(map(tuple, client.run(tasks.plugins).values())) == {()}
            config = {"environment": received.environ}
            assert dask_otel.register(client, config) == "started"
            eventually(lambda: list(client.run(tasks.plugins).values()) == [BROUGHT] * 2)
            (nannied,) = [
                a for a, w in client.scheduler_info()["workers"].items() if w["nanny"] is not None
            ]
            assert client.restart_workers([nannied]) == {nannied: "OK"}
            eventually(lambda: list(client.run(tasks.plugins).values()) == [BROUGHT] * 2)
            assert list(client.run(tasks.hooked).values()) == [HOOKED] * 2
            assert client.submit(tasks.current_by_default).result() is not None

            assert dask_otel.unregister(client) == "stopped"
            # Each gives it back with its next heartbeat.
            eventually(lambda: set(map(tuple, client.run(tasks.plugins).values())) == {()})
            assert list(client.run(tasks.hooked).values()) == [LEFT_ALONE] * 2
            assert client.run_on_scheduler(brought) == []
            assert client.submit(tasks.current, "after").result() is None


def brought(dask_scheduler: Any) -> list[str]:
    return [name for name in dask_scheduler.worker_plugins if name.startswith("dask-otel")]


@pytest.mark.unreconciled("the bridge is taken off, and a worker stands still")
def test_a_worker_that_stands_still_holds_up_itself_alone(tmp_path: Path) -> None:
    with receiver() as received, cluster(tmp_path) as dask_processes:
        dask_processes.start_scheduler()
        still = dask_processes.start_worker("still")
        dask_processes.start_worker("other")
        with Client(dask_processes.address) as client:
            client.wait_for_workers(2)
            (address,) = [
                a for a, w in client.scheduler_info()["workers"].items() if w["name"] == "still"
            ]
            others = [a for a in client.nthreads() if a != address]
            config = {"environment": received.environ}
            still.popen.send_signal(signal.SIGSTOP)
            try:
                assert dask_otel.register(client, config) == "started"
                eventually(
                    lambda: client.run(tasks.plugins, workers=others) == {others[0]: BROUGHT}
                )
                assert client.submit(tasks.current_by_default, workers=others).result() is not None
                assert dask_otel.unregister(client) == "stopped"
                eventually(lambda: client.run(tasks.plugins, workers=others) == {others[0]: []})
                assert dask_otel.register(client, config) == "started"
            finally:
                still.popen.send_signal(signal.SIGCONT)
            # What was sent meanwhile, and taken back, and sent again.
            eventually(lambda: client.run(tasks.plugins) == {address: BROUGHT, others[0]: BROUGHT})
            assert dask_otel.unregister(client) == "stopped"
            eventually(lambda: client.run(tasks.plugins) == {address: [], others[0]: []})


@pytest.mark.unreconciled("no bridge runs at first")
def test_by_the_preload_of_worker_or_nanny_and_never_twice(tmp_path: Path) -> None:
    preload = ("--preload", MODULE)
    with receiver() as received, cluster(tmp_path) as dask_processes:
        dask_processes.start_scheduler()
        nannies = [
            dask_processes.start_nanny("by-worker", *preload),
            dask_processes.start_nanny("by-nanny", "--preload-nanny", "dask_otel"),
            dask_processes.start_nanny(
                "by-both", "--preload", "dask_otel", "--preload-nanny", MODULE
            ),
        ]
        preloaded = ["dask-otel-preload: TaskContextPlugin"]
        with Client(dask_processes.address) as client:
            client.wait_for_workers(3)
            eventually(lambda: list(client.run(tasks.plugins).values()) == [preloaded] * 3)
            # Each says what it does.
            for nanny, said in zip(nannies, (0, 1, 1), strict=True):
                eventually(lambda nanny=nanny: nanny.output.count("Nothing is exported from") == 1)
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
def test_what_a_task_submits_from_a_worker_process_has_its_context(start: Start) -> None:
    with start(n_workers=1, threads_per_worker=2, processes=True) as bridged:
        with span("etl") as span_id:
            carrier = bridged.client.submit(tasks.nested_carrier, key="outer").result()
        ids = identity.trace_id(span_id), identity.span_id(span_id)
        traceparent = f"00-{ids[0]:032x}-{ids[1]:016x}-01"
        assert carrier == {"traceparent": traceparent, "nested": "1"}
