"""Samples of workers as they arrive: bounded, and left unread on the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from distributed.scheduler import Scheduler

from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.profiles import stacks
from dask_otel.core.profiles.store import Batch, CutOff
from dask_otel.core.records import SpanIdentity


class WorkerProfiles:
    """Reads the messages of workers' samplers, on the scheduler's event loop.

    `put` queues the messages for the thread that reads them, and returns whether there was room.
    Methods may raise: the adapter catches the errors.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        lifecycle: Lifecycle,
        put: Callable[[Batch | CutOff], bool],
    ) -> None:
        self._scheduler, self._open, self._put = scheduler, lifecycle.open, put
        #: Samples that were not taken, by root span, until that is said.
        self._missed = Counter[int]()
        #: The workers that have sent their last message.
        self._done: set[str] = set()
        #: The last spans that ended, and their roots: a busy worker sends late.
        self._ended: dict[str, tuple[SpanIdentity, SpanIdentity]] = {}

    def read(self, message: Any) -> None:
        """Read a message; any client may log any object."""
        # Dask keeps the last thousand of each topic.
        self._scheduler._broker.truncate(stacks.TOPIC)
        match message:
            case {
                "worker": worker,
                stacks.BLOB: bytes(blob),
                stacks.SPANS: list(ids) | tuple(ids),
                stacks.SAMPLES: int(samples),
                stacks.LEFT_OUT: int(left_out),
                stacks.LAST: last,
            } if (
                worker in self._scheduler.workers
                and len(blob) <= stacks.MOST_BYTES
                and len(ids) <= stacks.MOST_SPANS
                and all(type(one) is str for one in ids)
                and min(samples, left_out) >= 0
            ):
                if last:
                    self._done.add(worker)
                if samples or left_out or self._missed:
                    spans = tuple([self._span(one) for one in ids])
                    missed, self._missed = self._missed, Counter()
                    batch = Batch(worker, blob, tuple(ids), spans, samples, left_out, missed)
                    if not self._put(batch):
                        roots = {pair[1].span_id for pair in spans if pair}
                        missed.update(dict.fromkeys(roots, samples + left_out))
                        self._missed = Counter(dict(missed.most_common(stacks.MOST_SPANS)))

    def _span(self, dask_id: str) -> tuple[SpanIdentity, SpanIdentity] | None:
        span = self._open.get(dask_id)
        if span is not None:
            return span.identity, span.root.identity
        pair = self._ended.get(dask_id)
        # The file of an ended root may be complete.
        root = pair and self._open.get(pair[1].dask_id)
        return pair if pair and root and root.identity == pair[1] else None

    def span_exported(self, span: OpenSpan) -> None:
        """Remember a span whose samples can still come, while its root is open."""
        self._ended[span.identity.dask_id] = span.identity, span.root.identity
        if len(self._ended) > stacks.MOST_SPANS:
            del self._ended[next(iter(self._ended))]

    @property
    def silent(self) -> set[str]:
        """The workers whose last message has not come."""
        return {*self._scheduler.workers} - self._done

    def close(self) -> None:
        """Say whose last samples nobody will read: they run tasks now."""
        for address in self.silent:
            tasks = self._scheduler.workers[address].processing
            spans = [self._span(one) for one in {task.group.span_id for task in tasks}]
            if tasks:
                self._put(
                    CutOff(address, frozenset(pair[1].span_id for pair in filter(None, spans)))
                )

    def worker_removed(self, address: str) -> None:
        """Say that a worker has gone, unless it has said good-bye."""
        if address in self._done:
            self._done.discard(address)
        else:
            self._put(CutOff(address))
