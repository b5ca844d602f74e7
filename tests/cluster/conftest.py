"""A real in-process cluster with the bridge, and a receiver for what it exports."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from tests.cluster import forked, proof
from tests.cluster.truth import (
    is_settled,
)
from tests.covering import uncovered
from tests.receiver import Receiver, receiver
from tests.waiting import eventually

forked.choose_libraries()

#: Quick settings, so that tests need not wait for a person's.
QUICK = {"spans": {"linger": "200ms"}}


@pytest.fixture(autouse=True)
def _proven(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let no test pass that neither proves its numbers nor says why it can't."""
    marks = [request.node.get_closest_marker(name) for name in ("unreconciled", "relabelled")]
    owed = proof.begin(*[mark and mark.args[0] for mark in marks])
    yield
    assert owed.given or owed.unreconciled, (
        "this test compared nothing with Dask's own numbers: use one of the harnesses, or mark it "
        "as unreconciled with the reason"
    )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, Any, Any]:
    """Ask for no proof of the numbers where a test has failed."""
    try:
        return (yield)
    except BaseException:
        proof.current.unreconciled = "it failed"
        raise


@dataclass
class Bridged:
    """A cluster with the bridge, its client and its receiver."""

    cluster: LocalCluster
    client: Client
    received: Receiver

    @property
    def scheduler(self) -> Any:
        """The scheduler, which lives in this process."""
        return self.cluster.scheduler

    @property
    def bridge(self) -> Any:
        """The scheduler's bridge."""
        return self.scheduler.plugins["dask-otel"].bridge

    @property
    def exporting(self) -> bool:
        """Whether its exporters have been made."""
        return self.bridge.wired is not None

    def exported(self) -> Receiver:
        """Wait until all that Dask knows has been exported, and check it against Dask."""

        def check() -> bool:
            settled = is_settled(self.received, self.client)
            return settled and not self.bridge.adapter.lifecycle.open

        eventually(check, what="everything is exported")
        outside = uncovered(self.received.spans)
        assert not outside, outside
        return self.received


Start = Callable[..., AbstractContextManager[Bridged]]


@contextmanager
def make_bridged(
    monkeypatch: pytest.MonkeyPatch,
    config: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    protocol: str = "http/protobuf",
    **cluster: Any,
) -> Iterator[Bridged]:
    """Start a receiver, and a cluster whose scheduler preloads the bridge: `start`, `bridged`.

    At the end, when the scheduler has closed, all that it knew must have been exported.
    """
    options = {
        "n_workers": 2,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": False},
        "silence_logs": False,
        **cluster,
    }
    with receiver(protocol) as received:
        variables = {**received.environ, "OTEL_METRIC_EXPORT_INTERVAL": "300", **(environ or {})}
        for key, value in variables.items():
            monkeypatch.setenv(key, value)
        settings = {
            "distributed.scheduler.preload": ["dask_otel.preload"],
            "otel": dask.config.merge(dask.config.get("otel", {}), QUICK, config or {}),
        }
        with (
            dask.config.set(settings),
            LocalCluster(**options) as local,
            Client(local) as client,
        ):
            # The exporters read the environment, which belongs to the process: another
            # cluster of the same test may change it.
            eventually(lambda: _is_decided(local.scheduler), what="exporters, or none")
            scheduler = local.scheduler
            yield Bridged(local, client, received)
        proof.prove(received, proof.truth(scheduler))


def _is_decided(scheduler: Any) -> bool:
    plugin = scheduler.plugins.get("dask-otel")
    return plugin is None or plugin.bridge is None or plugin.bridge.wired is not None


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return `bridged`, with a clean environment afterwards."""
    return partial(make_bridged, monkeypatch)


@pytest.fixture
def bridged(request: pytest.FixtureRequest, start: Start) -> Iterator[Bridged]:
    """A cluster with the bridge, made with the options of the test's marker."""
    mark = request.node.get_closest_marker("options")
    with start(*mark.args, **mark.kwargs) if mark else start() as made:
        yield made
