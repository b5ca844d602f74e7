"""Shares of the idle time: equal among the roots, then among each root's active spans.

A span is active while it owns a waiting or processing task. Idle thread-seconds are shared
equally among the roots with an active span anywhere in their tree, then equally among the
active spans of each root. Without any, the time is `unused`: no work could have used it (rule
12 of `accounting`).

A change does not walk over the spans (rule 13). The sharing has an integral of idle seconds
per active root, and each root has one of idle seconds per active span; a span's share is the
difference of its root's integral between two moments. All integrals start from 0 at every
export, so that weeks of running cost no precision.

An export closes an interval and begins the next one (`close`). The shares of the closed one
are settled afterwards (`settle`), some spans at a time, while the next one goes on: thousands
of active spans must not block the event loop at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from math import inf


@dataclass(slots=True, eq=False)
class ActiveTree:
    """The account of a root with active spans in its tree."""

    id: str
    #: The interval of `mark` and `per_span`.
    interval: int
    #: From when to when it has active spans.
    began: float
    ended: float = inf
    #: The integral per root up to which `per_span` is settled.
    mark: float = 0.0
    #: Active spans in the tree.
    spans: int = 0
    per_span: float = 0.0
    #: `per_span` at the end of the previous interval.
    previous: float = 0.0

    def settle(self, per_root: float) -> None:
        """Divide the root's seconds since the last call by the present number of spans."""
        if self.spans:
            self.per_span += (per_root - self.mark) / self.spans
        self.mark = per_root


@dataclass(slots=True, eq=False)
class ActiveSpan:
    """A span with unfinished work. A worker may hold it until its next heartbeat."""

    id: str
    tree: ActiveTree
    #: This span has its share up to this value of the tree's integral in this interval.
    mark: float
    interval: int
    #: From when to when it is active.
    began: float
    ended: float = inf


class IdleSharing:
    """Idle seconds of the cluster, shared as they pass.

    The owner books all idle seconds before it changes a span. Every method is O(1), except
    `book_late` (O(spans)), `settle` (O(limit)) and `close` (O(active spans)).
    """

    def __init__(self, now: float) -> None:
        self._per_root = 0.0
        #: Number of the interval, and the integral at the end of the previous one.
        self._interval = 0
        self._closed_per_root = 0.0
        #: Spans to settle for the previous interval, if necessary.
        self._unsettled: list[ActiveSpan] = []
        self._trees: dict[str, ActiveTree] = {}
        #: Active spans by id.
        self.spans: dict[str, ActiveSpan] = {}
        #: When a span last became active or inactive.
        self.changed = now
        self.idle = 0.0
        self.unused = 0.0
        #: Settled idle seconds by span id, in this interval and in the closed one.
        self.shares: dict[str, float] = {}
        self.closed_shares: dict[str, float] = {}

    def activate(self, root_id: str, span_id: str, now: float) -> None:
        """Activate a span: it has unfinished work. No effect on an active one."""
        if span_id in self.spans:
            return
        self.changed = now
        tree = self._trees.get(root_id)
        if tree is None:
            tree = self._trees[root_id] = ActiveTree(root_id, self._interval, now)
        self._carry_over_tree(tree)
        tree.settle(self._per_root)
        tree.spans += 1
        self.spans[span_id] = ActiveSpan(span_id, tree, tree.per_span, self._interval, now)

    def deactivate(self, span_id: str, now: float) -> None:
        """Deactivate a span: it has no unfinished work. No effect on an unknown one."""
        span = self.spans.pop(span_id, None)
        if span is None:
            return
        self.changed = span.ended = now
        self._carry_over(span)
        tree = span.tree
        tree.settle(self._per_root)
        _give(self.shares, span.id, tree.per_span - span.mark)
        tree.spans -= 1
        if not tree.spans:
            tree.ended = now
            del self._trees[tree.id]

    def book_late(
        self,
        seconds: float,
        since: float,
        until: float,
        spans: Iterable[ActiveSpan],
        unworked: float = 0.0,
    ) -> float:
        """Share idle seconds that passed between two times and became certain only now.

        At most `unworked` of them passed while no span was active: they are unused, and returned.
        If the active spans have not changed since, they share the seconds as usual. Otherwise
        `spans` share them, which had work on the worker, by the time for which they were active:
        the present active spans may be newer.
        """
        unused = min(seconds, max(0.0, unworked))
        self.unused += unused
        seconds -= unused
        if self.changed > since:
            trees: dict[ActiveTree, list[tuple[str, float]]] = {}
            for span in spans:
                if time := _common(span, since, until):
                    trees.setdefault(span.tree, []).append((span.id, time))
            if trees:
                self.idle += seconds
                total = sum(_common(tree, since, until) for tree in trees)
                for tree, times in trees.items():
                    share = seconds * _common(tree, since, until) / total
                    whole = sum(time for _, time in times)
                    for span_id, time in times:
                        _give(self.shares, span_id, share * time / whole)
                return unused
        self.book(seconds)
        return unused

    def close(self) -> tuple[float, float]:
        """Close the interval and return its idle and unused seconds; the next one begins.

        Settles the rest of the previous interval first.
        """
        self.settle()
        self._unsettled = list(self.spans.values())
        self._closed_per_root, self._per_root = self._per_root, 0.0
        self._interval += 1
        self.closed_shares, self.shares = self.shares, {}
        taken = self.idle, self.unused
        self.idle = self.unused = 0.0
        return taken

    def settle(self, limit: int | None = None) -> bool:
        """Settle the closed interval for `limit` active spans; return whether all are settled."""
        unsettled = self._unsettled
        start = 0 if limit is None else max(0, len(unsettled) - limit)
        for span in islice(unsettled, start, None):
            # A span that became inactive was settled then, and may be active again.
            if span.interval != self._interval:
                self._carry_over(span)
        del unsettled[start:]
        return not unsettled

    def book(self, seconds: float) -> None:
        """Share idle seconds that have just passed."""
        if self._trees:
            self.idle += seconds
            self._per_root += seconds / len(self._trees)
        else:
            self.unused += seconds

    def _carry_over_tree(self, tree: ActiveTree) -> None:
        if tree.interval != self._interval:
            tree.settle(self._closed_per_root)
            tree.previous, tree.per_span = tree.per_span, 0.0
            tree.mark = 0.0
            tree.interval = self._interval

    def _carry_over(self, span: ActiveSpan) -> None:
        """Settle a span for the closed interval, and begin the present one."""
        if span.interval != self._interval:
            self._carry_over_tree(span.tree)
            _give(self.closed_shares, span.id, span.tree.previous - span.mark)
            span.mark = 0.0
            span.interval = self._interval


def _common(active: ActiveTree | ActiveSpan, since: float, until: float) -> float:
    """Return for how long it was active between two times."""
    return max(0.0, min(until, active.ended) - max(since, active.began))


def _give(shares: dict[str, float], span_id: str, seconds: float) -> None:
    if seconds > 0.0:
        shares[span_id] = shares.get(span_id, 0.0) + seconds
