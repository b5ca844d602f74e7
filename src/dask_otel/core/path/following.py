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
from dask_otel.core.path.link import (
    DEPTH,
    END,
    Fetched,
    Folded,
    Link,
    RawLink,
    Readiness,
    SpanPath,
)

#: Tasks of one submission that are ready within these seconds share one time.
MOMENT: Final = 0.001


class Paths:
    """The last waits of all unfinished tasks of one scheduler. O(1) for each event.

    `submission_time` returns when the scheduler received a submission, by its stimulus.
    """

    def __init__(self, submission_time: Callable[[str], float]) -> None:
        self._submission_time = submission_time
        #: What tasks waited for that are ready, unless Dask's side knows the link before.
        self.waits: dict[Hashable, Readiness] = {}
        #: What tasks waited for that are to be ready again: a run is repeated.
        self.again: dict[Hashable, Readiness] = {}
        #: The stimulus of the last end, and its link.
        self.stimulus: str | None = None
        self.last: RawLink = ()
        #: The last chain that was folded, and the result: tasks with the same one come together.
        self._long: RawLink | None = None
        self._folded: Folded | None = None

    def submitted(self, stimulus: str, now: float, span: SpanPath) -> Readiness:
        """Return what a task waited for that is ready because it was submitted.

        Others of its span and submission may share this, and its memory.
        """
        return _last(span), (self._submission_time(stimulus), now, 0.0, 0.0)

    def ready(self, key: Hashable, stimulus: str, now: float) -> bool:
        """Record that a task is ready, if a dependency of it has just ended; return whether.

        For a task that is sent to a worker at once, `last` can be kept instead, for `ended`, while
        no task is to be ready again.
        """
        if stimulus is not self.stimulus:
            return False
        self.again.pop(key, None)
        self.sent(key, self.last, now)
        return True

    def sent(self, key: Hashable, before: RawLink, now: float) -> None:
        """Record that a task was ready after a dependency."""
        self.waits[key] = before, (before[END], now, 0.0, 0.0)

    def ready_again(self, key: Hashable, now: float, span: SpanPath) -> None:
        """Record that a task is ready for any other reason."""
        before, waited = self.again.pop(key, None) or (_last(span), (0.0, now, 0.0, 0.0))
        self.waits[key] = before, (*waited[:3], now)

    def interrupted(self, key: Hashable, sent: float) -> None:
        """Record that a ready task will be ready again; its run, if any, is repeated."""
        known = self.waits.pop(key, None)
        if known is not None:
            self.again[key] = _repeated(known, sent)

    def recomputed(self, key: Hashable, span: SpanPath) -> None:
        """Record that a task that has ended will run again."""
        if key in self.again:
            return
        last = _last(span)
        link = None if last is None else Link._make(last)
        self.again[key] = last, (0.0, 0.0, 0.0, 0.0)
        if link is not None and link.key == key and (link.before or link.waited):
            waited = link.waited or (link.before[END], link.sent, 0.0, 0.0)
            self.again[key] = _repeated((link.before, waited), link.sent)

    def forget(self, key: Hashable) -> None:
        """Forget a task that will not run."""
        self.waits.pop(key, None)
        self.again.pop(key, None)

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
        before: RawLink | Folded | None = None,
    ) -> None:
        """Record the end of a run; see `Link`.

        Parameters
        ----------
        before
            The link before, if the task was sent as soon as that ended.
        """
        waited, depth = None, 1
        if before is None:
            before, waited = self.waits.pop(key, None) or self.again.pop(key, None) or (None, None)
        if before is not None:
            depth += before[DEPTH]
            if now < before[END]:
                # The clock was set back.
                now = before[END]
            if depth > MAX_LINKS:
                if before is not self._long:
                    self._long, self._folded = before, folded(before)
                depth, before = 1, self._folded
        # In the order of `Link`.
        self.last = link = (
            before,
            now,
            depth,
            span,
            waited,
            sent,
            fetched,
            start,
            stop,
            group,
            key,
            number,
            worker,
        )
        self.stimulus = stimulus
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
    before, (submitted, ready, lost, again) = readiness
    # After the first run, it is repeated from when that was sent.
    return before, (submitted, ready, lost if lost or again else sent or ready, 0.0)
