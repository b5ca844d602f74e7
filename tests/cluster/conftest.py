"""A real in-process cluster with the bridge, and a receiver for what it exports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from tests.cluster.truth import (
    assert_closed,
    assert_monotone,
    assert_reconciled,
    described_spans,
    own_values,
)
from tests.receiver import Receiver, receiver
from tests.waiting import eventually

#: Quick settings, so that tests need not wait for a person's.
QUICK = {"spans": {"linger": "200ms"}}


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

    def exported(self, timeout: float = 30.0) -> Receiver:
        """Wait until all that Dask knows has been exported, and check it against Dask."""

        def check() -> bool:
            assert_reconciled(self.received, self.client.run_on_scheduler(own_values))
            exported = {
                s.attributes["dask.span.id"]
                for s in self.received.spans
                if s.attributes.get("dask.span.generation") == 1
            }
            assert exported == set(self.client.run_on_scheduler(described_spans))
            assert not self.bridge.adapter.lifecycle.open
            return True

        eventually(check, timeout, "everything is exported")
        assert_monotone(self.received)
        assert_closed(self.received)
        return self.received


Start = Callable[..., AbstractContextManager[Bridged]]


@contextmanager
def bridged(
    monkeypatch: pytest.MonkeyPatch,
    config: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    protocol: str = "http/protobuf",
    **cluster: Any,
) -> Iterator[Bridged]:
    """Start a receiver, and a cluster whose scheduler preloads the bridge."""
    options = {
        "n_workers": 2,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": ":0",
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
            yield Bridged(local, client, received)


def _is_decided(scheduler: Any) -> bool:
    plugin = scheduler.plugins.get("dask-otel")
    return plugin is None or plugin.bridge is None or plugin.bridge.exporting


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return `bridged`, with a clean environment afterwards."""

    def started(*args: Any, **kwargs: Any) -> AbstractContextManager[Bridged]:
        return bridged(monkeypatch, *args, **kwargs)

    return started
