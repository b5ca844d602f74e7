"""Clients' blocks that come before their spans, and in no order; the rest is in ``simulated``."""

from __future__ import annotations

from dask_otel.core.life.blocks import Blocks
from tests.unit.driven import Driven


class Blocked(Driven):
    """Its clients tell of their blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Blocks(self.lifecycle, 10)
        self.span_opened, self.span_exported = self.blocks.span_opened, self.blocks.span_exported


def test_what_is_remembered_is_bounded():
    core = Blocked()
    for number in range(100):
        core.blocks.entered("c0", f"entered-{number}")
        core.blocks.left("c0", f"left-{number}", core.now)
    assert len(core.blocks._waiting) == len(core.blocks._left_first) == 10
    # What was pushed out does no harm when it goes on.
    for number in range(100):
        core.blocks.left("c0", f"entered-{number}", core.now)
    core.blocks.messages_arrived("c0", core.now)
    assert not core.blocks._waiting
    assert not core.blocks._leaving


def test_a_client_that_goes_after_the_close_changes_nothing():
    core = Blocked()
    core.blocks.entered("c0", "s0")
    core.done()
    core.lifecycle.close(core.now)
    core.blocks.client_gone("c0", core.now)
    (finished,) = core.lifecycle.finished
    assert finished.complete


def test_only_its_client_leaves_a_block_and_each_goes_with_all_its_own():
    core = Blocked()
    held = core.span()
    core.blocks.entered("c0", held.identity.dask_id)
    for client in ("c0", "c1"):
        core.blocks.entered(client, f"{client} waits")
        core.blocks.left(client, f"{client} left first", core.now)
    core.blocks.left("c1", held.identity.dask_id, core.now)
    core.blocks.messages_arrived("c1", core.now)
    assert held.holds == 1
    core.blocks.left("c0", held.identity.dask_id, core.now)
    core.blocks.client_gone("c0", core.now)
    assert held.holds == 0
    assert not core.blocks._holding
    assert not core.blocks._leaving
    assert [*core.blocks._waiting] == ["c1 waits"]
    assert [*core.blocks._left_first] == ["c1 left first"]
    # One that was left first is over as it is entered.
    core.blocks.entered("c1", "c1 left first")
    assert [*core.blocks._waiting] == ["c1 waits"]
