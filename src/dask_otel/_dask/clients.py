"""Dask's side of clients' blocks: tracks open blocks and the arrival of clients' messages.

A client reports its blocks through ``Client.log_event``, a separate request, which overtakes the
graphs that the client sent earlier on its stream. That stream is ordered, and the scheduler awaits
each graph before it reads the next message. So when it has handled a heartbeat that the client
sent after it left a block, all its earlier messages have arrived. An instrumented client sends a
heartbeat at once; every client sends one every few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from distributed.scheduler import Scheduler

from dask_otel.core.attributes import bounded_attributes
from dask_otel.core.life.blocks import ATTRIBUTES, BLOCKS, CLIENT, ENTERED, LEFT, Blocks
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import Limits

#: Most blocks, and spans with attributes, of one message; a client sends a thousand at most.
MOST: Final = 10_000


class ClientBlocks:
    """The blocks of all clients of one scheduler, on its event loop.

    Methods may raise: the adapter catches the errors.
    """

    def __init__(self, scheduler: Scheduler, lifecycle: Lifecycle, limits: Limits) -> None:
        self.blocks = Blocks(lifecycle, limits.remember)
        self._scheduler = scheduler
        self._patience = limits.settle_timeout
        #: Clients that left a block and whose earlier messages may not have arrived: the last
        #: heartbeat before that, and the time when they left.
        self.leaving: dict[str, tuple[float, float]] = {}

    def handle_message(self, message: Any, now: float) -> int:
        """Read a client's message, which can be any object; return the number of bad parts.

        A bad part does not affect the others.
        """
        if type(message) is not dict or type(client := message.get(CLIENT)) is not str:
            return 1
        state = self._scheduler.clients.get(client)
        if state is None:
            # The client has already gone.
            return 0
        wrong, described, lines = 0, message.get(ATTRIBUTES), message.get(BLOCKS)
        if type(described) is not dict:
            wrong, described = int(described is not None), {}
        if not isinstance(lines, (list, tuple)):
            wrong, lines = wrong + 1, ()
        wrong += sum(max(0, len(part) - MOST) for part in (described, lines))
        for span_id, given in islice(described.items(), MOST):
            if type(span_id) is not str or not isinstance(given, Mapping):
                wrong += 1
            elif attributes := bounded_attributes(given)[0]:
                self.blocks.described(span_id, attributes)
        for line in lines[:MOST]:
            match line:
                case [str(what), str(span_id)] if what == ENTERED:
                    self.blocks.entered(client, span_id)
                case [str(what), str(span_id)] if what == LEFT:
                    self.blocks.left(client, span_id, now)
                    self.leaving[client] = state.last_seen, now
                case _:
                    wrong += 1
        return wrong

    def tick(self, now: float) -> None:
        """Release blocks of clients whose earlier messages have arrived."""
        for client, (last_seen, since) in list(self.leaving.items()):
            state = self._scheduler.clients.get(client)
            arrived = state is None or state.last_seen != last_seen
            # If an older heartbeat was handled late, a graph may still follow.
            clear = not self._scheduler._active_graph_updates
            if arrived and (clear or not 0 <= now - since < self._patience):
                del self.leaving[client]
                self.blocks.messages_arrived(client, now)

    def client_gone(self, client: str, now: float) -> None:
        """End the blocks of a client that closed or died."""
        self.leaving.pop(client, None)
        self.blocks.client_gone(client, now)
