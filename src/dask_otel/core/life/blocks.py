"""Clients' ``with span()`` blocks, which keep their spans open.

An instrumented client reports when it enters and when it leaves a block. The report can arrive
before the block's graphs, after them, or without any. So an entered block waits for its span, and a
block that is left before it is entered is remembered. Both tables are bounded: an overflow discards
the oldest entry, and then only the linger ends the span.

After a block is left, its span is released when all earlier messages of the client have arrived:
until then the last graph may be on its way.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.records import Attributes

if TYPE_CHECKING:
    from dask_otel.core.life.lifecycle import Lifecycle

#: Topic of clients' reports by ``Client.log_event``. The message is ``{CLIENT: id, BLOCKS:
#: [[ENTERED or LEFT, Dask span id], …]}``, optionally with ``ATTRIBUTES: {Dask span id:
#: {key: value}}``.
TOPIC: Final = "dask-otel"
CLIENT: Final = "client"
BLOCKS: Final = "blocks"
ATTRIBUTES: Final = "attributes"
ENTERED: Final = "entered"
LEFT: Final = "left"

#: Spans whose attributes are kept for later generations; each has at most 8 KiB.
DESCRIBED: Final = 1000


@dataclass(slots=True)
class _Block:
    client: str
    #: The time of leaving; None while it is open.
    left: float | None = None


class Blocks:
    """The blocks of all clients of one scheduler.

    Parameters
    ----------
    lifecycle
        Has the open spans, and keeps them open.
    remember
        Limit of the blocks that wait for their span, and of the blocks left before they were
        entered. (The open spans limit the blocks that hold one.)
    """

    def __init__(self, lifecycle: Lifecycle, remember: int) -> None:
        self._lifecycle = lifecycle
        self._remember = remember
        #: Blocks by Dask span id, with and without their span.
        self._holding: dict[str, _Block] = {}
        self._waiting: OrderedDict[str, _Block] = OrderedDict()
        #: Clients of blocks left before they were entered, by Dask span id.
        self._left_first: OrderedDict[str, str] = OrderedDict()
        #: Attributes by Dask span id, for its next generations.
        self._described: OrderedDict[str, Attributes] = OrderedDict()
        #: Blocks left but not released yet, by client.
        self._leaving: dict[str, list[str]] = {}

    def entered(self, client: str, dask_id: str) -> None:
        """Record that a client entered a block."""
        if self._left_first.pop(dask_id, None) is not None:
            return
        if dask_id in self._holding or dask_id in self._waiting:
            return
        self._waiting[dask_id] = _Block(client)
        span = self._lifecycle.open.get(dask_id)
        if span is not None:
            self._hold(span)
        elif len(self._waiting) > self._remember:
            self._waiting.popitem(last=False)

    def left(self, client: str, dask_id: str, now: float) -> None:
        """Record that a client left a block. `messages_arrived` releases its span."""
        block = self._holding.get(dask_id) or self._waiting.get(dask_id)
        if block is None:
            self._left_first[dask_id] = client
            if len(self._left_first) > self._remember:
                self._left_first.popitem(last=False)
        elif block.left is None and block.client == client:
            block.left = now
            self._leaving.setdefault(client, []).append(dask_id)

    def awaits(self, dask_id: str) -> bool:
        """Return whether a span's first graph may be on its way from inside the block."""
        return dask_id in self._waiting

    def described(self, dask_id: str, attributes: Attributes) -> None:
        """Set a span's attributes, for all its generations from now on."""
        self._described[dask_id] = attributes
        self._described.move_to_end(dask_id)
        if len(self._described) > min(self._remember, DESCRIBED):
            self._described.popitem(last=False)
        span = self._lifecycle.open.get(dask_id)
        if span is not None:
            span.attributes = attributes

    def messages_arrived(self, client: str, now: float) -> None:
        """Release the blocks that a client left: its earlier messages have arrived."""
        for dask_id in self._leaving.pop(client, ()):
            self._release(dask_id, now)

    def client_gone(self, client: str, now: float) -> None:
        """End the blocks of a client that closed or died."""
        self._leaving.pop(client, None)
        for table in (self._holding, self._waiting):
            for dask_id in [i for i, block in table.items() if block.client == client]:
                self._release(dask_id, now)
        for dask_id in [i for i, who in self._left_first.items() if who == client]:
            del self._left_first[dask_id]

    def span_opened(self, span: OpenSpan) -> None:
        """Describe a new generation, and hold it if its block is open."""
        span.attributes = self._described.get(span.identity.dask_id)
        self._hold(span)

    def span_exported(self, span: OpenSpan) -> None:
        """Forget the block of an exported span; the span is still held only at close."""
        self._holding.pop(span.identity.dask_id, None)

    def _hold(self, span: OpenSpan) -> None:
        """Keep a span open if its block waits for it."""
        block = self._waiting.pop(span.identity.dask_id, None)
        if block is not None:
            self._holding[span.identity.dask_id] = block
            self._lifecycle.hold(span)

    def _release(self, dask_id: str, now: float) -> None:
        self._waiting.pop(dask_id, None)
        block = self._holding.pop(dask_id, None)
        if block is not None:
            span = self._lifecycle.open[dask_id]
            self._lifecycle.unhold(span, now if block.left is None else block.left, now)
