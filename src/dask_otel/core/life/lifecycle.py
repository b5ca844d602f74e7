"""The life of a bridged span, as a table.

A Dask span has no end: ``Span.done`` is derived from task states and may return to False
at any time. An OpenTelemetry span has exactly one end, and is exported once. This state machine
connects the two. One generation of a Dask span is

    OPEN        it, or a span below it, has unfinished work or a client's open block
    SETTLING    all work is done, but workers may still owe it metrics
    LINGERING   everything has arrived; new work still re-opens it at no cost
    EXPORTED    handed over; only an entry in a bounded table remains

New work after the export opens the *next generation*: a new OpenTelemetry span, linked to
the first. Seconds that arrive after the export, without work, open nothing. A lost result is work
again when its task is sent to a worker; a generation is discarded if no such task ran.

Events carry their times: seconds since the epoch on the scheduler's clock. If that clock is set
back, waits begin again; if it is set forward, they end early. Events only open a span, or
let it settle: in the middle of a Dask stimulus it can look done for an instant (every retry goes
through ``released``). `Lifecycle.tick` does the rest; the bridge calls it between two callbacks of
the event loop.

Cost: an event is O(1), or O(depth) if a span becomes busy or quiet; a tick is O(spans in SETTLING
whose workers have reported + spans exported). Finished trees are never walked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import islice, takewhile
from typing import Literal

from dask_otel.core.context import Caller
from dask_otel.core.life.completion import finish
from dask_otel.core.life.computing import Computing
from dask_otel.core.life.generations import Generations
from dask_otel.core.life.ledger import Ledger
from dask_otel.core.life.notes import OpenNotes
from dask_otel.core.life.open_span import (
    NO_SUMS,
    Cluster,
    Group,
    GroupFacts,
    Limits,
    OpenSpan,
    Phase,
)
from dask_otel.core.life.outcomes import Outcomes
from dask_otel.core.life.progress import LongSpans
from dask_otel.core.life.reports import Reports
from dask_otel.core.life.schedule import Schedule
from dask_otel.core.life.summaries import summarize
from dask_otel.core.records import (
    FinishedSpan,
    Progress,
    Result,
    SpanIdentity,
    Tags,
)


class Trigger(Enum):
    """Reasons for a transition."""

    #: It, or a span below it, got unfinished work or an open block.
    WORK = "work"
    #: All work is done, and all blocks are left.
    QUIET = "quiet"
    #: Every worker that owed metrics has reported, or is gone.
    REPORTED = "reported"
    #: Some worker did not report within the settle timeout.
    TIMED_OUT = "timed out"
    #: The linger is over, and no span below it is open.
    ELAPSED = "elapsed"
    #: The scheduler closes, or the bridge is removed from it.
    CLOSED = "closed"


#: The whole life of a span; no other transition is possible. Work for an exported span is not
#: listed: it opens the next generation, in OPEN.
TRANSITIONS: Mapping[tuple[Phase, Trigger], Phase] = {
    (Phase.OPEN, Trigger.QUIET): Phase.SETTLING,
    (Phase.SETTLING, Trigger.WORK): Phase.OPEN,
    (Phase.SETTLING, Trigger.REPORTED): Phase.LINGERING,
    (Phase.SETTLING, Trigger.TIMED_OUT): Phase.LINGERING,
    (Phase.LINGERING, Trigger.WORK): Phase.OPEN,
    (Phase.LINGERING, Trigger.ELAPSED): Phase.EXPORTED,
    (Phase.OPEN, Trigger.CLOSED): Phase.EXPORTED,
    (Phase.SETTLING, Trigger.CLOSED): Phase.EXPORTED,
    (Phase.LINGERING, Trigger.CLOSED): Phase.EXPORTED,
}


class Lifecycle:
    """All open spans of one scheduler.

    Parameters
    ----------
    limits
        Times and caps.
    cluster
        Dask's side.
    generations
        The exported generations of an earlier lifecycle of the same scheduler, to continue from:
        no id is made twice.

    Notes
    -----
    Belongs to the thread that runs the scheduler's event loop.
    """

    def __init__(
        self, limits: Limits, cluster: Cluster, generations: Generations | None = None
    ) -> None:
        self._limits = limits
        #: Whether the spans' paths are followed.
        self.follows = limits.path
        self._cluster = cluster
        self.open: dict[str, OpenSpan] = {}
        #: The workers that owe metrics; the adapter feeds it.
        self.reports = Reports()
        #: Finished generations in the order of their export, children first; the bridge removes
        #: them.
        self.finished: list[FinishedSpan] = []
        #: Signs of life of long spans; the bridge removes them too.
        self.progress: list[Progress] = []
        #: Number of spans exported at the settle timeout, since the last look at it.
        self.unsettled = 0
        #: The outcomes of the spans' tasks; the adapter feeds it.
        self.outcomes = Outcomes(limits, self._activity)
        #: Computed seconds; the adapter feeds it.
        self.computing = Computing(self.outcomes.ran)
        #: The results in memory; the adapter feeds it. None if they are not followed.
        self.memory = Ledger(self.open) if limits.memory else None
        self.generations = generations or Generations(limits)
        self.generations.resume(limits)
        self._long = LongSpans(limits, self.generations, self.open)
        #: Notes of open spans, in case the scheduler is lost; nobody takes them without a spool.
        self.notes = OpenNotes(cluster, self.open, self.computing.add_all)
        #: Finished spans whose last metrics may be missing, by the time when their work was done.
        self.settling: dict[OpenSpan, None] = {}
        self._lingering = Schedule(limits.linger)
        self._ticked = 0.0
        #: Whether the last tick left something to do.
        self.behind = False

    def __repr__(self) -> str:
        return f"<Lifecycle: {len(self.open)} open spans, {len(self.finished)} finished>"

    # ----------------------------------------------------------------------- the spans

    def span_created(
        self,
        dask_id: str,
        tags: Tags,
        ancestors: tuple[str, ...],
        enqueued: float,
        caller: Caller | None = None,
    ) -> OpenSpan:
        """Open the first generation of a Dask span.

        Parameters
        ----------
        dask_id, tags
            Dask's id and full name.
        ancestors
            Ids of its ancestors, root first. They are expected to have been created.
        enqueued
            ``Span.enqueued``.
        caller
            A root joins its trace. Another span becomes its child if it is inside a task.
        """
        ident = self.generations.first(dask_id, tags, ancestors, caller)
        return self._open(ident, ancestors, enqueued)

    def span_reopened(
        self,
        dask_id: str,
        tags: Tags,
        ancestors: tuple[str, ...],
        now: float,
        caller: Caller | None = None,
    ) -> OpenSpan:
        """Open the next generation of a span that has been exported.

        A span that finished before the bridge started is continued too: its earlier life counts as
        a generation that was never exported. The caller matters only if the generation leaves its
        root's trace.
        """
        start = max(now, self.generations.earliest_start(dask_id))
        ident = self.generations.next(dask_id, tags, ancestors, start, self.open, caller)
        return self._open(ident, ancestors, start)

    def _open(self, ident: SpanIdentity, ancestors: tuple[str, ...], start: float) -> OpenSpan:
        parent = next((self.open[a] for a in reversed(ancestors) if a in self.open), None)
        above = () if parent is None else (parent, *parent.above)
        direct = self.open.get(ancestors[-1]) if ancestors else None
        # The span above was exported: this is always its first generation.
        late = bool(ancestors) and (direct is None or direct.identity.generation > 1)
        span = OpenSpan(start, above, ident, late)
        self.computing.opened(span)
        if self.memory is not None:
            self.memory.opened(span)
        if parent is not None:
            parent.open_children += 1
        if not self.follows:
            span.close()
        self.open[ident.dask_id] = span
        # A span can begin without work; until its first work it counts as done.
        self._begin_to_settle(span)
        self._long.opened(span)
        self.notes.opened(span)
        self._cluster.span_opened(span)
        return span

    def add_group(
        self,
        span: OpenSpan,
        name: str,
        prefix: str,
        source: object,
        before: GroupFacts = NO_SUMS,
    ) -> Group:
        """Add a task group, with these sums before now, to an open span."""
        group = Group(span, name, prefix, source, self._limits.tasks.floor, before)
        span.groups.append(group)
        return group

    def all_forgotten(self, now: float) -> None:
        """Cancel all unfinished work: the scheduler was restarted."""
        for span in self.open.values():
            self.outcomes.cancel_all(span)
        self.repair({}, now)

    # ------------------------------------------------------------------ busy and quiet

    def _activity(self, span: OpenSpan, active: bool, now: float) -> None:
        self._set_active(span, active)
        if not span.holds:
            self._count_busy(span, 1 if active else -1, now)

    def _set_active(self, span: OpenSpan, active: bool) -> None:
        if span.active != active:
            span.active = active
            self._cluster.span_activity(span)

    def hold(self, span: OpenSpan) -> None:
        """Keep a span open: a client has entered its block."""
        span.holds += 1
        if span.holds == 1 and not span.active:
            self._count_busy(span, 1)

    def unhold(self, span: OpenSpan, ended: float, now: float) -> None:
        """Undo one `hold`: the block was left, or its client is gone.

        Parameters
        ----------
        ended
            The time of leaving. The span ends no earlier: it covers the whole block, including the
            client's own work.
        """
        span.holds -= 1
        self.outcomes.at_work_until(span, ended)
        if not span.holds and not span.active:
            self._count_busy(span, -1, now)

    def _count_busy(self, span: OpenSpan, change: Literal[1, -1], now: float = 0.0) -> None:
        """Count a busy part of a span; the first and the last one count for its parent too."""
        for node in (span, *span.above):
            node.busy += change
            if node.busy != (change > 0):
                return
            if node.busy:
                self._work_began(node)
            else:
                self._work_ended(node, now)

    def _work_began(self, span: OpenSpan) -> None:
        self._step(span, Trigger.WORK)
        if self.memory is not None:
            self.memory.busy(span)
        self._stop_settling(span)
        self.reports.begin_anew(span)

    def _work_ended(self, span: OpenSpan, now: float) -> None:
        self._step(span, Trigger.QUIET)
        span.quiet_since = now
        self.computing.quiet(span)
        if self.memory is not None:
            self.memory.quiet(span)
        self._begin_to_settle(span)

    def _begin_to_settle(self, span: OpenSpan) -> None:
        self.settling[span] = None
        self.reports.due[span] = None

    def _stop_settling(self, span: OpenSpan) -> None:
        if span in self.settling:
            del self.settling[span]
            self.reports.forget(span)

    def repair(self, unfinished: Mapping[str, int], now: float) -> None:
        """Correct the state after an error of ours.

        Parameters
        ----------
        unfinished
            The true number of unfinished tasks by Dask span id; a missing span has none.

        Notes
        -----
        Derives everything again from the counts of unfinished tasks. If a task's end was missed,
        the task has no outcome. O(open spans).
        """
        spans = sorted(self.open.values(), key=lambda s: -s.depth)
        for span in spans:
            span.busy = span.open_children = 0
        for span in spans:
            self.outcomes.recount(span, unfinished.get(span.identity.dask_id, 0), now)
            self._set_active(span, bool(span.unfinished))
            span.busy += bool(span.unfinished or span.holds)
            if span.parent is not None:
                span.parent.open_children += 1
                span.parent.busy += bool(span.busy)
            if span.busy and span.phase is not Phase.OPEN:
                self._work_began(span)
            elif not span.busy and span.phase is Phase.OPEN:
                self._work_ended(span, now)

    @staticmethod
    def _step(span: OpenSpan, trigger: Trigger) -> None:
        # A `KeyError` names state and trigger.
        span.phase = TRANSITIONS[span.phase, trigger]

    # ----------------------------------------------------------------------- decisions

    def tick(self, now: float, most: int | None = None) -> None:
        """Make the due transitions; exported generations go to `finished`.

        `most` limits each kind of transition: ten thousand spans can end at once. Then `behind` is
        whether some are left for the next tick.
        """
        if now < self._ticked:
            # Else a clock set back by an hour would cause an hour's wait.
            self.reports.clock_set_back(now)
            for span in self.settling:
                span.quiet_since = min(span.quiet_since, now)
        self._ticked = now
        self.behind = False
        if not self.open:
            return
        for span in self.reports.take_complete(most):
            self._settled(span, Trigger.REPORTED, now)
        timeout = self._limits.settle_timeout
        late = takewhile(lambda s: now - s.quiet_since >= timeout, self.settling)
        timed_out = list(islice(late, most))
        for span in timed_out:
            self._settled(span, Trigger.TIMED_OUT, now)
            self.unsettled += 1
        for dask_id in islice(self._lingering.take(now), most):
            self._elapse(self.open[dask_id])
        self.behind = (
            len(timed_out) == most or bool(self.reports.due) or self._lingering.is_due(now)
        )
        self.progress += self._long.signs(now)

    def end(self, dask_ids: Sequence[str], now: float) -> None:
        """Let spans linger no longer: the next ticks export them."""
        for dask_id in dask_ids:
            if dask_id in self._lingering:
                self._lingering.set(dask_id, now, -self.open[dask_id].depth)
        self.behind = True

    def _settled(self, span: OpenSpan, trigger: Trigger, now: float) -> None:
        self._step(span, trigger)
        self._stop_settling(span)
        self.notes.settled(span)
        # At equal times, children come before their parents.
        self._lingering.set(span.identity.dask_id, now + self._limits.linger, -span.depth)

    def _elapse(self, span: OpenSpan) -> None:
        """Export a span whose linger is over, and the spans above that waited for it alone."""
        while (
            span.open_children == 0
            and span.phase is Phase.LINGERING
            and span.identity.dask_id not in self._lingering
        ):
            self._step(span, Trigger.ELAPSED)
            self._export(span, complete=True)
            if span.parent is None:
                return
            span = span.parent

    def close(self, now: float, cut_off: Result = "error") -> None:
        """Export all open spans: the scheduler closes, or the bridge is removed from it.

        A span without unfinished work is complete and has its own result, even if a client is
        still in its block. The other spans, and the spans above them, are cut off.

        Parameters
        ----------
        cut_off
            The result of a span that is cut off: ``error`` if the scheduler closes, which ends the
            work; ``unknown`` if only the bridge is removed, and the work continues.
        """
        for span in sorted(self.open.values(), key=lambda s: -s.depth):
            unfinished = span.unfinished > 0
            if unfinished or span.holds:
                self.outcomes.at_work_until(span, now)
            self._set_active(span, False)
            self._step(span, Trigger.CLOSED)
            self._export(span, not unfinished, cut_off)
            self._stop_settling(span)

    def _export(self, span: OpenSpan, complete: bool, cut_off: Result = "error") -> None:
        self.outcomes.exported(span)
        elsewhere = self.computing.elsewhere(span)
        if self.memory is not None and span.busy:
            self.memory.quiet(span)
        finished = None
        if not span.empty:
            finished = finish(
                span, self._cluster, self._limits, complete, cut_off, elsewhere, self.memory
            )
        del self.open[span.identity.dask_id]
        self._lingering.remove(span.identity.dask_id)
        self._long.due.remove(span.identity.dask_id)
        self.notes.ended(span)
        if span.parent is not None:
            span.parent.open_children -= 1
        if finished is None:
            self.generations.discard(span.identity)
        else:
            path = None if finished.path is None else finished.path.parts
            summary = summarize(span, finished.idle, finished.capacity, elsewhere, path)
            self.generations.remember(finished, summary)
            self.finished.append(finished)
        self._cluster.span_exported(span)
        span.release()
