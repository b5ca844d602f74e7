"""Due times of open spans: the earliest first, one for each, and no more entries than needed."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from dask_otel.core.life import schedule as module
from dask_otel.core.life.schedule import Schedule

LONGEST = 3


@patch.object(module, "SPARE", 5)
@pytest.mark.parametrize(
    "history",
    [
        # Each step sets due times, removes ids, or takes what is due at a time.
        [{"a": 5, "b": 3}, (2, ""), (4, "b"), (9, "a"), (9, "")],
        # At equal times, the lowest rank comes first, then what was set first.
        [{"a": 1, "b": (1, -2), "c": (1, -1), "d": 1}, (1, "bcad")],
        # There is one time for each.
        [{"a": 1, "b": 2}, {"a": 4}, (3, "b"), (4, "a")],
        [{"a": 4}, {"a": 1}, (1, "a"), (4, "")],
        [{"a": 1, "b": 1}, "a", "x", (1, "b"), {"a": 2}, (2, "a")],
        # The clock was set back: none is due later than so long after.
        [{"a": 12, "b": 11, "c": 3}, (10, "c"), (2, ""), (4, ""), (5, "ab"), {"a": 9}, (8, "")],
        [{"a": 11, "b": 20}, (10, ""), (9, ""), (11, "a"), (12, "b")],
        # Void entries are cleared when one is added.
        [*[{"a": due} for due in range(50, 0, -1)], (1, "a"), (60, "")],
        [*[{"a": due} for due in range(1, 50)], {"b": 3}, (48, "b"), (49, "a")],
    ],
)
def test_what_is_due_comes_once_in_order(history: list[Any]) -> None:
    schedule = Schedule(LONGEST)
    for step in history:
        if isinstance(step, tuple):
            assert "".join(schedule.take(step[0])) == step[1]
        elif isinstance(step, str):
            schedule.remove(step)
        else:
            for dask_id, due in step.items():
                schedule.set(dask_id, *(due if isinstance(due, tuple) else (due,)))
            assert len(schedule._entries) <= 2 * len(schedule._valid) + 5


def test_what_is_set_again_while_it_is_taken_is_not_taken_twice():
    schedule = Schedule()
    schedule.set("seen", 1.0)
    for dask_id in schedule.take(2.0):
        schedule.set(dask_id, 3.0)
    assert list(schedule.take(2.0)) == []
    assert list(schedule.take(3.0)) == ["seen"]
