"""A scheduler that is observed by an adapter alone: no bridge, no exporters."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time

from dask_otel._dask.adapter import HOOKS, SchedulerAdapter
from dask_otel._dask.boundary import ErrorBoundary
from dask_otel.core.life.open_span import Limits
from dask_otel.core.records import FinishedSpan, Progress, TaskCounts
from dask_otel.core.traces.translate import translate
from tests.cluster.proof import prove_adapter
from tests.covering import uncovered
from tests.waiting import eventually

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
        self.adapter: SchedulerAdapter

    async def start(self, scheduler: Any) -> None:
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
        prove_adapter(self.adapter, self.increments)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
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

    client: Client

    def __init__(self, cluster: Any, limits: Limits) -> None:
        self.cluster = cluster
        self.observer = Observer(limits)

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
        """Put the observer on the scheduler."""
        await self.observer.start(self.scheduler)
        self.scheduler.add_plugin(self.observer)

    def named(self, name: str) -> FinishedSpan:
        """The only exported span of that name."""
        (found,) = [s for s in self.exported if s.identity.tags[-1] == name]
        return found

    def quiet(self) -> None:
        """Wait until every span has been exported; nothing of ours may be left then."""
        lifecycle = self.adapter.lifecycle
        eventually(lambda: not lifecycle.open, 60, f"export of {lifecycle.open}")
        self.observer.take()
        self.check()

    def check(self) -> None:
        """Nothing went wrong, nothing is left of what was exported."""
        assert self.observer.errors == []
        adapter = self.adapter
        active = [v for k, v in self.observer.increments.items() if k[0] == "dask.span.active"]
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
            sum(active),
        ]
        assert not any(left), left


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
