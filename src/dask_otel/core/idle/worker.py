"""One worker's account: the use of its threads' time, by its heartbeats.

A worker's capacity is threads x time. At every moment it is the sum of the reported, idle, lost
and in-flight seconds, minus the seconds booked in excess of the threads. The numbers are those of
the rules in `accounting`.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping
from math import inf
from typing import NamedTuple

from dask_otel.core.idle.sharing import ActiveSpan
from dask_otel.core.idle.worker_tasks import Observed, WorkerTasks
from dask_otel.core.life.clock_offsets import WorkerOffset
from dask_otel.core.path.waiting import MAX_ENDS, Clock, Ends, Pauses, last_ends


class Settlement(NamedTuple):
    """Seconds that became certain; none is negative."""

    #: Of the time since the previous cut, and of the time before that one.
    idle: float
    earlier: float
    lost: float
    excess: float


class WorkerTime:
    """Thread-seconds of one worker.

    The owner changes `tasks`. If the number of threads that no open task can occupy then differs
    from `free`, it calls `advance` and sets `free` and `changed`.
    """

    __slots__ = (
        "_beyond",
        "_credit",
        "_excess_ahead",
        "_held",
        "_left",
        "_maybe_busy",
        "_now",
        "_open_at_cut",
        "_owed",
        "_unconfirmed",
        "_worked",
        "changed",
        "earlier_spans",
        "earlier_unworked",
        "ends",
        "free",
        "offset",
        "pauses",
        "recent_spans",
        "released",
        "running",
        "tasks",
        "threads",
        "unworked",
    )

    def __init__(
        self, threads: int, now: float, worked: float, clock: Clock, offset: WorkerOffset
    ) -> None:
        self.threads = threads
        self.tasks = WorkerTasks(now, now)
        #: Whether it takes tasks, its last pauses, and its last ends that others waited for.
        self.running = True
        self.pauses: Pauses = ()
        self.ends: Ends = [(clock, ())]
        #: Its clock.
        self.offset = offset
        #: When a task was last released here; a time of the paths.
        self.released = -inf
        #: Number of certainly idle threads, since `changed`.
        self.free = threads
        self.changed = now
        #: Spans that had an open task here since the last cut.
        self.recent_spans: set[ActiveSpan] = set()
        #: The same before the last cut.
        self.earlier_spans: set[ActiveSpan] = set()
        #: Seconds since the last cut that open tasks may have used while no span was active, and
        #: those of before that cut which are not booked yet: idle ones among them are unused.
        self.unworked = self.earlier_unworked = 0.0
        self._now, self._worked = now, worked
        #: Capacity and excess, minus reported, idle and lost seconds.
        self._left = 0.0
        #: In flight: seconds open at the last cut, and the most that can be busy since (rule 14).
        self._open_at_cut = self._maybe_busy = 0.0
        #: Rule 8: seconds owed since before the last cut, and seconds whose ends are not known yet.
        self._owed = self._credit = 0.0
        #: Rule 10: excess booked as debt that may belong to a seceded task whose end comes later.
        self._excess_ahead = 0.0
        #: Debt of the last cut that became excess, and is not in `_excess_ahead`.
        self._beyond = 0.0
        #: Rule 9: idle held back at the last cut, and what was held back before and is not certain
        #: yet: it is held back again, or in flight.
        self._held = self._unconfirmed = 0.0

    def renew_ends(self) -> None:
        """Keep the last ends in a new list, with the last pauses."""
        self.ends = last_ends(self.ends)
        self.ends[0] = (self.ends[0][0], self.pauses)

    @property
    def in_flight(self) -> float:
        """Seconds up to the last `advance` that are neither reported nor booked."""
        return max(0.0, self._open_at_cut + self._maybe_busy)

    def advance(self, now: float, worked: float) -> None:
        """Book the time up to `now` with the previous number of free threads (rule 4).

        `worked` are the seconds up to `now` in which a span was active.
        """
        passed = now - self._now
        if passed > 0.0:
            taken = self.threads - self.free
            self._left += passed * taken
            self._maybe_busy += passed * taken
            self.unworked += (passed - (worked - self._worked)) * taken
            self._now, self._worked = now, worked

    def rests_until(self, at: float) -> bool:
        """Take a cut at which nothing ran or is open; otherwise do nothing, and return False."""
        tasks = self.tasks
        if (
            tasks.any
            or self.recent_spans
            or self._left
            or self._held
            or self._owed
            or self._credit
            or self._open_at_cut
            or self._maybe_busy
            or self._excess_ahead
        ):
            return False
        tasks.cut_before = tasks.cut
        if at > tasks.cut:
            tasks.cut = at
        return True

    def take_cut(
        self,
        executing: Mapping[Hashable, float],
        reported: float,
        now: float,
        travelled: float,
    ) -> Settlement:
        """Settle the time up to a heartbeat; `advance` to `now` must have been called.

        Parameters
        ----------
        executing
            Elapsed seconds of every running task, from the worker.
        reported
            ``execute`` seconds metered since its last heartbeat.
        now
            When it was received.
        travelled
            Seconds from its cut to its receipt.
        """
        # Without needless calls: this runs for every heartbeat of a worker with tasks.
        before = self.tasks.cut
        # Rule 3.
        at = now - travelled
        if at < before:
            at = before
        # Idle was also booked after the cut. Only the part since the last change is certain:
        # assuming more would book idle before the cut twice.
        since = self.changed if self.changed > at else at
        passed = self._maybe_busy
        self._maybe_busy = (since - at) * self.threads
        self._maybe_busy += (now - since) * (self.threads - self.free)
        passed -= self._maybe_busy

        seen = self.tasks.observe(executing, at, now)
        lost = excess = surplus = 0.0
        # What came ahead of known ends may be of others: those of unknown length.
        guessed = self._credit > 0.0 and seen.unlisted > 0.0
        if reported or seen.owed or self._owed or self._credit:
            surplus = max(0.0, reported - self._owed - seen.owed)
            lost = self._match_reported(reported, seen)
        if self._beyond:
            # The messages of tasks that had seceded came after the cut that listed these.
            self._excess_ahead += min(self._beyond, seen.overdue)
            self._beyond = 0.0
        if seen.excess or self._excess_ahead:
            # Rule 10, minus the debt that an earlier cut booked for it.
            booked = min(seen.excess, self._excess_ahead)
            self._excess_ahead = self._excess_ahead - booked if seen.unannounced else 0.0
            excess = seen.excess - booked
        self._left += excess - reported - lost
        busy = seen.running + self._owed
        rest = self._left - self._maybe_busy - busy
        if rest < 0.0:
            beyond = self._settle_debt(rest, busy)
            if seen.unannounced:
                self._excess_ahead += beyond
            else:
                self._beyond = beyond
            return Settlement(0.0, 0.0, lost, excess + beyond)
        # Idle held back at the previous cut is confirmed now, minus late ends and what was metered
        # beyond the known ends: a blocked event loop meters its wait, too. Both are in this cut.
        late = min(reported, seen.late + surplus)
        confirmed = min(rest, max(0.0, self._held - late)) if self._held else 0.0
        again = self._held - confirmed
        self._held = rest - confirmed
        if not (self._owed or guessed):
            self._held = min(self._held, seen.unseen * (at - before) + seen.vanished)
        self._unconfirmed = again
        self._left -= rest - self._held
        self._open_at_cut = busy + self._held
        idle = rest - confirmed - self._held
        # No more can be idle since the previous cut than open tasks may have used.
        earlier = min(idle, max(0.0, rest - confirmed - passed))
        return Settlement(idle - earlier, confirmed + earlier, lost, excess)

    def close(self) -> Settlement:
        """Settle the seconds in flight on a worker that leaves, after `advance` (rule 11)."""
        used = self.tasks.may_have_used(self.threads, self._now, self._owed, self._credit)
        lost = min(self.in_flight, used)
        idle = self.in_flight - lost
        earlier = min(idle, self._held)
        return Settlement(idle - earlier, earlier, lost, 0.0)

    def begin_interval(self, changed: float, active: Container[str]) -> None:
        """Begin a new interval: keep only the spans of open tasks in `recent_spans`.

        If an active span began or ended after the cut (`changed`), before its receipt, keep all:
        they may have had work since the cut. Seconds without one can have passed since, too. If
        only tasks began or ended meanwhile, or released ones may run on, keep those that are
        `active`: they were at the cut.
        """
        if len(self.ends) > 2 * MAX_ENDS:
            self.renew_ends()
        processing = self.tasks.processing
        self.earlier_spans = before = self.recent_spans
        if self._maybe_busy and changed > self.tasks.cut:
            self.recent_spans = before.copy()
        elif self.tasks.zombies or (self._maybe_busy and self.changed > self.tasks.cut):
            self.recent_spans = {span for span in before if span.id in active}
        else:
            # Mostly there is one, or none: this runs for every heartbeat of a worker with tasks.
            several = processing.values() if len(before) > 1 else before if processing else ()
            self.recent_spans = {span for span in several if span is not None}
        uncertain = min(self.earlier_unworked, self._unconfirmed)
        again = min(uncertain, self._held)
        self.earlier_unworked = self.unworked + again
        self.unworked = min(self.unworked + uncertain - again, self._maybe_busy)

    def _settle_debt(self, rest: float, busy: float) -> float:
        """Subtract the debt from the seconds in flight; return the new excess (rule 7)."""
        # Elapsed seconds that were guessed may be too many.
        beyond = max(0.0, (0.0 if self.tasks.guessed else busy) - self._left)
        self._left += beyond
        # What was held back is in a later rest.
        self.unworked += min(self.earlier_unworked, self._held)
        self._held = self._unconfirmed = 0.0
        self._open_at_cut = busy + rest + beyond
        return beyond

    def _match_reported(self, reported: float, seen: Observed) -> float:
        """Pay the ends in their order; return the lost seconds (rule 8)."""
        ahead = min(self._credit, seen.unlisted)
        due = seen.owed - ahead
        paid = min(reported, self._owed)
        lost = self._owed - paid
        left = reported - paid
        self._owed = max(0.0, due - left)
        self._credit = min(max(0.0, left - due), seen.ahead)
        return lost
