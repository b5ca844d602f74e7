"""One worker's account: what its threads did, as far as its heartbeats have told.

The worker's capacity is threads x time. At every moment it is the sum of what was reported,
idle, lost and in flight, less what was booked in excess of the threads. The rules, with
the numbers by which `accounting` refers to them:

1. A heartbeat is a cut of its worker: the `execute` seconds metered so far plus the elapsed
   seconds of what executes are its busy time. The end of a task needs no estimate: the
   elapsed seconds fall and the metered ones rise in the same message.
3. The cut was taken before it was received, by the message's delay over the smallest
   recent delay, and never before the previous cut.
4. Between cuts only a thread that no task can occupy is idle: threads - open tasks.
5. A task released while it was processing may still run (a cancelled task does): it stays
   open until the first later cut that does not list it.
6. At a cut, capacity - busy - booked is settled. What is left is idle.
7. What is missing is debt: the cut was a little earlier than assumed. It becomes excess
   only when the capacity up to the very receipt cannot hold it, because excess cannot be
   taken back, and false excess now is phantom idle later.
8. A task that ended, and whose metered seconds are not here, is owed. Seconds that pass one
   whole later cut without arriving are lost. Workers report sums, so what arrives pays for
   ends in their order. A task that ends shortly after the cut that brought its seconds is
   paid from that cut's surplus (`credit`).
9. A heartbeat can be cut between a task's disappearance from `executing` and its metered
   seconds, and then the length of the task looks idle. A listed task that vanished without
   a known end is owed what it had run; and open tasks that are not listed, which may
   have run in between, hold back idle (`held`) until the next cut. By then their end is
   known, for it is sent right after. This also covers tasks that no cut ever listed, as
   when they hold the GIL and so stop the heartbeats until they end.
10. Seconds of a seceded task after it seceded do not occupy a thread: excess.
11. A worker that is removed takes with it what it had not reported: lost, but not more than
    its open tasks can have used since its last cut.
14. In flight is kept as its own sum, from what the last cut showed and the time since.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, NamedTuple

from dask_otel.core.delay import RecentMinimum
from dask_otel.core.sharing import ActiveSpan

#: How much more than the time between two cuts the elapsed seconds of a task may grow, in
#: seconds. Beyond it a wall clock was set: the worker measures elapsed time with one.
CLOCK_SLACK: Final = 0.25


class Settlement(NamedTuple):
    """What became certain at a cut, in seconds, none of it negative."""

    idle: float
    lost: float
    excess: float


class WorkerTime:
    """Thread-seconds of one worker.

    Hot path: `assign`, `end`, `release` and `secede` are a few dictionary operations; the
    caller then compares `free_threads` with `free`, and only where they differ lets time
    advance.
    """

    __slots__ = (
        "_again",
        "_credit",
        "_cut_before",
        "_delays",
        "_ended",
        "_excess",
        "_executing",
        "_held",
        "_idle",
        "_joined",
        "_lost",
        "_maybe_busy",
        "_now",
        "_open_at_cut",
        "_owed",
        "_owed_before",
        "_processing",
        "_reported",
        "_seceded",
        "_seceded_ends",
        "_vanished",
        "_zombies",
        "changed",
        "cut",
        "free",
        "recent_spans",
        "threads",
    )

    def __init__(self, threads: int, now: float, delay: float | None = None) -> None:
        self.threads = threads
        #: Threads that certainly do nothing, from `changed` on.
        self.free = threads
        self.changed = now
        #: When the last heartbeat was taken.
        self.cut = self._cut_before = now
        #: Spans that had an open task here since the last cut.
        self.recent_spans: set[ActiveSpan] = set()
        self._joined = self._now = now
        self._delays = RecentMinimum()
        if delay is not None:
            self._delays.observe(delay, now)
        # Totals since `_joined`.
        self._reported = self._idle = self._lost = self._excess = 0.0
        # In flight: what the last cut showed, and at most busy since then (rule 14).
        self._open_at_cut = self._maybe_busy = 0.0
        # Tasks. `_processing` has the span of each, `_zombies` when they were released,
        # `_seceded` what they ran before and what of the time after is booked.
        self._processing: dict[Hashable, ActiveSpan | None] = {}
        self._zombies: dict[Hashable, float] = {}
        # When tasks were assigned here again: the next cut can list either run.
        self._again: dict[Hashable, float] = {}
        self._seceded: dict[Hashable, tuple[float, float]] = {}
        self._seceded_ends: dict[Hashable, tuple[float, float]] = {}
        # What the last cut listed (elapsed seconds), less what ended since; what vanished
        # at it; ends since it, with their seconds if known.
        self._executing: dict[Hashable, float] = {}
        self._vanished: dict[Hashable, float] = {}
        self._ended: dict[Hashable, tuple[float | None, float]] = {}
        # Rule 8: ends before the last cut, ends since, and seconds that came ahead of them.
        self._owed_before = self._owed = self._credit = 0.0
        #: Rule 9: idle held back at the last cut.
        self._held = 0.0

    @property
    def open_tasks(self) -> int:
        """Tasks that may occupy a thread."""
        return len(self._processing) + len(self._zombies) - len(self._seceded)

    @property
    def free_threads(self) -> int:
        """Threads that no open task can occupy."""
        return max(0, self.threads - self.open_tasks)

    @property
    def in_flight(self) -> float:
        """Seconds up to the last `advance` that are neither reported nor booked."""
        return max(0.0, self._open_at_cut + self._maybe_busy)

    # ------------------------------------------------------------------------- tasks

    def assign(self, key: Hashable, span: ActiveSpan | None, now: float) -> None:
        """A task enters processing here."""
        self._processing[key] = span
        if span is not None:
            self.recent_spans.add(span)
        if key in self._ended or (self._zombies and self._zombies.pop(key, None) is not None):
            self._again[key] = now
        if self._seceded:
            # A new run holds a thread again. (Where the worker resumes the seceded run,
            # its thread counts as occupied: idle too small rather than too large.)
            self._seceded.pop(key, None)

    def unassign(self, key: Hashable) -> ActiveSpan | None:
        """A task was taken away before it started (work stealing)."""
        self._executing.pop(key, None)
        self._seceded.pop(key, None)
        return self._processing.pop(key, None)

    def release(self, key: Hashable, now: float) -> None:
        """A task left processing and may run on."""
        if key in self._processing:
            del self._processing[key]
            self._zombies[key] = now

    def secede(self, key: Hashable, elapsed: float | None, now: float) -> None:
        """A task left its thread slot after `elapsed` seconds.

        Unknown, it is taken as late as possible, for time before it is not excess.
        """
        if key not in self._seceded and (key in self._processing or key in self._zombies):
            if elapsed is None:
                elapsed = self._executing.get(key, 0.0) + max(0.0, now - self.cut)
            self._seceded[key] = (max(0.0, elapsed), 0.0)

    def end(self, key: Hashable, seconds: float | None, now: float) -> None:
        """A task ended here, after `seconds` if known, whose metered seconds will come."""
        self._processing.pop(key, None)
        if self._zombies:
            self._zombies.pop(key, None)
        if key in self._ended:
            # A second run since the last cut: keep the first under a name of its own.
            self._ended[key, now] = self._ended[key]
        self._ended[key] = (seconds, now)
        if self._seceded and key in self._seceded:
            self._seceded_ends[key] = self._seceded.pop(key)

    # -------------------------------------------------------------------------- time

    def advance(self, now: float) -> None:
        """Book the time up to `now` with the free threads as they were (rule 4)."""
        passed = now - self._now
        if passed > 0.0:
            self._idle += passed * self.free
            self._maybe_busy += passed * (self.threads - self.free)
            self._now = now

    def take_cut(
        self,
        executing: Mapping[Hashable, float],
        reported: float,
        now: float,
        delay: float | None = None,
    ) -> Settlement:
        """Settle what a heartbeat shows; `advance` to `now` must have been called.

        Parameters
        ----------
        executing
            Elapsed seconds of every task that runs, as the worker sent it.
        reported
            ``execute`` seconds metered since its last heartbeat.
        now
            When it was received.
        delay
            Receipt less sending time, each by its own wall clock; None if not known.
        """
        late = 0.0 if delay is None else delay - self._delays.observe(delay, now)
        at = min(now, max(self.cut, now - late))
        # Idle was booked after the cut, too. What is certain of it is what came since the
        # last change; to assume more would book idle before the cut a second time.
        since = max(at, self.changed)
        after = (since - at) * self.threads + (now - since) * (self.threads - self.free)

        running, unseen = self._observe_executing(executing, at, now)
        carried, late_ends, excess = self._observe_ends(executing, at)
        self._executing = running
        self._again = {key: told for key, told in self._again.items() if told > at}
        vanished = sum(self._vanished.values())
        ahead = unseen * (at - self._cut_before) + carried + vanished
        self._reported += reported
        lost = self._match_reported(reported, ahead)
        self._lost += lost
        excess += self._seceded_excess(running)
        self._excess += excess
        busy = sum(running.values()) + self._owed_before

        rest = self._capacity_left(now) - after - busy
        idle = 0.0
        if rest > 0.0:
            confirmed = min(rest, max(0.0, self._held - late_ends))
            self._held = min(rest - confirmed, unseen * (at - self.cut) + vanished)
            idle = rest - self._held
            self._idle += idle
            self._open_at_cut = busy + self._held
        else:
            self._held = 0.0
            beyond = max(0.0, busy - self._capacity_left(now))
            self._excess += beyond
            excess += beyond
            # Rule 7: the debt is subtracted from what is in flight, and cannot exceed it.
            self._open_at_cut = busy + rest + beyond
        self._maybe_busy = after
        self._cut_before, self.cut = self.cut, at
        return Settlement(idle, lost, excess)

    def close(self, now: float) -> Settlement:
        """Settle what is in flight on a worker that leaves, after `advance` (rule 11)."""
        may_run = max(0, self.open_tasks)
        used = self._owed_before + self._owed
        used += sum(e for key, e in self._executing.items() if key not in self._ended)
        for key, (seconds, _) in self._ended.items():
            used += self._executing.get(key, 0.0) if seconds is None else seconds
            may_run += seconds is None
        may_run = min(self.threads, may_run)
        lost = min(self.in_flight, used + may_run * (now - self.cut))
        return Settlement(self.in_flight - lost, lost, 0.0)

    def forget_spans(self) -> None:
        """Keep only the spans of open tasks in `recent_spans`: a new interval begins."""
        if not self._processing:
            self.recent_spans = set()
        elif len(self.recent_spans) > 1:
            self.recent_spans = {span for span in self._processing.values() if span is not None}

    def _capacity_left(self, now: float) -> float:
        booked = self._reported + self._idle + self._lost
        return (now - self._joined) * self.threads + self._excess - booked

    def _seceded_excess(self, running: Mapping[Hashable, float]) -> float:
        """Rule 10: what seceded tasks ran since they seceded, and is not booked yet."""
        due = 0.0
        for tasks in (self._seceded, self._seceded_ends):
            for key, (before, booked) in tasks.items():
                more = running.get(key, 0.0) - before - booked
                if more > 0.0:
                    tasks[key] = (before, booked + more)
                    due += more
        return due

    def _observe_executing(
        self, executing: Mapping[Hashable, float], at: float, now: float
    ) -> tuple[dict[Hashable, float], int]:
        """Get what ran at the cut, and how many other tasks may have run since the last."""
        unseen = len(self._processing) + len(self._zombies)
        running: dict[Hashable, float] = {}
        for key, elapsed in executing.items():
            if self._lists_ended(key, at):
                pass
            elif key in self._processing or key in self._zombies:
                unseen -= 1
            else:
                # Released before, and started or listed against all expectation.
                self._zombies[key] = at
            running[key] = self._elapsed(key, elapsed, at, now)
        if self._zombies:
            self._drop_zombies(executing, at)
        unseen += sum(1 for seconds, _ in self._ended.values() if seconds is None)
        return running, unseen

    def _observe_ends(
        self, executing: Mapping[Hashable, float], at: float
    ) -> tuple[float, float, float]:
        """Owe the tasks that ended before the cut, and keep the others for the next one.

        Returns the seconds of those that started and ended after the cut, as far as their
        lengths tell; at most what those had run that had ended before the previous cut;
        and what seceded ones ran in excess.
        """
        after = late = excess = 0.0
        kept: dict[Hashable, tuple[float | None, float]] = {}
        for key, (seconds, told) in self._ended.items():
            if key in executing and self._lists_ended(key, at):
                kept[key] = (seconds, told)
                continue
            elapsed = self._executing.get(key)
            vanished = self._vanished.pop(key, 0.0)
            if seconds is None:
                self._owed += elapsed or 0.0
                late += vanished + self.cut - self._cut_before if elapsed is None else 0.0
            elif elapsed is None and not vanished and seconds <= told - at:
                kept[key] = (seconds, told)
                after += seconds
                continue
            else:
                self._owed += max(0.0, seconds - vanished)
                if elapsed is None and (vanished or seconds > told - self.cut):
                    late += seconds
            if key in self._seceded_ends:
                before, booked = self._seceded_ends.pop(key)
                excess += max(0.0, (seconds or 0.0) - before - booked)
        self._observe_vanished(executing)
        self._ended = kept
        return after, late, excess

    def _observe_vanished(self, executing: Mapping[Hashable, float]) -> None:
        """Rule 9: owe what a task had run that is not listed any more and has not ended."""
        gone = {k: e for k, e in self._vanished.items() if k in self._processing}
        for key, elapsed in self._executing.items():
            if key not in executing and key not in self._ended:
                self._owed += elapsed
                gone[key] = elapsed
        self._vanished = gone

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
        return end is not None and (end[1] > at or key not in self._processing)

    def _drop_zombies(self, executing: Mapping[Hashable, float], at: float) -> None:
        """Rule 5. Released after the cut was taken: the next one will tell."""
        gone = [k for k, t in self._zombies.items() if t <= at and k not in executing]
        for key in gone:
            del self._zombies[key]
            self._seceded.pop(key, None)

    def _match_reported(self, reported: float, ahead: float) -> float:
        """Rule 8: pay the ends in their order; returns the seconds that are lost.

        A surplus is kept for ends still to be told: at most `ahead` seconds.
        """
        left = reported + self._credit
        paid = min(left, self._owed_before)
        lost = self._owed_before - paid
        left -= paid
        paid = min(left, self._owed)
        self._owed_before = self._owed - paid
        self._owed = 0.0
        self._credit = min(left - paid, ahead)
        return lost
