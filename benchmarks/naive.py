"""A peer: the bridge that one would write in an afternoon, on top of Dask's properties.

Each second it asks all spans for ``cumulative_worker_metrics`` and exports the sums with the
SDK. It is here to be compared with, not to be used.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader


class NaiveBridge:
    """Polls each second, exports through an observable counter."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.sums: Counter[tuple[str, ...]] = Counter()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Poll and export until the scheduler ends."""
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        reader = PeriodicExportingMetricReader(OTLPMetricExporter(), 1000)
        self.provider = MeterProvider([reader])
        meter = self.provider.get_meter("naive")
        meter.create_observable_counter("dask.span.metrics", [self._observe])
        self._task = asyncio.ensure_future(self._poll_forever())

    def stop(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            self.provider.shutdown(1000)

    async def _poll_forever(self) -> None:
        while True:
            self.poll()
            await asyncio.sleep(1)

    def poll(self) -> None:
        """Sum up what Dask knows of all spans."""
        sums: Counter[tuple[str, ...]] = Counter()
        for span in list(self.scheduler.extensions["spans"].spans.values()):
            for key, value in span.cumulative_worker_metrics.items():
                sums[(".".join(span.name), *map(str, key))] += value
        self.sums = sums

    def _observe(self, options: CallbackOptions) -> Iterable[Observation]:
        for key, value in list(self.sums.items()):
            yield Observation(value, {"span": key[0], "key": ".".join(key[1:])})


def install(dask_scheduler: Any) -> None:
    """Put one on a scheduler."""
    dask_scheduler.naive = NaiveBridge(dask_scheduler)
    dask_scheduler.naive.start()


def uninstall(dask_scheduler: Any) -> None:
    """Take it off."""
    dask_scheduler.naive.stop()
