"""Where the cluster's thread-seconds went: the one entry to the accounting.

Every quantity is in seconds of one thread. The rules:

1. A heartbeat is a cut of its worker: the `execute` seconds metered so far plus the elapsed
   seconds of what executes are its busy time. The end of a task needs no estimate: the
   elapsed seconds fall and the metered ones rise in the same message.
2. What executes must come from the raw heartbeat: ``WorkerState.executing`` lacks cancelled
   tasks. Neither seceding nor a steal is a transition: both come by messages of their own.
3. The cut was taken before it was received, by the message's delay over the smallest
   recent delay, and never before the previous cut.
4. Between cuts only a thread that no open task can occupy is idle: threads - open tasks.
5. A task released while it was processing may still run (a cancelled task does): it stays
   open until the first later cut that does not list it.
6. At a cut, capacity - busy - booked is settled. What is left is idle.
7. What is missing is debt: the cut was a little earlier than assumed. It becomes excess
   only when the capacity up to the very receipt cannot hold it, because excess cannot be
   taken back, and false excess now is phantom idle later.
8. A task that ended, and whose metered seconds are not here, is owed. Seconds that pass one
   whole later cut without arriving are lost. Workers report sums, so what arrives pays for
   ends in their order. Where the end is told after the cut that brought its seconds, it is
   paid from that cut's surplus.
9. A heartbeat can be cut between a task's disappearance from `executing` and its metered
   seconds, and then the length of the task looks idle. A listed task that vanished without
   a known end is owed what it had run. Open tasks that are not listed, and may have
   run since the previous cut, hold idle back until the next one: their ends are told
   right after the cut. This covers tasks that no cut ever listed, too, as when they
   hold the GIL and so stop the heartbeats until they end.
10. Seconds of a task after it seceded do not occupy a thread: excess.
11. A worker that is removed takes with it what it had not reported: lost, but not more than
    its tasks can have used since its last cut, and not what that cut brought ahead of its end.
12. Without active spans idle is `unused`: nobody could have used it.
13. Idle is shared lazily: O(1) a change, O(executing + ended) a heartbeat, O(workers +
    active spans) an export, the spans in as small parts as the caller likes. What settles
    late goes to spans that were active then.
14. In flight is summed on its own, from what each worker's last cut showed and the threads
    that may have been busy since. Therefore
15. reported + idle + unused + lost + in flight = capacity + excess is a check, not a
    definition. A closed sum does not prove that idle is true, though: the tests compare
    with the tasks' own start and stop.

Idle errs on the late side: it may come two heartbeats after it passed (later where a worker
never stops ending short tasks), and is never taken back. It can exceed the truth by the
unknown part of the cuts' times, threads x the smallest delay of a message; by what
tasks of unknown length (cancelled ones) had run when a heartbeat was lost; and while
users' metering books seconds that hide such a loss. It is too small while a cancelled task
runs on after it seceded, which no message tells.

Memory is bounded by workers, open tasks, active spans, and the tasks that ended since their
worker's last heartbeat.

All times are seconds of one monotonic clock, given by the caller; a time before an earlier
one counts as that. Unknown workers, keys and spans are ignored: a late message about
something that is gone is normal in a cluster. Not thread-safe: to be called on the
event loop.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import inf, isfinite

from dask_otel.core.idle.sharing import ActiveSpan, IdleSharing
from dask_otel.core.idle.worker import WorkerTime


@dataclass(frozen=True, slots=True)
class Increments:
    """What passed since the last export, in seconds; none is negative."""

    #: Integral of the threads of the cluster.
    capacity: float
    #: Seconds that the workers reported for ``execute``, unscaled, over all activities.
    reported: float
    idle: float
    unused: float
    lost: float
    excess: float
    #: Present value, not an increment.
    in_flight: float
    #: By span id: its share of `idle`. Only spans with an increment. The receiver's to change.
    span_idle: dict[str, float]
    #: By span id: its share of `reported`, likewise. Seconds can come long after a span became
    #: inactive. With `span_idle` it is the span's capacity.
    span_reported: dict[str, float]


class Accounting:
    """Idle, unused, lost, excess and in-flight seconds of one cluster.

    Parameters
    ----------
    now
        When observation begins.
    """

    __slots__ = (
        "_capacity",
        "_closed",
        "_excess",
        "_lost",
        "_now",
        "_reported",
        "_sharing",
        "_span_reported",
        "_spans",
        "_threads",
        "_workers",
    )

    def __init__(self, now: float) -> None:
        self._now = now
        self._threads = 0
        self._capacity = self._reported = self._lost = self._excess = 0.0
        self._workers: dict[str, WorkerTime] = {}
        self._sharing = IdleSharing(now)
        self._spans = self._sharing.spans
        self._span_reported: dict[str, float] = {}
        #: What the intervals before the present one came to.
        #: The interval of an export that has begun and not finished.
        self._closed: Increments | None = None

    # ----------------------------------------------------------------------- workers

    def worker_added(
        self, worker: str, threads: int, now: float, delay: float | None = None
    ) -> None:
        """A worker joined. One of that name that is still known is removed first.

        Parameters
        ----------
        worker
            Its address.
        delay
            Receipt less sending time of its registration, as in `heartbeat`.
        """
        self.worker_removed(worker, now)
        self._advance(now)
        self._workers[worker] = WorkerTime(threads, self._now, delay)
        self._threads += threads
        self._sharing.free_threads_changed(threads, self._now)

    def worker_removed(self, worker: str, now: float) -> None:
        """A worker left or was lost, after its tasks were released."""
        account = self._workers.pop(worker, None)
        if account is None:
            return
        self._advance(now)
        account.advance(self._now)
        left = account.close()
        self._lost += left.lost
        self._sharing.free_threads_changed(-account.free, self._now)
        if left.idle > 0.0:
            self._sharing.book_late(left.idle, account.tasks.cut, account.recent_spans)
        self._threads -= account.threads

    # ------------------------------------------------------------------------- tasks

    def task_assigned(self, worker: str, key: Hashable, span_id: str | None, now: float) -> None:
        """A task entered processing on a worker. Its span is active already."""
        account = self._workers.get(worker)
        if account is not None:
            span = None if span_id is None else self._spans.get(span_id)
            account.tasks.assign(key, span, now)
            if span is not None:
                account.recent_spans.add(span)
            if account.free:
                self._refresh(account, now)

    def task_done(self, worker: str, key: Hashable, seconds: float | None, now: float) -> None:
        """The worker reported the end of a run, good or bad.

        Parameters
        ----------
        seconds
            Compute seconds (`startstops`); None if not known, as where it failed before
            it computed.
        """
        account = self._workers.get(worker)
        if account is not None:
            # The worker's clock may have been set back while the task ran.
            if seconds is not None and not 0.0 <= seconds < inf:
                seconds = 0.0
            account.tasks.end(key, seconds, now)
            if account.free_threads != account.free:
                self._refresh(account, now)

    def task_released(self, worker: str, key: Hashable, now: float) -> None:
        """A task left processing with no word from the worker: it may still run there."""
        account = self._workers.get(worker)
        if account is not None:
            account.tasks.release(key, now)
            self._refresh(account, now)

    def task_stolen(self, key: Hashable, victim: str, thief: str, now: float) -> None:
        """A task that had not started was stolen."""
        span: ActiveSpan | None = None
        loser = self._workers.get(victim)
        if loser is not None:
            span = loser.tasks.unassign(key)
            self._refresh(loser, now)
        winner = self._workers.get(thief)
        if winner is not None:
            winner.tasks.assign(key, span, now)
            if span is not None:
                winner.recent_spans.add(span)
            self._refresh(winner, now)

    def task_seceded(self, worker: str, key: Hashable, elapsed: float | None, now: float) -> None:
        """A running task gave its thread slot back, `elapsed` seconds after its start."""
        account = self._workers.get(worker)
        if account is not None:
            account.tasks.secede(key, elapsed, now)
            self._refresh(account, now)

    # -------------------------------------------------------------------- heartbeats

    def heartbeat(
        self,
        worker: str,
        executing: Mapping[Hashable, float],
        seconds: Mapping[str, float],
        now: float,
        delay: float | None = None,
    ) -> None:
        """A worker's heartbeat arrived: settle what it shows.

        Parameters
        ----------
        executing
            The message's own ``executing``: elapsed seconds by key.
        seconds
            Metered seconds of context ``execute`` in this message, by span id: exactly
            those that are added to ``dask.cluster.time``. What is not a positive finite
            number cannot be in a counter and is ignored here, too.
        delay
            The scheduler's wall clock at receipt less the worker's at sending; the
            difference of the clocks in it does no harm. None if not known.
        """
        account = self._workers.get(worker)
        if account is None:
            return
        total = self._count_reported(seconds)
        self._advance(now)
        now = self._now
        account.advance(now)
        since = account.tasks.cut
        settled = account.take_cut(executing, total, now, delay)
        self._lost += settled.lost
        self._excess += settled.excess
        if settled.idle > 0.0:
            self._sharing.book_late(settled.idle, since, account.recent_spans)
        account.forget_spans()
        self._refresh(account, now)

    def _count_reported(self, seconds: Mapping[str, float]) -> float:
        total = 0.0
        for span_id, value in seconds.items():
            if value > 0.0 and isfinite(value):
                self._span_reported[span_id] = self._span_reported.get(span_id, 0.0) + value
                total += value
        self._reported += total
        return total

    # ------------------------------------------------------------------------- spans

    def span_active(self, root_id: str, span_id: str, now: float) -> None:
        """A span owns a task in waiting, queued, no-worker or processing from now on."""
        self._advance(now)
        self._sharing.activate(root_id, span_id, self._now)

    def span_inactive(self, span_id: str, now: float) -> None:
        """A span owns no such task any more."""
        self._advance(now)
        self._sharing.deactivate(span_id, self._now)

    def pending(self, span_id: str) -> tuple[float, float]:
        """Get an inactive span's idle and capacity seconds since the last finished export.

        They stay to be exported. Of an active span the share since its last change is missing.
        """
        idle = self._sharing.shares.get(span_id, 0.0)
        reported = self._span_reported.get(span_id, 0.0)
        if self._closed is not None:
            idle += self._sharing.closed_shares.get(span_id, 0.0)
            reported += self._closed.span_reported.get(span_id, 0.0)
        return idle, idle + reported

    # ------------------------------------------------------------------------ export

    def begin_export(self, now: float) -> None:
        """Close the interval that the next export tells of. O(workers)."""
        self._advance(now)
        now = self._now
        in_flight = 0.0
        for account in self._workers.values():
            account.advance(now)
            in_flight += account.in_flight
        idle, unused = self._sharing.close(now)
        self._closed = Increments(
            capacity=self._capacity,
            reported=self._reported,
            idle=idle,
            unused=unused,
            lost=self._lost,
            excess=self._excess,
            in_flight=in_flight,
            span_idle=self._sharing.closed_shares,
            span_reported=self._span_reported,
        )
        self._capacity = self._reported = self._lost = self._excess = 0.0
        self._span_reported = {}

    def settle(self, limit: int) -> bool:
        """Settle so many active spans for the closed interval; whether all are settled now.

        What happens meanwhile belongs to the next interval.
        """
        return self._sharing.settle(limit)

    def finish_export(self) -> Increments:
        """Get what passed in the closed interval, once all is settled."""
        assert self._closed is not None
        closed, self._closed = self._closed, None
        self._sharing.settle()
        return closed

    # ---------------------------------------------------------------------- internal

    def _advance(self, now: float) -> None:
        if now > self._now:
            self._capacity += (now - self._now) * self._threads
            self._now = now

    def _refresh(self, account: WorkerTime, now: float) -> None:
        """Let time advance where the number of free threads changed."""
        free = account.free_threads
        if free == account.free:
            return
        self._advance(now)
        account.advance(self._now)
        self._sharing.free_threads_changed(free - account.free, self._now)
        account.free = free
        account.changed = self._now
