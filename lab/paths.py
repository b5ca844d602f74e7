"""What each task waited for last, by walks through a history that is over.

An observer that follows tasks while they run keeps the last wait of each. Here nothing is kept: the
walk begins at the last end of a task in a span, and goes back from each run to the run before it,
by what the scheduler's tasks did (`Truth.moves`) and when threads ran them (`Cluster.runs`). So
both can only agree if the observer is right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Final

from dask_otel.lab.clock import EPOCH
from dask_otel.lab.executor import Run
from lab.occupancy import Occupancy
from lab.truth import STEP, UNFINISHED, Move

#: What a span waited for; the last part is the work of other spans.
PARTS: Final = (
    "client", "scheduler", "no_worker", "no_thread", "uneven", "repeated", "transfer", "starting",
    "compute", "inner", "report", "other_span",
)  # fmt: skip

#: A task in one of these could run: it waits for a thread, or has one.
READY: Final = UNFINISHED - {"waiting"}

#: A client that was waited for no longer was not waited for.
NOTHING: Final = 1e-6

#: A worker begins a task so soon after the end for which it waited; shorter waits are none.
MOMENT: Final = 0.01

#: How Dask names a submission; its time follows.
SUBMISSION: Final = "update-graph-"

#: How Dask names waiting for data.
FETCHES: Final = ("transfer", "disk-read")


@dataclass
class Wait:
    """What a task waited for until it ran: times of the simulation's clock."""

    #: The end of the task before it, as a position among the moves.
    before: int | None = None
    #: When it was submitted; after another task, when that ended. When it was ready first.
    submitted: float = -inf
    ready: float = -inf
    #: When it was sent to the worker whose run was repeated, when that had a thread for it, and
    #: when it began, if that is known; and when it was ready again.
    lost: float = -inf
    turned: float = -inf
    began: float = -inf
    again: float = -inf
    #: Of that run: whether its times are known, seconds that no message separates from others,
    #: seconds in which nobody knew that its worker had a thread, seconds by which its times may be
    #: wrong, and whether it may have waited.
    known: bool = False
    untold: float = 0.0
    unnoticed: float = 0.0
    misdated: float = 0.0
    queued: bool = False
    #: When it was last sent to a worker, and by which move.
    sent: float = inf
    sending: int | None = None


@dataclass
class Path:
    """The seconds of a span, by what it waited for."""

    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    #: How many runs of the span's tasks are on it, and how many more took no time.
    tasks: int = 0
    momentary: int = 0
    #: Those that are repeated since a first run that began at a known time.
    repeated: int = 0
    #: Those that only the client led to; and how many more, if what ended as the span began was
    #: before it.
    submitted: int = 0
    unclear: int = 0
    #: Seconds that no message separates from others on the worker: those of runs without a
    #: result, and ends that waited for a blocked event loop, which notes the time after that.
    untold: float = 0.0
    #: Whether one of them may have waited on its worker, for a thread or for the end of a pause. A
    #: released task before it may still have had the thread, for all that is known.
    queued: bool = False
    #: Seconds of waits for which nobody knows the state of the cluster, or of the worker: a
    #: released task may run on, or have ended; or a clock was set meanwhile.
    unsettled: float = 0.0
    #: Seconds by which the times of its runs may be wrong, since the clocks of their workers were
    #: set; see `Paths._misdated`.
    misdated: float = 0.0


class Paths:
    """The paths of the spans of one history.

    Parameters
    ----------
    above
        By a span's id, those of the spans above it, the nearest one first.
    lives
        When each span began, and began anew after its end; and after how many moves it ended.
    steps
        When clocks were set, of which workers, and by how much.
    """

    def __init__(
        self,
        moves: Sequence[Move],
        runs: Sequence[Run],
        above: Mapping[str, Sequence[str]],
        lives: Mapping[str, Sequence[tuple[float, int]]],
        occupancy: Occupancy,
        steps: Sequence[tuple[float, str, float]],
    ) -> None:
        self._occupancy, self._steps = occupancy, steps
        self._moves, self._above, self._lives = moves, above, lives
        self._own: dict[Hashable, list[int]] = defaultdict(list)
        for number, move in enumerate(moves):
            self._own[move.key].append(number)
        self._runs: dict[Hashable, list[Run]] = defaultdict(list)
        self._on_worker: dict[str, list[Run]] = defaultdict(list)
        for run in runs:
            self._runs[run.key].append(run)
            self._on_worker[run.worker].append(run)
        self._restricted = {move.key for move in moves if move.restricted}
        self._ends = [number for number in range(len(moves)) if self._is_end(number)]
        self._vain = [number for number in range(len(moves)) if self._is_end(number, {"waiting"})]

    def of(self, span: str, start: float, stop: float) -> Path:
        """Return the path of a span and those below it, from its start to its end."""
        path, until = Path(), stop
        ends = reversed(self._ends)
        number = next((end for end in ends if self._is_within(end, span, start, stop)), None)
        last = start if number is None else max(start, min(stop, self._moves[number].when))
        # Nor was the client waited for while a task waited for others in vain.
        waits = (end for end in self._vain if self._is_within(end, span, start, stop))
        vain = max((self._moves[end].when for end in waits), default=start)
        end = max(last, min(stop, vain))
        path.parts["client"] += stop - end
        path.parts["other_span"] += end - last
        while number is not None and self._moves[number].when > start - STEP:
            wait = self._wait(number)
            since = start if wait.before is None else max(start, self._moves[wait.before].when)
            until = max(since, min(until, self._moves[number].when))
            if not self._is_within(number, span, start, stop):
                path.parts["other_span"] += until - since
            else:
                self._add(path, number, wait, start, since, until)
            number = wait.before
        return path

    def _add(
        self, path: Path, number: int, wait: Wait, start: float, since: float, until: float
    ) -> None:
        """Add a run of a span's own."""
        move = self._moves[number]
        runs = [
            one
            for one in self._runs[move.key]
            if (
                one.stop <= move.when + STEP
                if move.activities
                # It may have failed before the task was sent again.
                else one.start <= move.when + STEP and one.stop > wait.sent
            )
        ]
        run = runs[-1] if runs else None
        began, seceded, done = (
            (inf, inf, inf) if run is None else (run.began, run.seceded, run.done)
        )
        # Since a clock was set back, a run can begin after its span's end.
        turn, unnoticed = self._turn(wait, run, until if run is None else began)
        misdated, unordered = self._misdated(wait, run)
        path.unsettled += max(unnoticed, unordered) + wait.unnoticed
        path.misdated += misdated + wait.misdated
        path.repeated += wait.known
        path.untold += wait.untold
        borders = [since]
        for time in (
            wait.submitted, wait.ready, wait.lost, wait.turned, wait.began, wait.again, wait.sent,
            turn, began, min(seceded, done), done, until,
        ):  # fmt: skip
            borders.append(min(max(time, borders[-1]), until))
        spent = [end - begin for begin, end in pairwise(borders)]
        transfer = _transfers(move, borders[8], borders[9])
        # In their order; a transfer is in the time until a task begins.
        earlier = "wait", "wait", "starting", "repeated"
        names = "client", "scheduler", *earlier, "wait", "wait", "starting"
        for number, part in enumerate((*names, "compute", "inner", "report")):
            if part == "wait":
                between = borders[number], borders[number + 1]
                for state, seconds in self._occupancy.spent(*between).items():
                    path.parts[state] += seconds
                path.unsettled += self._occupancy.unsettled(*between)
            else:
                path.parts[part] += spent[number]
        path.parts["transfer"] += transfer
        path.parts["starting"] -= transfer
        path.queued |= self._is_behind(wait) or turn > wait.sent or wait.queued
        if wait.sending is not None and self._occupancy.unsettled(
            borders[7] - STEP, borders[9], self._moves[wait.sending].worker
        ):
            path.unsettled += spent[7] + spent[8]
            path.queued = True
        if wait.before is not None and spent[0] > NOTHING:
            path.submitted += (after := self._moves[wait.before].when - start) > STEP
            path.unclear += abs(after) <= STEP
        if until - since > STEP:
            path.tasks += 1
        else:
            path.momentary += 1
        if run is not None and any(one["action"] == "compute" for one in move.activities):
            path.untold += run.stop - run.done
        else:
            path.untold += sum(spent[7:])

    def _is_behind(self, wait: Wait) -> bool:
        """Whether a task was sent to a worker that may have no thread, or no resource, for it."""
        return wait.sending is not None and (
            wait.sending in self._occupancy.behind or self._moves[wait.sending].restricted
        )

    def _turn(self, wait: Wait, run: Run | None, began: float) -> tuple[float, float]:
        """Return when the worker of a task had a thread for it: when it was sent, or later.

        And the seconds from then on for which the worker or the scheduler did not know it.
        """
        late = 0.0
        if wait.sending is None:
            return wait.sent, 0.0
        worker = str(self._moves[wait.sending].worker)
        turn = self._occupancy.resumed(worker, wait.sent, began)
        if run is not None and not self._is_behind(wait):
            # While a task fetches its data, those that were sent later begin.
            freed = [
                (min(one.seceded, one.done), one.began < began - STEP, known)
                for one in self._on_worker[worker]
                if one is not run and (known := self._occupancy.awaited(one)) is not None
            ]
            last, earlier, known = max(
                [one for one in freed if one[0] <= began + STEP], default=(-inf, True, 0.0)
            )
            # The message of that end can be as long on its way as that which sent this run.
            wait.queued |= last > 2 * wait.sent - began
            if began - last <= MOMENT < last - wait.sent + STEP:
                turn, late = max(turn, last), min(began, known)
                if not earlier or last - wait.sent < MOMENT + STEP:
                    # Of two runs that begin in one moment, nobody knows which one was first. Nor is
                    # it known whether a wait is short that is as long as the longest short one.
                    return turn, began - wait.sent
        if self._is_behind(wait):
            if run is None:
                return inf, 0.0
            for one in self._on_worker[worker]:
                known = self._occupancy.awaited(one)
                ends = [] if known is None else [(min(one.seceded, one.done), known)]
                if one.key in self._restricted:
                    # A resource is held until the end.
                    ends.append((one.done, one.stop))
                for end, then in ends if one is not run else ():
                    if end <= began + STEP:
                        late = max(late, min(began, then))
                        # As above.
                        if one.began < began - STEP:
                            turn = max(turn, end)
            ahead = began - 2 * STEP
            held = [
                one
                for one in self._on_worker[worker]
                if one.began <= ahead < min(one.seceded, one.done)
            ]
            if len(held) < self._occupancy.threads[worker]:
                # The scheduler had given the thread to a task that waited for a resource.
                return turn, max(late, turn) - wait.sent
        return turn, max(0.0, late - turn)

    def _with_above(self, number: int) -> tuple[str, ...]:
        """Return the span of a move's task, and those above it."""
        span = self._moves[number].span
        return () if span is None else (span, *self._above[span])

    def _is_within(self, end: int, span: str, start: float, stop: float) -> bool:
        """Whether an end is of a span's time, or of a span that began below it in that time."""
        own, when = self._moves[end].span, self._moves[end].when
        while own is not None:
            when = self._began(own, when)
            if own == span:
                return start - STEP <= when <= stop + STEP
            own = self._over(own, when)
        return False

    def _began(self, span: str, when: float) -> float:
        """Return when a span last began that was open at a time."""
        begins = (begin for begin, _ in self._lives[span] if begin <= when + STEP)
        return max(begins, default=-inf)

    def _over(self, span: str, began: float) -> str | None:
        """Return the nearest span above one that was open when that began."""
        first = self._first(span, began)
        for one in self._above[span]:
            for begin, ended in self._lives[one]:
                if self._first(one, begin) <= first < ended:
                    return one
        return None

    def _first(self, span: str, began: float) -> int:
        """Return the move with which a span began. At first, work below it begins it, too."""
        whole = began <= self._lives[span][0][0]
        since = bisect_left(self._moves, began - STEP, key=lambda move: move.when)
        for number in range(since, len(self._moves)):
            move = self._moves[number]
            if move.when > began + STEP:
                break
            work = move.finish in UNFINISHED
            if work and (move.span == span or (whole and span in self._with_above(number))):
                return number
        return since

    def _is_end(self, number: int, starts: Collection[str] = READY) -> bool:
        """Whether a task that could run, or was in another state, has no work left from here on."""
        move = self._moves[number]
        if move.start not in starts or move.finish in UNFINISHED:
            return False
        own = self._own[move.key]
        after = own[bisect_left(own, number) + 1 :][:1]
        returns = [self._moves[n] for n in after if self._moves[n].stimulus == move.stimulus]
        if returns and returns[0].finish == "waiting":
            return False
        # A lost result that nobody needed any more before it was computed again was no work.
        return move.finish in ("memory", "erred") or not self._is_lost(number)

    def _is_lost(self, number: int) -> bool:
        """Whether a task that could run had a result before."""
        own = self._own[self._moves[number].key]
        before = [self._moves[n] for n in own[: bisect_left(own, number)]]
        begins = [i for i, move in enumerate(before) if move.stimulus.startswith(SUBMISSION)]
        return any(move.start == "memory" for move in before[max(begins, default=0) :])

    def _last_end(self, span: str | None, number: int) -> int | None:
        """Return the last end in a span, or in the nearest one above that has one."""
        now = self._moves[number].when
        for one in (span, *self._above[span]) if span is not None else ():
            since = self._began(one, now) - STEP
            for end in reversed(self._ends[: bisect_left(self._ends, number)]):
                if self._moves[end].when >= since and one in self._with_above(end):
                    return end
        return None

    def _wait(self, end: int) -> Wait:
        """Return what a task waited for that ended."""
        own, wait = self._own[self._moves[end].key], Wait()
        for number in own[: bisect_left(own, end)]:
            move = self._moves[number]
            if move.start == move.finish != "processing":
                continue
            if move.finish == "waiting":
                wait = self._entered(number, wait)
            elif move.start == "waiting" and move.finish in READY:
                wait = self._readied(number, wait)
            if move.finish == "processing":
                wait.sent, wait.sending = move.when, number
        return wait

    def _entered(self, number: int, wait: Wait) -> Wait:
        """Return the known times of a task that has work left to do, or that begins again."""
        move = self._moves[number]
        if move.stimulus.startswith(SUBMISSION):
            return Wait(submitted=float(move.stimulus[len(SUBMISSION) :]) - EPOCH)
        own = self._own[move.key]
        left = self._moves[own[max(0, bisect_left(own, number) - 1)]]
        end, known = move, move.stimulus.startswith("task-erred")
        if left.stimulus != move.stimulus or left.start not in UNFINISHED:
            # It had a result, or had failed. The path is that of the last end in its span; if that
            # was its own, its run is repeated.
            last = self._last_end(move.span, number)
            if last is None or self._moves[last].key != move.key:
                return Wait(last, ready=0.0, lost=0.0)
            wait, end = self._wait(last), self._moves[last]
            known = bool(end.activities)
        elif left.start == "waiting":
            return wait
        if wait.lost == -inf:
            lost = wait.sent if wait.sent < inf else wait.ready
            wait = replace(wait, lost=lost, turned=lost, began=lost)
            if known and wait.sent < inf:
                wait = self._with_first_run(wait, end)
        return replace(wait, again=-inf, sent=inf, sending=None)

    def _with_first_run(self, wait: Wait, end: Move) -> Wait:
        """Return a wait with the first run of its task, which is repeated after that end."""
        runs = (one for one in self._runs[end.key] if one.stop <= end.when + STEP)
        run = next((one for one in runs if one.start >= wait.sent - STEP), None)
        if run is None:
            return wait
        turn, unnoticed = self._turn(wait, run, run.began)
        if self._occupancy.unsettled(wait.sent - STEP, run.began, run.worker):
            unnoticed += run.began - wait.sent
        misdated, unordered = self._misdated(wait, run)
        unnoticed = max(unnoticed, unordered)
        behind = self._is_behind(wait) or turn > wait.sent or unnoticed > 0.0 or wait.queued
        wait = replace(wait, turned=turn, began=run.began, known=True, queued=behind)
        untold = run.stop - run.done
        return replace(wait, untold=untold, unnoticed=unnoticed, misdated=misdated)

    def _misdated(self, wait: Wait, run: Run | None) -> tuple[float, float]:
        """Return by how much a part of a run may be wrong since its worker's clock was set, and the
        seconds of its wait if nobody knows for which end that was.

        A worker's times are on its clock. The scheduler bounds the difference of the two clocks by
        messages, so a step is only noticed if it leads out of these bounds: until then, or for
        good, a time is wrong by the step, and a part, which is between two times, by twice as much.
        For which end a run waited is known from the worker's order of times alone. That is lost if
        the clock was set between an end for which it may have waited, after it was sent, and its
        own; its length is wrong, too.
        """
        steps = [] if run is None else [(t, s) for t, w, s in self._steps if w == run.worker]
        if run is None or not any(when <= run.stop for when, _ in steps):
            return 0.0, 0.0
        unordered = any(wait.sent - STEP <= when <= run.stop for when, _ in steps)
        misdated = sum(2 * abs(seconds) for when, seconds in steps if when <= run.stop)
        return misdated, max(0.0, run.began - wait.sent) * unordered

    def _readied(self, number: int, wait: Wait) -> Wait:
        """Return what a task waited for that could run from here on."""
        move = self._moves[number]
        for end in reversed(self._ends[: bisect_left(self._ends, number)]):
            if self._moves[end].stimulus != move.stimulus:
                break
            if self._moves[end].key in move.needs:
                return Wait(end, submitted=self._moves[end].when, ready=move.when)
        if wait.ready > -inf:
            return replace(wait, again=move.when)
        submitted = wait.submitted if move.stimulus.startswith(SUBMISSION) else -inf
        return Wait(self._last_end(move.span, number), submitted, move.when)


def _transfers(move: Move, sent: float, began: float) -> float:
    """Return for how long a task that was sent waited for data from elsewhere."""
    activities = [one for one in move.activities if one["action"] in FETCHES]
    computes = [one["start"] for one in move.activities if one["action"] == "compute"]
    # The worker's clock may be off.
    shift = began - computes[-1] if computes else 0.0
    busy, until = 0.0, sent
    for one in sorted(activities, key=lambda one: float(one["start"])):
        start, stop = max(until, one["start"] + shift), min(began, one["stop"] + shift)
        busy += max(0.0, stop - start)
        until = max(until, stop)
    return busy
