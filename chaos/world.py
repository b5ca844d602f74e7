"""A real cluster whose telemetry goes through a faulty network, and what must be true of it."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks import meter
from distributed import Client, span, wait
from tests.cluster import proof
from tests.cluster.processes import Cluster, Process, SchedulerProcess, cluster
from tests.receiver import Receiver, Span, receiver
from tests.waiting import eventually

from chaos.gate import Gate

if TYPE_CHECKING:
    from chaos.pairs import Pairs

#: Seconds for what must come true. The longest backoff is 30 s.
PATIENCE = 120.0
#: Seconds of one try of an exporter.
TIMEOUT = 2
PRELOAD = ("--preload", "dask_otel.preload")
#: Everything soon: a scenario takes seconds.
QUICK = {
    "OTEL_EXPORTER_OTLP_TIMEOUT": str(TIMEOUT),
    "OTEL_METRIC_EXPORT_INTERVAL": "500",
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    "DASK_OTEL__SPANS__LINGER": "0s",
    "DASK_OTEL__SPANS__PROGRESS_AFTER": "null",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "60s",
}
_LINE = r"^[\d-]+ [\d:,]+ - distributed\.dask_otel - {level} - (.*)$"


def ended(process: Process, number: signal.Signals) -> tuple[int, float]:
    """Send a process a signal that ends it; returns its exit code, and the seconds that it took."""
    began = time.monotonic()
    process.popen.send_signal(number)
    return process.popen.wait(60), time.monotonic() - began


def _increment(x: int, seconds: float) -> int:
    time.sleep(seconds)
    return x + 1


class World:
    """What a scenario plays with.

    Parameters
    ----------
    folder
        For logs.
    protocol
        Of OTLP.
    built
        The cluster, without a process so far.
    collector
        The server behind the gate.
    gate
        The network before it.
    """

    def __init__(
        self, folder: Path, protocol: str, built: Cluster, collector: Receiver, gate: Gate
    ) -> None:
        self.folder = folder
        self.protocol = protocol
        self.collector = collector
        self.gate = gate
        self.workers: list[Process] = []
        #: Ground truth: the spans that the client submitted, with the number of their tasks.
        self.submitted: dict[str, int] = {}
        #: What this one is compared with; None if it is not.
        self.pairs: Pairs | None = None
        self._cluster = built
        self._client: Client | None = None
        self._numbers = count()

    # ------------------------------------------------------------------------ the cluster

    @property
    def client(self) -> Client:
        """The client that submits."""
        assert self._client is not None
        return self._client

    @property
    def scheduler(self) -> SchedulerProcess:
        """The scheduler's process."""
        assert self._cluster.scheduler is not None
        return self._cluster.scheduler

    @property
    def pid(self) -> int:
        """The scheduler's process id."""
        return self.scheduler.popen.pid

    def start(
        self,
        env: Mapping[str, str] | None = None,
        *,
        endpoint: str | None = None,
        workers: int | None = None,
        nannies: bool = False,
        behind: Callable[[int], Gate] | None = None,
        arguments: tuple[str, ...] = (),
        worker_env: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
        way: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
        bridge: bool = True,
    ) -> None:
        """Start the scheduler, its workers and a client.

        Parameters
        ----------
        env
            Of the scheduler.
        endpoint
            Where it exports to; by default the gate before the collector.
        workers, nannies
            How many (by default two, or one where this is compared with others), and whether each
            is below a nanny.
        behind
            Given the scheduler's port, makes the network between it and the last worker.
        arguments
            More for ``dask scheduler``.
        worker_env
            Of workers, by number.
        way
            Variables of the scheduler about its way to the collector, such as a proxy: what it is
            compared with has none of them.
        within
            What the scheduler's command is an argument of.
        bridge
            Whether there is one.
        """
        if workers is None:
            workers = 2 if self.pairs is None else 1
        if self.pairs is not None:
            self.pairs.start(env or {}, workers)
        variables = {
            **QUICK,
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint or f"http://127.0.0.1:{self.gate.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": self.protocol,
            **(env or {}),
            **(way or {}),
        }
        preload = PRELOAD if bridge else ()
        self._cluster.start_scheduler(*preload, *arguments, env=variables, within=within)
        address = self._cluster.address
        for number in range(workers):
            if behind is not None and number == workers - 1:
                port = behind(int(address.rpartition(":")[2])).port
                self._cluster.address = f"tcp://127.0.0.1:{port}"
            start = self._cluster.start_nanny if nannies else self._cluster.start_worker
            self.workers.append(start(f"w{number}", env=worker_env.get(number)))
        self._client = Client(address, set_as_default=False)
        self._client.wait_for_workers(workers, timeout=PATIENCE)

    def close(self) -> None:
        """Let go of the client."""
        if self._client is not None:
            self._client.close(timeout=5)

    def end(self) -> tuple[int, float]:
        """Let go of the client, and end the scheduler: its exit code and the seconds it took."""
        self.close()
        return ended(self.scheduler, signal.SIGTERM)

    def submit(self, tasks: int, seconds: float = 0.01) -> tuple[str, list[Any]]:
        """Submit one span; returns its name, and its futures."""
        name = f"work {next(self._numbers)}"
        # A group of its own, for Dask keeps a group with its first span.
        keys = [(f"step-{name.replace(' ', '')}x", index) for index in range(tasks)]
        with span(name):
            futures = self.client.map(_increment, range(tasks), seconds=seconds, key=keys)
        self.submitted[name] = tasks
        return name, futures

    def wait(self, futures: list[Any]) -> None:
        """Wait until futures are done, well or not."""
        with self.client.as_current():
            wait(futures)

    def wait_for_some(self, futures: list[Any]) -> None:
        """Wait until some of the tasks of a span are done, and others may not be."""
        eventually(lambda: any(f.done() for f in futures), PATIENCE, "some of its tasks are done")

    def work(self, spans: int = 5, tasks: int = 10) -> float:
        """Compute some spans, one after the other; returns the seconds that it took."""
        began = time.monotonic()
        for _ in range(spans):
            _, futures = self.submit(tasks)
            assert self.client.gather(futures) == [index + 1 for index in range(tasks)]
            del futures
        return time.monotonic() - began

    def block(self, tasks: int) -> float:
        """Compute a span of tiny tasks, and forget them; returns the seconds that it took."""
        began = time.perf_counter()
        _, futures = self.submit(tasks, seconds=0.0)
        with self.client.as_current():
            wait(futures, timeout=PATIENCE)
        took = time.perf_counter() - began
        del futures
        eventually(
            lambda: self.client.run_on_scheduler(meter.idle), PATIENCE, "all tasks are forgotten"
        )
        return took

    def compare(self) -> None:
        """Compare this cluster, as it is now, with what it is compared with; see `Pairs`."""
        assert self.pairs is not None, "there is nothing to compare it with"
        self.pairs.compare(self)

    # ------------------------------------------------------------------------ what is true

    def spans(self) -> list[Span]:
        """Return the Dask spans that the collector has taken, each copy of them."""
        return [one for one in self.collector.spans if one.type == "span"]

    def copies(self) -> int:
        """Return how many spans of any kind were taken more than once."""
        ids = Counter(one.span_id for one in self.collector.spans)
        return sum(ids.values()) - len(ids)

    def nothing_came_twice(self) -> None:
        """Check that each span was taken once, of any kind; say which were not."""
        ids = Counter(one.span_id for one in self.collector.spans)
        twice = [one for one in self.collector.spans if ids[one.span_id] > 1]
        assert not twice, self._about(twice)

    def _about(self, twice: list[Span]) -> str:
        requests = Counter(
            request.SerializeToString()
            for signal, request in self.collector.accepted
            if signal == "traces"
        )
        which = [(one.type, one.name, one.attributes.get("dask.span.generation")) for one in twice]
        said = (
            f"{len(twice)} spans with the ids of others, in "
            f"{sum(n > 1 for n in requests.values())} requests that came again as a whole: "
            f"{which[:6]}"
        )
        # A script may have its cluster in its own process.
        if self._cluster.scheduler is not None:
            said += f"; the log says {self.logged('WARNING')[:2]}"
        return said

    def all_spans_arrived(self) -> None:
        """Wait until each span that was submitted is there: one id for each, none beside them."""

        def there() -> bool:
            ids = {(one.path, one.span_id) for one in self.spans()}
            names = Counter(name for name, _ in ids)
            assert names == Counter(self.submitted.keys()), (
                f"missing {sorted(self.submitted.keys() - names.keys())}, "
                f"unknown {sorted(names.keys() - self.submitted.keys())}, "
                f"of several ids {[name for name, n in names.items() if n > 1]}"
            )
            return True

        eventually(there, PATIENCE, "each span is at the collector")

    def all_tasks_counted(self, exactly: bool = True) -> int:
        """Wait until every increment is there, by what was submitted and by Dask's own numbers.

        Parameters
        ----------
        exactly
            Whether every task has run once. Otherwise Dask's own numbers decide alone.
        """
        expected = sum(self.submitted.values())
        found = 0

        def there() -> bool:
            nonlocal found
            found = round(sum(self.collector.last("dask.task.finished").values()))
            if exactly:
                assert found == expected, f"{found} of {expected} tasks are counted"
            truth = self.client.run_on_scheduler(proof.truth)
            try:
                proof.prove(self.collector, truth, faults=1)
            except KeyError as error:
                raise AssertionError(f"{error} is not exported") from error
            return True

        eventually(there, PATIENCE, "each increment is at the collector")
        return found

    def all_arrived(self, *, again: bool = False) -> str:
        """Wait until each span and each increment is there, once; returns that in words.

        Parameters
        ----------
        again
            Whether the collector took data and its answer got lost: copies are allowed then.
        """
        self.all_spans_arrived()
        copies = self.copies()
        if not again:
            self.nothing_came_twice()
            self.all_tasks_counted()
        else:
            # Points that came twice have one time twice.
            self._totals_counted()
        said = f"{len(self.submitted)} of {len(self.submitted)} spans"
        said += f", {sum(self.submitted.values())} of {sum(self.submitted.values())} tasks"
        return said + (f", {copies} spans a second time with the same ids" if copies else "")

    def _totals_counted(self) -> None:
        expected = sum(self.submitted.values())

        def there() -> bool:
            found = round(sum(self.collector.last("dask.task.finished").values()))
            assert found == expected, f"{found} of {expected} tasks are counted"
            proof.assert_totals(self.collector, self.client.run_on_scheduler(proof.truth)["totals"])
            return True

        eventually(there, PATIENCE, "each increment is at the collector")

    def logged(self, level: str) -> list[str]:
        """Return the bridge's messages of a level."""
        return re.findall(_LINE.format(level=level), self.scheduler.output, re.MULTILINE)

    def warned(self) -> str:
        """Wait for the first warning, and return it."""
        return str(eventually(lambda: self.logged("WARNING"), PATIENCE, "a warning")[0])

    def one_message_each(self, recovered: bool = True) -> None:
        """Check that the log has one warning of the failure, one line of its end, and no more."""
        warnings = self.logged("WARNING")
        assert len(warnings) == 1, f"{len(warnings)} warnings: {warnings}"
        if recovered:
            again = [line for line in self.logged("INFO") if line.endswith(" again")]
            assert len(again) == 1, f"{len(again)} messages that it works again"
        self.clean_log()

    def clean_log(self) -> None:
        """Check that nothing was raised into the scheduler."""
        assert self.logged("ERROR") == [], self.logged("ERROR")
        # Dask has tracebacks of its own, of connections that break.
        ours = [
            part
            for part in self.scheduler.output.split("Traceback (most recent call last)")[1:]
            if "dask_otel" in part.partition(" - distributed.")[0]
        ]
        assert ours == [], ours[0][:600]

    def cpu(self) -> float:
        """Return the seconds of CPU that the scheduler's process has used."""
        # The clock that clock_getcpuclockid(3) gives on Linux; /proc counts in steps of 10 ms.
        return time.clock_gettime((~self.pid << 3) | 2)

    def busy(self, seconds: float = 2.0) -> float:
        """Return which part of a core the scheduler uses while there is no work."""
        began, used = time.monotonic(), self.cpu()
        time.sleep(seconds)
        return (self.cpu() - used) / (time.monotonic() - began)

    def dropped(self, reason: str, signal: str | None = None) -> int:
        """Return how many items were counted as lost for a reason, of one signal or of all."""
        return round(
            sum(
                value
                for labels, value in self.collector.last("dask.otel.dropped").items()
                if dict(labels).get("dask.otel.reason") == reason
                and signal in (None, dict(labels).get("dask.otel.signal"))
            )
        )


@contextmanager
def world(folder: Path, protocol: str) -> Iterator[World]:
    """Give a world; whatever it started is ended, whatever happens."""
    with receiver(protocol) as collector:
        port = urlsplit(collector.endpoint).port
        assert port is not None
        gate = Gate(port, lambda: len(collector.requests))
        try:
            with cluster(folder) as built:
                made = World(folder, protocol, built, collector, gate)
                try:
                    yield made
                finally:
                    made.close()
        finally:
            gate.close()
