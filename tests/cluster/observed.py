"""A local cluster whose scheduler is observed by an adapter alone: no bridge, no exporters."""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import dedent
from typing import Any

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
        self._ticking.cancel()
        self.adapter.close(time())
        self._take()
        self.adapter.detach()

    async def prove(self) -> None:
        """Check what came against what Dask knows."""
        self.baseline.prove(self.adapter, self.increments)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            if self.ticking:
                self.adapter.tick(time())
            self._take()

    def _take(self) -> None:
        self.finished += self.adapter.take_finished()
        self.progress += self.adapter.take_progress()
        for series, value in self.adapter.batch.increments.items():
            self.increments[series] = self.increments.get(series, 0) + value
        self.adapter.batch.increments.clear()


class Observed:
    """What the tests look at."""

    def __init__(self, cluster: LocalCluster, client: Client, observer: Observer) -> None:
        self.cluster = cluster
        self.client = client
        self.observer = observer
        self.witness: Witness

    @property
    def adapter(self) -> SchedulerAdapter:
        return self.observer.adapter

    @property
    def exported(self) -> list[FinishedSpan]:
        return self.observer.finished

    def named(self, name: str) -> FinishedSpan:
        """The only exported span of that name."""
        (found,) = [s for s in self.exported if s.identity.tags[-1] == name]
        return found

    def count(self, *series: Any) -> float:
        """The sum of all increments of a series so far."""
        self.client.sync(self._flush)
        return self.observer.increments.get(series, 0)

    async def _flush(self) -> None:
        self.observer._take()

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
        assert not adapter.spans.groups
        assert not adapter.tasks.assigned
        assert not adapter.lifecycle._settling
        assert not adapter.blocks.blocks._holding
        assert not adapter.blocks.leaving
        assert not adapter.lifecycle._lingering
        assert not adapter.callers._open
        outside = uncovered(record for span in self.exported for record in translate(span))
        assert not outside, outside
        active = [k for k in self.observer.increments if k[0] == "dask.span.active"]
        assert all(self.observer.increments[k] == 0 for k in active)

    def assert_tree(self, expected: str) -> None:
        """Compare all that was exported with lines ``name result shortest.. counts``.

        The shortest length is what the tasks themselves take. None may be longer than the
        scheduler saw its work last; see `Witness`.
        """
        wanted = [line for line in dedent(expected).splitlines() if line.strip()]
        lines = list(_lines(self.exported))
        shown = []
        for index, (text, seconds, rest) in enumerate(lines):
            length = f"{seconds:.2f}"
            found = re.search(r"(\S+)\.\.", wanted[index]) if index < len(wanted) else None
            if found and float(found.group(1)) <= seconds + self.witness.skew:
                length = found.group()
            shown.append(f"{text} {length} {rest}".rstrip())
        assert shown == wanted, "\n".join(["exported:", *shown])
        self.witness.check(self.exported)


def _lines(spans: list[FinishedSpan]) -> Iterator[tuple[str, float, str]]:
    by_parent: dict[int | None, list[FinishedSpan]] = {}
    ids = {span.identity.span_id for span in spans}
    assert len(ids) == len(spans), "exported twice"
    for span in sorted(spans, key=lambda s: (s.start, s.identity.span_id)):
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


@contextmanager
def observed(limits: Limits = LIMITS, attach: bool = True, **cluster: Any) -> Iterator[Observed]:
    """Give a client on an observed local cluster: two workers with a thread each.

    At the end, the adapter must have all that the scheduler knows.
    """
    settings: dict[str, Any] = {
        "n_workers": 2,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": "127.0.0.1:0",
        "silence_logs": 50,
        **cluster,
    }
    with LocalCluster(**settings) as local, Client(local) as client:
        observer = Observer(limits)
        made = Observed(local, client, observer)

        async def add() -> None:
            await observer.start(local.scheduler)
            local.scheduler.add_plugin(observer)
            made.witness = Witness(local.scheduler, local.workers)
            local.scheduler.add_plugin(made.witness)

        if attach:
            client.sync(add)
        yield made
        local.sync(made.observer.prove)
