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

    def start(self) -> None:
        """Poll and export until the scheduler ends."""
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        reader = PeriodicExportingMetricReader(OTLPMetricExporter(), 1000)
        meter = MeterProvider([reader]).get_meter("naive")
        meter.create_observable_counter("dask.span.metrics", [self._observe])
        self._polling = asyncio.ensure_future(self._poll_forever())

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
