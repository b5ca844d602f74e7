"""Follows the tasks of a scheduler: what each waited for last before it was ready.

A task that becomes ready in the stimulus that put one of its dependencies into memory waited for
that one last, however many it has. A task that is ready in the moment of its submission waited for
nobody but the client. In any other stimulus a task becomes ready again: its run was lost, or is
repeated.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from dask_otel.core.path.chain import MAX_LINKS, folded
from dask_otel.core.path.link import Folded, Link, Readiness, SpanPath

#: Tasks of one submission that become ready within these seconds share one time, and its memory.
MOMENT: Final = 0.001

_UNKNOWN: Final[Readiness] = (None, 0.0, 0.0, 0.0, 0.0)


class Paths:
    """The last waits of all unfinished tasks of one scheduler. O(1) for each event."""

    def __init__(self) -> None:
        #: Tasks that are ready, or were ready before a run that is repeated.
        self.ready: dict[Hashable, Readiness] = {}
        #: The stimulus of the last end, and its link.
        self._stimulus = ""
        self._ended: Link | None = None
        #: The last submission, its span, and what its tasks share.
        self._submission = ""
        self._span: SpanPath | None = None
        self._shared: Readiness = _UNKNOWN
        #: The last chain that was folded, and the result: its other ends will ask for it next.
        self._long: Link | Folded | None = None
        self._folded: Folded | None = None

    def after_dependency(self, key: Hashable, stimulus: str, now: float) -> bool:
        """Record that a task is ready, if a dependency of its has just ended; return whether."""
        if stimulus is not self._stimulus:
            return False
        self.ready[key] = (self._ended, 0.0, now, 0.0, 0.0)
        return True

    def after_submission(
        self, key: Hashable, span: SpanPath, stimulus: str, submitted: float, now: float
    ) -> None:
        """Record that a task is ready because it was submitted."""
        if (
            stimulus is not self._submission
            or span is not self._span
            or now - self._shared[2] > MOMENT
        ):
            self._submission, self._span = stimulus, span
            self._shared = (_last(span), submitted, now, 0.0, 0.0)
        self.ready[key] = self._shared

    def again(self, key: Hashable, span: SpanPath, now: float) -> None:
        """Record that a task is ready for another reason."""
        known = self.ready.get(key)
        if known is None:
            self.ready[key] = (_last(span), 0.0, now, 0.0, 0.0)
        else:
            self.ready[key] = (*known[:4], now)

    def interrupted(self, key: Hashable, sent: float) -> None:
        """Record that a task will be ready again; its run, if any, is repeated."""
        known = self.ready.get(key)
        if known is not None:
            before, submitted, ready, lost, _ = known
            self.ready[key] = (before, submitted, ready, lost or sent or ready, 0.0)

    def recomputed(self, key: Hashable, span: SpanPath) -> None:
        """Record that a task whose run had ended will run again."""
        if key in self.ready:
            return
        last = _last(span)
        if last is not None and last.key == key and last.readiness is not None:
            before, submitted, ready, lost, _ = last.readiness
            self.ready[key] = (before, submitted, ready, lost or last.sent, 0.0)
        else:
            self.ready[key] = (last, 0.0, 0.0, 0.0, 0.0)

    def ended(
        self,
        stimulus: str,
        span: SpanPath,
        times: tuple[float, float, float, float, float],
        group: Any,
        key: Hashable,
        *facts: Any,
    ) -> None:
        """Record the end of a run.

        Parameters
        ----------
        times
            See `Link`: from `Link.sent` to `Link.end`.
        facts
            The last fields of `Link`.
        """
        readiness = self.ready.pop(key, None)
        depth = 1
        if readiness is not None and (before := readiness[0]) is not None:
            depth += before.depth
            if times[-1] < before.end:
                # The clock was set back.
                times = (*times[:-1], before.end)
            if depth > MAX_LINKS:
                if before is not self._long:
                    self._long, self._folded = before, folded(before)
                readiness = (self._folded, *readiness[1:])
                depth = 1
        link = self._ended = Link(readiness, span, *times, depth, group, key, *facts)
        self._stimulus = stimulus
        above: SpanPath | None = span
        while above is not None:
            above.last = link
            above = above.parent


def _last(span: SpanPath) -> Link | None:
    """Return the last link in a span, or in the nearest span above that has one."""
    above: SpanPath | None = span
    while above is not None and above.last is None:
        above = above.parent
    return None if above is None else above.last
