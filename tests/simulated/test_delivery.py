"""How the worker plugin comes to the workers and leaves them: none holds up another one."""

from __future__ import annotations

import time
from typing import Any

import pytest
from distributed.diagnostics.plugin import WorkerPlugin

import dask_otel
from dask_otel import semconv
from dask_otel._dask.workers import delivery
from dask_otel.scheduler.workers import NAME
from dask_otel.worker.plugin import TaskContextPlugin
from tests.simulated.bridged import Bridged

OPTIONS: dict[str, Any] = {
    "workers": 3,
    "begins": False,
    "faults": True,
    "unreconciled": "it is about the workers' plugins",
}
pytestmark = pytest.mark.options(**OPTIONS)


def having(b: Bridged) -> set[str]:
    """Return which workers have the plugin."""
    return {name for name, worker in b.cluster.workers.items() if NAME in worker.plugins}


def test_one_that_stands_still_holds_up_nobody_and_keeps_nothing(b: Bridged) -> None:
    b.cluster.machines["w0"].stop(20)
    assert dask_otel.register(b.client) == "started"
    time.sleep(3)
    assert having(b) == {"w1", "w2"}
    b.cluster.add_worker("later")
    assert having(b) == {"w1", "w2", "later"}
    before = time.monotonic()
    assert dask_otel.unregister(b.client) == "stopped"
    assert time.monotonic() - before < delivery.FAREWELL + 1
    time.sleep(3)
    assert having(b) == set()
    time.sleep(30)
    assert having(b) == set()
    assert NAME not in b.scheduler.worker_plugins


@pytest.mark.parametrize("milliseconds", [0, 30, 90])
@pytest.mark.options(**OPTIONS, latency=0.02)
def test_a_bridge_that_goes_as_it_comes_takes_its_own_plugin_alone(
    b: Bridged, milliseconds: int
) -> None:
    """Whatever is on its way: the last bridge's plugin stays, or none."""
    b.cluster.machines["w0"].stop(milliseconds / 10)
    for _ in range(2):
        assert dask_otel.register(b.client) == "started"
        time.sleep(milliseconds / 1000)
        assert dask_otel.unregister(b.client) == "stopped"
    assert dask_otel.register(b.client) == "started"
    time.sleep(12)
    assert having(b) == {"w0", "w1", "w2"}
    assert dask_otel.unregister(b.client) == "stopped"
    time.sleep(12)
    assert having(b) == set()


def test_a_plugin_that_two_bridges_wait_to_remove_is_removed_once(
    b: Bridged, caplog: pytest.LogCaptureFixture
) -> None:
    b.cluster.heartbeats["w0"] = lambda: 5.0
    time.sleep(6)
    for _ in range(3):
        assert dask_otel.register(b.client) == "started"
        assert dask_otel.unregister(b.client) == "stopped"
    time.sleep(12)
    assert having(b) == set()
    assert not [one for one in caplog.records if one.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize("reachable", [True, False])
def test_an_error_of_one_is_counted_and_tried_again_where_it_was_not_reached(
    b: Bridged, monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    broadcast, setup, failed = b.scheduler.broadcast, TaskContextPlugin.setup, []

    def fails(what: Any, error: Exception) -> None:
        one = b.cluster.workers["w1"]
        # It is asked again after a second, and after two more.
        if what in (one, [one.address]) and len(failed) < (1 if reachable else 2):
            failed.append(1)
            raise error

    async def unreachable(*, workers: list[str], **more: Any) -> Any:
        fails(workers, OSError("no route"))
        return await broadcast(workers=workers, **more)

    def broken(plugin: TaskContextPlugin, worker: Any) -> None:
        fails(worker, RuntimeError("broken"))
        setup(plugin, worker)

    if reachable:
        monkeypatch.setattr(TaskContextPlugin, "setup", broken)
    else:
        monkeypatch.setattr(b.scheduler, "broadcast", unreachable)
    assert dask_otel.register(b.client) == "started"
    time.sleep(10)
    assert having(b) >= {"w0", "w2"}
    hooked = {name for name, worker in b.cluster.workers.items() if "execute" in vars(worker)}
    assert hooked == ({"w0", "w2"} if reachable else {"w0", "w1", "w2"})
    errors = b.received.last(semconv.OTEL_INTERNAL_ERRORS.name)
    assert errors[("dask.otel.kind", "worker context"),] == len(failed)
    assert dask_otel.unregister(b.client) == "stopped"
    assert having(b) == set()


def test_another_s_plugin_of_that_name_stays(b: Bridged) -> None:
    assert dask_otel.register(b.client) == "started"
    time.sleep(3)
    b.client.register_plugin(WorkerPlugin(), name=NAME)
    assert dask_otel.unregister(b.client) == "stopped"
    time.sleep(3)
    assert having(b) == {"w0", "w1", "w2"}
    assert NAME in b.scheduler.worker_plugins


def test_with_the_scheduler_nothing_is_taken_back(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dask_otel.register(b.client) == "started"
    time.sleep(3)
    b.cluster.machines["w0"].stop(20)
    monkeypatch.setattr(b.scheduler, "broadcast", None)
    before, adapter = time.monotonic(), b.bridge.adapter
    b.cluster.do("scheduler", b.scheduler.close)
    assert time.monotonic() - before < 10
    assert "worker context" not in adapter.boundary.take()


def test_a_worker_that_has_left_is_not_asked(b: Bridged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask would log an error, as at the end of each short program whose export is disabled."""
    asked = []

    async def broadcast(*, workers: list[str], **more: Any) -> Any:
        asked.extend(workers)
        return await original(workers=workers, **more)

    assert dask_otel.register(b.client) == "started"
    time.sleep(3)
    original, gone = b.scheduler.broadcast, b.cluster.workers["w0"].address
    monkeypatch.setattr(b.scheduler, "broadcast", broadcast)
    b.cluster.machines["w0"].stop(20)
    assert dask_otel.unregister(b.client) == "stopped"
    b.cluster.kill("w0")
    time.sleep(3)
    assert len(asked) == 2
    assert gone not in asked
