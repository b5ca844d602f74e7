"""The tasks of one worker, from the scheduler's events and the worker's heartbeats.

The scheduler knows which tasks may run; each heartbeat lists those that ran at one moment. This
module keeps the two views apart and compares them at each cut. The numbers are those of the rules
in `accounting`.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple, TypeAlias

from dask_otel.core.idle.sharing import ActiveSpan

#: Seconds by which the growth of a task's elapsed time may differ from the time between two cuts.
#: The worker measures it with the wall clock: if it differs more, that clock was set.
CLOCK_SLACK: Final = 0.25

#: Seconds by which the time of a cut may be off.
CUT_SLACK: Final = 0.01

#: The floats of wall clocks.
ROUNDING: Final = 1e-6


class Observed(NamedTuple):
    """The state of a worker's tasks at a cut; seconds, except `unseen`."""

    #: Elapsed seconds of the tasks that ran at the cut.
    running: float
    #: Seconds of tasks with a known end before the cut, and of tasks that vanished at it: their
    #: metered seconds came with the cut or will come with the next one (rule 8).
    owed: float
    #: The part of `owed` that may have come with the previous cut, which did not list the tasks.
    unlisted: float
    #: Number of tasks that may have run since the previous cut, listed by neither cut.
    unseen: int
    #: Elapsed seconds of tasks that vanished without a known end (rule 9).
    vanished: float
    #: Upper limit of the metered seconds that came with this cut before their ends were known.
    ahead: float
    #: Upper limit of the seconds of runs that ended before the previous cut, and whose ends became
    #: known after it.
    late: float
    #: Seconds of seceded tasks after they seceded, since the previous cut (rule 10).
    excess: float
    #: The part of `excess` from before the previous cut: these had not seceded, for all it knew.
    overdue: float
    #: Whether a seceded task may have ended: its seconds have come, its end is not known.
    unannounced: bool


#: Of a seceded task: seconds before it seceded, and seconds after it that are booked as excess.
_Seceded: TypeAlias = tuple[float, float]
#: The end of a run: its key; its seconds, if known; when the end became known; whether it had
#: seceded.
_End: TypeAlias = tuple[Hashable, float | None, float, _Seceded | None]
#: The ends of each key, in order. Mostly one.
_Ends: TypeAlias = dict[Hashable, list[_End]]


@dataclass(slots=True, eq=False, repr=False)
class WorkerTasks:
    """The tasks that one worker may be running, and those that ended since its last cut."""

    #: When the last heartbeat was taken, and the previous one.
    cut: float
    cut_before: float
    #: Spans of the tasks that the scheduler has in processing here, by key.
    processing: dict[Hashable, ActiveSpan | None] = field(default_factory=dict)
    #: Released while processing, and when (rule 5).
    zombies: dict[Hashable, float] = field(default_factory=dict)
    seceded: dict[Hashable, _Seceded] = field(default_factory=dict)
    #: Elapsed seconds of the tasks that the last cut listed.
    _executing: dict[Hashable, float] = field(default_factory=dict)
    #: Elapsed seconds of tasks that vanished at a cut and whose end is not known yet.
    _vanished: dict[Hashable, float] = field(default_factory=dict)
    #: Ends of runs since the last cut, in order.
    ended: list[_End] = field(default_factory=list)
    #: When tasks were assigned here again that had been released: the next cut can list either run.
    #: Infinite for those that had ended, or have since.
    again: dict[Hashable, float] = field(default_factory=dict)
    #: Whether the last cut's elapsed seconds are a guess: the worker's clock was stepped.
    guessed: bool = False
    #: Seconds after they seceded of tasks that the last cut listed before this was known.
    _overdue: float = 0.0

    def __repr__(self) -> str:
        return f"<WorkerTasks: {len(self.processing)} processing, {len(self.ended)} ended>"

    @property
    def any(self) -> bool:
        """Whether any task may be running, or may have ended since the last cut."""
        return bool(
            self.processing
            or self.zombies
            or self.ended
            or self._executing
            or self._vanished
            or self.again
        )

    # ------------------------------------------------------------- scheduler's events

    def unassign(self, key: Hashable) -> ActiveSpan | None:
        """Remove a task that was stolen before it started."""
        self._executing.pop(key, None)
        self.seceded.pop(key, None)
        return self.processing.pop(key, None)

    def release(self, key: Hashable, now: float) -> None:
        """Record that a task left processing and may still run."""
        if key in self.processing:
            del self.processing[key]
            self.zombies[key] = now

    def end_released(self, key: Hashable, seconds: float | None, now: float) -> None:
        """End the run that was released before the one that ends, unless it is that.

        A worker goes on with a released run if it still runs when the task is assigned again.
        """
        again = self.again.get(key, inf)
        if seconds is not None and seconds <= now - again + ROUNDING:
            self.ended.append((key, None, again, None))
        if key in self.again:
            self.again[key] = inf

    def secede(self, key: Hashable, elapsed: float | None, now: float) -> None:
        """Record that a task left its thread slot after `elapsed` seconds.

        If they are unknown, the latest time counts, because the time before is not excess.
        """
        if key not in self.seceded and (key in self.processing or key in self.zombies):
            if elapsed is None:
                elapsed = self._executing.get(key, 0.0) + max(0.0, now - self.cut)
            self.seceded[key] = (max(0.0, elapsed), 0.0)
            self._overdue += max(0.0, self._executing.get(key, 0.0) - max(0.0, elapsed))

    # ------------------------------------------------------------------------- a cut

    def observe(self, executing: Mapping[Hashable, float], at: float, now: float) -> Observed:
        """Compare with the list of a heartbeat that was taken at `at` and received `now`.

        O(executing + ended).
        """
        running: dict[Hashable, float] = {}
        unseen = len(self.processing)
        guessed, self.guessed = self.guessed, False
        ends, owed, late = self._ends(
            {*executing, *self._executing, *self._vanished, *self.again}, at
        )
        self.again = {
            key: inf for key in ends if key in self.processing or len(ends[key]) > 1
        } | self.again
        if executing or self.zombies:
            running, unseen = self._observe_executing(executing, ends, at, now)
        vanished = {
            key: elapsed
            for key, elapsed in self._executing.items()
            if key not in executing and key not in ends
        }
        unlisted, after, excess = owed, 0.0, 0.0
        if self.ended:
            owed, unlisted, after, late, excess, unknown = self._observe_ends(
                ends, owed, late, running, at, guessed
            )
            unseen += unknown
        waiting = {key for key, *_ in self.ended}
        if vanished or self._vanished:
            # Rule 9. Tasks that vanished before stay until their end is known.
            self._vanished = {k: e for k, e in self._vanished.items() if k in self.processing}
            self._vanished.update(vanished)
            owed += sum(vanished.values())
        self._executing = running
        if self.again:
            # If the cut listed the run before, the next one can still list either.
            self.again = {k: t for k, t in self.again.items() if at < t < inf or k in waiting}
        if self.seceded and not self.guessed:
            # Excess can't be taken back, so that guessed seconds wait for the end.
            excess += self._book_seceded(running, waiting)
        pending = sum(self._vanished.values()) if self._vanished else 0.0
        ahead = unseen * (at - self.cut_before) + after + pending
        self.cut_before, self.cut = self.cut, at
        overdue, self._overdue = self._overdue, 0.0
        elapsed = sum(running.values()) if running else 0.0
        # Or its end is known, but this cut does not book it.
        unannounced = not self.seceded.keys() <= executing.keys() or any(
            seceded for *_, seceded in self.ended
        )
        return Observed(
            elapsed, owed, unlisted, unseen, pending, ahead, late, excess, overdue, unannounced
        )

    def may_have_used(self, threads: int, now: float, owed: float, credit: float) -> float:
        """Return the upper limit of used seconds that no heartbeat will report (rule 11).

        Parameters
        ----------
        owed
            Seconds that the last cut should have brought.
        credit
            Seconds that came with the last cut before their ends were known.
        """
        all_ends, *_ = self._ends((), -inf)
        used = owed + sum(e for key, e in self._executing.items() if key not in all_ends)
        for key, (before, _) in self.seceded.items():
            # If a key returned since the cut, the cut lists an earlier run of it.
            again = key in self.again or key in all_ends
            used += before if again else max(0.0, before - self._executing.get(key, 0.0))
        running = len(self.processing) + len(self.zombies) - len(self.seceded)
        if owed > ROUNDING:
            # Those that vanished at the last cut may have run until then.
            gone = self._vanished.keys() - all_ends.keys() - self.seceded.keys()
            used += (self.cut - self.cut_before) * len(gone)
        ahead = 0.0
        for key, ends in all_ends.items():
            # The first of them is the run that the cuts may have seen. Vanished seconds were owed
            # at that cut.
            listed, vanished = self._executing.get(key), self._vanished.get(key, 0.0)
            for _, seconds, announced, seceded in ends:
                if seconds is None:
                    used += listed or 0.0
                    running += 1
                else:
                    # It also waited for a blocked event loop, if it was listed for longer.
                    seconds = max(seconds, listed or 0.0)
                    if seceded is not None:
                        seconds = min(seconds, sum(seceded))
                    ran = max(0.0, seconds - vanished)
                    used += ran
                    if listed is None and seconds > announced - self.cut + CUT_SLACK:
                        # It began before the cut that did not list it: it had ended.
                        ahead += ran
                listed, vanished = None, 0.0
        used -= min(ahead, credit)
        return used + min(threads, max(0, running)) * (now - self.cut)

    def _ends(self, known: Container[Hashable], at: float) -> tuple[_Ends, float, float]:
        """Return the ends by key, but only the seconds of runs between two cuts, and the late ones.

        `known` are the keys that a cut has listed, too, or that were assigned again.
        """
        ends: _Ends = {}
        owed = late = 0.0
        # A run that began before then had ended when the last cut did not list it.
        before = self.cut - CUT_SLACK
        # Without needless lookups and calls: this loop runs for every task.
        for end in self.ended:
            key, seconds, announced, seceded = end
            if key in known or seconds is None or seceded is not None or announced >= at:
                ends.setdefault(key, []).append(end)
            else:
                owed += seconds
                if seconds > announced - before:
                    late += seconds
        return ends, owed, late

    def _observe_executing(
        self, executing: Mapping[Hashable, float], ends: _Ends, at: float, now: float
    ) -> tuple[dict[Hashable, float], int]:
        """Return the running tasks, and how many others may have run since the last cut."""
        unseen = len(self.processing) + len(self.zombies)
        running: dict[Hashable, float] = {}
        for key, elapsed in executing.items():
            running[key] = elapsed = self._elapsed(key, elapsed, at, now)
            if not self._lists_ended(key, ends.get(key), elapsed, at):
                if key in self.processing or key in self.zombies:
                    unseen -= 1
                else:
                    # Released before, but it started anyway.
                    self.zombies[key] = at
        # Rule 5: forget those that the second later cut does not list.
        for key in [k for k, t in self.zombies.items() if t <= self.cut and k not in executing]:
            del self.zombies[key]
            self.seceded.pop(key, None)
        return running, unseen

    def _observe_ends(
        self,
        by_key: _Ends,
        owed: float,
        late: float,
        running: Mapping[Hashable, float],
        at: float,
        guessed: bool,
    ) -> tuple[float, float, float, float, float, int]:
        """Separate the ends before the cut from those that wait for the next one.

        Returns seconds: owed, unlisted, of runs that began and ended after the cut (by their
        lengths), late and excess; see `Observed`; and the number of ends of unknown length. Two
        runs of a key never overlap, so if one of them waits, the later ones wait too, and the cut
        lists the first of them.
        """
        unlisted, after, excess, unknown = owed, 0.0, 0.0, 0
        kept: list[_End] = []
        for key, ends in by_key.items():
            elapsed, vanished = self._executing.get(key), self._vanished.get(key, 0.0)
            listed = key in running
            waiting: list[_End] = []
            for end in ends:
                _, seconds, announced, seceded = end
                if seconds is None:
                    unknown += 1
                if waiting:
                    after += seconds or 0.0
                elif listed and (
                    announced > at
                    or (end is ends[-1] and self._lists_ended(key, ends, running[key], at))
                ):
                    if seceded is not None:
                        more = max(0.0, running[key] - sum(seceded))
                        end = (key, seconds, announced, (seceded[0], seceded[1] + more))
                        excess += more
                elif (
                    announced >= at
                    and elapsed is None
                    and not vanished
                    and seconds is not None
                    and seconds <= announced - at
                ):
                    # By its length. If its end waited for a blocked event loop, it ran before.
                    after += seconds
                    unknown += 1
                else:
                    ran = seconds or 0.0
                    if elapsed and (seconds is None or (elapsed > ran and not guessed)):
                        # Its end waited for a blocked event loop, or has no times.
                        ran = elapsed
                    more = ran
                    if vanished:
                        # They were owed at that cut.
                        del self._vanished[key]
                        more = max(0.0, ran - vanished)
                    owed += more
                    if elapsed is None:
                        unlisted += more
                        if seconds is None:
                            late += vanished + self.cut - self.cut_before
                        elif vanished or seconds > announced - (self.cut - CUT_SLACK):
                            late += seconds
                    if seceded is not None:
                        excess += max(0.0, ran - sum(seceded))
                    # The previous cut saw this run, not a later one.
                    elapsed, vanished = None, 0.0
                    continue
                waiting.append(end)
            kept += waiting
        self.ended = kept
        return owed, unlisted, after, late, excess, unknown

    def _book_seceded(self, running: Mapping[Hashable, float], ended: Container[Hashable]) -> float:
        """Book the excess of listed tasks whose end is not known (rule 10)."""
        due = 0.0
        for key, elapsed in running.items():
            if key in self.seceded and key not in ended:
                before, booked = self.seceded[key]
                more = max(0.0, elapsed - before - booked)
                self.seceded[key] = (before, booked + more)
                due += more
        return due

    def _elapsed(self, key: Hashable, elapsed: float, at: float, now: float) -> float:
        """Return a listed task's elapsed seconds, corrected if its clock was stepped."""
        if key in self.again:
            return max(0.0, elapsed)
        expected = self._executing.get(key, 0.0) + (at - self.cut)
        least = expected - CLOCK_SLACK if key in self._executing else 0.0
        if least <= elapsed <= expected + (now - at) + CLOCK_SLACK:
            return elapsed
        self.guessed = True
        return expected

    def _lists_ended(
        self, key: Hashable, ends: list[_End] | None, elapsed: float, at: float
    ) -> bool:
        """Whether a cut lists a run whose end is known: the cut was taken before the end.

        It can list a later run of the key only if the first one's end was known before, and for as
        long as that run can have lasted. The message of an end can overtake a heartbeat.
        """
        if ends is None:
            return False
        since = at - ends[-1][2]
        return since < 0.0 or key not in self.processing or elapsed > since + CUT_SLACK
