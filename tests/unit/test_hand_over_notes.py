"""Notes of open spans on their way from the core to the pump."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dask_otel._dask.boundary import ErrorBoundary
from dask_otel.scheduler.hand_over import HandOver
from tests.unit.pumps import note


def hand_over_to(pump: Any, notes: Any) -> HandOver:
    adapter: Any = SimpleNamespace(lifecycle=SimpleNamespace(notes=notes))
    cost: Any = None
    made = HandOver(adapter, ErrorBoundary(), cost, exports_default=True)
    made.begin(pump)
    return made


def test_notes_wait_where_they_are_made_while_there_is_no_room_for_them():
    waiting, noted = [note(1)], []
    notes = SimpleNamespace(take=lambda now: [waiting.pop() for _ in [*waiting]], withdrawn=[])
    feeder = SimpleNamespace(takes_notes=False, note=noted.append)
    hand_over = hand_over_to(SimpleNamespace(spooled=feeder), notes)
    for room, expected in ((False, ([note(1)], [])), (True, ([], [note(1)]))):
        feeder.takes_notes = room
        hand_over.notes()
        assert (waiting, noted) == expected


def test_without_a_spool_nothing_is_noted():
    hand_over_to(SimpleNamespace(spooled=None), "notes").notes()
