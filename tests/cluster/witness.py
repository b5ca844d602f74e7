"""When the scheduler itself saw the work of a span end: what the length of a span is held against.

A span may not be longer than its work, however slow the machine is. A limit in seconds would have
to be large enough for the slowest machine, and would see little.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time

from dask_otel.core.records import FinishedSpan

#: A task in one of these keeps its span open.
UNFINISHED = frozenset({"waiting", "queued", "no-worker", "processing"})


class Witness(SchedulerPlugin):
    """Notes when tasks left the states of work, and when blocks were left.

    To be added after the plugin whose spans are checked: its times are the later ones.
    """

    name = "witness"

    def __init__(self, scheduler: Any, workers: dict[Any, Any]) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._ends: dict[str, list[float]] = defaultdict(list)
        self._begins: dict[str, float] = {}
        #: Blocks that somebody is in, by client.
        self._inside: dict[str, set[str]] = defaultdict(set)
        #: The most by which Dask set the clock of a worker off the scheduler's. They are the same
        #: clock: the half of a slow heartbeat's way is taken for a difference.
        self.skew = 0.0

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        begins = start not in UNFINISHED and finish in UNFINISHED
        # An actor may fail when it has long been in memory.
        ends = finish not in UNFINISHED and (start in UNFINISHED or finish == "erred")
        task = self._scheduler.tasks.get(key) if begins or ends else None
        if task is not None:
            span_id = task.group.span_id
            if begins:
                self._begins.setdefault(span_id, time())
            else:
                self._ends[span_id].append(time())
        for worker in self._workers.values():
            self.skew = max(self.skew, abs(getattr(worker, "scheduler_delay", 0.0)))

    def log_event(self, topic: str, message: Any) -> None:
        if topic == "dask-otel" and isinstance(message, dict):
            inside = self._inside[str(message.get("client"))]
            blocks = message.get("blocks")
            for what, span_id in blocks if isinstance(blocks, list | tuple) else ():
                if what == "left":
                    inside.discard(span_id)
                    self._ends[span_id].append(time())
                else:
                    inside.add(span_id)

    def remove_client(self, scheduler: Any, client: str) -> None:
        for span_id in self._inside.pop(client, ()):
            self._ends[span_id].append(time())

    def work(self, span_ids: set[str]) -> tuple[float, float]:
        """Return from when to when spans had unfinished tasks."""
        begin = min(self._begins[span_id] for span_id in span_ids)
        return begin, max(end for span_id in span_ids for end in self._ends[span_id])

    def check(self, spans: list[FinishedSpan]) -> None:
        """No span ends later than the last work in it or below it, or than its block."""
        for span in spans:
            if span.complete:
                assert span.stop <= self._last_end(span, spans), (span.identity, span.stop)

    def _last_end(self, span: FinishedSpan, spans: list[FinishedSpan]) -> float:
        identity = span.identity
        # What came with a later generation was not in this one.
        later = min(
            (
                other.start
                for other in spans
                if other.identity.dask_id == identity.dask_id
                and other.identity.generation > identity.generation
            ),
            default=float("inf"),
        )
        below = [
            self._last_end(other, spans)
            for other in spans
            if other.identity.parent_span_id == identity.span_id
        ]
        own = [end for end in self._ends[identity.dask_id] if end <= later]
        if any(identity.dask_id in inside for inside in self._inside.values()):
            own.append(time())
        return max([span.start, *own, *below])
