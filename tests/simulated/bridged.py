"""The whole bridge on a simulated cluster: only the sockets of its exporters are missing.

The pump's threads are simulated, and a request reaches the receiver by a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import dask
import pytest

from dask_otel import semconv
from dask_otel._otel.sdk.transport import HttpTransport
from dask_otel.core.records import Answer
from dask_otel.lab.cluster import Cluster, simulate
from dask_otel.pump import thread
from dask_otel.scheduler import bridge as module
from dask_otel.scheduler.plugin import install
from tests.cluster import proof
from tests.covering import uncovered
from tests.receiver import Log, Receiver, Span
from tests.simulated.observed import TICKS
from tests.waiting import eventually

T = TypeVar("T")

#: Intervals of exports as a user has them; by default the receiver gets all more often.
AS_USERS = {
    "OTEL_METRIC_EXPORT_INTERVAL": "10000",
    "OTEL_BSP_SCHEDULE_DELAY": "5000",
    "OTEL_BLRP_SCHEDULE_DELAY": "1000",
}


class Bridged:
    """A cluster with the bridge, its client, and what was received.

    Parameters
    ----------
    otel
        More of the bridge's configuration.
    begins
        Whether the bridge is there from the start; if not, the test registers it.
    faults
        Whether the test makes the bridge fail.
    unreconciled
        Why the last export lacks something that Dask knows; None if it lacks nothing.
    relabelled
        Why only totals can be compared; None if all can.
    """

    def __init__(
        self,
        otel: dict[str, Any] | None = None,
        begins: bool = True,
        faults: bool = False,
        unreconciled: str | None = None,
        relabelled: str | None = None,
        **options: Any,
    ) -> None:
        self._otel, self._begins, self._faults = otel or {}, begins, faults
        self._owes, self._options = (unreconciled, relabelled), options
        self.received = Receiver("http/protobuf", keeps=frozenset({"traces", "metrics", "logs"}))
        self.cluster: Cluster
        self.client: Any
        #: Of the pumps so far.
        self.threads: list[thread.PumpThread] = []

    @property
    def scheduler(self) -> Any:
        """The scheduler."""
        return self.cluster.scheduler

    @property
    def bridge(self) -> Any:
        """The scheduler's bridge."""
        return self.scheduler.plugins["dask-otel"].bridge

    def begin(self, config: Mapping[str, Any] | None = None) -> None:
        """Start a bridge, and do not wait for its exporters as `dask_otel.register` does."""

        async def started(dask_scheduler: Any) -> str:
            return await install(dask_scheduler, config)

        assert self.client.run_on_scheduler(started) == "started"

    def run(self, program: Callable[[], Any]) -> None:
        """Run a test as the program of a new cluster, and check all that came of it."""

        def test(cluster: Cluster) -> None:
            self.client = cluster.client
            program()

        def answer(transport: HttpTransport, request: bytes, until: float) -> Answer:
            taken = self.received.answered(f"/v1/{transport._signal}", request, {})
            return Answer(taken.status is None, f"status {taken.status}")

        async def opened(cluster: Cluster, *arguments: Any) -> None:
            self.cluster = cluster
            await whole(cluster, *arguments)

        whole = Cluster.open
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://receiver",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRIC_EXPORT_INTERVAL": "2000",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_BLRP_SCHEDULE_DELAY": "100",
        }
        ours = {"spans": {"linger": "200ms"}, "environment": variables}
        config = {
            **TICKS,
            "otel": dask.config.merge(ours, self._otel),
            "distributed.scheduler.preload": ["dask_otel.preload"] if self._begins else [],
            **self._options.pop("config", {}),
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Cluster, "open", opened)
            patch.setattr(HttpTransport, "_answer", answer)
            patch.setattr(thread.PumpThread, "start", lambda one: self._start(one))
            patch.setattr(thread, "apart", _at_once)
            patch.setattr(module, "apart", self._apart)
            simulate(test, prepare=self._prepare, config=config, **self._options)
        self.check()
        proof.begin(*self._owes)
        proof.prove(self.received, proof.truth(self.scheduler))

    def _start(self, one: thread.PumpThread) -> None:
        if one not in self.threads:
            self.threads.append(one)
            self.cluster.pool.start(self.cluster.machine("scheduler"), one._run)

    def check(self) -> None:
        """Nothing went wrong, nothing was exported twice, and all of it fits together."""
        received = self.received
        assert self._faults or not received.last(semconv.OTEL_INTERNAL_ERRORS.name)
        ends = (semconv.SCHEDULER_CLOSING, semconv.OTEL_STOPPED)
        assert all(log.name in ends for log in received.logs[-1:])
        outside = uncovered(received.spans)
        assert not outside, outside
        spans = {s.span_id: s for s in received.spans if s.type == "span"}
        firsts = {s.attributes["dask.span.id"]: s for s in spans.values() if generation(s) == 1}
        assert len({s.span_id for s in received.spans}) == len(received.spans), "sent twice"
        for one in received.spans:
            if one.type in ("marker", "progress"):
                above = spans[one.parent_id or 0]
                assert one.attributes["dask.span.id"] == above.attributes["dask.span.id"]
                assert above.start_ns <= one.start_ns < one.end_ns <= above.end_ns
            elif one.type == "span" and generation(one) > 1:
                first = firsts[one.attributes["dask.span.id"]]
                assert [link[:2] for link in one.links] == [(first.trace_id, first.span_id)]

    async def _prepare(self, cluster: Cluster) -> None:
        if self._begins:
            await self.bridge._connecting

    def _apart(self, make: Callable[[], T], name: str) -> Future[T]:
        """Call it in a simulated thread; see `dask_otel.pump.thread.apart`."""
        return self.cluster.thread("scheduler", make)

    def exported(self) -> Receiver:
        """Wait until the spans so far, and what was measured with them, are exported."""
        eventually(lambda: not self.bridge.adapter.lifecycle.open, what="the spans end")
        count = len(self.received.points)
        eventually(lambda: len(self.received.points) > count, what="their metrics")
        # Metrics can overtake a span that ended a moment ago: it waits for its schedule delay.
        time.sleep(0.2)
        return self.received

    def said(self, name: str) -> Log:
        """Wait for an event of that name, and return the last one."""
        return eventually(lambda: [log for log in self.received.logs if log.name == name])[-1]


def generation(span: Span) -> int:
    """Return the number of a span among those of its Dask span."""
    return int(span.attributes["dask.span.generation"])


def _at_once(make: Callable[[], T], name: str) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(make())
    return future
