"""Clients' blocks: entered, left, and their client gone, in every order with the work inside."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from dask_otel.core.life.blocks import Blocks
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import Limits, OpenSpan
from tests.unit.simulation import Simulation
from tests.unit.test_lifecycle_histories import LIMITS, Histories, picks

clients = st.sampled_from(["c0", "c1"])


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


class BlockHistories(Histories):
    """Everything that can happen to spans, with clients that tell of their blocks."""

    sim: Blocked

    @initialize()
    def start(self) -> None:
        self.sim = Blocked(self.limits)
        self.sim.create(None)

    def block(self, pick: int) -> str:
        # One of those that exist, or one of the next ones: nothing has been seen of it yet.
        return f"s{pick % (len(self.sim.spans) + 2)}"

    @rule(client=clients, pick=picks)
    def enter(self, client: str, pick: int) -> None:
        self.sim.enter(client, self.block(pick))

    @rule(client=clients, pick=picks)
    def leave(self, client: str, pick: int) -> None:
        self.sim.leave(client, self.block(pick))

    @rule(client=clients)
    def hear(self, client: str) -> None:
        self.sim.hear(client)

    @rule(client=clients)
    def lose_client(self, client: str) -> None:
        self.sim.lose_client(client)

    @rule(pick=picks)
    def hold(self, pick: int) -> None:
        """Only blocks hold here."""

    @rule(pick=picks)
    def unhold(self, pick: int) -> None:
        """Only blocks hold here."""

    @invariant()
    def open_blocks_hold_their_spans(self) -> None:
        for dask_id, life in self.sim.current.items():
            assert life.span.holds == (dask_id in self.sim.entered)
        blocks = self.sim.blocks
        assert set(blocks._holding) == set(self.sim.entered) & set(self.sim.current)
        assert set(blocks._waiting) == set(self.sim.entered) - set(self.sim.current)
        assert set(blocks._left_first) == set(self.sim.left_first)

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.sim.lose_client("c0")
        self.sim.lose_client("c1")
        blocks = self.sim.blocks
        assert not blocks._holding
        assert not blocks._waiting
        assert not blocks._left_first
        assert not blocks.leaving
        super().teardown()


TestBlockHistories = BlockHistories.TestCase
TestBlockHistories.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_what_is_remembered_is_bounded():
    sim = Blocked(LIMITS, remember=10)
    for number in range(100):
        sim.blocks.entered("c0", f"entered-{number}")
        sim.blocks.left("c0", f"left-{number}", sim.now)
    assert len(sim.blocks._waiting) == 10
    assert len(sim.blocks._left_first) == 10
    # What was pushed out does no harm when it goes on.
    for number in range(100):
        sim.blocks.left("c0", f"entered-{number}", sim.now)
    sim.blocks.messages_arrived("c0", sim.now)
    assert not sim.blocks._waiting
    assert not sim.blocks.leaving


def test_a_span_ends_when_its_block_was_left_not_when_that_is_certain():
    sim = Blocked(LIMITS)
    sim.enter("c0", sim.create(None))
    sim.advance(5.0)
    sim.leave("c0", "s0")
    left = sim.now
    sim.advance(3.0)
    sim.hear("c0")
    sim.close()
    assert [life.finished.stop for life in sim.lives if life.finished] == [left]


def test_a_client_that_goes_after_the_close_changes_nothing():
    sim = Blocked(LIMITS)
    sim.enter("c0", sim.create(None))
    sim.close()
    sim.lose_client("c0")
    assert [life.finished.complete for life in sim.lives if life.finished] == [True]
