"""Due times of open spans: the earliest first, one for each, and no more entries than needed."""

from __future__ import annotations

from math import inf
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from dask_otel.core.life import schedule as module
from dask_otel.core.life.schedule import Schedule

LONGEST = 3
ids = st.sampled_from("abcd")
steps = st.one_of(
    st.tuples(st.just("set"), ids, st.integers(0, 10), st.integers(-3, 0)),
    st.tuples(st.just("remove"), ids),
    st.tuples(st.just("take"), st.integers(0, 10)),
)


@patch.object(module, "SPARE", 5)
@settings(max_examples=50)
@given(st.lists(steps, min_size=20, max_size=60))
def test_what_is_due_comes_once_in_order(history):
    schedule, taken = Schedule(LONGEST), 0
    model: dict[str, tuple[float, int, int]] = {}
    for number, (what, *args) in enumerate(history):
        if what == "set":
            dask_id, due, rank = args
            schedule.set(dask_id, due, rank)
            model[dask_id] = due, rank, number
        elif what == "remove":
            schedule.remove(args[0])
            model.pop(args[0], None)
        else:
            if args[0] < taken:
                # The clock was set back.
                latest = args[0] + LONGEST
                model = {key: (min(due, latest), *rest) for key, (due, *rest) in model.items()}
            taken = args[0]
            expected = sorted((key for key in model if model[key][0] <= args[0]), key=model.get)
            assert list(schedule.take(args[0])) == expected
            for key in expected:
                del model[key]
        # Void entries are cleared when one is added.
        most = 2 * len(model) + 5 if what == "set" else inf
        assert len(model) <= len(schedule._entries) <= most


def test_what_is_set_again_while_it_is_taken_is_not_taken_twice():
    schedule = Schedule()
    schedule.set("seen", 1.0)
    for dask_id in schedule.take(2.0):
        schedule.set(dask_id, 3.0)
    assert list(schedule.take(2.0)) == []
    assert list(schedule.take(3.0)) == ["seen"]
