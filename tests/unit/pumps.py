"""Pumps for tests: sinks that fail, hang and raise on demand, and what to offer."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dask_otel import semconv
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.records import (
    Answer,
    FinishedSpan,
    MetricRecord,
    NumberPoint,
    OpenNote,
    Row,
    SpanIdentity,
    SpanRecord,
)
from dask_otel.pump import pump as module
from dask_otel.pump.destination import Destination
from dask_otel.pump.limits import PumpLimits
from dask_otel.pump.pump import Pump, RecordExport
from dask_otel.pump.spooled import Spool
from dask_otel.pump.tally import Tally
from tests.limits import make_state
from tests.unit.finished import make_group, make_span
from tests.waiting import eventually

DROPPED, EXPORTED = semconv.OTEL_DROPPED.name, semconv.OTEL_EXPORTED.name
SPILLED = semconv.CLUSTER_SPILL_IO.name
LIMITS = PumpLimits(queue_size=50, batch_size=4, schedule_delay=0.01)


def finished(number: int, groups: int = 0) -> FinishedSpan:
    return make_span(identity=note(number).identity, groups=(make_group(),) * groups)


def note(number: int) -> OpenNote:
    who = SpanIdentity(str(number), str(number), ("a",), 1, 1, number, None)
    return OpenNote(identity=who, start=1.0, time=2.0)


UNTRANSLATABLE: dict[int, type[BaseException]] = {-1: RuntimeError, -2: SystemExit}


def translate(item: Any) -> list[SpanRecord]:
    number = item.identity.span_id
    if number < 0:
        raise UNTRANSLATABLE[number]
    record = SpanRecord(1, number, None, "n", "internal", 1, 2, {}, (), (), None, "n")
    return [record] * (1 if isinstance(item, OpenNote) else item.weight)


class FakeSink:
    """What both kinds of sinks have in common: it can hang, fail, raise."""

    signal, loss = "traces", "error"
    key: str | None = None
    max_points: int | None = 200

    def __init__(self, name: str = "sink", endpoint: Endpoint | None = None) -> None:
        self.destination = Destination(name, endpoint)
        self.ok = True
        #: While it is ok, and while it is not.
        self.yes, self.no = Answer(True), Answer(False, "refused by the test")
        self.error: BaseException | None = None
        #: Cleared: requests hang.
        self.go_on = threading.Event()
        self.go_on.set()
        self.times: list[float] = []
        self.shut = threading.Event()

    @property
    def calls(self) -> int:
        return len(self.times)

    def answer(self) -> Answer:
        self.times.append(time.monotonic())
        self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        return self.yes if self.ok else self.no

    def close(self) -> None:
        self.shut.set()


class Spans(FakeSink):
    """RecordExport are the numbers of spans."""

    def __init__(self, name: str = "sink", endpoint: Endpoint | None = None) -> None:
        super().__init__(name, endpoint)
        self.exported: list[int] = []

    def wants(self, record: SpanRecord) -> bool:
        return record.span_id != 404

    def encode(self, record: SpanRecord) -> int:
        if record.span_id == 500:
            raise ValueError("no text")
        return record.span_id

    def send(self, rows: Sequence[Row], longest: float) -> Answer:
        answer = self.answer()
        self.exported += [row.body for row in rows if answer.taken]
        return answer


class Metrics(FakeSink):
    signal = "metrics"

    def __init__(self, name: str = "sink") -> None:
        super().__init__(name)
        self.last: dict[tuple[str, tuple[Any, ...]], float] = {}
        self.requests: list[list[MetricRecord]] = []
        self.refuse_zeros = False

    def send(self, records: Sequence[MetricRecord], longest: float) -> Answer:
        self.requests.append(list(records))
        zeros = any(len(r.points) > len({tuple(p.attributes.items()) for p in r.points})
                    for r in records)  # fmt: skip
        answer = self.answer()
        if self.refuse_zeros and zeros:
            return Answer(False, "invalid", blames=True)
        if answer.taken:
            self.last |= {
                (r.name, tuple(p.attributes.values())): p.value
                for r in records
                for p in r.points
                if isinstance(p, NumberPoint)
            }
        return answer

    def value(self, name: str = SPILLED, *labels: Any) -> float:
        return self.last.get((name, labels or ("disk-write",)), 0)


@contextmanager
def pumping(
    spans: Sequence[Spans] = (), metrics: Sequence[Metrics] = (), limits: PumpLimits = LIMITS,
    spool: Spool | None = None, sanitized: Callable[[], dict[str, int]] = dict, **options: Any,
) -> Iterator[Pump]:  # fmt: skip
    """A pump whose threads stand still until its end; `turn` does their work."""
    made = module.MetricExport([(sink, make_state(0)) for sink in metrics], **options)
    pump = Pump(RecordExport(spans, translate, limits, sanitized, spool), made, RecordExport())
    try:
        yield pump
    finally:
        for sink in (*spans, *metrics):
            sink.go_on.set()
        closes(pump, 0)


@contextmanager
def running(*sinks: Any, **options: Any) -> Iterator[Pump]:
    """A pump with its threads."""
    with pumping(*sinks, **options) as pump:
        pump.open_spool(30)
        pump.start()
        yield pump


def closes(pump: Pump, seconds: float = 30) -> None:
    """Close a pump, as the bridge does at its end, and wait for all its threads."""
    pump.request_close(seconds)
    pump.start()
    eventually(lambda: pump.closed, what="the threads end")
    pump.release()


def turn(pump: Pump) -> None:
    """Do what the threads of a pump would do now, those that feed others first."""
    for thread in (*pump._feeders, *pump.spans.lanes, *pump._metrics):
        thread.work()


def offer(pump: Pump, *numbers: int, groups: int = 0) -> list[bool]:
    """Offer spans, as the event loop does."""
    return [pump.spans.offer(finished(n, groups)) for n in numbers]


def beat(pump: Pump, value: float = 0, last: bool = False) -> None:
    """Hand over a batch, as the bridge does at each interval."""
    increments = {(SPILLED, "disk-write"): value} if value else {}
    pump.offer_metrics(MetricBatch(time.time_ns(), increments=increments), last)


def outcomes(counted: Tally | Pump, signal: str = "traces") -> Counter[str]:
    """Return how many items of a signal were exported, and dropped by reason."""
    counts = counted.since(Counter()) if isinstance(counted, Tally) else counted.counts()
    kinds = {EXPORTED: "exported", DROPPED: ""}
    return Counter(
        {
            kinds[str(name)] or str(labels[-1]): int(count)
            for (name, *labels), count in counts.items()
            if name in kinds and labels[0] == signal
        }
    )
