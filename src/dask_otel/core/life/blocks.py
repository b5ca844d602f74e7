"""Clients' ``with span()`` blocks: while one is open, its span is.

An instrumented client says when it enters a block and when it leaves it. What it says goes its
own way: it can come before the graphs that are submitted inside the block, after them, or
without any. So an entered block waits for its span, and a block that is left before it was
entered is remembered. Both tables are bounded; where they overflow, the oldest line goes, and
the linger decides as it does without the client's help.

A block that was left lets go of its span only when everything that the client sent before it
left has been taken in: until then its last graph may be on its way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.records import Attributes

#: Topic of ``Client.log_event`` under which clients speak of blocks. The message is ``{CLIENT: id,
#: BLOCKS: [[ENTERED or LEFT, Dask span id], …]}``, perhaps with ``ATTRIBUTES: {Dask span id:
#: {key: value}}``.
TOPIC: Final = "dask-otel"
CLIENT: Final = "client"
BLOCKS: Final = "blocks"
ATTRIBUTES: Final = "attributes"
ENTERED: Final = "entered"
LEFT: Final = "left"

#: Spans whose attributes are kept for generations to come; each has 8 KiB of them at most.
DESCRIBED: Final = 1000


class Holder(Protocol):
    """What keeps spans open; see `Lifecycle`."""

    @property
    def open(self) -> Mapping[str, OpenSpan]:
        """Return the open spans by Dask id."""

    def hold(self, span: OpenSpan) -> None:
        """Keep a span open."""

    def unhold(self, span: OpenSpan, ended: float, now: float) -> None:
        """Undo one `hold`."""


@dataclass(slots=True)
class _Block:
    client: str
    #: None until the span is seen.
    span: OpenSpan | None = None
    #: When it was left; None while it is open.
    left: float | None = None


class Blocks:
    """The blocks of all clients of one scheduler.

    Parameters
    ----------
    holder
        Keeps the spans open.
    remember
        Bound on the blocks that wait for their span, and on those left before they were
        entered. (Those that hold a span are bounded by the open spans.)
    """

    def __init__(self, holder: Holder, remember: int = 10_000) -> None:
        self._holder = holder
        self._remember = remember
        #: Blocks by Dask span id, with and without their span.
        self._holding: dict[str, _Block] = {}
        self._waiting: OrderedDict[str, _Block] = OrderedDict()
        #: Client by Dask span id, of blocks left before they were entered.
        self._left_first: OrderedDict[str, str] = OrderedDict()
        #: Attributes by Dask span id, for its next generations.
        self._described: OrderedDict[str, Attributes] = OrderedDict()
        #: Blocks that were left and not yet let go, by client.
        self._leaving: dict[str, list[str]] = {}

    @property
    def leaving(self) -> bool:
        """Whether any client left a block that still waits for `taken_in`."""
        return bool(self._leaving)

    def entered(self, client: str, dask_id: str) -> None:
        """A client entered a block."""
        if self._left_first.pop(dask_id, None) is not None:
            return
        if dask_id in self._holding or dask_id in self._waiting:
            return
        block = _Block(client)
        span = self._holder.open.get(dask_id)
        if span is not None:
            self._hold(block, span)
            return
        self._waiting[dask_id] = block
        if len(self._waiting) > self._remember:
            self._waiting.popitem(last=False)

    def left(self, client: str, dask_id: str, now: float) -> None:
        """A client left a block. It lets go of the span with the next `taken_in`."""
        block = self._holding.get(dask_id) or self._waiting.get(dask_id)
        if block is None:
            self._left_first[dask_id] = client
            if len(self._left_first) > self._remember:
                self._left_first.popitem(last=False)
        elif block.left is None and block.client == client:
            block.left = now
            self._leaving.setdefault(client, []).append(dask_id)

    def described(self, dask_id: str, attributes: Attributes) -> None:
        """A client gave a span attributes: they are for all its generations from now on."""
        self._described[dask_id] = attributes
        self._described.move_to_end(dask_id)
        if len(self._described) > min(self._remember, DESCRIBED):
            self._described.popitem(last=False)
        span = self._holder.open.get(dask_id)
        if span is not None:
            span.describe(attributes)

    def taken_in(self, client: str, now: float) -> None:
        """Everything that the client sent before it left its blocks has been taken in."""
        for dask_id in self._leaving.pop(client, ()):
            self._let_go(dask_id, now)

    def client_gone(self, client: str, now: float) -> None:
        """A client closed, or died: its blocks end with it."""
        self._leaving.pop(client, None)
        for table in (self._holding, self._waiting):
            for dask_id in [i for i, block in table.items() if block.client == client]:
                self._let_go(dask_id, now)
        for dask_id in [i for i, who in self._left_first.items() if who == client]:
            del self._left_first[dask_id]

    def span_opened(self, span: OpenSpan) -> None:
        """A generation of a Dask span begins: hold it, if its block is known to be open."""
        span.describe(self._described.get(span.identity.dask_id))
        block = self._waiting.pop(span.identity.dask_id, None)
        if block is not None:
            self._hold(block, span)

    def span_exported(self, span: OpenSpan) -> None:
        """A generation is over: only at close is it still held."""
        self._holding.pop(span.identity.dask_id, None)

    def _hold(self, block: _Block, span: OpenSpan) -> None:
        block.span = span
        self._holding[span.identity.dask_id] = block
        self._holder.hold(span)

    def _let_go(self, dask_id: str, now: float) -> None:
        self._waiting.pop(dask_id, None)
        block = self._holding.pop(dask_id, None)
        if block is not None and block.span is not None:
            self._holder.unhold(block.span, now if block.left is None else block.left, now)
