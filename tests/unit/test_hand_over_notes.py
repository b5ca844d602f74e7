"""Notes of open spans on their way from the core to the pump."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dask_otel.scheduler.boundary import ErrorBoundary
from dask_otel.scheduler.hand_over import HandOver
from tests.unit.test_journal import note


def test_notes_wait_where_they_are_made_while_there_is_no_room_for_them():
    waiting, noted = [note(1)], []

    def take(now: float) -> list[Any]:
        taken = list(waiting)
        waiting.clear()
        return taken

    notes = SimpleNamespace(take=take)
    adapter: Any = SimpleNamespace(lifecycle=SimpleNamespace(notes=notes))
    pump: Any = SimpleNamespace(takes_notes=True, has_room_for_notes=False, offer_note=noted.append)
    cost: Any = None
    hand_over = HandOver(adapter, ErrorBoundary(), cost, exports_default=True)
    hand_over.begin(pump)

    hand_over.notes()
    assert (waiting, noted) == ([note(1)], [])

    pump.has_room_for_notes = True
    hand_over.notes()
    assert (waiting, noted) == ([], [note(1)])
