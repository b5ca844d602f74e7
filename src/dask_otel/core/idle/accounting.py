"""Where the cluster's thread-seconds went: the entry to the accounting.

Every quantity is in seconds of one thread. The rules:

1. A heartbeat is a cut of its worker: busy time is the `execute` seconds metered so far plus
   the elapsed seconds of the running tasks. The end of a task needs no estimate: in the same
   message, the elapsed seconds fall and the metered ones rise.
2. The running tasks must come from the raw heartbeat: ``WorkerState.executing`` lacks cancelled
   tasks. Seceding and stealing are no transitions: each has a message of its own.
3. The cut was taken before it was received: earlier by the message's travel time, and never
   before the previous cut.
4. Between cuts only a thread that no open task can occupy is idle: threads - open tasks.
5. A task released while it was processing may still run (a cancelled task does): it stays
   open until the second later cut that does not list it. At the first one, a task that was
   released within a message's way may not have reached the worker.
6. At a cut, capacity - busy - booked is settled. The rest is idle.
7. A negative rest is debt: the cut was a little earlier than assumed. It becomes excess
   only when the capacity up to the receipt cannot hold it, because excess cannot be
   taken back, and false excess now is phantom idle later.
8. A task that ended without its metered seconds is owed them. Seconds that do not arrive by
   the end of the next whole interval are lost. Workers report sums, so seconds pay for the
   ends in their order. An end that is known only after the cut that brought its seconds is
   paid from that cut's surplus.
9. A heartbeat can be cut after a task disappeared from `executing` and before its seconds are
   metered, and then the length of the task looks idle. A listed task that vanished without
   a known end is owed its elapsed seconds. Open tasks that are not listed, and may have
   run since the previous cut, hold idle back until the next one: their ends are known
   right after the cut, or by its receipt. This also covers tasks that no cut ever listed,
   for example because they hold the GIL and so stop the heartbeats until they end. An end has
   the seconds of the task's code; if it waited for a blocked event loop, more are metered: at
   least what the previous cut listed. So idle is also held back while ends are owed their
   seconds.
10. Seconds of a task after it seceded do not occupy a thread: they are excess. If the message
    comes after a cut that listed it, the debt of that cut can have them already.
11. If a worker is removed, the seconds that it had not reported are lost: at most those that
    its tasks can have used since its last cut, or until it if they vanished there, minus those
    that came with that cut already.
12. Without active spans, idle is `unused`: no work could have used it.
13. Idle is shared lazily: O(1) for a change, O(executing + ended) for a heartbeat, O(workers +
    active spans) for an export, the spans in parts as small as the caller likes. Idle that is
    settled late goes to the spans that were active then, by the time for which they were.
14. Seconds in flight are summed separately, from each worker's last cut and the threads
    that may have been busy since. Therefore
15. reported + idle + unused + lost + in flight = capacity + excess is a check, not a
    definition. It does not prove that idle is right: the tests compare with the tasks' own
    start and stop.

Idle tends to be late: it may be booked two heartbeats after it passed (later on a worker
that ends short tasks all the time), and is never revoked. It can be too large by the
unknown part of the cuts' times (threads x the travel time of the quickest message), by the
seconds that tasks of unknown length (cancelled ones) had run when a heartbeat was lost, and
while users' metering books seconds that hide such a loss. It is too small while a cancelled
task continues after it seceded, because there is no message for that; where a clock that was set
forward makes a run too long; and by free threads of a worker that left, since its last heartbeat,
if it had open tasks.

Memory is bounded by workers, open tasks, active spans, and the tasks that ended since their
worker's last heartbeat.

All times are seconds of one monotonic clock, given by the caller; a time earlier than the
last one counts as the last one. Unknown workers, keys and spans are ignored: late messages
are normal in a cluster. Not thread-safe: call it on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from math import inf

from dask_otel.core.idle.sharing import ActiveSpan, IdleSharing
from dask_otel.core.idle.worker import Settlement, WorkerTime
from dask_otel.core.life.clock_offsets import UNKNOWN_OFFSET, WorkerOffset
from dask_otel.core.path.waiting import (
    AT_ONCE,
    BEHIND,
    BEHIND_RELEASED,
    FREE,
    MAX_PAUSES,
    NO_WORKER,
    STATE,
    TAKEN,
    Clock,
    Sent,
    Threads,
    sums,
)


@dataclass(frozen=True, slots=True)
class Increments:
    """Seconds of one interval between two exports; none is negative."""

    #: Integral of the threads of the cluster.
    capacity: float
    idle: float
    unused: float
    lost: float
    excess: float
    #: Present value, not an increment.
    in_flight: float
    #: Shares of `idle` by span id, once `Accounting.settle` is done. The receiver removes the
    #: shares that it has booked.
    span_idle: dict[str, float]
    #: Seconds that the workers reported for ``execute``, unscaled, over all activities; likewise.
    #: They can come long after a span became inactive. With `span_idle` they are its capacity.
    span_reported: dict[str, float]


class Accounting:
    """Idle, unused, lost, excess and in-flight seconds of one cluster.

    Parameters
    ----------
    now
        The start of the observation.
    clock
        Returns the time of the paths.
    worker_clock
        Reads a worker's clock in a message.
    """

    def __init__(self, now: float, clock: Callable[[], float], worker_clock: Clock) -> None:
        self._clock, self._worker_clock = clock, worker_clock
        #: The threads that a ready task could have, for the paths: how many workers take tasks, how
        #: many free threads the others have, and whether there is a free one.
        self.present: Threads = (clock(), 0.0, 0.0, NO_WORKER)
        self._at_once: Sent = (self.present, AT_ONCE, None)
        self._behind: Sent = (self.present, BEHIND, None)
        self._taking = self._withheld = 0
        self._spare = False
        self._now = now
        self._threads = 0
        #: Threads that are certainly idle, and their seconds up to `_now` that are not shared yet.
        self._free = 0
        self._unshared = 0.0
        #: Seconds in which a span was active.
        self._worked = 0.0
        self._capacity = self._lost = self._excess = 0.0
        #: By address.
        self.workers: dict[str, WorkerTime] = {}
        self._sharing = IdleSharing(now)
        self._spans = self._sharing.spans
        self._span_reported: dict[str, float] = {}
        #: `Increments.span_reported` of the last export.
        self._closed_reported: dict[str, float] = {}

    # ----------------------------------------------------------------------- workers

    def worker_added(
        self, worker: str, threads: int, now: float, offset: WorkerOffset = UNKNOWN_OFFSET
    ) -> None:
        """Add the worker of this address; remove a known one first."""
        self.worker_removed(worker, now)
        self._advance(now)
        self.workers[worker] = WorkerTime(
            threads, self._now, self._worked, self._worker_clock, offset
        )
        self._threads += threads
        self._free += threads
        self._taking += 1
        self._state_changed()

    def worker_removed(self, worker: str, now: float) -> None:
        """Remove a worker that left or was lost, after its tasks were released."""
        account = self.workers.pop(worker, None)
        if account is None:
            return
        self._advance(now)
        account.advance(self._now, self._worked)
        tasks = account.tasks
        self._settle(account, tasks.cut_before, tasks.cut, self._now, account.close())
        self._free -= account.free
        self._taking -= account.running
        self._withheld -= 0 if account.running else account.free
        self._state_changed()
        self._threads -= account.threads
        # Nothing of it counts any more.
        account.threads = account.free = 0

    def worker_status(self, worker: str, running: bool, now: float) -> None:
        """Record whether a worker takes tasks; its threads are part of the capacity anyway.

        `now` is a time of the paths.
        """
        account = self.workers.get(worker)
        if account is not None and account.running is not running:
            account.running = running
            self._taking += 1 if running else -1
            self._withheld += -account.free if running else account.free
            self._state_changed()
            before, begun = account.pauses, now
            if running and before:
                begun, before = before[-1][0], before[:-1]
            pause = (begun, now if running else inf, self.present)
            account.pauses = (*before[1 - MAX_PAUSES :], pause)
            account.renew_ends()

    # ------------------------------------------------------------------------- tasks

    def task_assigned(
        self,
        account: WorkerTime | None,
        key: Hashable,
        span_id: str | None,
        now: Callable[[], float],
    ) -> Sent:
        """Book a task that entered processing on a worker, if known. Its span is active already.

        Returns whether it waits for a thread there, and the cluster's threads now. Most do: then
        nobody reads the clock.
        """
        # `WorkerTasks` without calls, here and in `task_done`: each takes 500 instructions a task.
        if account is not None:
            tasks = account.tasks
            tasks.processing[key] = span = None if span_id is None else self._spans.get(span_id)
            if span is not None:
                account.recent_spans.add(span)
            if tasks.zombies and tasks.zombies.pop(key, None) is not None:
                tasks.again[key] = now()
            if tasks.seceded:
                # A new run occupies a thread again. (If the worker resumes the seceded run, its
                # thread counts as occupied: idle is then too small rather than too large.)
                tasks.seceded.pop(key, None)
            if not account.free:
                if tasks.zombies:
                    return self.present, BEHIND_RELEASED, None
                return self._behind
            self._refresh(account, now())
        return self._at_once

    def task_done(
        self, account: WorkerTime | None, key: Hashable, seconds: float | None, now: float
    ) -> None:
        """Book the end of a run that a worker reported, successful or not.

        Parameters
        ----------
        seconds
            Compute seconds (`startstops`); None if unknown, for example if it failed before
            it computed.
        """
        if account is not None:
            # The worker's clock may have been set back while the task ran.
            if seconds is not None and not 0.0 <= seconds < inf:
                seconds = None
            tasks = account.tasks
            tasks.processing.pop(key, None)
            if tasks.zombies:
                tasks.zombies.pop(key, None)
            # Its metered seconds will follow.
            seceded = tasks.seceded.pop(key, None) if tasks.seceded else None
            if tasks.again:
                tasks.end_released(key, seconds, now)
            tasks.ended.append((key, seconds, now, seceded))
            # Faster than `_refresh`, which finds no change if all threads are still occupied.
            if account.free or tasks.seceded or len(tasks.processing) < account.threads:
                self._refresh(account, now)

    def task_released(self, worker: str, key: Hashable, now: float) -> None:
        """Book a task that left processing without a report: it may still run there."""
        account = self.workers.get(worker)
        if account is not None:
            account.tasks.release(key, now)
            account.released = self._clock()
            self._refresh(account, now)

    def task_stolen(self, key: Hashable, victim: str, thief: str, now: float) -> Sent:
        """Book that a task was stolen before it started; return as `task_assigned` does."""
        span: ActiveSpan | None = None
        loser = self.workers.get(victim)
        if loser is not None:
            span = loser.tasks.unassign(key)
            self._refresh(loser, now)
        return self.task_assigned(
            self.workers.get(thief), key, None if span is None else span.id, lambda: now
        )

    def task_seceded(
        self, worker: str, key: Hashable, elapsed: float | None, now: float
    ) -> WorkerTime | None:
        """Book that a running task left its thread slot, `elapsed` seconds after its start."""
        account = self.workers.get(worker)
        if account is not None:
            account.tasks.secede(key, elapsed, now)
            self._refresh(account, now)
        return account

    def oldest(self, most: int) -> Iterator[Hashable]:
        """Return tasks in processing: of each worker, those that it has had for the longest."""
        each = -(-most // max(1, len(self.workers)))
        of_workers = (islice(one.tasks.processing, each) for one in self.workers.values())
        return islice(chain.from_iterable(of_workers), most)

    # -------------------------------------------------------------------- heartbeats

    def heartbeat(
        self,
        worker: str,
        executing: Mapping[Hashable, float],
        seconds: Mapping[str, float],
        now: float,
        travelled: float = 0.0,
    ) -> None:
        """Settle the time of a worker up to its heartbeat.

        Parameters
        ----------
        executing
            The message's own ``executing``: elapsed seconds by key.
        seconds
            Metered seconds of context ``execute`` in this message, by span id: exactly
            those that are added to ``dask.cluster.time``. Values that are not positive and
            finite cannot be in a counter, and are ignored here too.
        travelled
            Seconds from the making of the message to its receipt.
        """
        account = self.workers.get(worker)
        if account is None or (not (executing or seconds) and account.rests_until(now - travelled)):
            return
        total = 0.0
        for span_id, value in seconds.items():
            if 0.0 < value < inf:
                self._span_reported[span_id] = self._span_reported.get(span_id, 0.0) + value
                total += value
        self._advance(now)
        now = self._now
        account.advance(now, self._worked)
        tasks = account.tasks
        since, before, zombies = tasks.cut, tasks.cut_before, bool(tasks.zombies)
        settled = account.take_cut(executing, total, now, travelled)
        self._settle(account, before, since, tasks.cut, settled)
        account.begin_interval(self._sharing.changed, self._spans)
        if zombies or tasks.zombies:
            self._refresh(account, now)

    # ------------------------------------------------------------------------- spans

    def span_active(self, root_id: str, span_id: str, now: float) -> None:
        """Activate a span: it owns a task in waiting, queued, no-worker or processing."""
        self._share(now)
        self._sharing.activate(root_id, span_id, self._now)

    def span_inactive(self, span_id: str, now: float) -> None:
        """Deactivate a span: it owns no such task any more."""
        self._share(now)
        self._sharing.deactivate(span_id, self._now)

    def pending(self, span_id: str) -> tuple[float, float]:
        """Return a span's idle and capacity seconds that no receiver has booked yet.

        They will still be exported. For an active span, its share since the last change is missing.
        """
        sharing = self._sharing
        idle = sharing.shares.get(span_id, 0.0) + sharing.closed_shares.get(span_id, 0.0)
        reported = self._span_reported.get(span_id, 0.0)
        return idle, idle + reported + self._closed_reported.get(span_id, 0.0)

    # ------------------------------------------------------------------------ export

    def begin_export(self, now: float) -> Increments:
        """Close the interval and return it; `settle` completes its shares. O(workers)."""
        self._share(now)
        now = self._now
        in_flight = 0.0
        for account in self.workers.values():
            account.advance(now, self._worked)
            in_flight += account.in_flight
        idle, unused = self._sharing.close()
        closed = Increments(
            capacity=self._capacity,
            idle=idle,
            unused=unused,
            lost=self._lost,
            excess=self._excess,
            in_flight=in_flight,
            span_idle=self._sharing.closed_shares,
            span_reported=self._span_reported,
        )
        self._capacity = self._lost = self._excess = 0.0
        self._closed_reported, self._span_reported = self._span_reported, {}
        return closed

    def settle(self, limit: int | None = None) -> bool:
        """Settle the closed interval for `limit` active spans; return whether all are settled.

        Events meanwhile belong to the next interval.
        """
        return self._sharing.settle(limit)

    # ---------------------------------------------------------------------- internal

    def _settle(
        self, account: WorkerTime, before: float, since: float, until: float, settled: Settlement
    ) -> None:
        """Book seconds that passed since a worker's last cut, and before it since the previous."""
        self._lost += settled.lost
        self._excess += settled.excess
        if settled.earlier > 0.0:
            account.earlier_unworked -= self._sharing.book_late(
                settled.earlier, before, since, account.earlier_spans, account.earlier_unworked
            )
        if settled.idle > 0.0:
            account.unworked -= self._sharing.book_late(
                settled.idle, since, until, account.recent_spans, account.unworked
            )

    def _advance(self, now: float) -> None:
        passed = now - self._now
        if passed > 0.0:
            self._capacity += passed * self._threads
            self._unshared += passed * self._free
            if self._spans:
                self._worked += passed
            self._now = now

    def _share(self, now: float) -> None:
        """Advance, and share the idle seconds: the spans change, or the interval ends."""
        self._advance(now)
        if self._unshared:
            self._sharing.book(self._unshared)
            self._unshared = 0.0

    def _refresh(self, account: WorkerTime, now: float) -> None:
        """Advance the time if the number of free threads changed."""
        tasks = account.tasks
        # Threads that no open task can occupy; without a call, as this runs for each task.
        taken = len(tasks.processing)
        if tasks.zombies or tasks.seceded:
            taken += len(tasks.zombies) - len(tasks.seceded)
        free = account.threads - taken if taken < account.threads else 0
        if free == account.free:
            return
        self._advance(now)
        account.advance(self._now, self._worked)
        self._free += free - account.free
        if not account.running:
            self._withheld += free - account.free
        account.free = free
        if (self._free > self._withheld) is not self._spare:
            self._state_changed()
        account.changed = self._now

    def _state_changed(self) -> None:
        """Replace the record of the cluster's threads, if its state changed."""
        self._spare = self._free > self._withheld
        state = FREE if self._spare else TAKEN if self._taking else NO_WORKER
        if state != self.present[STATE]:
            now = self._clock()
            self.present = (now, *sums(self.present, now), state)
            # Tasks share these tuples: most are sent while the state stays the same.
            self._at_once = (self.present, AT_ONCE, None)
            self._behind = (self.present, BEHIND, None)
