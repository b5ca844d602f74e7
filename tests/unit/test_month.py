"""The simulated month of ``make chaos``, as a day of it: its model and its checks hold."""

from __future__ import annotations

import pytest
from chaos.long.month import _DAY, Month


def test_a_day_adds_up_and_one_of_which_something_is_missing_does_not() -> None:
    month = Month(spans_a_day=300)
    month.run(_DAY)
    month.end()
    month.reconcile()
    assert month.truth["generations"] > 200
    assert month.truth["killed"]
    assert month.truth["again"]
    assert month.shown["signs"]
    month.truth["tasks"] += 1
    with pytest.raises(AssertionError, match="tasks"):
        month.reconcile()
