"""Clients' blocks: entered, left, and their client gone, in every order with the work inside."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.unit.blocked import Blocked
from tests.unit.histories import LIMITS, Histories, picks

clients = st.sampled_from(["c0", "c1"])


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
        entered, current, blocks = {*self.sim.entered}, self.sim.current, self.sim.blocks
        assert {i: life.span.holds for i, life in current.items()} == {
            i: i in entered for i in current
        }
        assert {*blocks._holding} == entered & current.keys()
        assert {*blocks._waiting} == entered - current.keys()
        assert {*blocks._left_first} == {*self.sim.left_first}

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.sim.lose_client("c0")
        self.sim.lose_client("c1")
        blocks = self.sim.blocks
        kept = blocks._holding, blocks._waiting, blocks._left_first, blocks._leaving
        assert [*map(bool, kept)] == [False] * 4
        super().teardown()


TestBlockHistories = BlockHistories.TestCase
TestBlockHistories.settings = settings(
    max_examples=40,
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
    assert [len(some) for some in (sim.blocks._waiting, sim.blocks._left_first)] == [10, 10]
    # What was pushed out does no harm when it goes on.
    for number in range(100):
        sim.blocks.left("c0", f"entered-{number}", sim.now)
    sim.blocks.messages_arrived("c0", sim.now)
    assert (len(sim.blocks._waiting), sim.blocks._leaving) == (0, {})


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
