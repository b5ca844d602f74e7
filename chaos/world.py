"""A real cluster whose telemetry goes through a faulty network, and what must be true of it."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from distributed import Client, span, wait
from tests.cluster import proof
from tests.cluster.processes import Cluster, Process, SchedulerProcess, cluster
from tests.receiver import Receiver, Span, port_of, receiver
from tests.waiting import eventually

from chaos.gate import Gate
from chaos.ratios import BARE, HEALTHY

#: Seconds to wait for what must come true. The longest backoff is 30 s.
PATIENCE = 120.0
#: Seconds of one try of an exporter.
TIMEOUT = 2
#: For the exporters of a cluster whose server answers: however busy the machine is, no answer is
#: too late.
PATIENT = {"OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
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
SPAWNED = {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "spawn"}
_LINE = r"^[\d-]+ [\d:,]+ - distributed\.dask_otel - {level} - (.*)$"
_NONE: Mapping[str, str] = MappingProxyType({})


def _increment(x: int, seconds: float) -> int:
    time.sleep(seconds)
    return x + 1


class World:
    """A cluster, the collector that it exports to, and the gate between them.

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
        #: The worlds that this one is compared with.
        self.peers: dict[str, World] = {}
        #: What the comparison found.
        self.cost: dict[str, Any] | None = None
        self._cluster = built
        #: The client that submits.
        self.client: Any = None
        self._numbers = count()

    # ------------------------------------------------------------------------ the cluster

    @property
    def scheduler(self) -> SchedulerProcess:
        """The scheduler's process."""
        return self._cluster.scheduler  # type: ignore[return-value]

    @property
    def pid(self) -> int:
        """The scheduler's process id."""
        return self.scheduler.popen.pid

    def start(
        self,
        env: Mapping[str, str] = _NONE,
        *,
        endpoint: str | None = None,
        workers: int | None = None,
        nannies: bool = False,
        way: Mapping[str, str] = _NONE,
        within: Sequence[str] = (),
        bridge: bool = True,
    ) -> None:
        """Start the scheduler, its workers and a client, and those of the peers.

        Parameters
        ----------
        env
            The scheduler's variables.
        endpoint
            Where the scheduler exports to; by default the gate.
        workers, nannies
            How many (by default two, or one where there are peers), and whether each has a nanny.
        way
            The scheduler's variables about its way to the collector, such as a proxy: the peers
            get none of them.
        within
            A command that runs the scheduler's command.
        bridge
            Whether the scheduler loads the bridge.
        """
        if workers is None:
            workers = 1 if self.peers else 2
        for name, peer in self.peers.items():
            peer.start({**env, **PATIENT}, workers=workers, bridge=name != BARE)
        variables = {
            **QUICK,
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint or f"http://127.0.0.1:{self.gate.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": self.protocol,
            **env,
            **way,
        }
        preload = PRELOAD if bridge else ()
        self._cluster.start_scheduler(*preload, env=variables, within=within)
        for number in range(workers):
            # Below each nanny is a process of its own, as by Dask's default.
            worker = self._cluster.start_worker(f"w{number}", nanny=nannies, env=SPAWNED)
            self.workers.append(worker)
        self.client = Client(self._cluster.address, set_as_default=False)
        self.client.wait_for_workers(workers, timeout=PATIENCE)

    def begin(self, spans: int, env: Mapping[str, str] = _NONE) -> None:
        """Start all of it, and wait until the first spans have arrived."""
        self.start(env)
        self.work(spans)
        self.all_arrived()

    def close(self) -> None:
        """Close the client."""
        if self.client is not None:
            self.client.close(timeout=5)

    def end(
        self, number: signal.Signals = signal.SIGTERM, process: Process | None = None
    ) -> tuple[int, float]:
        """End the scheduler, or another process, by a signal; return its exit code and seconds."""
        ending = (process or self.scheduler).popen
        began = time.monotonic()
        ending.send_signal(number)
        return ending.wait(60), time.monotonic() - began

    def submit(self, tasks: int, seconds: float = 0.01) -> tuple[str, list[Any]]:
        """Submit one span; returns its name, and its futures."""
        name = f"work {next(self._numbers)}"
        # A group of its own, for Dask keeps a group with its first span.
        keys = [(f"step-{name.replace(' ', '')}x", index) for index in range(tasks)]
        with span(name):
            futures = self.client.map(_increment, range(tasks), seconds=seconds, key=keys)
        self.submitted[name] = tasks
        return name, futures

    @contextmanager
    def under_way(self, tasks: int, seconds: float) -> Iterator[str]:
        """Do something while a span runs, and gather its results then; gives its name."""
        name, futures = self.submit(tasks, seconds)
        self.wait_for_some(futures)
        yield name
        self.client.gather(futures)

    def wait(self, futures: list[Any]) -> None:
        """Wait until futures are done, well or not."""
        with self.client.as_current():
            wait(futures, timeout=PATIENCE)

    def wait_for_some(self, futures: list[Any]) -> None:
        """Wait until some of the tasks of a span are done; others may not be."""
        eventually(lambda: any(f.done() for f in futures), PATIENCE, "some of its tasks are done")

    def work(self, spans: int = 5, tasks: int = 10) -> None:
        """Compute some spans, one after the other."""
        for _ in range(spans):
            done = self.client.gather(self.submit(tasks)[1])
            assert done == [index + 1 for index in range(tasks)]

    def block(self, tasks: int) -> float:
        """Compute a span of tiny tasks, and forget them; returns the seconds that it took."""
        began = time.perf_counter()
        self.wait(self.submit(tasks, seconds=0.0)[1])
        took = time.perf_counter() - began
        eventually(
            lambda: self.client.run_on_scheduler(lambda dask_scheduler: not dask_scheduler.tasks),
            PATIENCE, "all tasks are forgotten",
        )  # fmt: skip
        return took

    # ------------------------------------------------------------------------ what is true

    def spans(self, name: str | None = None) -> list[Span]:
        """Return the Dask spans that the collector has taken, each copy; of one name, or all."""
        return [
            one
            for one in self.collector.spans
            if one.type == "span" and name in (None, one.path)
        ]  # fmt: skip

    def nothing_came_twice(self) -> None:
        """Check that each span of any kind was taken once."""
        ids = Counter(one.span_id for one in self.collector.spans)
        twice = [(one.type, one.name) for one in self.collector.spans if ids[one.span_id] > 1]
        requests = [r.SerializeToString() for s, r in self.collector.accepted if s == "traces"]
        assert not twice, (
            f"{len(twice)} spans with the ids of others, {len(requests) - len({*requests})} "
            f"requests came again as a whole: {twice[:6]}; warnings: {self.logged('WARNING')[:2]}"
        )

    def all_spans_arrived(self) -> None:
        """Wait until each span that was submitted has arrived: one id for each, and no other."""

        def there() -> bool:
            names = Counter(name for name, _ in {(one.path, one.span_id) for one in self.spans()})
            assert names == Counter(self.submitted.keys()), (
                f"missing {sorted(self.submitted.keys() - names.keys())}, "
                f"unknown {sorted(names.keys() - self.submitted.keys())}, "
                f"of several ids {[name for name, n in names.items() if n > 1]}"
            )
            return True

        eventually(there, PATIENCE, "each span is at the collector")

    def all_tasks_counted(self, *, exactly: bool = True, again: bool = False) -> int:
        """Wait until every increment has arrived; return the number of runs that are counted.

        Parameters
        ----------
        exactly
            Whether every task has run once. Otherwise Dask's own numbers decide alone.
        again
            Whether points may have come twice, with one time: then only totals are compared.
        """

        def there() -> int:
            found = round(sum(self.collector.last("dask.task.finished").values()))
            expected = sum(self.submitted.values())
            assert found == expected or not exactly, f"{found} of {expected} tasks are counted"
            truth = self.client.run_on_scheduler(proof.truth)
            try:
                if again:
                    proof.assert_totals(self.collector, truth["totals"])
                else:
                    proof.prove(self.collector, truth, cut=True)
            except KeyError as error:
                raise AssertionError(f"{error} is not exported") from error
            return found

        return eventually(there, PATIENCE, "each increment is at the collector")

    def all_arrived(self, *, again: bool = False) -> str:
        """Wait until each span and each increment has arrived once; return that in words.

        Parameters
        ----------
        again
            Whether the collector took data and its answer got lost: copies are allowed then.
        """
        self.all_spans_arrived()
        copies = len(self.collector.spans) - len({one.span_id for one in self.collector.spans})
        if not again:
            self.nothing_came_twice()
        self.all_tasks_counted(again=again)
        spans, tasks = len(self.submitted), sum(self.submitted.values())
        repeated = f", {copies} spans a second time with the same ids" if copies else ""
        return f"{spans} of {spans} spans, {tasks} of {tasks} tasks{repeated}"

    def reconciled(self) -> str:
        """Wait until each span arrived once and every number is Dask's; return spans and runs."""
        self.all_spans_arrived()
        self.nothing_came_twice()
        runs, tasks = self.all_tasks_counted(exactly=False), sum(self.submitted.values())
        assert runs >= tasks, f"{runs} runs of {tasks} tasks"
        self.clean_log()
        spans = len(self.submitted)
        return f"{spans} of {spans} spans; {runs} runs of {tasks} tasks"

    def logged(self, level: str, words: str = "") -> list[str]:
        """Return the bridge's messages of a level that hold some words."""
        # A script may have its cluster in its own process.
        output = self._cluster.scheduler.output if self._cluster.scheduler else ""
        lines = re.findall(_LINE.format(level=level), output, re.MULTILINE)
        return [line for line in lines if words in line]

    def warned(self) -> str:
        """Wait for the first warning, and return it."""
        return str(eventually(lambda: self.logged("WARNING"), PATIENCE, "a warning")[0])

    def one_message_each(self, recovered: bool = True) -> None:
        """Check for one warning of the failure, and wait for one line of its end."""
        warnings = self.logged("WARNING")
        assert len(warnings) == 1, f"{len(warnings)} warnings: {warnings}"
        if recovered:
            again = eventually(
                lambda: [line for line in self.logged("INFO") if line.endswith(" again")],
                PATIENCE, "a message that it works again",
            )  # fmt: skip
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
        """Return the part of a core that the scheduler uses while there is no work."""
        began, used = time.monotonic(), self.cpu()
        time.sleep(seconds)
        return (self.cpu() - used) / (time.monotonic() - began)

    def dropped(self, reason: str, signal: str | None = None) -> int:
        """Return how many items were counted as lost for a reason, of one signal or of all."""
        wanted = {("dask.otel.reason", reason)} | (
            {("dask.otel.signal", signal)} if signal else set()
        )
        counts = self.collector.last("dask.otel.dropped").items()
        return round(sum(value for labels, value in counts if wanted <= {*labels}))


@contextmanager
def world(folder: Path, protocol: str, compared: bool = False) -> Iterator[World]:
    """Give a world, with peers if it is `compared`; everything it started is ended."""
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        collector = stack.enter_context(receiver(protocol))
        gate = Gate(port_of(collector.endpoint), lambda: len(collector.requests))
        gate.mode = "pass"
        stack.callback(gate.close)
        made = World(folder, protocol, stack.enter_context(cluster(folder)), collector, gate)
        stack.callback(made.close)
        for name in (HEALTHY, BARE) if compared else ():
            made.peers[name] = stack.enter_context(world(folder / name, protocol))
        yield made
