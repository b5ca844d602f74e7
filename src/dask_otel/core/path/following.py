"""Follows the tasks of a scheduler: what each waited for last before it was ready.

A task that becomes ready in the stimulus that put one of its dependencies into memory waited for
that one last, however many it has. A task that is ready in the moment of its submission waited for
nobody but the client. In any other stimulus a task becomes ready again: its run was lost, or is
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from dask_otel.core.path.chain import MAX_LINKS, folded
from dask_otel.core.path.link import DEPTH, END, Fetched, Folded, Link, RawLink, Readiness, SpanPath

#: Tasks of one submission that are ready within these seconds share one time.
MOMENT: Final = 0.001


class Paths:
    """The last waits of all unfinished tasks of one scheduler. O(1) for each event.

    `submission_time` returns when the scheduler received a submission, by its stimulus.
    """

    def __init__(self, submission_time: Callable[[str], float]) -> None:
        self._submission_time = submission_time
        #: Tasks that are ready, or were ready before a run that is repeated.
        self.waits: dict[Hashable, Readiness] = {}
        #: The stimulus of the last end, and its link.
        self._stimulus: str | None = None
        self._ended: RawLink | None = None
        #: The last chain that was folded, and the result: tasks with the same one come together.
        self._long: RawLink | None = None
        self._folded: Folded | None = None

    def submitted(self, stimulus: str, now: float, span: SpanPath) -> Readiness:
        """Return what a task waited for that is ready because it was submitted.

        Others of its span and submission may share this, and its memory.
        """
        return _last(span), self._submission_time(stimulus), now, 0.0, 0.0

    def ready(self, key: Hashable, stimulus: str, now: float) -> bool:
        """Record that a task is ready, if a dependency of it has just ended; return whether."""
        if stimulus is not self._stimulus or self._ended is None:
            return False
        self.waits[key] = (self._ended, self._ended[END], now, 0.0, 0.0)
        return True

    def ready_again(self, key: Hashable, now: float, span: SpanPath) -> None:
        """Record that a task is ready for any other reason."""
        known = self.waits.get(key)
        unknown = _last(span), 0.0, now, 0.0, 0.0
        self.waits[key] = unknown if known is None else (*known[:4], now)

    def interrupted(self, key: Hashable, sent: float) -> None:
        """Record that a ready task will be ready again; its run, if any, is repeated."""
        known = self.waits.get(key)
        if known is not None:
            self.waits[key] = _repeated(known, sent)

    def recomputed(self, key: Hashable, span: SpanPath) -> None:
        """Record that a task that has ended will run again."""
        if key in self.waits:
            return
        last = _last(span)
        link = None if last is None else Link._make(last)
        if link is not None and link.key == key and link.readiness is not None:
            self.waits[key] = _repeated(link.readiness, link.sent)
        else:
            self.waits[key] = (last, 0.0, 0.0, 0.0, 0.0)

    def ended(
        self,
        stimulus: str,
        now: float,
        span: SpanPath,
        sent: float,
        fetched: Fetched,
        start: float,
        stop: float,
        group: Any,
        key: Hashable,
        number: int | None,
        worker: object,
    ) -> None:
        """Record the end of a run; see `Link`."""
        readiness = self.waits.pop(key, None)
        depth = 1
        if readiness is not None and (before := readiness[0]) is not None:
            depth += before[DEPTH]
            if now < before[END]:
                # The clock was set back.
                now = before[END]
            if depth > MAX_LINKS:
                depth = 1
                if before is not self._long:
                    self._long, self._folded = before, folded(before)
                readiness = (self._folded, *readiness[1:])
        # In the order of `Link`.
        self._ended = link = (
            readiness,
            now,
            depth,
            span,
            sent,
            fetched,
            start,
            stop,
            group,
            key,
            number,
            worker,
        )
        self._stimulus = stimulus
        span.last = link
        if span.above:
            # A loop over none costs more than the question.
            for above in span.above:
                above.last = link


def _last(span: SpanPath) -> RawLink | None:
    """Return the last link in a span, or in the nearest span above that has one."""
    return next((one.last for one in (span, *span.above) if one.last is not None), None)


def _repeated(readiness: Readiness, sent: float) -> Readiness:
    """Return what a task waited for whose run is repeated."""
    before, submitted, ready, lost, again = readiness
    # After the first run, it is repeated from when that was sent.
    return before, submitted, ready, lost if lost or again else sent or ready, 0.0
