"""What one worker's tasks do, from the scheduler's events and the worker's heartbeats.

The scheduler knows who may run, each heartbeat lists who did at one moment, and neither
knows both. This keeps the two views apart and compares them at each cut. The numbers are
those of the rules in `accounting`.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping
from typing import Final, NamedTuple

from dask_otel.core.idle.sharing import ActiveSpan

#: How much more than the time between two cuts the elapsed seconds of a task may grow, in
#: seconds. Beyond it a wall clock was set: the worker measures elapsed time with one.
CLOCK_SLACK: Final = 0.25


class Observed(NamedTuple):
    """What a cut shows of a worker's tasks; seconds, but `unseen`."""

    #: Elapsed, of the tasks that ran at the cut.
    running: float
    #: Of tasks that had ended by the cut and whose end is known, or that vanished at it:
    #: their metered seconds came with the cut or will come with the next (rule 8).
    owed: float
    #: The part of `owed` that may have come with the previous cut already, for the tasks
    #: were not running at it.
    unlisted: float
    #: Tasks that may have run since the previous cut without being listed by either.
    unseen: int
    #: What tasks had run that vanished without a known end (rule 9).
    vanished: float
    #: At most what metered seconds came with this cut whose ends are not yet told.
    ahead: float
    #: At most what had run of those ends that were told after the previous cut but came
    #: before it.
    late: float
    #: What seceded tasks ran after they seceded and since the previous cut (rule 10).
    excess: float
    #: Whether a seceded task may have ended, with its seconds here, and its end is not told.
    unannounced: bool


class _EarlierEnd(NamedTuple):
    """The end of a run whose key ended once more since the same cut."""

    key: Hashable
    seconds: float | None
    announced: float
    #: If it seceded: seconds before, and seconds since that are booked as excess.
    seceded: tuple[float, float] | None

    def is_owed(self, running: Container[Hashable], listed: bool, at: float) -> bool:
        """Whether it came before a cut. Two runs of a key never overlap."""
        if self.announced <= at:
            return True
        began_after = (
            not listed and self.seconds is not None and self.seconds <= self.announced - at
        )
        return self.key not in running and not began_after

    def listed(self, elapsed: float) -> tuple[_EarlierEnd, float]:
        """Book what it ran after it seceded; returns that as well."""
        if self.seceded is None:
            return self, 0.0
        more = max(0.0, elapsed - sum(self.seceded))
        return self._replace(seceded=(self.seceded[0], self.seceded[1] + more)), more


def _with_thread(seconds: float, seceded: tuple[float, float] | None) -> float:
    """Return what a run used of its worker's capacity and of what is booked in excess of it."""
    return seconds if seceded is None else min(seconds, sum(seceded))


class _Ends(NamedTuple):
    """What ends before a cut tell, as in `Observed`; and what began after it (`after`)."""

    owed: float
    unlisted: float
    after: float
    late: float
    excess: float


class WorkerTasks:
    """The tasks that one worker may be running, and those that ended since its last cut."""

    __slots__ = (
        "_again",
        "_earlier",
        "_ended",
        "_executing",
        "_seceded_ends",
        "_vanished",
        "cut",
        "cut_before",
        "processing",
        "seceded",
        "zombies",
    )

    def __init__(self, now: float) -> None:
        #: When the last heartbeat was taken, and the one before it.
        self.cut = self.cut_before = now
        #: Span by key of what the scheduler has in processing here.
        self.processing: dict[Hashable, ActiveSpan | None] = {}
        #: Released while processing, and when (rule 5).
        self.zombies: dict[Hashable, float] = {}
        #: Seceded: seconds before, and seconds since that are booked as excess.
        self.seceded: dict[Hashable, tuple[float, float]] = {}
        self._seceded_ends: dict[Hashable, tuple[float, float]] = {}
        #: Elapsed seconds of what the last cut listed.
        self._executing: dict[Hashable, float] = {}
        #: What had run that vanished at a cut and whose end is still to be told.
        self._vanished: dict[Hashable, float] = {}
        #: Ends since the last cut: seconds, and when they were told.
        self._ended: dict[Hashable, tuple[float | None, float]] = {}
        #: Of keys in `_ended`, the ends of runs before; in order.
        self._earlier: list[_EarlierEnd] = []
        #: When tasks were assigned here again: the next cut can list either run.
        self._again: dict[Hashable, float] = {}

    @property
    def open(self) -> int:
        """Tasks that may occupy a thread."""
        return len(self.processing) + len(self.zombies) - len(self.seceded)

    # ------------------------------------------------------------- scheduler's events

    def assign(self, key: Hashable, span: ActiveSpan | None, now: float) -> None:
        """A task enters processing here."""
        self.processing[key] = span
        if key in self._ended or (self.zombies and self.zombies.pop(key, None) is not None):
            self._again[key] = now
        if self.seceded:
            # A new run holds a thread again. (Where the worker resumes the seceded run,
            # its thread counts as occupied: idle too small rather than too large.)
            self.seceded.pop(key, None)

    def unassign(self, key: Hashable) -> ActiveSpan | None:
        """A task was taken away before it started (work stealing)."""
        self._executing.pop(key, None)
        self.seceded.pop(key, None)
        return self.processing.pop(key, None)

    def release(self, key: Hashable, now: float) -> None:
        """A task left processing and may run on."""
        if key in self.processing:
            del self.processing[key]
            self.zombies[key] = now

    def secede(self, key: Hashable, elapsed: float | None, now: float) -> None:
        """A task left its thread slot after `elapsed` seconds.

        Unknown, it is taken as late as possible, for time before it is not excess.
        """
        if key not in self.seceded and (key in self.processing or key in self.zombies):
            if elapsed is None:
                elapsed = self._executing.get(key, 0.0) + max(0.0, now - self.cut)
            self.seceded[key] = (max(0.0, elapsed), 0.0)

    def end(self, key: Hashable, seconds: float | None, now: float) -> None:
        """A task ended here, after `seconds` if known, whose metered seconds will come."""
        self.processing.pop(key, None)
        if self.zombies:
            self.zombies.pop(key, None)
        before = self._ended.get(key)
        if before is not None:
            self._earlier.append(_EarlierEnd(key, *before, self._seceded_ends.pop(key, None)))
        self._ended[key] = (seconds, now)
        if self.seceded and key in self.seceded:
            self._seceded_ends[key] = self.seceded.pop(key)

    # ------------------------------------------------------------------------- a cut

    def observe(self, executing: Mapping[Hashable, float], at: float, now: float) -> Observed:
        """Compare with what a heartbeat lists that was taken at `at` and received `now`.

        O(executing + ended).
        """
        running, unseen = self._observe_executing(executing, at, now)
        vanished = {
            key: elapsed
            for key, elapsed in self._executing.items()
            if key not in executing and key not in self._ended
        }
        earlier = self._observe_earlier(running, at) if self._earlier else None
        waiting = {end.key for end in self._earlier}
        ended = {k for k in self._seceded_ends if k not in waiting and self._lists_ended(k, at)}
        owed, unlisted, after, late, excess = self._observe_ends(executing, at, waiting)
        if earlier is not None:
            owed += earlier.owed
            unlisted += earlier.unlisted
            after += earlier.after
            late += earlier.late
            excess += earlier.excess
        # Rule 9. Those that vanished before stay until their end is told.
        self._vanished = {k: e for k, e in self._vanished.items() if k in self.processing}
        self._vanished.update(vanished)
        owed += sum(vanished.values())
        self._executing = running
        if self._again:
            self._again = {
                key: announced for key, announced in self._again.items() if announced > at
            }
        if self.seceded or ended:
            excess += self._book_seceded(running, ended)
        pending = sum(self._vanished.values())
        ahead = unseen * (at - self.cut_before) + after + pending
        self.cut_before, self.cut = self.cut, at
        elapsed = sum(running.values())
        unannounced = any(key not in executing for key in self.seceded)
        return Observed(elapsed, owed, unlisted, unseen, pending, ahead, late, excess, unannounced)

    def may_have_used(self, threads: int, now: float, credit: float) -> float:
        """Get at most what the tasks used that no heartbeat will report (rule 11).

        Parameters
        ----------
        credit
            Seconds that came with the last cut, ahead of the ends that they are of.
        """
        used = sum(e for key, e in self._executing.items() if key not in self._ended)
        for key, (before, _) in self.seceded.items():
            # Of a key that came back since the cut, what the cut lists is an earlier run.
            again = key in self._again or key in self._ended
            used += before if again else max(0.0, before - self._executing.get(key, 0.0))
        running = self.open
        ahead = 0.0
        for key, (seconds, announced) in self._ended.items():
            if seconds is None:
                used += self._executing.get(key, 0.0)
                running += 1
                continue
            # What vanished was owed when it did.
            vanished = self._vanished.get(key, 0.0)
            ran = max(0.0, _with_thread(seconds, self._seceded_ends.get(key)) - vanished)
            used += ran
            if key not in self._executing and seconds > announced - self.cut:
                # It began before the cut that did not list it: it had ended.
                ahead += ran
        used += sum(_with_thread(end.seconds or 0.0, end.seceded) for end in self._earlier)
        used -= min(ahead, credit)
        return used + min(threads, max(0, running)) * (now - self.cut)

    def _observe_executing(
        self, executing: Mapping[Hashable, float], at: float, now: float
    ) -> tuple[dict[Hashable, float], int]:
        """Get what ran at the cut, and how many other tasks may have run since the last."""
        unseen = len(self.processing) + len(self.zombies)
        running: dict[Hashable, float] = {}
        for key, elapsed in executing.items():
            if not self._lists_ended(key, at):
                if key in self.processing or key in self.zombies:
                    unseen -= 1
                else:
                    # Released before, and started or listed against all expectation.
                    self.zombies[key] = at
            running[key] = self._elapsed(key, elapsed, at, now)
        if self.zombies:
            self._drop_zombies(executing, at)
        unseen += sum(1 for seconds, _ in self._ended.values() if seconds is None)
        unseen += sum(1 for end in self._earlier if end.seconds is None)
        return running, unseen

    def _observe_earlier(self, running: Mapping[Hashable, float], at: float) -> _Ends:
        """Do for runs whose keys ended again what `_observe_ends` does for the others.

        Any of them that waits for the next cut makes the key's later ends wait, too.
        The first of them is the one that the cut lists.
        """
        owed = unlisted = after = late = excess = 0.0
        kept: dict[Hashable, list[_EarlierEnd]] = {}
        for end in self._earlier:
            key, seconds = end.key, end.seconds
            if key in kept:
                kept[key].append(end)
                after += seconds or 0.0
                continue
            if not end.is_owed(running, key in self._executing, at):
                end, more = end.listed(running.get(key, 0.0))
                kept[key] = [end]
                after += 0.0 if key in running else seconds or 0.0
                excess += more
                continue
            # What the previous cut listed was this run, and not one after it.
            elapsed, vanished = self._executing.pop(key, None), self._vanished.pop(key, 0.0)
            more = max(0.0, seconds - vanished) if seconds is not None else elapsed or 0.0
            owed += more
            if elapsed is None:
                unlisted += more
                late += vanished + self.cut - self.cut_before if seconds is None else seconds
            if end.seceded is not None:
                excess += max(0.0, (seconds or 0.0) - sum(end.seceded))
        self._earlier = [end for ends in kept.values() for end in ends]
        return _Ends(owed, unlisted, after, late, excess)

    def _observe_ends(
        self, executing: Mapping[Hashable, float], at: float, waiting: Container[Hashable]
    ) -> _Ends:
        """Separate the ends before the cut from those that wait for the next one.

        `after` is of tasks that started and ended after the cut, as far as their lengths tell.
        Keys in `waiting` have an earlier end that waits.
        """
        owed = unlisted = after = late = excess = 0.0
        kept: dict[Hashable, tuple[float | None, float]] = {}
        for key, (seconds, announced) in self._ended.items():
            if key in executing and self._lists_ended(key, at):
                kept[key] = (seconds, announced)
                continue
            if key in waiting:
                kept[key] = (seconds, announced)
                after += seconds or 0.0
                continue
            elapsed = self._executing.get(key)
            vanished = self._vanished.pop(key, 0.0)
            if seconds is None:
                owed += elapsed or 0.0
                late += vanished + self.cut - self.cut_before if elapsed is None else 0.0
            elif elapsed is None and not vanished and seconds <= announced - at:
                kept[key] = (seconds, announced)
                after += seconds
                continue
            else:
                # What vanished was owed when it did.
                more = max(0.0, seconds - vanished)
                owed += more
                if elapsed is None:
                    unlisted += more
                    late += seconds if vanished or seconds > announced - self.cut else 0.0
            if key in self._seceded_ends:
                before, booked = self._seceded_ends.pop(key)
                excess += max(0.0, (seconds or 0.0) - before - booked)
        self._ended = kept
        return _Ends(owed, unlisted, after, late, excess)

    def _book_seceded(self, running: Mapping[Hashable, float], ended: set[Hashable]) -> float:
        """Rule 10, for tasks that the cut lists; of those in `ended` it is the past run."""
        due = 0.0
        for key, elapsed in running.items():
            tasks = self._seceded_ends if key in ended else self.seceded
            if key in tasks:
                before, booked = tasks[key]
                more = max(0.0, elapsed - before - booked)
                tasks[key] = (before, booked + more)
                due += more
        return due

    def _elapsed(self, key: Hashable, elapsed: float, at: float, now: float) -> float:
        """Get a listed task's elapsed seconds without steps of the clock that took them."""
        if key in self._again:
            return max(0.0, elapsed)
        before = self._executing.get(key, 0.0)
        if not before <= elapsed <= before + (now - self.cut) + CLOCK_SLACK:
            return before + (at - self.cut)
        return elapsed

    def _lists_ended(self, key: Hashable, at: float) -> bool:
        """Whether a cut lists a run of which the end is known: it was taken before.

        A next run of that key can be listed only if the first one's end was told before.
        """
        end = self._ended.get(key)
        return end is not None and (end[1] > at or key not in self.processing)

    def _drop_zombies(self, executing: Mapping[Hashable, float], at: float) -> None:
        """Rule 5. Released after the cut was taken: the next one will tell."""
        gone = [k for k, t in self.zombies.items() if t <= at and k not in executing]
        for key in gone:
            del self.zombies[key]
            self.seceded.pop(key, None)
