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
from dask_otel.core.path.link import DEPTH, END, Folded, Link, RawLink, Readiness, SpanPath

#: Tasks of one submission that become ready within these seconds share one time, and its memory.
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
        #: The last submission, its last task group, and what the tasks of that share.
        self._submission: str | None = None
        self._group: object = None
        self._shared: Readiness = (None, 0.0, 0.0, 0.0, 0.0)
        #: The last chain that was folded, and the result: tasks with the same one come together.
        self._long: RawLink | None = None
        self._folded: Folded | None = None

    def ready(self, key: Hashable, stimulus: str, group: object, now: float) -> bool:
        """Record that a task is ready.

        Returns
        -------
        known
            False if one of the next two methods must be called.
        """
        if stimulus is self._stimulus:
            self.waits[key] = (self._ended, 0.0, now, 0.0, 0.0)
        elif (
            group is self._group and stimulus is self._submission and now - self._shared[2] < MOMENT
        ):
            self.waits[key] = self._shared
        else:
            return False
        return True

    def submitted(
        self, key: Hashable, stimulus: str, group: object, now: float, span: SpanPath
    ) -> None:
        """Record that a task is ready because it was submitted."""
        same = stimulus is self._submission
        when = self._shared[1] if same else self._submission_time(stimulus)
        self._submission, self._group = stimulus, group
        self._shared = self.waits[key] = (_last(span), when, now, 0.0, 0.0)

    def ready_again(self, key: Hashable, now: float, span: SpanPath) -> None:
        """Record that a task is ready for any other reason."""
        known = self.waits.get(key)
        if known is None:
            self.waits[key] = (_last(span), 0.0, now, 0.0, 0.0)
        else:
            self.waits[key] = (*known[:4], now)

    def interrupted(self, key: Hashable, sent: float) -> None:
        """Record that a ready task will be ready again; its run, if any, is repeated."""
        known = self.waits.get(key)
        if known is not None:
            before, submitted, ready, lost, _ = known
            self.waits[key] = (before, submitted, ready, lost or sent or ready, 0.0)

    def recomputed(self, key: Hashable, span: SpanPath) -> None:
        """Record that a task that has ended will run again."""
        if key in self.waits:
            return
        last = _last(span)
        link = None if last is None else Link._make(last)
        if link is not None and link.key == key and link.readiness is not None:
            before, submitted, ready, lost, _ = link.readiness
            self.waits[key] = (before, submitted, ready, lost or link.sent, 0.0)
        else:
            self.waits[key] = (last, 0.0, 0.0, 0.0, 0.0)

    def ended(
        self,
        stimulus: str,
        now: float,
        span: SpanPath,
        sent: float,
        fetched: float,
        start: float,
        stop: float,
        group: Any,
        key: Hashable,
        number: int | None,
        worker: object,
        actions: tuple[tuple[str, float, float], ...] = (),
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
            actions,
        )
        self._stimulus = stimulus
        above: SpanPath | None = span
        while above is not None:
            above.last = link
            above = above.parent


def _last(span: SpanPath) -> RawLink | None:
    """Return the last link in a span, or in the nearest span above that has one."""
    above: SpanPath | None = span
    while above is not None and above.last is None:
        above = above.parent
    return None if above is None else above.last
