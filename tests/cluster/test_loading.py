"""Every way to load the bridge, and to take it off again."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from distributed import Scheduler, span
from distributed.spans import SpansSchedulerExtension

import dask_otel
from dask_otel.scheduler.plugin import NAME, OtelSchedulerPlugin, install
from tests.cluster.conftest import Start
from tests.simulated.tasks import inc
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


def wrapped(dask_scheduler: Any) -> set[str]:
    """Return the methods of the spans extension that something wraps."""
    return {"heartbeat", "observe_tasks"} & set(vars(dask_scheduler.extensions["spans"]))


@pytest.mark.unreconciled("work was done between two bridges")
def test_loading_twice_is_harmless_and_unloading_restores_everything(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """One bridge, one log line."""
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    twice = {"preload": ["dask_otel.preload", "dask_otel", "dask_otel.preload"]}
    with start(scheduler_kwargs=twice) as bridged:
        scheduler, client = bridged.scheduler, bridged.client
        extension, handlers = scheduler.extensions["spans"], scheduler.handlers
        plugins = [p for p in scheduler.plugins.values() if isinstance(p, OtelSchedulerPlugin)]
        assert (len(plugins), wrapped(scheduler)) == (1, {"observe_tasks"})
        assert handlers["heartbeat_worker"] != scheduler.heartbeat_worker
        assert [dask_otel.unregister(client) for _ in range(2)] == ["stopped", "absent"]
        assert not wrapped(scheduler)
        assert handlers["heartbeat_worker"] == scheduler.heartbeat_worker
        assert extension.heartbeat.__func__ is SpansSchedulerExtension.heartbeat
        assert extension.observe_tasks.__func__ is SpansSchedulerExtension.observe_tasks
        assert NAME not in scheduler.plugins
        with span("without the bridge"):
            assert client.submit(inc, 1, key="before").result() == 2
        # And again.
        assert (dask_otel.register(client), client.submit(inc, 2).result()) == ("started", 3)
        assert bridged.received.named("default")
        assert {s.name for s in bridged.received.spans if s.type == "span"} == {"default"}
        # Dask does not notify the plugin: the bridge notices it, and restores all as well.
        client.unregister_scheduler_plugin(NAME)
        eventually(lambda: not wrapped(scheduler))
    assert len([one for one in caplog.messages if "exports this scheduler" in one]) == 2


@pytest.mark.unreconciled("no bridge runs")
def test_it_can_be_switched_off(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """By the settings; or by the exporters' variables, which a registration says."""
    with start({"enabled": False}) as bridged:
        eventually(lambda: NAME not in bridged.scheduler.plugins)
        for name, value in (("TRACES_EXPORTER", "nobody"), ("SDK_DISABLED", "true")) * 2:
            config = {"enabled": True, "environment": {f"OTEL_{name}": value}}
            assert dask_otel.register(bridged.client, config) == "off"
        assert not wrapped(bridged.scheduler)
        assert bridged.client.submit(inc, 1).result() == 2
        # Each takes its plugins off the workers.
        assert bridged.scheduler.worker_plugins.keys() == {"shuffle"}
        eventually(lambda: not any(NAME in w.plugins for w in bridged.cluster.workers.values()))
    assert not bridged.received.requests
    wrong = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert ["OTEL_TRACES_EXPORTER names 'nobody'" in one for one in wrong] == [True] * 2


@pytest.mark.unreconciled("no bridge runs")
def test_a_scheduler_without_spans_runs_on(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> str:
        async with Scheduler(dashboard=False, dashboard_address=":0", extensions={}) as scheduler:
            return await install(scheduler)

    with caplog.at_level(logging.ERROR, "distributed.dask_otel"):
        assert asyncio.run(run()) == "off"
    assert "default extensions" in caplog.text
