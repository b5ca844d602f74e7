"""The bridge's adapter on a simulated cluster, checked against Dask's own values and the truth."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import inf
from textwrap import dedent
from time import monotonic
from typing import Any, NamedTuple

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time
from lab.memory import Memory, Part
from lab.occupancy import Occupancy
from lab.outcomes import outcomes
from lab.paths import Paths
from lab.truth import UNFINISHED, Truth

from dask_otel import semconv
from dask_otel._dask.adapter import HOOKS, SchedulerAdapter
from dask_otel._dask.boundary import ErrorBoundary
from dask_otel._dask.facts import ancestors
from dask_otel.core.idle.worker_tasks import WorkerTasks
from dask_otel.core.life.clock_offsets import DRIFT
from dask_otel.core.life.open_span import Limits, OpenSpan
from dask_otel.core.records import FinishedSpan, Progress, SpanIdentity, TaskCounts
from dask_otel.core.traces.translate import translate
from dask_otel.lab.clock import EPOCH
from dask_otel.lab.cluster import Cluster, simulate
from dask_otel.semconv import PATH_PARTS
from tests.cluster import proof
from tests.covering import uncovered
from tests.limits import make_adapter, make_limits, make_task_limits
from tests.simulated import graphs, memory
from tests.waiting import eventually

#: Short waits: heartbeats come twice a second. The timeout is for what never comes, and must not
#: come before it where a machine is busy.
LIMITS = make_limits(linger=0.3, settle_timeout=30.0, graph=True)
#: The slowest task of each group is shown, and spans end soon.
QUICK = make_limits(linger=0.1, settle_timeout=5.0, tasks=make_task_limits(slowest=1), graph=True)
#: Floats of wall clocks, added up over a path.
ROUNDING = 1e-6
#: Seconds between two batches of a worker's messages.
BATCH = 0.002
#: Between these, the border is when a run began, seceded or ended by its worker's clock.
ON_WORKER = frozenset({"transfer", "starting", "compute", "inner", "report"})
#: All tasks, and those that had an outcome.
TASK_OUTCOMES = ("tasks", "memory", "erred", "cancelled")
#: What a ready task waited for. On its worker, the border is when another run ended.
WAITS = frozenset({"no_worker", "no_thread", "uneven"})

#: How often each server measures the delays of its event loop. The default of 20 ms is half of all
#: that a history runs.
TICKS = {"distributed.admin.tick.interval": "500ms"}


class Ended(NamedTuple):
    """A span's generation as it ended."""

    identity: SpanIdentity
    #: Without those below it.
    own: TaskCounts
    ran_on: frozenset[str]
    #: The nearest one above it that was open as it began.
    above: SpanIdentity | None
    #: After how many moves it ended.
    moves: int


class Endless(Exception):
    """Tasks run for ever, whoever observes them."""


class Observer(SchedulerPlugin):
    """Passes Dask's calls on to the adapter, as the real plugin does."""

    name = "observer"

    def __init__(
        self, limits: Limits, ended: Callable[[OpenSpan], None] = lambda span: None
    ) -> None:
        self.limits, self._ended = limits, ended
        self.errors: list[str] = []
        self.closed = False
        self.finished: list[FinishedSpan] = []
        self.progress: list[Progress] = []
        self.increments: dict[tuple[Any, ...], float] = {}
        #: When generations began, when their work was last done, and when they ended.
        self.lives: dict[SpanIdentity, tuple[float, float, float]] = {}
        #: Called after each tick.
        self.read: Callable[[], None] = lambda: None
        self.clock: Callable[[], float] = monotonic
        self.adapter: SchedulerAdapter

    async def start(self, scheduler: Any) -> None:
        boundary = ErrorBoundary()
        boundary.failed = self._failed  # type: ignore[method-assign]
        self.adapter = adapter = make_adapter(scheduler, self.limits, boundary)
        adapter.attach()
        vars(self).update({name: getattr(adapter, name) for name in HOOKS})
        exported = adapter.span_exported

        def ended(span: OpenSpan) -> None:
            self._ended(span)
            (begun, done, _), now = self.lives[span.identity], self.clock()
            self.lives[span.identity] = begun, min(done, now), now
            exported(span)

        adapter.span_exported = ended  # type: ignore[method-assign]
        self._watch(adapter)
        self._ticking = asyncio.ensure_future(self._tick())

    def _failed(self, kind: str) -> None:
        self.errors.append(f"{kind}: {traceback.format_exc()}")

    def _watch(self, adapter: SchedulerAdapter) -> None:
        """Write down when generations began, and when their work was done."""
        opened, lifecycle = adapter.span_opened, adapter.lifecycle
        works, done = lifecycle._work_began, lifecycle._work_ended

        def begin(span: OpenSpan) -> None:
            # Done, until its first work.
            self.lives[span.identity] = self.clock(), self.clock(), inf
            opened(span)

        def work(span: OpenSpan) -> None:
            works(span)
            self.lives[span.identity] = self.lives[span.identity][0], inf, inf

        def end(span: OpenSpan, now: float) -> None:
            done(span, now)
            self.read()
            self.lives[span.identity] = self.lives[span.identity][0], self.clock(), inf

        adapter.span_opened = begin  # type: ignore[method-assign]
        lifecycle._work_began = work  # type: ignore[method-assign]
        lifecycle._work_ended = end  # type: ignore[method-assign]

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._ticking.cancel()
            self.adapter.close(time())
            self.take()
            self.adapter.detach()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self.adapter.tick(time())
            self.read()
            self.take()

    def take(self) -> None:
        self.finished += self.adapter.take_finished()
        self.progress += self.adapter.take_progress()
        for series, value in self.adapter.batches.open.increments.items():
            self.increments[series] = self.increments.get(series, 0) + value
        self.adapter.batches.open.increments.clear()


class Simulated:
    """What the tests of a simulated cluster look at.

    Parameters
    ----------
    within
        Thread-seconds by which idle, unused, lost and excess may differ from the truth.
    """

    #: Whether paths can be derived a second time: not from a scheduler's clock that was set, or
    #: from messages that a test made up.
    is_derivable = True
    #: Seconds by which estimates of workers' clocks may be wrong: messages wait for a batch.
    estimate = 0.0

    client: Client
    cluster: Cluster

    def __init__(self, limits: Limits = LIMITS, within: float = 0.02, **options: Any) -> None:
        self._limits, self._within = limits, within
        self._options = {**options, "config": {**TICKS, **(options.get("config") or {})}}
        latency = options.get("latency", 0.0)
        self._way = latency if isinstance(latency, float) else 0.0
        self.truth: Truth

    def run(self, program: Callable[[], Any]) -> None:
        """Run a test as the program of a new cluster, and check all that came of it."""

        def test(cluster: Cluster) -> None:
            self.client = cluster.client
            program()

        # What the tests of real clusters owe is not owed here.
        proof.begin(None, None)
        simulate(test, prepare=self._prepare, finish=self._finish, **self._options)

    async def _prepare(self, cluster: Cluster) -> None:
        self.cluster, self.observer = cluster, Observer(self._limits, self._ended)
        self.scheduler: Any = cluster.scheduler
        self.exported = self.observer.finished
        self.truth, self.memory = Truth(cluster), Memory(cluster)
        self.ended: list[Ended] = []
        #: What was in memory at the adapter's readings.
        self.readings: list[tuple[float, Counter[Part]]] = []
        self.audits = 0
        self.observer.read = lambda: self.readings.append((cluster.loop.now, self.memory.now()))
        self.truth.attach()
        self.observer.clock = lambda: cluster.loop.now
        await self.observer.start(cluster.scheduler)
        self.adapter = self.observer.adapter
        cluster.scheduler.add_plugin(self.observer)
        #: Idle seconds so far, by time.
        self.samples: list[tuple[float, float]] = []
        self._watching = asyncio.ensure_future(self._watch())

    def _ended(self, span: OpenSpan) -> None:
        above = span.above[0].identity if span.above else None
        moves, ran_on = len(self.truth.moves), frozenset(span.ran_on)
        self.ended.append(Ended(span.identity, TaskCounts.of(*span.groups), ran_on, above, moves))

    async def _watch(self) -> None:
        while True:
            # Not as often as heartbeats come.
            await asyncio.sleep(0.43)
            self.samples.append((self.cluster.loop.now, self.sums()["idle"]))
            self.check_clocks()
            self.check_work()
            self.audit()

    def audit(self) -> None:
        """The results in memory are those of Dask's tasks, and the integrals are the truth's."""
        if self._limits.memory:
            memory.audit(self.adapter, self.memory)
            memory.audit_cluster(self.adapter)
            self.memory._look()
            for _ in self.adapter._memory_changes():
                pass
            self.adapter.task_events.add_to(self.adapter.batches.open)
            self.observer.take()
            found, now = self.observer.increments, self.cluster.loop.now
            memory.compare_series(self.adapter, self.memory, found, now)
            self.audits += 1

    def check_work(self) -> None:
        """An open span has the unfinished tasks that it has in Dask, but for lost results."""
        tasks = self.scheduler.tasks.values()
        known = Counter(one.group.span_id for one in tasks if one.state in UNFINISHED)
        resting = self.adapter.task_events.resting().total()
        for dask_id, span in self.adapter.lifecycle.open.items():
            assert span.unfinished == sum(group.unfinished for group in span.groups), span
            assert 0 <= known[dask_id] - span.unfinished <= resting, (span, known[dask_id])

    def check_clocks(self) -> None:
        """What is known of a worker's clock is true, unless it was set."""
        set_ones = {machine for _, machine, _ in self.cluster.steps}
        here = self.cluster.machines["scheduler"].shift
        for name, worker in self.cluster.workers.items():
            machine = self.cluster.machines[name]
            lower, upper = self.adapter.clocks.bounds(worker.address)
            if machine not in set_ones and self.is_derivable and not self.estimate:
                off = here - machine.shift
                slack = ROUNDING + DRIFT * self.truth.silence()
                assert lower is None or lower - slack <= off, (name, lower, off)
                assert upper is None or off <= upper + slack, (name, upper, off)

    async def _finish(self, cluster: Cluster) -> None:
        del self.client
        if self._watching.done():
            # A check of what was known on the way has failed.
            self._watching.result()
        self._watching.cancel()
        await self.at_rest()
        self.check()
        self.compare()
        self.compare_counts()
        if self._limits.memory:
            self.audit()
            self.compare_memory()
        if self.is_derivable:
            self.compare_paths()
        if self.is_derivable and self.adapter.spans.graphs is not None:
            graphs.compare(self.exported, self.truth)
        proof.prove_adapter(self.adapter, self.observer.increments)
        await self.observer.close()

    async def at_rest(self) -> None:
        """Wait until all is exported, and nothing is in flight."""
        for _ in range(300):
            await asyncio.sleep(0.5)
            self.observer.take()
            self.adapter.fold_time_now()
            if not (self.adapter.lifecycle.open or self._in_flight() or self._kept()):
                return
        if endless := [run.key for run in self.cluster.runs if run.stop == inf]:
            raise Endless(f"They wait for a client that was closed: {endless}")

    def _in_flight(self) -> float:
        return sum(one.in_flight for one in self.adapter.time.accounting.workers.values())

    def _kept(self) -> list[WorkerTasks]:
        """The tasks that workers may be running, for all that the account of threads knows.

        A cancelled one, which may have seceded, is forgotten with the second heartbeat after.
        """
        tasks = [one.tasks for one in self.adapter.time.accounting.workers.values()]
        return [one for one in tasks if one.any or one.seceded]

    def sums(self) -> dict[str, float]:
        """Return the thread-seconds that were exported, and those that the workers reported."""
        self.adapter.fold_time_now()
        self.observer.take()
        found: dict[str, float] = defaultdict(float)
        for (name, *labels), value in self.observer.increments.items():
            if name == semconv.CLUSTER_TIME.name:
                ours = labels[0] in ("idle", "unused", "lost")
                found[labels[0] if ours else "reported"] += value
            elif name == semconv.CLUSTER_EXCESS_TIME.name:
                found["excess"] += value
            elif name == semconv.CLUSTER_CAPACITY_TIME.name:
                found["capacity"] += value
        return found

    def compare(self) -> None:
        """Compare the thread-seconds with the truth.

        At the end they are the same but for `within`, and for what no message can tell: see the
        methods of `Truth` that say so. Idle is then too small rather than too large, also if it is
        unknown whether there was work when a thread was free. What workers
        that left had run after seceding is in neither lost nor excess, or in both.
        """
        found, truth, base = self.sums(), self.truth.seconds(), self._within
        on_their_own, late = self.truth.unnoticed()
        less, either = on_their_own + self.truth.unheard(), self.truth.unsettled()
        late += self.truth.untold() + self.truth.misdated() + self.truth.undated()
        less += 2 * self.truth.unannounced() + self.truth.misdated() + self.truth.hidden()
        lost = truth.busy + truth.excess - found["reported"]
        known = {
            "capacity": (found["capacity"] - truth.capacity, 0.0, 0.0),
            "free": (found["idle"] + found["unused"] - truth.idle - truth.unused, less, late),
            "idle": (found["idle"] - truth.idle, less + either, late + self.truth.undated_ends()),
            "beyond": (found["lost"] - found["excess"] - lost + truth.excess, late, less),
        }
        if not (self.truth.is_anything_lost() or self.cluster.steps):
            known["excess"] = (found["excess"] - truth.excess, less, late)
        wrong = {
            name: off
            for name, (off, under, over) in known.items()
            if not -under - base <= off <= over + base
        }
        assert not wrong, f"exported - truth: {wrong}; may be {known}; {dict(found)}; {truth}"
        # It is never too large on the way, since it can't be taken back.
        for when, idle in self.samples:
            most = self.truth.seconds(when).idle + late + 3 * base
            assert idle <= most, (when, idle, most)
        assert not self._kept()
        assert not self.adapter.time.accounting._spans

    def compare_counts(self) -> None:
        """Compare the counts of each span with what became of its tasks, and with those below.

        And the counter of all runs with the transitions.
        """
        for dask_id in {one.identity.dask_id for one in self.ended}:
            lives = [one for one in self.ended if one.identity.dask_id == dask_id]
            ends = [one.moves for one in lives]
            truth = outcomes(self.truth.moves, self.truth.restarts, dask_id, ends)
            for one, known in zip(lives, truth, strict=True):
                less = {known[name] - getattr(one.own, name) for name in TASK_OUTCOMES}
                assert less <= {*range(known["unsure"] + 1)}, (one, known)
        trees: dict[SpanIdentity, list[Ended]] = defaultdict(list)
        # Those below end first.
        for one in self.ended:
            trees[one.identity].append(one)
            if one.above is not None:
                trees[one.above] += trees[one.identity]
        for finished in self.exported:
            own, tree = trees[finished.identity][-1].own, trees[finished.identity]
            counts = TaskCounts.of(*(one.own for one in tree))
            assert finished.counts == counts, (finished, tree)
            assert finished.worker_count == len(set().union(*(one.ran_on for one in tree)))
            assert len(finished.failures) + finished.dropped_failures == own.erred
            assert len(finished.failures) <= self._limits.max_exceptions
            result = "cancellation" if counts.cancelled else "success"
            assert finished.result == ("failure" if counts.erred else result), finished
            assert (finished.tree_failure is None) == (counts.erred == 0), finished
            # What a run failed with is not said of a later one.
            assert not any(
                one.failure for one in finished.retries if one.reason == "worker_lost"
            ), finished
        counted = self.counted(semconv.TASK_FINISHED.name).items()
        found = [
            sum(n for labels, n in counted if labels[-1] == how) for how in ("memory", "erred")
        ]
        ends = [one for one in self.truth.moves if one.start in UNFINISHED]
        results = sum((one.start, one.finish) == ("processing", "memory") for one in ends)
        # A task that needs more than the memory of its worker fails while it is sent, twice.
        failures = len({(one.key, one.stimulus) for one in ends if one.own})
        assert found == [results, failures]

    def compare_memory(self) -> None:
        """Compare what the results of each span took of the memory, and look for leaks."""
        for one in self.exported:
            life = self.observer.lives[one.identity]
            memory.compare_span(self.adapter, self.memory, one, life, self.readings)
        ledger = self.adapter.lifecycle.memory
        assert ledger is not None
        assert not memory.left(ledger, self.scheduler.tasks.values())

    def compare_paths(self) -> None:
        """Compare the parts of each path with an independent walk of the finished history."""
        known = self.scheduler.extensions["spans"].spans
        above = {one: [a.id for a in reversed(ancestors(known[one]))] for one in known}
        lives: dict[str, list[tuple[float, int]]] = defaultdict(list)
        moves = {one.identity: one.moves for one in self.ended}
        for one in self.exported:
            lives[one.identity.dask_id].append((one.start - EPOCH, moves[one.identity]))
        occupancy = Occupancy(self.truth, self.cluster.runs, self.cluster.resumed)
        steps = [(when, f"lab://{one.name}", seconds) for when, one, seconds in self.cluster.steps]
        paths = Paths(self.truth.moves, self.cluster.runs, above, lives, occupancy, steps)
        for one in self.exported:
            if one.path is None:
                continue
            path = paths.of(one.identity.dask_id, one.start - EPOCH, one.stop - EPOCH)
            found = dict(zip(PATH_PARTS, one.path.parts, strict=True))
            # When a run began and ended on the scheduler's clock is known to a message's way, and
            # to what two clocks may drift apart between heartbeats; see `Paths` for clocks that
            # are set.
            off = self.estimate + self._way + DRIFT * self.truth.silence()
            either = (path.tasks + path.repeated) * off + path.misdated + path.untold
            # The state of the cluster can change before the message of an end, which waits for the
            # batch before it. Since a clock was set, a run may have waited for the end of a pause.
            paused = bool(path.misdated and self.cluster.resumed)
            waits = path.queued or path.unsettled > 0.0 or paused
            waited = (either + path.tasks * BATCH) * waits
            bounds = {
                **dict.fromkeys(ON_WORKER, either),
                **dict.fromkeys(WAITS, waited + path.unsettled),
                "repeated": either if path.repeated else 0.0,
                # Also while it fetched data, a released task may have had its thread.
                **dict.fromkeys(("starting", "transfer"), either + path.unsettled),
            }
            wrong = {
                part: (found[part], seconds)
                for part, seconds in path.parts.items()
                if abs(found[part] - seconds) > ROUNDING + bounds.get(part, 0.0)
            }
            assert not wrong, (one.identity.tags, one.identity.generation, wrong, path)
            assert 0 <= one.path.tasks - path.tasks <= path.momentary, (one, path)
            assert 0 <= one.path.submitted - path.submitted <= path.unclear, (one.path, path)

    def named(self, name: str) -> FinishedSpan:
        """The only exported span of that name."""
        (found,) = [s for s in self.exported if s.identity.tags[-1] == name]
        return found

    def quiet(self) -> None:
        """Wait until every span has been exported; nothing of ours may be left then."""
        lifecycle = self.adapter.lifecycle
        eventually(lambda: not lifecycle.open, what=f"export of {lifecycle.open}")
        self.observer.take()
        self.check()

    def check(self) -> None:
        """Nothing went wrong, nothing is left, each span came once, and its path tiles it."""
        self.observer.take()
        assert self.observer.errors == [], "\n".join(self.observer.errors)
        adapter = self.adapter
        active = [v for k, v in self.observer.increments.items() if k[0] == "dask.span.active"]
        left = [
            adapter.spans.groups,
            adapter.task_events.ready,
            (graphs := adapter.spans.graphs) and (graphs._logs or graphs._parts),
            adapter.lifecycle.settling,
            adapter.lifecycle._lingering._entries,
            adapter.blocks.blocks._holding,
            adapter.blocks.blocks._waiting,
            adapter.blocks.blocks._left_first,
            adapter.blocks.leaving,
            adapter.lifecycle.generations._live,
            adapter.callers.links,
            adapter.callers.baggage,
            adapter.lifecycle.notes._new,
            max(0, len(adapter.clocks._workers) - len(self.scheduler.workers)),
            uncovered(record for span in self.exported for record in translate(span)),
            sum(active),
        ]
        assert not any(left), left
        spans = [one.identity for one in self.exported]
        assert len({one.span_id for one in spans}) == len(spans), "exported twice"
        known = self.scheduler.extensions["spans"].spans
        assert {one.dask_id for one in spans} == {
            one.id for one in known.values() if sum(one.states.values())
        }
        for one in self.exported:
            if one.path is not None:
                off = sum(one.path.parts) - (one.stop - one.start)
                assert abs(off) <= 1e-9, (one.identity, off)
                assert min(one.path.parts) >= 0.0, one
                # Also with tasks that ran beside the threads.
                assert (one.path.threads_bound or 0.0) <= one.stop - one.start, one
        self.check_traces(spans)

    def check_traces(self, spans: list[SpanIdentity]) -> None:
        """A tree is in one trace, its own or its caller's, and generations continue one another."""
        by_id = {one.span_id: one for one in spans}
        firsts = {one.dask_id: one for one in spans if one.generation == 1}
        known = self.scheduler.extensions["spans"].spans
        ends = {one.identity: one.stop for one in self.exported}
        for late, start, one in [(o.late, o.start, o.identity) for o in self.exported]:
            caller = one.trace_id.caller
            if one.parent_span_id is None:
                assert caller is None, one
            elif one.remote:
                assert caller is not None
                assert (caller.trace_id, caller.span_id) == (one.trace_id, one.parent_span_id)
            else:
                above = by_id.get(one.parent_span_id, firsts[one.root_id])
                assert above.trace_id is one.trace_id, (one, above)
                assert above.root_id == one.root_id, (one, above)
            if one.generation > 1:
                first = firsts[one.dask_id]
                assert one.first == (first.trace_id, first.span_id), one
            parent = known[one.dask_id].parent
            if parent is not None and parent.id in firsts:
                assert late == (start > ends[firsts[parent.id]]), one
        lives = sorted(self.exported, key=lambda s: (s.identity.dask_id, s.identity.generation))
        for before, after in pairwise(lives):
            if before.identity.dask_id == after.identity.dask_id:
                assert after.identity.generation == before.identity.generation + 1
                assert before.stop <= after.start

    def assert_tree(self, expected: str) -> None:
        """Compare what was exported with lines ``name result seconds counts``."""
        self.quiet()
        wanted = [line for line in dedent(expected).splitlines() if line.strip()]
        shown = [
            f"{text} {seconds:.3f} {rest}".rstrip() for text, seconds, rest in lines(self.exported)
        ]
        assert shown == wanted, "\n".join(["exported:", *shown])

    def counted(self, metric: str, *series: Any) -> dict[tuple[Any, ...], float]:
        """What was counted of a metric so far, by its other labels."""
        self.observer.take()
        places = 1 + len(series)
        found = self.observer.increments.items()
        return {k[places:]: v for k, v in found if k[:places] == (metric, *series) and v}


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
            ident, counts = span.identity, span.counts
            name = str(ident.tags[-1]) + (f"#{ident.generation}" if ident.generation > 1 else "")
            known = {one: getattr(counts, one) for one in TaskCounts.__slots__}
            marks = [
                *(f"{one}={value}" for one, value in known.items() if value),
                "late" if span.late else "",
                "" if span.complete else "incomplete",
                f"requested={'/'.join(map(str, span.requested))}" if span.requested else "",
            ]
            seconds = span.stop - span.start
            yield f"{indent}{name} {span.result}", seconds, " ".join(filter(None, marks))
            yield from walk(span.identity.span_id, indent + "  ")

    return walk(None, "")
