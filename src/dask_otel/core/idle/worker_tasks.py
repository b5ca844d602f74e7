"""The tasks of one worker, from the scheduler's events and the worker's heartbeats.

The scheduler knows which tasks may run; each heartbeat lists those that ran at one moment. This
module keeps the two views apart and compares them at each cut. The numbers are those of the rules
in `accounting`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
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
    #: Whether a seceded task may have ended: its seconds have come, its end is not known.
    unannounced: bool


#: Of a seceded task: seconds before it seceded, and seconds after it that are booked as excess.
_Seceded: TypeAlias = tuple[float, float]
#: The end of a run: its seconds, if known; when the end became known; whether it had seceded.
End: TypeAlias = tuple[float | None, float, _Seceded | None]


@dataclass(slots=True, eq=False)
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
    #: Ends of a key's runs since the last cut, in order. Mostly one.
    ended: dict[Hashable, tuple[End, ...]] = field(default_factory=dict)
    #: When tasks were assigned here again: the next cut can list either run.
    again: dict[Hashable, float] = field(default_factory=dict)
    #: Whether the last cut's elapsed seconds are a guess: the worker's clock was stepped.
    guessed: bool = False

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

    def released_run(self, key: Hashable, seconds: float | None, now: float) -> tuple[End, ...]:
        """Return the end of a run that was released before the one that ended; none if it is that.

        A worker goes on with a released run if it still runs when the task is assigned again.
        """
        again = self.again.get(key)
        if again is None or key in self.ended or seconds is None:
            return ()
        return () if seconds > now - again + ROUNDING else ((None, again, None),)

    def secede(self, key: Hashable, elapsed: float | None, now: float) -> None:
        """Record that a task left its thread slot after `elapsed` seconds.

        If they are unknown, the latest time counts, because the time before is not excess.
        """
        if key not in self.seceded and (key in self.processing or key in self.zombies):
            if elapsed is None:
                elapsed = self._executing.get(key, 0.0) + max(0.0, now - self.cut)
            self.seceded[key] = (max(0.0, elapsed), 0.0)

    # ------------------------------------------------------------------------- a cut

    def observe(self, executing: Mapping[Hashable, float], at: float, now: float) -> Observed:
        """Compare with the list of a heartbeat that was taken at `at` and received `now`.

        O(executing + ended).
        """
        running: dict[Hashable, float] = {}
        unseen = len(self.processing)
        guessed, self.guessed = self.guessed, False
        if executing or self.zombies:
            running, unseen = self._observe_executing(executing, at, now)
        vanished = {
            key: elapsed
            for key, elapsed in self._executing.items()
            if key not in executing and key not in self.ended
        }
        owed = unlisted = after = late = excess = 0.0
        if self.ended:
            owed, unlisted, after, late, excess, unknown = self._observe_ends(running, at, guessed)
            unseen += unknown
        if vanished or self._vanished:
            # Rule 9. Tasks that vanished before stay until their end is known.
            self._vanished = {k: e for k, e in self._vanished.items() if k in self.processing}
            self._vanished.update(vanished)
            owed += sum(vanished.values())
        self._executing = running
        if self.again:
            # If the cut listed the run before, the next one can still list either.
            self.again = {k: t for k, t in self.again.items() if t > at or k in self.ended}
        if self.seceded and not self.guessed:
            # Excess can't be taken back, so that guessed seconds wait for the end.
            excess += self._book_seceded(running)
        pending = sum(self._vanished.values()) if self._vanished else 0.0
        ahead = unseen * (at - self.cut_before) + after + pending
        self.cut_before, self.cut = self.cut, at
        elapsed = sum(running.values()) if running else 0.0
        # Or its end is known, but this cut does not book it.
        unannounced = not self.seceded.keys() <= executing.keys() or any(
            seceded for ends in self.ended.values() for *_, seceded in ends
        )
        return Observed(elapsed, owed, unlisted, unseen, pending, ahead, late, excess, unannounced)

    def may_have_used(self, threads: int, now: float, owed: float, credit: float) -> float:
        """Return the upper limit of used seconds that no heartbeat will report (rule 11).

        Parameters
        ----------
        owed
            Seconds that the last cut should have brought.
        credit
            Seconds that came with the last cut before their ends were known.
        """
        used = owed + sum(e for key, e in self._executing.items() if key not in self.ended)
        for key, (before, _) in self.seceded.items():
            # If a key returned since the cut, the cut lists an earlier run of it.
            again = key in self.again or key in self.ended
            used += before if again else max(0.0, before - self._executing.get(key, 0.0))
        running = len(self.processing) + len(self.zombies) - len(self.seceded)
        if owed > ROUNDING:
            # Those that vanished at the last cut may have run until then.
            gone = self._vanished.keys() - self.ended.keys() - self.seceded.keys()
            used += (self.cut - self.cut_before) * len(gone)
        ahead = 0.0
        for key, ends in self.ended.items():
            # The first of them is the run that the cuts may have seen. Vanished seconds were owed
            # at that cut.
            listed, vanished = self._executing.get(key), self._vanished.get(key, 0.0)
            for seconds, announced, seceded in ends:
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

    def _observe_executing(
        self, executing: Mapping[Hashable, float], at: float, now: float
    ) -> tuple[dict[Hashable, float], int]:
        """Return the running tasks, and how many others may have run since the last cut."""
        unseen = len(self.processing) + len(self.zombies)
        running: dict[Hashable, float] = {}
        for key, elapsed in executing.items():
            running[key] = elapsed = self._elapsed(key, elapsed, at, now)
            if not self._lists_ended(key, elapsed, at):
                if key in self.processing or key in self.zombies:
                    unseen -= 1
                else:
                    # Released before, but it started anyway.
                    self.zombies[key] = at
        if self.zombies:
            self._drop_zombies(executing)
        return running, unseen

    def _observe_ends(
        self, running: Mapping[Hashable, float], at: float, guessed: bool
    ) -> tuple[float, float, float, float, float, int]:
        """Separate the ends before the cut from those that wait for the next one.

        Returns seconds: owed, unlisted, of runs that began and ended after the cut (by their
        lengths), late and excess; see `Observed`; and the number of ends of unknown length. Two
        runs of a key never overlap, so if one of them waits, the later ones wait too, and the cut
        lists the first of them.
        """
        owed = unlisted = after = late = excess = 0.0
        unknown = 0
        # A run that began before then had ended when the last cut did not list it.
        before = self.cut - CUT_SLACK
        kept: dict[Hashable, tuple[End, ...]] = {}
        # Tasks that a cut has listed, too.
        known = {*self._executing, *self._vanished, *running}
        # Without needless lookups and calls: this loop runs for every task.
        for key, ends in self.ended.items():
            if key not in known and len(ends) == 1:
                seconds, announced, seceded = ends[0]
                if seconds is not None and seceded is None and announced < at:
                    # As mostly: it ran between the cuts.
                    owed += seconds
                    unlisted += seconds
                    if seconds > announced - before:
                        late += seconds
                    continue
            elapsed, vanished = self._executing.get(key), self._vanished.get(key, 0.0)
            listed = key in running
            waiting: tuple[End, ...] = ()
            for end in ends:
                seconds, announced, seceded = end
                if seconds is None:
                    unknown += 1
                if waiting:
                    after += seconds or 0.0
                elif listed and (
                    announced > at or (end is ends[-1] and self._lists_ended(key, running[key], at))
                ):
                    if seceded is not None:
                        more = max(0.0, running[key] - sum(seceded))
                        end = (seconds, announced, (seceded[0], seceded[1] + more))
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
                        elif vanished or seconds > announced - before:
                            late += seconds
                    if seceded is not None:
                        excess += max(0.0, ran - sum(seceded))
                    # The previous cut saw this run, not a later one.
                    elapsed, vanished = None, 0.0
                    continue
                waiting += (end,)
            if waiting:
                kept[key] = waiting
        self.ended = kept
        return owed, unlisted, after, late, excess, unknown

    def _book_seceded(self, running: Mapping[Hashable, float]) -> float:
        """Book the excess of listed tasks whose end is not known (rule 10)."""
        due = 0.0
        for key, elapsed in running.items():
            if key in self.seceded and key not in self.ended:
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

    def _lists_ended(self, key: Hashable, elapsed: float, at: float) -> bool:
        """Whether a cut lists a run whose end is known: the cut was taken before the end.

        It can list a later run of the key only if the first one's end was known before, and for as
        long as that run can have lasted. The message of an end can overtake a heartbeat.
        """
        ends = self.ended.get(key)
        if ends is None:
            return False
        since = at - ends[-1][1]
        return since < 0.0 or key not in self.processing or elapsed > since + CUT_SLACK

    def _drop_zombies(self, executing: Mapping[Hashable, float]) -> None:
        """Forget zombies that the second later cut does not list (rule 5)."""
        gone = [k for k, t in self.zombies.items() if t <= self.cut and k not in executing]
        for key in gone:
            del self.zombies[key]
            self.seceded.pop(key, None)
