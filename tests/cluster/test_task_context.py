"""How the context of tasks, and the hook of clients, reach processes, and are taken back.

What they do there is shown in simulated time (`tests/simulated/test_callers.py`).
"""

from __future__ import annotations

import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

import dask_otel
from dask_otel.core import identity
from tests.cluster import tasks
from tests.cluster.processes import cluster
from tests.cluster.test_doctor import WITHOUT
from tests.environment import run
from tests.receiver import Receiver, receiver
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("forked"),
    pytest.mark.unreconciled("the bridge is stopped"),
]

HOOKED = {"execute": True, "actor_execute": True, "submit": True}
LEFT_ALONE = {"execute": False, "actor_execute": False, "submit": False}
#: What `tasks.plugins` finds by its ways: nothing where the package can't be imported.
NOTHING = ["dask-otel: WorkerPlugin"]
BROUGHT = ["dask-otel: TaskContextPlugin"]
PRELOADED = ["dask-otel-preload: TaskContextPlugin"]

CLIENT_ONLY = """
import sys
import dask
dask.config.set({"distributed.client.preload": ["dask_otel.preload"]})
from distributed import Client
import dask_otel
with Client(sys.argv[1]) as client, dask_otel.span("a", attributes={"b": 1}) as handle:
    assert client.submit(abs, -1).result() == 1
    assert hasattr(Client._graph_to_futures, "__wrapped__")
    dask_otel.trace_context(handle)
found = [n for n in sys.modules if n.startswith(("opentelemetry.sdk", "opentelemetry.exporter",
         "grpc", "requests", "dask_otel.scheduler", "dask_otel._otel.sdk", "dask_otel.pump"))]
print(found)
"""


def test_a_running_cluster_gets_it_and_is_left_as_it_was(tmp_path: Path) -> None:
    """One worker comes later, and has the preload by its nanny; on one the package is missing."""
    with receiver() as received, cluster(tmp_path, forked=True) as processes:
        scheduler = processes.start_scheduler(env={"DASK_OTEL__SPANS__LINGER": "100ms"})
        processes.start_worker("plain")
        without = processes.start_worker("without", "--preload", WITHOUT)
        with Client(processes.address) as client:
            client.wait_for_workers(2)

            def by_name(function: Any) -> dict[str, Any]:
                # Others may have come, or gone, between the two questions.
                answers, names = client.run(function), client.run(tasks.name_of)
                return {names[one]: answers[one] for one in answers.keys() & names.keys()}

            assert by_name(tasks.plugins) == {"plain": [], "without": []}
            config = {"environment": received.environ, "logs": {"inject": True}}
            assert dask_otel.register(client, config) == "started"
            # Its one worker shares no import.
            spawn = {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "spawn"}
            nanny = processes.start_worker(
                "nannied", "--preload-nanny", "dask_otel", nanny=True, env=spawn
            )
            there = {"plain": BROUGHT, "without": NOTHING, "nannied": sorted(BROUGHT + PRELOADED)}
            eventually(lambda: by_name(tasks.plugins) == there)
            # It says what it does, and by whose wish.
            assert nanny.output.count("Workers export nothing") == 1
            assert nanny.output.count("by this nanny's worker, too") == 1
            hooks = {"plain": HOOKED, "without": LEFT_ALONE, "nannied": HOOKED}
            assert by_name(tasks.hooked) == hooks
            found = {
                name: client.submit(tasks.current_by_default, workers=[name], key=name).result()
                for name in hooks
            }
            assert {name for name, ids in found.items() if ids is None} == {"without"}
            submitted_by_tasks(client)
            in_a_process_pool(client, received)
            assert run("-c", CLIENT_ONLY, processes.address).stdout == "[]\n"

            assert dask_otel.unregister(client) == "stopped"
            alone = {"plain": [], "without": [], "nannied": PRELOADED}
            # Each gives it back with its next heartbeat.
            eventually(lambda: by_name(tasks.plugins) == alone)
            assert by_name(tasks.hooked) == {**hooks, "plain": LEFT_ALONE}
            assert client.run_on_scheduler(brought) == []
            assert client.submit(tasks.current, "after", workers=["plain"]).result() is None
        # Dask logs with a traceback that it lost a connection, as to a script that ended: until the
        # next line that begins with a time.
        lost = r".*Batched Comm Closed.*\n(?:(?!\d{4}-).*\n)*"
        assert "Traceback" not in re.sub(lost, "", scheduler.output + without.output)


def brought(dask_scheduler: Any) -> list[str]:
    return [name for name in dask_scheduler.worker_plugins if name.startswith("dask-otel")]


def submitted_by_tasks(client: Client) -> None:
    """What a task submits from a worker's process has its context; a thread of its own has none."""
    with dask_otel.span("etl") as span_id:
        carrier = client.submit(tasks.nested_carrier, workers=["plain"], key="outer").result()
        assert client.submit(tasks.in_own_thread, workers=["plain"]).result() is None
    ids = identity.trace_id(span_id), identity.span_id(span_id)
    traceparent = f"00-{ids[0]:032x}-{ids[1]:016x}-01"
    assert carrier == {"traceparent": traceparent, "nested": "1"}


def add_pool(dask_worker: Any) -> int:
    spawn = multiprocessing.get_context("spawn")
    dask_worker.executors["processes"] = ProcessPoolExecutor(1, spawn)
    return os.getpid()


def remove_pool(dask_worker: Any) -> None:
    dask_worker.executors.pop("processes").shutdown()


def in_a_process_pool(client: Client, received: Receiver) -> None:
    """Documented as left out: of the context nothing gets there, and nothing breaks."""
    (plain,) = [address for address, name in client.run(tasks.name_of).items() if name == "plain"]
    pid = client.run(add_pool, workers=[plain])[plain]
    with dask_otel.span("pooled"):
        with dask.annotate(executor="processes", workers=["plain"]):
            futures = client.map(tasks.current, range(3))
            bad = client.submit(tasks.logs_and_fails, "as asked")
            process = client.submit(os.getpid)
        beside = client.submit(tasks.current_by_default, workers=["plain"], key="beside")
        assert client.gather(futures) == [None] * 3
        assert process.result() != pid
        with pytest.raises(ValueError, match="as asked"):
            bad.result()
        found = beside.result()
    client.run(remove_pool, workers=[plain])
    pooled = received.named("pooled")
    assert found == pooled.ids, "a task in a thread beside them has its context"
    counts = {k: pooled.attributes[f"dask.task.{k}count"] for k in ("", "memory.", "erred.")}
    assert counts == {"": 6, "memory.": 5, "erred.": 1}
    (failed,) = [s for s in received.spans if s.name == "logs_and_fails task"]
    assert failed.attributes["error.type"] == "ValueError"
