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
from tests.cluster.conftest import Bridged, Start
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


def inc(x: int) -> int:
    return x + 1


def wrapped(dask_scheduler: Any) -> set[str]:
    """Return the methods of the spans extension that something wraps."""
    return {"heartbeat", "observe_tasks"} & set(vars(dask_scheduler.extensions["spans"]))


def test_loading_twice_is_harmless(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """One bridge, one log line, one of each count."""
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    twice = {"preload": ["dask_otel.preload", "dask_otel", "dask_otel.preload"]}
    with start(scheduler_kwargs=twice) as bridged:
        plugins = [
            p for p in bridged.scheduler.plugins.values() if isinstance(p, OtelSchedulerPlugin)
        ]
        assert (len(plugins), bridged.client.submit(inc, 1).result()) == (1, 2)
        bridged.exported()
    lines = [r for r in caplog.records if "exports this scheduler" in r.getMessage()]
    assert len(lines) == 1


@pytest.mark.unreconciled("work was done between two bridges")
def test_unloading_restores_everything(bridged: Bridged) -> None:
    extension = bridged.scheduler.extensions["spans"]
    assert wrapped(bridged.scheduler) == {"observe_tasks"}
    handlers = bridged.scheduler.handlers
    assert handlers["heartbeat_worker"] != bridged.scheduler.heartbeat_worker
    assert (dask_otel.unregister(bridged.client), dask_otel.unregister(bridged.client)) == (
        "stopped",
        "absent",
    )
    assert not wrapped(bridged.scheduler)
    assert handlers["heartbeat_worker"] == bridged.scheduler.heartbeat_worker
    assert extension.heartbeat.__func__ is SpansSchedulerExtension.heartbeat
    assert extension.observe_tasks.__func__ is SpansSchedulerExtension.observe_tasks
    assert NAME not in bridged.scheduler.plugins
    with span("without the bridge"):
        assert bridged.client.submit(inc, 1, key="before").result() == 2
    # And again.
    assert (dask_otel.register(bridged.client), bridged.client.submit(inc, 2).result()) == (
        "started",
        3,
    )
    assert bridged.received.named("default")
    assert {s.name for s in bridged.received.spans if s.type == "span"} == {"default"}
    # Dask tells the plugin nothing: the bridge notices it, and restores all as well.
    bridged.client.unregister_scheduler_plugin(NAME)
    eventually(lambda: not wrapped(bridged.scheduler))


@pytest.mark.unreconciled("nothing is exported")
@pytest.mark.parametrize(
    ("config", "environ"), [({"enabled": False}, {}), ({}, {"OTEL_SDK_DISABLED": "true"})]
)
def test_it_can_be_switched_off(start: Start, config: Any, environ: Any) -> None:
    with start(config, environ) as bridged:
        eventually(lambda: NAME not in bridged.scheduler.plugins)
        assert not wrapped(bridged.scheduler)
        eventually(lambda: NAME not in bridged.scheduler.worker_plugins)
        eventually(lambda: not any(NAME in w.plugins for w in bridged.cluster.workers.values()))
        assert bridged.client.submit(inc, 1).result() == 2
    assert not bridged.received.requests


@pytest.mark.unreconciled("no bridge runs")
def test_a_registration_says_if_the_exporters_are_off(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Only they know the standard variables; each bridge takes its plugins off the workers."""
    with start({"enabled": False}) as bridged:
        for name, value in (("TRACES_EXPORTER", "nobody"), ("SDK_DISABLED", "true")) * 2:
            config = {"enabled": True, "environment": {f"OTEL_{name}": value}}
            assert dask_otel.register(bridged.client, config) == "off"
        assert bridged.client.submit(inc, 1).result() == 2
        assert bridged.scheduler.worker_plugins.keys() == {"shuffle"}
    wrong = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(wrong) == 2
    assert all("OTEL_TRACES_EXPORTER names 'nobody'" in one for one in wrong)


@pytest.mark.unreconciled("no bridge runs")
def test_a_scheduler_without_spans_runs_on(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> str:
        async with Scheduler(dashboard=False, dashboard_address=":0", extensions={}) as scheduler:
            return await install(scheduler)

    with caplog.at_level(logging.ERROR, "distributed.dask_otel"):
        assert asyncio.run(run()) == "off"
    assert "default extensions" in caplog.text
