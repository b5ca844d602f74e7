"""A made-up scheduler with blocks, for tests."""

from __future__ import annotations

from dask_otel.core.life.blocks import Blocks
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import Limits, OpenSpan
from tests.unit.simulation import Simulation


class Blocked(Simulation):
    """A made-up scheduler whose clients tell of their blocks; and what must come of it."""

    def __init__(self, limits: Limits, remember: int = 1000) -> None:
        super().__init__(limits)
        self.remember = remember
        self.blocks = Blocks(self.lifecycle, remember)
        #: The plain rule: open blocks by Dask id, with their client and when they were left.
        self.entered: dict[str, tuple[str, float | None]] = {}
        self.left_first: dict[str, str] = {}

    def observe(self, lifecycle: Lifecycle) -> None:
        super().observe(lifecycle)
        self.blocks = Blocks(lifecycle, self.remember)
        self.entered.clear()
        self.left_first.clear()

    def span_opened(self, span: OpenSpan) -> None:
        self.blocks.span_opened(span)

    def span_exported(self, span: OpenSpan) -> None:
        super().span_exported(span)
        self.blocks.span_exported(span)

    def enter(self, client: str, dask_id: str) -> None:
        """The message that a block was entered arrives."""
        self.blocks.entered(client, dask_id)
        if self.left_first.pop(dask_id, None) is None and dask_id not in self.entered:
            self.entered[dask_id] = (client, None)
            self.holds[dask_id] = 1
        self._looked()

    def leave(self, client: str, dask_id: str) -> None:
        """The message that a block was left arrives."""
        self.blocks.left(client, dask_id, self.now)
        if dask_id not in self.entered:
            self.left_first[dask_id] = client
        elif self.entered[dask_id] == (client, None):
            self.entered[dask_id] = (client, self.now)

    def hear(self, client: str) -> None:
        """All that the client sent before has been taken in."""
        self._looked()
        ends = {i: left for i, (who, left) in self.entered.items() if who == client}
        self._over({i: left for i, left in ends.items() if left is not None})
        self.blocks.messages_arrived(client, self.now)

    def lose_client(self, client: str) -> None:
        """The client closes or dies."""
        self._looked()
        self._over(
            {
                i: self.now if left is None else left
                for i, (who, left) in self.entered.items()
                if who == client
            }
        )
        self.left_first = {i: who for i, who in self.left_first.items() if who != client}
        self.blocks.client_gone(client, self.now)

    def _over(self, ends: dict[str, float]) -> None:
        for dask_id, ended in ends.items():
            del self.entered[dask_id]
            self.holds[dask_id] = 0
            if dask_id in self.current:
                self.current[dask_id].events.append(ended)
