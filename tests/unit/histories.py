"""Random histories of spans: everything that can happen to them, and what must be true of it."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dask_otel.core.life.completion import worst
from dask_otel.core.life.open_span import Phase
from tests.limits import make_limits
from tests.unit.simulation import Life, Simulation, Task

LIMITS = make_limits(
    linger=2.0,
    settle_timeout=10.0,
    remember=1000,
    trace_gap=100.0,
    progress_after=3.0,
    progress_interval=5.0,
    max_exceptions=2,
)

picks = st.integers(0, 1_000_000)
workers = st.sampled_from(["w0", "w1", "w2"])
rarely = st.integers(0, 5)
seconds = st.sampled_from([0.0, 0.001, 0.3, 1.0, 3.0])


class Histories(RuleBasedStateMachine):
    """Everything that can happen to Dask spans, in any order."""

    limits = LIMITS

    @initialize()
    def start(self) -> None:
        self.sim = Simulation(self.limits)
        self.sim.create(None)

    def span(self, pick: int) -> str:
        ids = list(self.sim.spans)
        return ids[pick % len(ids)]

    def tasks(self, *states: str) -> list[Task]:
        return [t for t in self.sim.tasks.values() if t.state in states]

    def task(self, pick: int, *states: str) -> Task | None:
        tasks = self.tasks(*states)
        return tasks[pick % len(tasks)] if tasks else None

    @rule(pick=st.none() | picks)
    @precondition(lambda self: len(self.sim.spans) < 12)
    def create(self, pick: int | None) -> None:
        self.sim.create(None if pick is None else self.span(pick))

    @rule(pick=picks, group=st.sampled_from("fg"), count=st.integers(1, 4))
    def submit(self, pick: int, group: str, count: int) -> None:
        dask_id = self.span(pick)
        for _ in range(count):
            self.sim.submit(dask_id, group)

    @rule(pick=picks, worker=workers, took=seconds, skew=st.sampled_from([0.0, -0.2, 0.2]))
    def finish(self, pick: int, worker: str, took: float, skew: float) -> None:
        if task := self.task(pick, "todo"):
            self.sim.finish(task, worker, took, skew)

    @rule(worker=workers)
    def finish_all(self, worker: str) -> None:
        for task in self.tasks("todo"):
            self.sim.finish(task, worker, 0.1, 0.0)

    @rule(pick=st.none() | picks, worker=workers)
    @precondition(lambda self: len(self.sim.spans) < 12)
    def short_job(self, pick: int | None, worker: str) -> None:
        dask_id = self.sim.create(None if pick is None else self.span(pick))
        self.sim.finish(self.sim.submit(dask_id, "f"), worker, 0.1, 0.0)

    @rule(worker=workers, age=seconds, wait=st.sampled_from([0.5, 1.0, 2.0]))
    def report(self, worker: str, age: float, wait: float) -> None:
        self.sim.tick()
        self.sim.heartbeat(worker, age, 0)
        self.sim.tick()
        self.advance(wait)

    @rule()
    def export_what_is_done(self) -> None:
        for worker in self.sim.beats:
            self.sim.heartbeat(worker, 0.0, 0)
        self.tick()
        self.advance(2.5)
        self.advance(11.0)
        self.advance(2.5)

    @rule(pick=picks, worker=workers, took=seconds)
    def fail(self, pick: int, worker: str, took: float) -> None:
        if task := self.task(pick, "todo"):
            self.sim.fail(task, worker, took)

    @rule(pick=picks, worker=st.none() | workers, took=st.none() | seconds)
    def cancel(self, pick: int, worker: str | None, took: float | None) -> None:
        if task := self.task(pick, "todo"):
            self.sim.cancel(task, worker, took)

    @rule(pick=picks)
    def blame(self, pick: int) -> None:
        if task := self.task(pick, "todo"):
            self.sim.blame(task)

    @rule(
        pick=picks,
        reason=st.sampled_from(["error", "worker_lost", "rescheduled", None]),
        back=st.booleans(),
        worker=workers,
        took=st.none() | seconds,
    )
    def interrupt(
        self, pick: int, reason: str | None, back: bool, worker: str, took: float | None
    ) -> None:
        if task := self.task(pick, "todo"):
            self.sim.interrupt(task, reason, back, worker, took)

    @rule(pick=picks)
    def recompute(self, pick: int) -> None:
        if task := self.task(pick, "memory"):
            self.sim.recompute(task)

    @rule(pick=picks)
    def not_recomputed(self, pick: int) -> None:
        if (task := self.task(pick, "todo")) and task.kept:
            self.sim.not_recomputed(task)

    @rule(pick=picks)
    def retry(self, pick: int) -> None:
        if task := self.task(pick, "erred", "blamed"):
            self.sim.retry(task)

    @rule(pick=picks)
    def lose_actor(self, pick: int) -> None:
        if task := self.task(pick, "memory"):
            self.sim.lose_actor(task)

    @rule(dice=rarely)
    def restart(self, dice: int) -> None:
        if not dice:
            self.sim.restart()

    @rule(pick=picks)
    def hold(self, pick: int) -> None:
        self.sim.hold(self.span(pick))

    @rule(pick=picks)
    def unhold(self, pick: int) -> None:
        self.sim.unhold(self.span(pick))

    @rule(worker=workers, age=seconds, cancelled=st.integers(0, 1))
    def heartbeat(self, worker: str, age: float, cancelled: int) -> None:
        self.sim.heartbeat(worker, age, cancelled)

    @rule(worker=workers)
    def lose_worker(self, worker: str) -> None:
        self.sim.lose_worker(worker)

    @rule(by=st.sampled_from([0.01, 0.5, 2.5, 11.0, 500.0]))
    def advance(self, by: float) -> None:
        self.sim.advance(by)
        self.sim.tick()

    @rule(by=st.sampled_from([-3600.0, -0.05, 7.0]), dice=rarely)
    def set_clock(self, by: float, dice: int) -> None:
        if not dice:
            self.sim.set_clock(by)

    @rule()
    def tick(self) -> None:
        self.sim.tick()

    @rule(dice=rarely)
    def install_again(self, dice: int) -> None:
        if dice < 2:
            self.sim.install_again()

    @rule(dice=rarely)
    def close(self, dice: int) -> None:
        if dice:
            return
        self.sim.close()
        assert not self.sim.lifecycle.open
        self.check_all()
        self.start()

    @invariant()
    def phases_follow_the_work(self) -> None:
        lifecycle = self.sim.lifecycle
        assert set(lifecycle.open) == set(self.sim.current)
        for life in self.sim.current.values():
            span = life.span
            assert (span.phase is Phase.OPEN) == self.sim.todo(life)
            assert (span in lifecycle._settling) == (span.phase is Phase.SETTLING)
            assert span.phase is not Phase.EXPORTED
            assert (span.awaits is not None) <= (span.phase is Phase.SETTLING)
            assert sum(g.unfinished for g in span.groups) == span.unfinished
        assert self.sim.active == sum(life.span.active for life in self.sim.current.values())
        reports = lifecycle.reports
        waiting = [span for spans in reports._waiting.values() for span in spans]
        # Each that settles is looked at again, now or when there is news; no other is.
        assert len(waiting) == len(set(waiting))
        assert {*waiting, *reports.due} == lifecycle._settling.keys()

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        for task in self.tasks("todo"):
            self.sim.finish(task, "w0", 0.1, 0.0)
        for dask_id, holds in self.sim.holds.items():
            for _ in range(holds):
                self.sim.unhold(dask_id)
        # Without any heartbeat: the settle timeout and the linger end every wait.
        for _ in range(3):
            self.sim.tick()
            self.sim.advance(self.limits.settle_timeout)
        self.sim.tick()
        assert not self.sim.lifecycle.open, "stuck"
        assert self.sim.active == 0
        self.check_all()

    # --------------------------------------------------------- what was exported is true

    def check_all(self) -> None:
        for life in self.sim.lives:
            self.check_one(life)
        self.check_generations()

    def check_one(self, life: Life) -> None:
        finished = life.finished
        assert finished is not None, "never exported"
        assert finished.stop >= finished.start
        assert not life.events or finished.stop >= max(life.events)
        assert finished.late == life.late
        for child in life.children:
            assert child.finished is not None
            assert finished.start <= child.finished.start
            assert child.finished.stop <= finished.stop
        for group in finished.groups:
            assert finished.start <= group.start <= group.stop <= finished.stop
        self.check_start(life)
        self.check_counts(life)
        self.check_result(life)

    def check_start(self, life: Life) -> None:
        """The first start is that of the tree, whatever became of the run."""
        finished = life.finished
        assert finished is not None
        below = [c.finished.first_start for c in life.children if c.finished]
        starts = [*life.starts, *[start for start in below if start is not None]]
        if not starts:
            assert finished.first_start is None
            return
        assert finished.first_start is not None
        # A worker's clock was 0.2 s off.
        assert finished.start <= finished.first_start <= min(starts)
        assert finished.first_start >= min(starts) - 0.2 - 1e-6
        assert finished.first_start <= finished.stop
        assert life.all_ran_on == life.span.ran_on

    def check_counts(self, life: Life) -> None:
        finished = life.finished
        assert finished is not None
        count = life.outcomes.count
        tasks, memory, erred, cancelled = life.own
        todo = count("todo") if not finished.complete else 0
        assert count("todo") == todo
        assert tasks == memory + erred + cancelled + count("blamed") + todo
        # A task of an earlier generation that came back may stand for one of this one.
        assert len(life.outcomes) - life.inherited <= tasks <= len(life.outcomes)
        if not life.inherited:
            assert (memory, erred, cancelled) == (
                count("memory"),
                count("erred"),
                count("cancelled"),
            )
        below = [child.finished.counts for child in life.children if child.finished]
        own = dict(zip(("tasks", "memory", "erred", "cancelled"), life.own, strict=True))
        own |= {"retried": life.retried, "rescheduled": life.rescheduled}
        for name, number in own.items():
            whole = number + sum(getattr(counts, name) for counts in below)
            assert getattr(finished.counts, name) == whole, name
        assert len(finished.failures) + finished.dropped_failures == erred
        assert len(finished.failures) <= self.limits.max_exceptions

    def check_result(self, life: Life) -> None:
        finished = life.finished
        assert finished is not None
        _, _, erred, cancelled = life.own
        own = "cancellation" if cancelled else "success"
        if not finished.complete:
            own = life.cut_off
        if erred:
            own = "failure"
        assert finished.result == worst(own, *(c.finished.result for c in life.children))
        assert (finished.tree_failure is not None) == (finished.result == "failure")

    def check_generations(self) -> None:
        exported = [life.finished for life in self.sim.lives if life.finished]
        ids = [(f.identity.span_id) for f in exported]
        assert len(ids) == len(set(ids))
        by_span: dict[str, list] = {}
        for finished in sorted(exported, key=lambda f: f.identity.generation):
            by_span.setdefault(finished.identity.dask_id, []).append(finished)
        for lives in by_span.values():
            first = lives[0].identity
            assert first.generation == 1
            for before, after in itertools.pairwise(lives):
                self.check_continuation(first, before, after)

    def check_continuation(self, first, before, after) -> None:
        assert after.identity.generation == before.identity.generation + 1
        assert before.stop <= after.start
        assert after.identity.first == (first.trace_id, first.span_id)
