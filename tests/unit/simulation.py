"""A made-up scheduler that drives the core, and writes down what it did, for tests to compare."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from dask_otel.core.life.clock_offsets import shifted
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import (
    Group,
    GroupFacts,
    Limits,
    OpenSpan,
    RetryReason,
    SpanFacts,
)
from dask_otel.core.life.progress import AT_ONCE
from dask_otel.core.records import Failure, FinishedSpan, Progress, Result

#: What became of one task in one generation of its span; "todo" while it has no outcome.
Outcome = str


@dataclass
class Task:
    """One task, as the made-up scheduler knows it."""

    key: str
    span: str
    group: str
    #: todo, interrupted, memory, erred, blamed, gone
    state: str = "todo"
    #: Whether it is computed again, and its result was of the same generation.
    kept: bool = False


@dataclass
class Life:
    """What was done to one generation of a Dask span."""

    span: OpenSpan
    #: Lives below it that were known when they began.
    children: list[Life] = field(default_factory=list)
    #: Every task that it got, with its outcome.
    outcomes: list[Outcome] = field(default_factory=list)
    #: Index in `outcomes` of the last entry of a key.
    entries: dict[str, int] = field(default_factory=dict)
    #: Entries of tasks that were an earlier generation's first.
    inherited: int = 0
    events: list[float] = field(default_factory=list)
    #: When its runs began, all of which are known.
    starts: list[float] = field(default_factory=list)
    late: bool = False
    #: When its tree was last seen busy, on a clock that is never set, and on the scheduler's.
    quiet_real: float = 0.0
    quiet: float = 0.0
    #: Workers that ran its tasks, and have not left; all that did.
    ran_on: set[str] = field(default_factory=set)
    all_ran_on: set[str] = field(default_factory=set)
    #: Whether the clock was set forward since, or back by too little to be noticed: then a
    #: wait may be short.
    jumped: bool = False
    finished: FinishedSpan | None = None
    signs: list[Progress] = field(default_factory=list)
    own: tuple[int, int, int, int] = (0, 0, 0, 0)
    #: The result of work that was cut off.
    cut_off: Result = "error"
    #: Runs that a task wished to repeat, and those that had to be.
    rescheduled: int = 0
    retried: int = 0

    def enter(self, key: str, again: bool) -> None:
        """A task of this life is unfinished."""
        if again and key in self.entries:
            self.outcomes[self.entries[key]] = "todo"
        else:
            self.inherited += again
            self.entries[key] = len(self.outcomes)
            self.outcomes.append("todo")

    def leave(self, key: str, outcome: Outcome) -> None:
        """A task of this life has an outcome."""
        self.outcomes[self.entries[key]] = outcome


class Simulation:
    """A scheduler without Dask: tasks, workers, a clock, and the core that observes them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.lifecycle = Lifecycle(limits, self)
        #: The scheduler's clock, and one that is never set.
        self.now = self.real = 1_000_000.0
        self.spans: dict[str, tuple[str, ...]] = {}
        self.tasks: dict[str, Task] = {}
        self.lives: list[Life] = []
        self.current: dict[str, Life] = {}
        self.groups: dict[tuple[str, str], Group] = {}
        self.holds: dict[str, int] = {}
        #: By worker, the heartbeats since the start: (arrived on the never-set clock, began).
        self.beats: dict[str, list[tuple[float, float]]] = {"w0": [], "w1": []}
        self.active = 0
        self._ids = itertools.count()
        for worker in self.beats:
            self.lifecycle.reports.heartbeat(worker, self.now, 0)

    # ------------------------------------------------------------- the core's questions

    def thread_seconds(self, start: float, stop: float) -> float:
        assert stop >= start
        return 2 * (stop - start)

    def threads_at(self, time: float) -> int:
        return 2

    def group_facts(self, group: Group) -> GroupFacts:
        return GroupFacts(7, {}, ())

    def span_facts(self, span: OpenSpan) -> SpanFacts:
        return SpanFacts()

    def span_opened(self, span: OpenSpan) -> None:
        """Nothing to account for here."""

    def span_active(self, span: OpenSpan, now: float) -> None:
        self.active += 1

    def span_inactive(self, span: OpenSpan, now: float) -> None:
        self.active -= 1

    def span_exported(self, span: OpenSpan) -> None:
        dask_id = span.identity.dask_id
        life = self.current.pop(dask_id)
        assert life.span is span
        counts = span.groups
        life.own = (
            sum(c.tasks for c in counts),
            sum(c.memory for c in counts),
            sum(c.erred for c in counts),
            sum(c.cancelled for c in counts),
        )
        for group in span.groups:
            del self.groups[dask_id, group.name]

    # --------------------------------------------------------------------- spans, groups

    def create(self, parent: str | None) -> str:
        """A graph with a new span."""
        dask_id = f"s{next(self._ids)}"
        ancestors = (*self.spans[parent], parent) if parent is not None else ()
        self.spans[dask_id] = ancestors
        # Dask makes missing ancestors first; here they exist, open or exported.
        tags = (*ancestors, dask_id)
        self._born(self.lifecycle.span_created(dask_id, tags, ancestors, self.now))
        return dask_id

    def _born(self, span: OpenSpan) -> None:
        ancestors = self.spans[span.identity.dask_id]
        life = Life(span, quiet_real=self.real, quiet=self.now)
        above = next((self.current[a] for a in reversed(ancestors) if a in self.current), None)
        if above is not None:
            above.children.append(life)
        if ancestors:
            direct = self.current.get(ancestors[-1])
            life.late = direct is None or direct.span.identity.generation > 1
        self.lives.append(life)
        self.current[span.identity.dask_id] = life

    def group(self, dask_id: str, name: str) -> Group:
        """The group on the span's open generation."""
        group = self.groups.get((dask_id, name))
        if group is None:
            tags = (*self.spans[dask_id], dask_id)
            ancestors = self.spans[dask_id]
            span = self.lifecycle.span_reopened(dask_id, tags, ancestors, self.now)
            if dask_id not in self.current:
                self._born(span)
            group = self.groups[dask_id, name] = self.lifecycle.add_group(span, name, name, None)
        return group

    # ---------------------------------------------------------------------------- tasks

    def submit(self, dask_id: str, name: str) -> Task:
        """A new task."""
        task = Task(f"t{next(self._ids)}", dask_id, name)
        self.tasks[task.key] = task
        group = self.group(dask_id, name)
        assert self.lifecycle.outcomes.added(group, task.key, self.now) is None
        self.current[dask_id].enter(task.key, again=False)
        return task

    def _leaving(
        self, task: Task, state: str, outcome: Outcome, stop: float | None = None
    ) -> Group:
        group = self.group(task.span, task.group)
        life = self.current[task.span]
        task.kept = False
        life.events.append(self.now if stop is None else min(stop, self.now))
        life.leave(task.key, outcome)
        task.state = state
        return group

    def _ran(self, task: Task, worker: str, start: float) -> None:
        """A run of it is known."""
        self._live(worker)
        life = self.current[task.span]
        life.ran_on.add(worker)
        life.all_ran_on.add(worker)
        life.starts.append(max(start, life.span.start))

    def finish(self, task: Task, worker: str, took: float, skew: float) -> None:
        """Its result is in memory."""
        stop = self.now + skew
        group = self._leaving(task, "memory", "memory", stop)
        self._ran(task, worker, stop - took)
        # As in a `RawRun`.
        self.lifecycle.computing.waiting[group] = None
        start, stop = shifted(stop - took, stop, self.now)
        group.new_runs.append((took, None, task.key, worker, start, stop))
        self.lifecycle.outcomes.finished(group, worker, self.now)
        self._looked()

    def fail(self, task: Task, worker: str, took: float) -> None:
        """It failed for good."""
        group = self._leaving(task, "erred", "erred")
        self._ran(task, worker, self.now - took)
        failure = Failure(self.now, task.key, task.group, worker, "KeyError()", None)
        start = self.now - took
        self.lifecycle.outcomes.failed(group, task.key, failure, start, self.now, self.now)
        self._looked()

    def _live(self, worker: str) -> None:
        """Nothing runs on a worker that has not registered."""
        if worker not in self.beats:
            self.heartbeat(worker, 0.0, 0)

    def cancel(self, task: Task, worker: str | None, took: float | None = None) -> None:
        """Nobody wants it any more; it may be known to have run."""
        group = self._leaving(task, "gone", "cancelled")
        self._run(group, task, worker, took)
        self.lifecycle.outcomes.cancelled(group, worker, self.now)
        self._looked()

    def _run(self, group: Group, task: Task, worker: str | None, took: float | None) -> None:
        if worker is not None and took is not None:
            self._ran(task, worker, self.now - took)
            self.lifecycle.outcomes.ran(group, worker, self.now - took, self.now, self.now)

    def blame(self, task: Task) -> None:
        """One that it depends on failed."""
        group = self._leaving(task, "blamed", "blamed")
        self.lifecycle.outcomes.blamed(group, self.now)
        self._looked()

    def interrupt(
        self,
        task: Task,
        reason: RetryReason | None,
        comes_back: bool,
        worker: str | None = None,
        took: float | None = None,
    ) -> None:
        """It leaves its state, all in one stimulus, to come back, or after all not."""
        group = self._leaving(task, "interrupted", "todo")
        if reason is not None:
            self._run(group, task, worker, took)
        self.lifecycle.outcomes.interrupted(group, task.key, reason, self.now)
        if comes_back:
            task.state = "todo"
            life = self.current[task.span]
            life.rescheduled += reason == "rescheduled"
            life.retried += reason in ("error", "worker_lost")
            assert self.lifecycle.outcomes.added(group, task.key, self.now) == reason
        else:
            task.state = "gone"
            self.current[task.span].leave(task.key, "cancelled")
            self.lifecycle.outcomes.forgotten(group, task.key)
        self._looked()

    def recompute(self, task: Task) -> None:
        """Its result was lost, and it is sent to a worker again."""
        group = self.group(task.span, task.group)
        task.kept = task.key in self.current[task.span].entries
        self.current[task.span].enter(task.key, again=True)
        self.lifecycle.outcomes.recomputed(group, task.kept, self.now)
        task.state = "todo"

    def not_recomputed(self, task: Task) -> None:
        """It did not run again, so it has the result that it had."""
        group = self._leaving(task, "memory", "memory")
        self.lifecycle.outcomes.not_recomputed(group, True, self.now)

    def retry(self, task: Task) -> None:
        """``Client.retry``, on a failed or a blamed task."""
        group = self.group(task.span, task.group)
        self.current[task.span].enter(task.key, again=True)
        ran = task.state == "erred"
        reason = self.lifecycle.outcomes.added(
            group, task.key, self.now, "retried" if ran else "unblamed"
        )
        assert reason == ("client" if ran else None)
        self.current[task.span].retried += ran
        task.state = "todo"

    def lose_actor(self, task: Task) -> None:
        """A result that can't be computed again is lost."""
        group = self.group(task.span, task.group)
        life = self.current[task.span]
        life.enter(task.key, again=True)
        life.leave(task.key, "erred")
        life.events.append(self.now)
        task.state = "erred"
        failure = Failure(self.now, task.key, task.group, None, None, None, "RuntimeError")
        self.lifecycle.outcomes.failed(group, task.key, failure, 0.0, 0.0, self.now, False)

    def restart(self) -> None:
        """``Client.restart``: every task is gone."""
        for task in self.tasks.values():
            if task.state == "todo":
                self._leaving(task, "gone", "cancelled")
            task.state = "gone"
        self.lifecycle.all_forgotten(self.now)
        self._looked()

    def hold(self, dask_id: str) -> None:
        """A client enters the span's block."""
        if dask_id in self.current:
            self.holds[dask_id] = self.holds.get(dask_id, 0) + 1
            self.lifecycle.hold(self.current[dask_id].span)

    def unhold(self, dask_id: str) -> None:
        """A client leaves the span's block."""
        if self.holds.get(dask_id):
            self.holds[dask_id] -= 1
            self.current[dask_id].events.append(self.now)
            self.lifecycle.unhold(self.current[dask_id].span, self.now, self.now)
            self._looked()

    # ------------------------------------------------------------------ workers and time

    def heartbeat(self, worker: str, age: float, cancelled: int) -> None:
        """A heartbeat arrives that began some seconds ago."""
        self.beats.setdefault(worker, []).append((self.real, self.now - age))
        self.lifecycle.reports.heartbeat(worker, self.now - age, cancelled)

    def lose_worker(self, worker: str) -> None:
        """A worker is gone."""
        self.beats.pop(worker, None)
        for life in self.current.values():
            # Also if it comes back: what it owed is lost.
            life.ran_on.discard(worker)
        self.lifecycle.reports.left(worker)

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self._looked()
        self.now += seconds
        self.real += seconds

    def set_clock(self, seconds: float) -> None:
        """The clock of the scheduler's machine is set."""
        self._looked()
        self.lifecycle.tick(self.now)
        self.take()
        self.now += seconds
        for life in self.current.values():
            life.jumped = life.jumped or seconds > -1
            life.quiet = min(life.quiet, self.now)
            # The span may end before what the clock showed then.
            life.events = [at for at in life.events if at <= self.now]

    def todo(self, life: Life, blocks: bool = True) -> bool:
        """Whether the tree below has unfinished work or an open block: the plain rule."""
        dask_id = life.span.identity.dask_id
        own = life.finished is None and (
            (blocks and self.holds.get(dask_id, 0) > 0)
            or any(t.state == "todo" for t in self.tasks.values() if t.span == dask_id)
        )
        return own or any(self.todo(child, blocks) for child in life.children)

    def _looked(self) -> None:
        for life in self.current.values():
            if self.todo(life):
                life.quiet_real, life.quiet, life.jumped = self.real, self.now, False

    def tick(self) -> None:
        """The bridge's tick."""
        self._looked()
        self.lifecycle.tick(self.now)
        self.take(self._check_settled)

    def install_again(self) -> None:
        """The bridge is removed; another one adopts the unfinished work."""
        self.close("unknown")
        assert self.active == 0
        self.observe(Lifecycle(self.limits, self, self.lifecycle.generations))
        for worker in self.beats:
            self.lifecycle.reports.heartbeat(worker, self.now, 0)
        unfinished: dict[tuple[str, str], list[Task]] = {}
        for task in self.tasks.values():
            if task.state == "todo":
                unfinished.setdefault((task.span, task.group), []).append(task)
        for (dask_id, name), tasks in unfinished.items():
            assert self.lifecycle.generations.may_have_exported(dask_id)
            group = self.group(dask_id, name)
            for task in tasks:
                self.current[dask_id].enter(task.key, again=True)
            self.lifecycle.outcomes.taken_in(group, len(tasks), self.now)

    def observe(self, lifecycle: Lifecycle) -> None:
        """A new bridge: of open blocks it knows nothing."""
        self.lifecycle = lifecycle
        self.holds.clear()

    def close(self, cut_off: Result = "error") -> None:
        """The scheduler closes, or the bridge is removed."""
        busy = {id(life) for life in self.lives if self.todo(life, blocks=False)}
        self.lifecycle.close(self.now, cut_off)

        def check(life: Life) -> None:
            assert life.finished is not None
            life.cut_off = cut_off
            assert life.finished.complete == (id(life) not in busy)
            assert life.finished.complete or life.finished.stop >= self.now

        self.take(check)

    def take(self, check: Callable[[Life], None] = lambda life: None) -> None:
        """Take away what was exported, and hand it to the lives."""
        self._take_signs()
        taken, self.lifecycle.finished = self.lifecycle.finished, []
        for finished in taken:
            (life,) = [x for x in self.lives if x.span.identity == finished.identity]
            assert life.finished is None, "exported twice"
            life.finished = finished
            check(life)

    def _take_signs(self) -> None:
        """Signs of life: of open spans with work, in order, without gaps, and not too many."""
        signs, self.lifecycle.progress = self.lifecycle.progress, []
        assert len(signs) <= AT_ONCE
        for sign in signs:
            (life,) = [x for x in self.lives if x.span.identity == sign.identity]
            assert life.finished is None
            assert self.todo(life)
            assert sign.ordinal == len(life.signs)
            assert sign.start <= sign.stop
            if not sign.ordinal:
                assert sign.start == sign.stop == life.span.start
                assert sign.counts is None
            elif sign.stop >= life.signs[-1].stop:
                assert sign.start == life.signs[-1].stop
                assert sign.counts is not None
            life.signs.append(sign)

    def _check_settled(self, life: Life) -> None:
        assert life.finished is not None
        assert life.finished.complete
        assert not self.todo(life)
        waited = self.real - life.quiet_real
        if life.jumped:
            return
        assert waited >= self.limits.linger - 1e-6
        if waited >= self.limits.settle_timeout - 1e-6:
            return
        for worker in life.ran_on & set(self.beats):
            since = [b for b in self.beats[worker] if b[0] >= life.quiet_real - 1e-9]
            assert len(since) >= 2 or any(began >= life.quiet - 1e-6 for _, began in since)
