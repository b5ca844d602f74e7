"""A thousand names of spans, born and retired each hour, against a real Prometheus."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter, deque
from contextlib import ExitStack
from functools import partial

import requests
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from tests.backends import servers
from tests.backends.clients import PrometheusClient
from tests.waiting import eventually

from chaos.scenario import SIMULATED, CannotRun, progress, scenario
from chaos.world import World
from dask_otel import semconv
from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.sampling import TraceSampler
from dask_otel._otel.sdk.sink import ExporterSink
from dask_otel._otel.sdk.transport import HttpTransport
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.metrics.cardinality import SeriesLimits
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import MetricRecord
from dask_otel.pump.destination import Destination

_HOURS = int(os.environ.get("CHAOS_HOURS", "24"))
_NAMES_AN_HOUR = 1000
#: Minutes in which a name has work.
_BUSY = 5
_MINUTE_NS = 60_000_000_000
_NS = 1_000_000_000
#: Points of a request.
_POINTS = 2000
_FINISHED = "dask_task_finished_total"
_SECONDS = "dask_span_execute_time_seconds_total"


class Names:
    """Names that come and go, with the metrics of their spans, in simulated time.

    Parameters
    ----------
    url
        Where Prometheus takes OTLP.
    limits
        Of the metrics.
    hours
        Of simulated time. It ends now, for a backend takes nothing from the future.
    """

    def __init__(self, url: str, limits: SeriesLimits, hours: int) -> None:
        self.cluster = f"cluster-{uuid.uuid4().hex[:12]}"
        self.limits = limits
        #: Sums of what was sent, by metric.
        self.truth: Counter[str] = Counter()
        self.names = 0
        #: The most series and names of one export.
        self.series = self.most_names = 0
        minutes = hours * 60
        self.start_ns = time.time_ns() // _MINUTE_NS * _MINUTE_NS - minutes * _MINUTE_NS
        self.now_ns = self.start_ns
        transport = HttpTransport("metrics", {}, 10, requests.Session, url)
        resource = {
            "service.name": "dask-scheduler",
            "service.instance.id": "Scheduler-names",
            "dask.cluster.name": self.cluster,
        }
        #: Let go of with `close`.
        self.sink = ExporterSink(
            Encoder(resource, "chaos"),
            TraceSampler(ALWAYS_ON),
            "metrics",
            Destination("Prometheus"),
            transport,
        )
        self._state = MetricState(self.start_ns, limits=limits)
        #: Names with work, and until which minute.
        self._busy: deque[tuple[int, str]] = deque()
        self._minute = 0

    def hour(self) -> None:
        """Let an hour pass: sixty exports."""
        for _ in range(60):
            self._minute += 1
            self.now_ns = self.start_ns + self._minute * _MINUTE_NS
            while self.names < self._minute * _NAMES_AN_HOUR // 60:
                self._busy.append((self._minute + _BUSY, f"job-{self.names}"))
                self.names += 1
            while self._busy and self._busy[0][0] <= self._minute:
                self._busy.popleft()
            self._state.apply(self._batch())
            # All at once, without waiting for the network between points.
            records = list(self._state.collect(self.now_ns, _POINTS))
            self._look(records)
            for record in records:
                answer = self.sink.send([record], 60)
                assert answer.taken, answer.reason
            self._state.settled(True)

    def _batch(self) -> MetricBatch:
        batch = MetricBatch(time_ns=self.now_ns)
        for number, (_, name) in enumerate(self._busy):
            tags, tasks = (name,), 1 + number % 7
            batch.add(semconv.TASK_FINISHED.name, tags, "inc", "memory", value=tasks)
            # Halves add up without an error.
            values = batch.deltas_of(name, tags, None).values
            values["execute", "inc", "thread-cpu", "seconds"] = 0.5 * tasks
            self.truth.update({_FINISHED: tasks, _SECONDS: 0.5 * tasks})  # type: ignore[dict-item]
        return batch

    def _look(self, records: list[MetricRecord]) -> None:
        """Check that an export is within the limits, and keep its size if none was larger."""
        by_metric: Counter[str] = Counter()
        names = set()
        for record in records:
            places = {tuple(point.attributes.items()) for point in record.points}
            by_metric[record.name] += len(places)
            names |= {dict(place).get(semconv.SPAN_NAME) for place in places}
        most = max(by_metric.values(), default=0)
        assert most <= self.limits.max_series, f"{most} series of one metric"
        count = len(names - {None, semconv.FOLDED})
        assert count <= self.limits.max_names, f"{count} names"
        self.series = max(self.series, by_metric.total())
        self.most_names = max(self.most_names, count)


def reconcile(client: PrometheusClient, names: Names, hours: int) -> dict[str, float]:
    """Compare what Prometheus stored with what was sent; returns the ratios of ``increase``."""
    at, window = names.now_ns / _NS, f"{hours * 3600 + 600}s"
    increases = {}
    for metric, truth in names.truth.items():
        series = f'{metric}{{dask_cluster_name="{names.cluster}"}}[{window}]'
        stored = client.value(f"sum(last_over_time({series}))", at=at)
        assert stored == truth, f"{metric}: {stored} of {truth}"
        # Each begins with its zero point, or a rate would not see its first value.
        assert client.value(f"max(min_over_time({series}))", at=at) == 0
        assert client.value(f"sum(resets({series}))", at=at) == 0
        increases[metric] = client.value(f"sum(increase({series}))", at=at) / truth
        assert 1 <= increases[metric] < 1.1, f"increase() has {increases[metric]:.3f} of {metric}"
    return increases


def day(world: World, limits: SeriesLimits, per_name: int, folded: bool) -> str:
    """Play a day of names, and compare."""
    with ExitStack() as stack:
        try:
            running = servers.start_prometheus(world.folder / "prometheus")
        except servers.Missing as error:
            raise CannotRun(str(error)) from error
        stack.callback(running.server.stop)
        client = PrometheusClient(running.url)
        names = Names(f"{running.http}/v1/metrics", limits, _HOURS)
        stack.callback(names.sink.close)
        heads = []
        for hour in range(1, _HOURS + 1):
            names.hour()
            heads.append(client.head_series())
            progress(f"hour {hour}: {names.names} names, {heads[-1]} series in the head")
        increases = reconcile(client, names, _HOURS)
        series = f'{_FINISHED}{{dask_cluster_name="{names.cluster}"}}[{_HOURS * 3600 + 600}s]'
        at = names.now_ns / _NS
        ever = round(client.value(f"count(last_over_time({series}))", at=at))
        other = series.replace("}", ',dask_span_name="_OTHER"}')
        beyond = client.query(f"sum(last_over_time({other}))", at=at)
        assert bool(beyond) is folded, beyond
        # A head holds three hours at most, then it is cut to one, and half an hour for late points;
        # names that came in four hours, in each of their series, are more than that.
        bound = 4 * per_name * 2 + 200
        eventually(lambda: client.head_series() <= bound, 60, f"at most {bound} in the head")
        assert max(heads) <= 1.5 * bound, f"{max(heads)} series in the head, of {bound}"
        part = beyond[0].value / names.truth[_FINISHED] if beyond else 0.0
        return (
            f"{names.names:,} names in {_HOURS} h; exports of at most {names.series} series and "
            f"{names.most_names} names; {part:.0%} of the tasks are booked under `_OTHER`; "
            f"Prometheus stored {ever:,} series of one metric, with at most {max(heads):,} of all "
            f"in its head; {names.truth[_FINISHED]:,} of {names.truth[_FINISHED]:,} tasks and all "
            f"seconds are there, `increase()` has {increases[_FINISHED]:.1%} of them"
        )


for _name, _limits, _per_name, _with, _more in (
    ("names", SeriesLimits(), 200, "default limits: 200 names",
     "names beyond the limit are booked under `_OTHER`"),
    ("names-with-room",
     SeriesLimits(max_names=2000, max_series=4000, retire_after_ns=900 * _NS), 1000,
     "`otel.metrics.max-names: 2000`, `retire-after: 15m`", "each name has series of its own"),
):  # fmt: skip
    scenario(
        _name,
        section="Load",
        fault="1,000 names of spans are born each hour of a simulated day, have work for five "
        f"minutes, and never come again (a real Prometheus, {_with})",
        promise="No increment is lost or counted twice by Prometheus; a series begins with 0 and "
        f"never goes back; Prometheus's memory is bounded; {_more}",
        protocols=(SIMULATED,),
    )(partial(day, limits=_limits, per_name=_per_name, folded=_name == "names"))
