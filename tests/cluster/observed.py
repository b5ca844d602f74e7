"""A local cluster whose scheduler is observed by an adapter alone: no bridge, no exporters."""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from textwrap import dedent
from typing import Any

import dask
from distributed import Client, LocalCluster
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time

from dask_otel._dask.adapter import HOOKS, SchedulerAdapter
from dask_otel._dask.boundary import ErrorBoundary
from dask_otel.core.life.open_span import Limits
from dask_otel.core.records import FinishedSpan, Progress, TaskCounts
from dask_otel.core.traces.translate import translate
from tests.cluster.proof import Baseline
from tests.cluster.witness import Witness
from tests.covering import uncovered
from tests.waiting import eventually, last_reports

#: Short waits: heartbeats come twice a second. The timeout is for what never comes, and must not
#: come before it where a machine is busy.
LIMITS = Limits(linger=0.3, settle_timeout=30.0)


class Errors(ErrorBoundary):
    """Keeps the tracebacks."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__()
        self._errors = errors

    def failed(self, kind: str) -> None:
        self._errors.append(f"{kind}: {traceback.format_exc()}")


class Observer(SchedulerPlugin):
    """Passes Dask's calls on to the adapter, as the real plugin does."""

    name = "observer"

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.errors: list[str] = []
        self.closed = False
        self.finished: list[FinishedSpan] = []
        self.progress: list[Progress] = []
        self.increments: dict[tuple[Any, ...], float] = {}
        #: Without ticks no span ends.
        self.ticking = True
        self.adapter: SchedulerAdapter

    async def start(self, scheduler: Any) -> None:
        self.baseline = Baseline(scheduler)
        self.adapter = adapter = SchedulerAdapter(scheduler, self.limits, Errors(self.errors))
        adapter.attach()
        vars(self).update({name: getattr(adapter, name) for name in HOOKS})
        self._ticking = asyncio.ensure_future(self._tick())

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._ticking.cancel()
            self.adapter.close(time())
            self.take()
            self.adapter.detach()

    async def prove(self) -> None:
        """Check what came against what Dask knows."""
        self.baseline.prove(self.adapter, self.increments)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            if self.ticking:
                self.adapter.tick(time())
            self.take()

    def take(self) -> None:
        self.finished += self.adapter.take_finished()
        self.progress += self.adapter.take_progress()
        for series, value in self.adapter.batch.increments.items():
            self.increments[series] = self.increments.get(series, 0) + value
        self.adapter.batch.increments.clear()


class Observed:
    """What the tests look at."""

    def __init__(self, cluster: LocalCluster, client: Client, limits: Limits) -> None:
        self.cluster = cluster
        self.client = client
        self.observer = Observer(limits)
        self.witness = Witness(cluster.scheduler, cluster.workers)

    @property
    def scheduler(self) -> Any:
        return self.cluster.scheduler

    @property
    def adapter(self) -> SchedulerAdapter:
        return self.observer.adapter

    @property
    def exported(self) -> list[FinishedSpan]:
        return self.observer.finished

    async def attach(self) -> None:
        """Put the observer on the scheduler, then the witness: its times are the later ones."""
        await self.observer.start(self.scheduler)
        for plugin in (self.observer, self.witness):
            self.scheduler.add_plugin(plugin)

    async def detach(self) -> None:
        """Prove what came, and remove what `attach` has added."""
        await self.observer.prove()
        await self.observer.close()
        for plugin in (self.observer, self.witness):
            self.scheduler.plugins.pop(plugin.name, None)

    def running(self) -> int:
        """How many tasks hold a thread, by the workers' own count."""
        return sum(len(w.state.executing) for w in self.cluster.workers.values())

    def close_worker_of(self, future: Any) -> None:
        """Let the worker leave that has a result."""
        (address,) = self.client.who_has([future])[future.key]
        worker = next(w for w in self.cluster.workers.values() if w.address == address)
        self.client.sync(worker.close)

    def rest(self) -> None:
        """Wait until the client's tasks have gone, and nothing runs on without them."""
        eventually(lambda: not self.scheduler.tasks and not self.running(), what="the next test")

    def named(self, name: str) -> FinishedSpan:
        """The only exported span of that name."""
        (found,) = [s for s in self.exported if s.identity.tags[-1] == name]
        return found

    def counted(self, metric: str, *series: Any) -> dict[tuple[Any, ...], float]:
        """What was counted of a metric so far, by its other labels."""
        self.client.sync(self._flush)
        places = 1 + len(series)
        found = self.observer.increments.items()
        return {k[places:]: v for k, v in found if k[:places] == (metric, *series) and v}

    async def _flush(self) -> None:
        self.observer.take()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no span end inside, however long the test is kept from going on.

        For what a client does one after the other within a span's linger.
        """
        self.observer.ticking = False
        try:
            yield
        finally:
            self.observer.ticking = True

    def quiet(self) -> None:
        """Wait until every span has been exported; nothing of ours may be left then."""
        lifecycle = self.adapter.lifecycle
        eventually(lambda: not lifecycle.open, 60, f"export of {lifecycle.open}")
        self.client.sync(self._flush)
        self.check()

    def close(self) -> None:
        """Close the observer, as the scheduler would; no worker reports any more after it."""

        async def close() -> None:
            await last_reports(self.cluster.workers.values())
            await self.observer.close()

        self.client.sync(close)

    def check(self) -> None:
        """Nothing went wrong, nothing is left of what was exported."""
        assert self.observer.errors == []
        adapter = self.adapter
        left = [
            adapter.spans.groups,
            adapter.task_events.assigned,
            adapter.lifecycle._settling,
            adapter.lifecycle._lingering,
            adapter.blocks.blocks._holding,
            adapter.blocks.leaving,
            adapter.callers._open,
            max(0, len(adapter.clocks) - len(self.scheduler.workers)),
            uncovered(record for span in self.exported for record in translate(span)),
            self.counted("dask.span.active"),
        ]
        assert not any(left), left

    def assert_tree(self, expected: str) -> None:
        """Wait until all is exported, and compare it with lines ``name result shortest.. counts``.

        The shortest length is what the tasks themselves take. None may be longer than the
        scheduler saw its work last; see `Witness`.
        """
        if not self.observer.closed:
            self.quiet()
        wanted = [line for line in dedent(expected).splitlines() if line.strip()]
        shown = []
        for index, (text, seconds, rest) in enumerate(lines(self.exported)):
            length = f"{seconds:.2f}"
            found = re.search(r"(\S+)\.\.", wanted[index]) if index < len(wanted) else None
            if found and float(found.group(1)) <= seconds + self.witness.skew:
                length = found.group()
            shown.append(f"{text} {length} {rest}".rstrip())
        assert shown == wanted, "\n".join(["exported:", *shown])
        self.witness.check(self.exported)


def lines(spans: list[FinishedSpan]) -> Iterator[tuple[str, float, str]]:
    """Return spans as an indented tree: name and result, length, counts."""
    by_parent: dict[int | None, list[FinishedSpan]] = {}
    ids = {span.identity.span_id for span in spans}
    assert len(ids) == len(spans), "exported twice"
    for span in sorted(spans, key=lambda s: (s.start, s.identity.tags, s.identity.generation)):
        parent = span.identity.parent_span_id
        assert parent is None or parent in ids, "an orphan"
        by_parent.setdefault(parent, []).append(span)

    def walk(parent: int | None, indent: str) -> Iterator[tuple[str, float, str]]:
        for span in by_parent.get(parent, ()):
            assert span.stop >= span.start
            yield _line(span, indent)
            yield from walk(span.identity.span_id, indent + "  ")

    return walk(None, "")


def _line(span: FinishedSpan, indent: str) -> tuple[str, float, str]:
    ident = span.identity
    name = str(ident.tags[-1]) + (f"#{ident.generation}" if ident.generation > 1 else "")
    counts = [
        f"{name}={value}" for name in TaskCounts.__slots__ if (value := getattr(span.counts, name))
    ]
    marks = [
        "late" if span.late else "",
        "" if span.complete else "incomplete",
        f"requested={'/'.join(map(str, span.requested))}" if span.requested else "",
    ]
    rest = " ".join([*counts, *filter(None, marks)])
    return f"{indent}{name} {span.result}", span.stop - span.start, rest


def plain_cluster(**options: Any) -> LocalCluster:
    """Make a cluster of two workers with a thread each, but for the options."""
    settings: dict[str, Any] = {
        "n_workers": 2,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": False},
        "silence_logs": False,
        **options,
    }
    return LocalCluster(**settings)


@contextmanager
def observed(
    limits: Limits = LIMITS,
    attach: bool = True,
    local: LocalCluster | None = None,
    config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[Observed]:
    """Give a client on an observed cluster: on this one, or on a new one with these options.

    At the end, the adapter must have all that the scheduler knows.
    """
    with (
        dask.config.set(config or {}),
        nullcontext(local) if local else plain_cluster(**options) as cluster,
        Client(cluster) as client,
    ):
        made = Observed(cluster, client, limits)
        if attach:
            client.sync(made.attach)
        yield made
        cluster.sync(made.detach)
    if local:
        made.rest()
