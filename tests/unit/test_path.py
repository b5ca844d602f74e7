"""What bounded a span, on made-up histories, against a witness that walks the finished graph."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dask_otel.core.life.open_span import Group, OpenSpan, TaskLimits
from dask_otel.core.life.task_runs import failed, finish_tasks
from dask_otel.core.path import chain as chains
from dask_otel.core.path import following
from dask_otel.core.path.chain import MAX_LINKS, MAX_LONGEST, MAX_SPANS, on_path, path_of, stretch
from dask_otel.core.path.following import Paths
from dask_otel.core.path.link import (
    BEFORE,
    NOT_FETCHED,
    Folded,
    RawLink,
    Share,
    SpanPath,
    cut,
)
from dask_otel.core.records import Failure, SpanIdentity, TaskRun
from dask_otel.semconv import PATH_PARTS


@dataclass
class Run:
    """One run of a task, as the made-up scheduler knows it afterwards."""

    key: str
    span: SpanPath
    deps: list[str]
    #: When the graph came; when it began to wait (for the last time).
    submitted: float
    waits: float
    ready: float = 0.0
    #: When its first run was ready and sent that is repeated; when its result was lost.
    first_ready: float = 0.0
    lost: float = 0.0
    again: bool = False
    sent: float = 0.0
    fetched: float = 0.0
    start: float = 0.0
    stop: float = 0.0
    end: float = 0.0
    #: The link before, if it was sent when that ended.
    before: RawLink | None = None
    #: What had ended in its spans when it was ready, or was to run again.
    ended: list[Run] = field(default_factory=list)


class History:
    """A scheduler of random work that calls the core as Dask's side does."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.paths = Paths(lambda stimulus: float(stimulus.rpartition("-")[2]))
        self.now = 0.0
        self.spans: list[SpanPath] = []
        self.todo: dict[str, Run] = {}
        self.runs: list[Run] = []
        self.asked: list[tuple[SpanPath, float]] = []

    def pass_time(self, most: float = 1.0) -> float:
        self.now += self.rng.uniform(1e-3, most)
        return self.now

    def memory(self, key: str) -> bool:
        return key not in self.todo

    def submit(self) -> None:
        """A graph, for one span or two, that may depend on any earlier tasks."""
        rng, submitted = self.rng, self.now
        stimulus = f"update-graph-{submitted}"
        self.pass_time(0.1)
        for _ in range(rng.randint(1, 2)):
            if not self.spans or rng.random() < 0.2:
                parents = [None, *[span for span in self.spans if not span.closed]]
                parent = rng.choice(parents)
                spans = () if parent is None else (parent, *parent.above)
                self.spans.append(SpanPath(self.now, spans))
            span = rng.choice([span for span in self.spans if not span.closed] or [None])
            if span is None:
                continue
            for _ in range(rng.randint(1, 4)):
                known = list(dict.fromkeys([*[run.key for run in self.runs], *self.todo]))
                deps = rng.sample(known, min(len(known), rng.choice([0, 1, 1, 2, 3])))
                key = f"t{len(known)}"
                run = self.todo[key] = Run(key, span, deps, submitted, self.now)
                if all(map(self.memory, deps)):
                    self.pass_time(0.002)
                    self._ready(run)
                    self.paths.waits[key] = self.paths.submitted(stimulus, self.now, span)

    def _ready(self, run: Run) -> None:
        run.ready = self.now
        if run.submitted:
            run.ended = list(self.runs)

    def begin(self, run: Run) -> None:
        run.sent = self.pass_time()

    def finish(self, run: Run) -> None:
        """A run ends; what waited for it alone is ready in the same stimulus."""
        run.start = self.rng.uniform(run.sent, self.pass_time())
        run.stop = self.rng.uniform(run.start, self.now)
        run.fetched = self.rng.choice([0.0, self.rng.uniform(0, run.start - run.sent)])
        run.end = self.pass_time()
        stimulus = f"task-finished-{self.now}"
        times = run.sent, ((), run.fetched), run.start, run.stop
        self.paths.ended(stimulus, run.end, run.span, *times, None, run.key, None, "w", run.before)
        del self.todo[run.key]
        self.runs.append(run)
        for other in self.todo.values():
            if not other.sent and run.key in other.deps and all(map(self.memory, other.deps)):
                self.pass_time(0.01)
                self._ready(other)
                if not self.paths.again and self.rng.random() < 0.5:
                    other.sent, other.before = self.now, self.paths.last
                else:
                    assert self.paths.ready(other.key, stimulus, self.now)

    def interrupt(self, run: Run) -> None:
        """A run is lost, perhaps with what it depends on; it begins again."""
        stimulus = f"handle-worker-cleanup-{self.pass_time()}"
        if run.before is not None:
            self.paths.sent(run.key, run.before, run.sent)
            run.before = None
        self.paths.interrupted(run.key, run.sent)
        lost = [dep for dep in run.deps if self.memory(dep) and self.rng.random() < 0.3]
        if not run.again:
            run.first_ready, run.lost = run.ready, run.sent
        run.again, run.sent, run.ready, run.waits = True, 0.0, 0.0, self.now
        for key in lost:
            old = next(one for one in reversed(self.runs) if one.key == key)
            if old.span.closed:
                continue
            for other in self.todo.values():
                if key in other.deps and other.ready and not other.sent:
                    self.paths.interrupted(other.key, 0.0)
                    other.ready = 0.0
            ended = list(self.runs)
            self.todo[key] = Run(key, old.span, [], 0.0, self.now, again=True, ended=ended)
            self.paths.recomputed(key, old.span)
        for again in [run, *[self.todo[key] for key in lost if key in self.todo]]:
            if all(map(self.memory, again.deps)):
                self._ready(again)
                assert not self.paths.ready(again.key, stimulus, self.now)
                self.paths.ready_again(again.key, self.now, again.span)

    def ask(self, span: SpanPath) -> None:
        """A span ends; none may be open below it."""
        below = [run for run in self.todo.values() if run.span in tree(span, self.spans)]
        if not below and not any(span in one.above[:1] and not one.closed for one in self.spans):
            self.check(span, self.now - self.rng.choice([0.0, self.rng.random() * 0.01]))
            span.close()

    def check(self, span: SpanPath, stop: float) -> None:
        stop = max(
            [span.start, *[r.stop for r in self.runs if r.span in tree(span, self.spans)], stop]
        )
        found = path_of(span, stop)
        assert found is not None
        path, longest = found
        expected, chain = witness(self, span, stop)
        assert path.parts == pytest.approx(expected, abs=1e-9)
        assert sum(path.parts) == pytest.approx(stop - span.start, abs=1e-9)
        assert min(path.parts) >= 0.0
        own = [run for run in chain if run.span in tree(span, self.spans)]
        assert path.tasks == len(own)
        keys = [link.key for link, _ in on_path(longest, stop)]
        assert (
            keys == [run.key for run in own if run.span is span][-len(keys) :]
            or len(own) > MAX_LONGEST
        )
        for one, next_one in pairwise(chain):
            assert one.end <= next_one.ready

    def live(self) -> None:
        """Do anything that can happen next, some times; then finish."""
        rng = self.rng
        for _ in range(rng.randint(5, 30)):
            self.pass_time(0.2)
            ready = [run for run in self.todo.values() if run.ready and not run.sent]
            running = [run for run in self.todo.values() if run.sent]
            act = rng.random()
            if act < 0.2:
                self.submit()
            elif act < 0.5 and ready:
                self.begin(rng.choice(ready))
            elif act < 0.85 and running:
                self.finish(rng.choice(running))
            elif act < 0.92 and running:
                self.interrupt(rng.choice(running))
            elif open_spans := [span for span in self.spans if not span.closed]:
                self.ask(rng.choice(open_spans))
        while self.todo:
            run = rng.choice([run for run in self.todo.values() if run.ready])
            if not run.sent:
                self.begin(run)
            self.finish(run)
        for span in reversed(self.spans):
            if not span.closed:
                self.ask(span)
        assert all(span.closed for span in self.spans)
        assert all(span.last is None for span in self.spans), "it is released"
        assert not self.paths.waits
        assert not self.paths.again


def tree(span: SpanPath, spans: list[SpanPath]) -> list[SpanPath]:
    """The span and those below it, found from the spans alone."""
    found = [span]
    for one in spans:
        if one.above and one.above[0] in found:
            found.append(one)
    return found


def above(span: SpanPath | None) -> list[SpanPath]:
    return [] if span is None else [span, *above(span.above[0] if span.above else None)]


def last_in(history: History, span: SpanPath, ended: list[Run]) -> Run | None:
    """What had ended last, in the nearest span that had anything."""
    for level in above(span):
        inside = [run for run in ended if run.span in tree(level, history.spans)]
        if inside:
            return max(inside, key=lambda run: run.end)
    return None


def before(history: History, run: Run) -> tuple[Run | None, list[tuple[float, str]]]:
    """The run before one on a path, and until when what was waited for after it."""
    arrived = [r for r in run.ended if r.key in run.deps and r.end > run.waits]
    rest = [
        (run.sent, "no_thread"),
        (run.start, "wait"),
        (run.stop, "compute"),
        (run.end, "report"),
    ]
    if arrived:
        return max(arrived, key=lambda r: r.end), [(run.ready, "scheduler"), *rest]
    if not run.again:
        last = last_in(history, run.span, run.ended)
        return last, [(run.submitted, "client"), (run.ready, "scheduler"), *rest]
    if run.submitted:
        first = replace(run, again=False, ready=run.first_ready, sent=run.lost, waits=run.submitted)
        first.ended = [r for r in history.runs if r.end < run.first_ready]
    else:
        last = last_in(history, run.span, run.ended)
        if last is None or last.key != run.key:
            return last, [(run.ready, "repeated"), *rest]
        first = last
    old, steps = before(history, first)
    parts = [part for _, part in steps]
    kept = parts.index("repeated" if "repeated" in parts else "wait")
    return old, [*steps[:kept], (run.ready, "repeated"), *rest]


def witness(history: History, span: SpanPath, stop: float) -> tuple[list[float], list[Run]]:
    """Paint each piece of a span's time, back from its end."""
    seconds = dict.fromkeys(PATH_PARTS, 0.0)
    chain: list[Run] = []
    inside = [run for run in history.runs if run.span in tree(span, history.spans)]
    run = max(inside, key=lambda r: r.end, default=None)
    until = stop
    seconds["client"] += stop - max(span.start, min(stop, run.end if run else span.start))
    while run is not None and run.end > span.start:
        chain.insert(0, run)
        old, steps = before(history, run)
        since = max(span.start, old.end if old else span.start)
        own = run.span in tree(span, history.spans)
        for end, part in steps:
            took = max(0.0, min(end, until) - since)
            since = max(since, min(end, until))
            if not own:
                seconds["other_span"] += took
            elif part == "wait":
                seconds["transfer"] += min(took, run.fetched)
                seconds["worker_queue"] += took - min(took, run.fetched)
            else:
                seconds[part] += took
        run = old
    return [seconds[part] for part in PATH_PARTS], chain


@pytest.mark.parametrize("most", [2, 5, MAX_LINKS])
def test_the_path_is_what_a_walk_of_the_finished_graph_finds(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MAX_LINKS", most)
    for seed in range(700):
        try:
            History(seed).live()
        except AssertionError as error:
            raise AssertionError(f"{seed=}") from error


def chain(length: int, spans: int, start: float = 0.0) -> tuple[Paths, list[SpanPath]]:
    """Tasks of 1 s that follow one another, in spans by turns."""
    paths, roots = Paths(lambda stimulus: 0.0), [SpanPath(start) for _ in range(spans)]
    paths.waits["0"] = paths.submitted("update-graph", 0.0, roots[0])
    for number in range(length):
        stimulus, begin, end = f"task-finished-{number}", float(number), number + 1.0
        span, key = roots[number % spans], str(number)
        group = Group(span, "g", "g", None, 0.0)  # type: ignore[arg-type]
        times = begin, NOT_FETCHED, begin, end - 0.25 * (number % 7 == 0)
        paths.ended(stimulus, end, span, *times, group, key, number, "w")
        assert paths.ready(str(number + 1), stimulus, end)
    return paths, roots


@pytest.mark.parametrize("spans", [1, 2, 3, 50])
def test_a_long_chain_keeps_its_sums_and_its_longest_links_in_bounded_memory(spans: int) -> None:
    length = 3000
    paths, roots = chain(length, spans)
    for number, root in enumerate(roots):
        found = path_of(root, length - spans + number + 1.0)
        assert found is not None
        path, longest = found
        assert path_of(root, length - spans + number + 1.0) == found, "a question changes nothing"
        assert path.tasks == length / spans
        assert sum(path.parts) == length - spans + number + 1.0
        elsewhere = path.parts[PATH_PARTS.index("other_span")]
        assert elsewhere == sum(path.parts) - length / spans
        assert path.parts[PATH_PARTS.index("report")] == pytest.approx(length / spans / 28, abs=0.5)
        held, link = 0, paths.last
        while not isinstance(link, Folded):
            assert link is not None
            held, link = held + 1, link[BEFORE]
        kept = [len(share.longest) for share in link.shares.values()]
        assert held <= MAX_LINKS
        assert max(kept) <= MAX_LONGEST
        assert len(longest) <= MAX_LONGEST + MAX_LINKS


def test_spans_beyond_the_limit_are_left_out_of_a_folded_chain_and_not_lied_about() -> None:
    paths, roots = chain(1000, 4 * MAX_SPANS)
    path = path_of(roots[0], 1000.0)
    assert path is not None
    assert sum(path[0].parts) == 1000.0
    assert isinstance(paths._folded, Folded)
    assert len(paths._folded.shares) <= MAX_SPANS


TIMES = st.lists(st.integers(0, 9).map(float), min_size=8, max_size=8)


@given(
    st.lists(st.tuples(TIMES, *[st.booleans()] * 4), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 12),
)
@example([([*map(float, range(8))], True, True, False, False)], 0, 12)
@example([([*map(float, range(at, at + 8))], True, False, False, True) for at in (0, 8)], 0, 16)
def test_the_sums_of_links_are_those_of_their_cuts(
    links: list[tuple[list[float], bool, bool, bool, bool]], begin: int, until: int
) -> None:
    last, expected, since = None, [0.0] * 8, float(begin)
    for times, ordered, repeated, fetched, at_once in links:
        in_order = sorted(times) if ordered else times
        submitted, ready, lost, again, sent, start, stop, end = in_order
        waited = (submitted, ready, *((lost, again) if repeated else (0.0, 0.0)))
        if at_once and last is not None:
            waited = None
        transfer = ((), 1.0) if fetched else NOT_FETCHED
        last = (last, end, 1, None, waited, sent, transfer, start, stop, None, "", 1, "")
        parts = cut(last, since, float(until))
        expected = [a + b for a, b in zip(expected, parts, strict=True)]
        since = max(float(begin), end)
    none, parts, others, found, known = stretch(last, float(begin), -inf, float(until))
    share = Share()
    share.add(len(found), known, parts, *[cut(link, max(at, begin), until) for at, link in others])
    assert (share.parts, share.tasks, share.known, none) == (expected, len(links), True, None)


def test_a_folded_chain_keeps_its_longest_links_with_their_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths, span = Paths(lambda stimulus: 0.0), SpanPath(0.0)
    cuts = []
    monkeypatch.setattr(chains, "cut", lambda *args: cuts.append(args) or cut(*args))
    paths.waits[0] = paths.submitted("update-graph", 0.0, span)
    end = 0.0
    for number in range(1000):
        begin, end = end, end + (40.0 if number % 100 == 7 else 1.0)
        stimulus = f"task-finished-{end}"
        times = begin + 0.25, NOT_FETCHED, begin + 0.25, end
        paths.ended(stimulus, end, span, *times, None, number, number, "w")
        assert paths.ready(number + 1, stimulus, end)
    assert len(cuts) <= 1, "the others are in order, and summed as they are"
    found = path_of(span, end)
    assert found is not None
    assert len(cuts) <= 1, "those to export are cut in their thread"
    longest = {link.key: cuts for link, cuts in on_path(found[1], end) if sum(cuts) > 1.0}
    assert [*longest] == [*range(7, 1000, 100)]
    parts = dict.fromkeys(PATH_PARTS[:-1], 0.0) | {"no_thread": 0.25, "compute": 39.75}
    assert all(one == tuple(parts.values()) for one in longest.values())


def test_links_that_ended_before_their_span_began_are_no_part_of_it() -> None:
    _, (root,) = chain(80, 1, start=50.5)
    found = path_of(root, 80.0)
    assert found is not None
    assert sum(found[0].parts) == sum(sum(parts) for _, parts in on_path(found[1], 80.0)) == 29.5
    assert not found[0].parts[PATH_PARTS.index("other_span")]


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=8), st.floats(0, 1e3))
def test_clocks_that_were_set_leave_a_sum_that_is_the_duration(
    times: list[float], fetched: float
) -> None:
    first, second, *others = times
    paths, span = Paths(lambda stimulus: first), SpanPath(second)
    paths.waits["a"] = paths.submitted("update-graph", others[0], span)
    paths.ended(
        "one", others[1], span, others[2], ((), fetched), others[3], others[4], None, "a", None, ""
    )
    paths.ready("b", "one", others[5])
    paths.ended(
        "two", others[0], span, others[2], ((), fetched), others[4], others[3], None, "b", None, ""
    )
    stop = max(second, others[1])
    found = path_of(span, stop)
    assert found is not None
    assert sum(found[0].parts) == pytest.approx(stop - second, abs=1e-6)
    assert min(found[0].parts) >= 0.0


def test_work_that_was_not_observed_from_its_beginning_has_no_path() -> None:
    paths, span = Paths(lambda stimulus: 0.0), SpanPath(0.0)
    child, other = SpanPath(0.0, (span,)), SpanPath(0.0)
    paths.ended("one", 1.0, child, 0.0, NOT_FETCHED, 0.0, 1.0, None, "a", None, "w")
    paths.ready("b", "one", 1.0)
    paths.ended("two", 2.0, other, 1.0, NOT_FETCHED, 1.0, 2.0, None, "b", None, "w")
    assert path_of(span, 1.0) is path_of(child, 1.0) is None
    assert path_of(other, 2.0) is not None, "what it waited for is of another span"
    above = SpanPath(0.0)
    other.above, above.last = (above,), other.last
    assert path_of(above, 2.0) is not None
    above.unknown = True
    assert path_of(above, 2.0) is None, "its own tasks are unknown, those below it are not"
    other.unknown = True
    assert path_of(other, 2.0) is None


def test_the_tasks_on_the_path_are_exported_beside_the_others_and_each_once() -> None:
    span = OpenSpan(0.0, (), SpanIdentity("d", "d", ("a",), 1, 1, 2, None), False)
    group, limits = Group(span, "g-1", "g", None, 0.0), TaskLimits(slowest=1, most=3)
    span.add(group)
    bad = TaskRun(1.0, 2, "2", "w", 1.0, 2.0)
    failed(group, bad, Failure(2.0, "2", "g", "w", "E()", None), limits)
    group.slowest = (tuple(TaskRun(3.0, 9, "9", "w", 0.0, 3.0)),)
    paths = Paths(lambda stimulus: 0.0)
    assert span.path is not None
    paths.waits["0"] = paths.submitted("update-graph", 0.0, span.path)
    for number, seconds in enumerate([1.0, 0.25, 0.5]):
        key, begin, end = str(number), float(number), number + seconds
        run = None if number == 2 else number
        paths.ended(key, end, span.path, begin, NOT_FETCHED, begin, end, group, key, run, "w")
        paths.ready(str(number + 1), key, end)
    known = path_of(span.path, 2.5)
    assert known is not None
    tasks, dropped = finish_tasks(span, {group: 1}, limits, known[1], 2.5)
    assert len(tasks) == len([*tasks])
    shown = [(task.run.key, task.path and task.path.before) for task in tasks]
    assert shown == [("2", ("0", 0)), ("9", None), ("0", None)]
    assert [task.path is not None for task in tasks] == [True, False, True]
    assert dropped == 0


@pytest.mark.parametrize("slow", [0, 70, 140, 299])
def test_a_folded_chain_of_spans_by_turns_keeps_the_longest_links_of_each(slow: int) -> None:
    paths, spans = Paths(lambda stimulus: 0.0), [SpanPath(0.0), SpanPath(0.0)]
    paths.waits[0] = paths.submitted("update-graph", 0.0, spans[0])
    took, begin = [], 0.0
    for number in range(300):
        took.append(1000.0 if number == slow else 1.0 + number * 37 % 300)
        stimulus, end = str(number), begin + took[-1]
        run = begin, NOT_FETCHED, begin, end
        paths.ended(stimulus, end, spans[number % 4 // 3], *run, None, number, number, "w")
        assert paths.ready(number + 1, stimulus, end)
        begin = end
    for turn, span in enumerate(spans):
        found = path_of(span, begin)
        assert found is not None
        own = [number for number in range(300) if number % 4 // 3 == turn]
        expected = sorted(own, key=took.__getitem__)[-MAX_LONGEST:]
        assert [link.key for link, _ in on_path(found[1], begin)] == sorted(expected)
