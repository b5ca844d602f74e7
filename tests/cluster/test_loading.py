"""Every way to load the bridge, and to take it off again."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from pathlib import Path
from typing import Any

import dask
import pytest
import yaml
from distributed import Client, LocalCluster, Scheduler, Worker, span
from distributed.spans import SpansSchedulerExtension

import dask_otel
from dask_otel._otel.sdk import exporters
from dask_otel.scheduler.plugin import NAME, OtelSchedulerPlugin, install
from dask_otel.settings.keys import ConfigurationError
from dask_otel.worker.plugin import TaskContextPlugin
from tests.cluster.conftest import QUICK, Start
from tests.cluster.processes import cluster
from tests.receiver import receiver
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

#: Exports three times a second: all that Dask knows is waited for.
SOON = {"OTEL_METRIC_EXPORT_INTERVAL": "300"}

OPTIONS: dict[str, Any] = {
    "n_workers": 1,
    "threads_per_worker": 1,
    "processes": False,
    "dashboard_address": ":0",
}


def inc(x: int) -> int:
    return x + 1


def has_bridge(dask_scheduler: Any) -> bool:
    plugin = dask_scheduler.plugins.get("dask-otel")
    return plugin is not None and plugin.bridge is not None


def task_count(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


def wrapped(dask_scheduler: Any) -> set[str]:
    """Return the methods of the spans extension that something wraps."""
    return {"heartbeat", "observe_tasks"} & set(vars(dask_scheduler.extensions["spans"]))


@pytest.mark.parametrize("preload", ["dask_otel.preload", "dask_otel"])
def test_by_variable(tmp_path: Path, preload: str) -> None:
    with receiver() as received, cluster(tmp_path) as dask_processes:
        dask_processes.start_scheduler(
            env={
                **received.environ,
                **SOON,
                "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": preload,
                "DASK_OTEL__SPANS__LINGER": "100ms",
            }
        )
        dask_processes.start_worker()
        with Client(dask_processes.address) as client:
            assert client.run_on_scheduler(has_bridge)
            client.submit(inc, 1).result()
            received.wait_for(lambda r: [s for s in r.spans if s.name == "default"])


def test_by_config_file(tmp_path: Path) -> None:
    settings = {
        "distributed": {"scheduler": {"preload": ["dask_otel.preload"]}},
        "otel": {"spans": {"linger": "100ms"}},
    }
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "anything.yaml").write_text(yaml.safe_dump(settings))
    with receiver() as received, cluster(tmp_path) as dask_processes:
        dask_processes.start_scheduler(env={**received.environ, **SOON, "DASK_CONFIG": str(folder)})
        dask_processes.start_worker()
        with Client(dask_processes.address) as client:
            assert client.run_on_scheduler(has_bridge)
            client.submit(inc, 1).result()
            received.wait_for(lambda r: [s for s in r.spans if s.name == "default"])


@pytest.mark.unreconciled("what was before the bridge is not exported")
def test_from_the_client_on_a_running_cluster(tmp_path: Path) -> None:
    """Unfinished work is exported, work that finished before is not."""
    with receiver("grpc") as received, cluster(tmp_path) as dask_processes:
        scheduler = dask_processes.start_scheduler()
        dask_processes.start_worker()
        with Client(dask_processes.address) as client:
            with span("before"):
                assert client.submit(inc, 1).result() == 2
            with span("across", "inner"):
                running = client.map(time.sleep, [0.5, 0.5, 0.5, 0.5], pure=False)
            eventually(
                lambda: client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
            )
            config = {"environment": received.environ, **QUICK}
            assert dask_otel.register(client, config) == "started"
            assert dask_otel.register(client, config) == "running"
            with span("after"):
                assert client.submit(inc, 2).result() == 3
            client.gather(running)
            received.wait_for(
                lambda r: (
                    {s.name for s in r.spans if s.type == "span"} == {"across", "inner", "after"}
                )
            )
            assert dask_otel.unregister(client) == "stopped"
            assert dask_otel.unregister(client) == "absent"
            assert not client.run_on_scheduler(has_bridge)
            assert not client.run_on_scheduler(wrapped)
        assert scheduler.output.count("runs on this scheduler already") == 0


def test_from_an_asynchronous_client(start: Start) -> None:
    async def run(address: str) -> list[str]:
        async with Client(address, asynchronous=True) as client:
            return [
                await dask_otel.register(client),
                await dask_otel.unregister(client),
                await dask_otel.unregister(client),
            ]

    with start(processes=False, protocol="http/protobuf") as bridged:
        pass
    with (
        receiver() as received,
        dask.config.set({"otel.environment": received.environ}),
        LocalCluster(**{**OPTIONS, "protocol": "tcp"}) as local,
    ):
        assert asyncio.run(run(local.scheduler_address)) == ["started", "stopped", "absent"]
    assert bridged.received.endpoint


def test_a_bad_configuration_is_refused_on_the_client(start: Start) -> None:
    with start() as bridged, pytest.raises(ConfigurationError, match=r"otel\.spans\.linger"):
        dask_otel.register(bridged.client, {"spans": {"linger": "never"}})


def test_a_second_registration_says_what_it_would_change(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with start() as bridged, caplog.at_level(logging.WARNING, "distributed.dask_otel"):
        before = bridged.bridge
        with pytest.warns(UserWarning, match=r"does not use otel\.spans\.linger of this"):
            assert dask_otel.register(bridged.client, {"spans": {"linger": "9s"}}) == "running"
        assert bridged.bridge is before
        (record,) = [
            r for r in caplog.records if "runs on this scheduler already" in r.getMessage()
        ]
        assert "otel.spans.linger" in record.getMessage()
        # What it has, and nothing at all, is no other configuration.
        assert dask_otel.register(bridged.client, QUICK) == "running"
        assert dask_otel.register(bridged.client) == "running"


@pytest.mark.parametrize("other", ["dask_otel.preload", "dask_otel"])
def test_loading_twice_is_harmless(
    start: Start, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    """One bridge, one log line, one of each count."""
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    twice = {"preload": ["dask_otel.preload", other]}
    with start(scheduler_kwargs=twice) as bridged:
        plugins = [
            p for p in bridged.scheduler.plugins.values() if isinstance(p, OtelSchedulerPlugin)
        ]
        assert len(plugins) == 1
        assert bridged.client.submit(inc, 1).result() == 2
        bridged.exported()
    lines = [r for r in caplog.records if "exports this scheduler" in r.getMessage()]
    assert len(lines) == 1


@pytest.mark.unreconciled("on a cluster of its own")
def test_a_plugin_registered_as_dask_does_it(start: Start) -> None:
    """`Client.register_plugin` pickles it: it holds nothing that can't be."""
    with receiver() as received, LocalCluster(**OPTIONS) as local, Client(local) as client:
        overrides = {"environment": received.environ, **QUICK}
        client.register_plugin(OtelSchedulerPlugin(overrides))
        client.register_plugin(OtelSchedulerPlugin(overrides))
        assert client.submit(inc, 1).result() == 2
        received.wait_for(lambda r: [s for s in r.spans if s.name == "default"])
        client.unregister_scheduler_plugin(NAME)
        # Dask tells the plugin nothing: the bridge sees it and lets go.
        eventually(lambda: not wrapped(local.scheduler))


def test_two_clusters_in_one_process(start: Start) -> None:
    """Two bridges; closing one leaves the other alone."""
    with start() as first:
        with start() as second:
            assert first.bridge is not second.bridge
            with span("second"):
                assert second.client.submit(inc, 1).result() == 2
            second.exported()
        with span("first"):
            assert first.client.submit(inc, 1).result() == 2
        first.exported()
        assert {s.name for s in first.received.spans if s.type == "span"} == {"first"}
    assert {s.name for s in second.received.spans if s.type == "span"} == {"second"}
    assert first.received.last("dask.otel.running") == {(): 0}


@pytest.mark.unreconciled("work was done between two bridges")
def test_unloading_restores_everything(start: Start) -> None:
    with start() as bridged:
        extension = bridged.scheduler.extensions["spans"]
        assert wrapped(bridged.scheduler) == {"heartbeat", "observe_tasks"}
        assert dask_otel.unregister(bridged.client) == "stopped"
        assert not wrapped(bridged.scheduler)
        assert extension.heartbeat.__func__ is SpansSchedulerExtension.heartbeat
        assert extension.observe_tasks.__func__ is SpansSchedulerExtension.observe_tasks
        assert NAME not in bridged.scheduler.plugins
        assert bridged.client.submit(inc, 1).result() == 2
        # And on again.
        assert dask_otel.register(bridged.client) == "started"
        assert bridged.client.submit(inc, 2).result() == 3
        bridged.received.wait_for(lambda r: [s for s in r.spans if s.name == "default"])


@pytest.mark.unreconciled("the bridge is taken off")
def test_a_wrapper_put_on_after_ours_stays(start: Start) -> None:
    """Unloading does not tear out what somebody else wrapped around us."""
    with start() as bridged:
        extension = bridged.scheduler.extensions["spans"]
        ours = extension.heartbeat
        calls = []

        def theirs(ws: Any, data: Any) -> None:
            calls.append(data)
            ours(ws, data)

        extension.heartbeat = theirs
        dask_otel.unregister(bridged.client)
        assert extension.heartbeat is theirs
        seen = len(calls)
        eventually(lambda: len(calls) > seen)
        del extension.heartbeat


@pytest.mark.unreconciled("nothing is exported")
def test_one_config_section_may_name_the_module_for_every_kind_of_process(
    tmp_path: Path,
) -> None:
    """On a worker it is the trace context of tasks and no more, and the same as the bridge's."""

    async def run() -> None:
        preload = ["dask_otel.preload"]
        async with (
            Scheduler(dashboard_address=":0", preload=preload) as scheduler,
            Worker(scheduler.address, preload=preload, local_directory=tmp_path) as worker,
        ):
            assert has_bridge(scheduler)
            plugins = [worker.plugins[name] for name in ("dask-otel", "dask-otel-preload")]
            assert [type(plugin) for plugin in plugins] == [TaskContextPlugin] * 2
            assert plugins[0].hooks is plugins[1].hooks

    with dask.config.set({"otel.environment": {"OTEL_TRACES_EXPORTER": "none"}}):
        asyncio.run(run())


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


@pytest.mark.unreconciled("nothing is exported")
def test_who_has_configured_nothing_is_told_once_what_helps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "distributed.dask_otel")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        # Whatever runs on this machine.
        monkeypatch.setattr(exporters, "_DEFAULT_ADDRESS", nobody.getsockname())
        with LocalCluster(**OPTIONS) as local, Client(local) as client:
            assert dask_otel.register(client, QUICK) == "started"
            assert client.submit(inc, 1).result() == 2
            eventually(lambda: "nothing listens at http://localhost:4317" in caplog.text)
    (said,) = [r.getMessage() for r in caplog.records if r.name == "distributed.dask_otel"]
    assert "otel.files.path" in said


@pytest.mark.unreconciled("no bridge runs")
def test_a_scheduler_without_spans_runs_on(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> str:
        async with Scheduler(dashboard_address=":0", extensions={}) as scheduler:
            return install(scheduler)

    with caplog.at_level(logging.ERROR, "distributed.dask_otel"):
        assert asyncio.run(run()) == "off"
    assert "default extensions" in caplog.text
