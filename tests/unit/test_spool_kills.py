"""A writer of the spool is killed again and again; `make chaos` does it 200 times."""

from __future__ import annotations

from pathlib import Path

from chaos.spool_kills import kills


def test_nothing_that_was_noted_is_lost_by_kills(tmp_path: Path) -> None:
    seen = kills(tmp_path, 4, seed=1)
    assert seen["kills"] == 4
    # It was killed in the middle of what it did, and not before it did anything.
    assert seen["writes"] > 0
    assert seen["finished"] > 0
    assert seen["recovered"] > 0
