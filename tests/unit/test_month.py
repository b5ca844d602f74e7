"""The month of ``make chaos``, as a small day of it: its checks hold, and notice a loss."""

from __future__ import annotations

import asyncio

import pytest
from chaos.long.month import Month


def test_a_day_adds_up_and_an_incomplete_one_does_not() -> None:
    month = Month()
    asyncio.run(month.play(1, spans=500))
    assert month.compare().startswith("500 spans, 1,250 tasks")
    assert month.truth["again"] > 0
    for counter in (month.truth, month.shown):
        counter["tasks"] += 1
        with pytest.raises(AssertionError, match="tasks"):
            month.compare()
