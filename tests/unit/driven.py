"""The core without Dask, call by call."""

from __future__ import annotations

import itertools
from typing import Any

from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import NO_SUMS, Group, GroupFacts, OpenSpan, SpanFacts
from dask_otel.core.records import FinishedSpan
from tests.limits import make_limits


class Driven:
    """A lifecycle whose clock, tasks and heartbeats are the test's.

    It is the lifecycle's cluster, too: two threads, and nothing else is known.
    """

    def __init__(self, **limits: Any) -> None:
        self.limits = make_limits(**{"linger": 2.0, "settle_timeout": 10.0, **limits})
        self.now = 1_000_000.0
        self.lifecycle = Lifecycle(self.limits, self)
        self.exported: list[FinishedSpan] = []
        self.active = 0
        self._numbers = itertools.count()
        self.beat("w0", "w1")

    def threads(self, start: float, stop: float) -> tuple[float, int]:
        return 2 * (stop - start), 2

    def group_facts(self, group: Group) -> GroupFacts:
        return NO_SUMS

    def span_facts(self, span: OpenSpan) -> SpanFacts:
        return SpanFacts()

    def span_opened(self, span: OpenSpan) -> None:
        """Nothing is kept for it."""

    def span_exported(self, span: OpenSpan) -> None:
        self.lifecycle.computing.add_all()
        self.lifecycle.computing.counts.clear()

    def span_activity(self, span: OpenSpan) -> None:
        self.active += 1 if span.active else -1

    def span(self, *above: OpenSpan) -> OpenSpan:
        """Open a span below others, the outermost one first."""
        name = f"s{next(self._numbers)}"
        ids = tuple(one.identity.dask_id for one in above)
        return self.lifecycle.span_created(name, (*ids, name), ids, self.now)

    def task(self, span: OpenSpan) -> Group:
        """Submit a task with a group of its own."""
        group = self.lifecycle.add_group(span, "f", "f", None)
        self.lifecycle.outcomes.added(group, "key", self.now)
        return group

    def finish(self, task: Group, worker: str = "w0", took: float = 0.0) -> None:
        """Let a task have its result now."""
        # As in a `RawRun`.
        task.new_runs.append((took, None, "key", worker, self.now - took, self.now))
        self.lifecycle.computing.waiting[task] = None
        task.span.workers[worker] = True
        task.memory += 1
        task.span.unfinished -= 1
        if not task.span.unfinished:
            self.lifecycle.outcomes.activity(task.span, False, self.now)

    def done(self, *above: OpenSpan, worker: str = "w0") -> OpenSpan:
        """Open a span whose one task has its result."""
        span = self.span(*above)
        self.finish(self.task(span), worker)
        return span

    def beat(self, *workers: str) -> None:
        """Let heartbeats come that were made now."""
        for worker in workers:
            self.lifecycle.reports.heartbeat(worker, self.now, 0)

    def after(self, seconds: float, *beats: str) -> None:
        """Let time pass, then these workers report, then the bridge tick."""
        self.now += seconds
        self.beat(*beats)
        self.lifecycle.tick(self.now)
        self.exported += self.lifecycle.finished
        self.lifecycle.finished.clear()
