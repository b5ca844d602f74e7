"""Every attribute that the adapter relies on and Dask does not document is there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster, Nanny, span

from dask_otel._dask.facts import STATES
from dask_otel._dask.undocumented import BY_NAME, HANDLERS, UNDOCUMENTED

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def live() -> Iterator[dict[str, Any]]:
    """One live object of each class, while a task is in processing."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        with span("contract"):
            future = client.submit(time.sleep, 0.5)
        client.submit(int, 1).result()
        scheduler = cluster.scheduler
        task = scheduler.tasks[future.key]
        extension = scheduler.extensions["spans"]
        (worker,) = cluster.workers.values()
        yield {
            "Scheduler": scheduler,
            "Broker": scheduler._broker,
            "ClientState": scheduler.clients[client.id],
            "SpansSchedulerExtension": extension,
            "Span": extension.spans[task.group.span_id],
            "TaskGroup": task.group,
            "TaskState": task,
            "GraphNode": task.run_spec,
            "WorkerState": next(iter(scheduler.workers.values())),
            "Worker": worker,
            "Worker.TaskState": worker.state.tasks[future.key],
            "Worker.WorkerState": worker.state,
            "Nanny": client.sync(_nanny),
            "Client": client,
            "MemoryState": next(iter(scheduler.workers.values())).memory,
            "TaskPrefix": task.prefix,
            "RoutingApplication": scheduler.http_application,
        }


async def _nanny() -> Nanny:
    """A nanny that nobody has started: its attributes are those that it was made with."""
    return Nanny("tcp://127.0.0.1:1")


@pytest.mark.parametrize("name", UNDOCUMENTED)
def test_what_dask_does_not_document_is_there(live: dict[str, Any], name: str) -> None:
    instance = live[name]
    assert name.rpartition(".")[2] in [one.__name__ for one in type(instance).__mro__]
    assert UNDOCUMENTED[name], "nothing to check"
    missing = [attribute for attribute in UNDOCUMENTED[name] if not hasattr(instance, attribute)]
    assert not missing, (
        f"{name} of this distributed lacks {missing}: find what replaces it, and adapt _dask/"
    )


def test_every_class_is_checked(live: dict[str, Any]) -> None:
    assert UNDOCUMENTED.keys() == live.keys()
    assert all(name in UNDOCUMENTED[owner] for owner, name in BY_NAME)


@pytest.mark.parametrize("table", HANDLERS)
def test_handlers_that_are_wrapped_are_there(live: dict[str, Any], table: str) -> None:
    owner, _, name = table.partition(".")
    assert set(HANDLERS[table]) <= getattr(live[owner], name).keys()


def test_what_the_adapter_does_with_them_is_right(live: dict[str, Any]) -> None:
    scheduler, worker = live["Scheduler"], live["Worker"]
    assert {*STATES, "forgotten"} == set(live["TaskGroup"].states)
    # Threads by time: pairs of time and count.
    history = scheduler.total_nthreads_history
    assert [tuple(map(type, pair)) for pair in history] == [(float, int)] * len(history) != []
    # Where user code is hooked into.
    assert worker.handlers["actor_execute"] == worker.actor_execute
    assert {"plugin-add", "plugin-remove"} <= worker.handlers.keys()
    assert callable(worker.executors["actor"].submit)
    assert live["Worker.TaskState"].annotations["span"].keys() == {"name", "ids"}
    # Workers get the scheduler's plugins.
    assert scheduler.worker_plugins.keys() <= worker.plugins.keys()
    assert {type(plugin) for plugin in scheduler.worker_plugins.values()} == {bytes}
