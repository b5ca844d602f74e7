"""Workers' metrics of spans, as a heartbeat brings them."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from dask_otel import semconv
from dask_otel._dask.heartbeats import Heartbeats
from dask_otel.core.metrics.batch import Batches


class Message(dict):
    """The metrics of a heartbeat; counts how often they are read."""

    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return super().items()


@pytest.fixture
def made() -> Any:
    """`Heartbeats` of a scheduler whose spans are all exported."""
    spans = {
        name: SimpleNamespace(id=name, name=(name,), parent=None) for name in map(str, range(100))
    }
    lifecycle = SimpleNamespace(open={}, generations=SimpleNamespace(trace_of=lambda *_: 7))
    extension = SimpleNamespace(spans=spans)
    ours = SimpleNamespace(batches=Batches(), extension=extension)
    time: Any = SimpleNamespace(activities={})
    rest: Any = [SimpleNamespace()] * 4
    scheduler, clocks, loops, under_way = rest
    parts: Any = lifecycle, time, clocks, loops, ours, under_way
    return Heartbeats(scheduler, *parts)


def test_a_report_on_many_exported_spans_is_read_twice_at_most(made: Any) -> None:
    names = [*map(str, range(100))]
    keys = [("execute", name, "inc", of, "seconds") for name in names for of in ("cpu", "executor")]
    data, seconds = Message.fromkeys(keys, 0.5), dict[str, float]()
    made._span_deltas("w", data, seconds)
    assert seconds == dict.fromkeys(names, 1.0)
    assert made._batches.open.increments == {(semconv.OTEL_LATE.name, "seconds"): 100.0}
    assert data.reads <= 2


def test_a_worker_without_seconds_has_reported_and_not_run(made: Any) -> None:
    span = made._lifecycle.open["0"] = Mock(activities={})
    for seconds in (0.0, 0.5):
        made._span_deltas("w", {("execute", "0", "inc", "cpu", "seconds"): seconds}, {})
    assert span.reported.call_args_list == [call("w", False), call("w", True)]


@pytest.mark.parametrize(
    ("bad", "raises", "activities"),
    [
        # What no counter can hold is in neither sum.
        *((bad, nullcontext(), {"user": 0.5}) for bad in (-1.0, float("inf"), float("nan"))),
        # What comes before a bad value is in both.
        (0.5, pytest.raises(TypeError), {"thread-cpu": 0.5}),
    ],
)
def test_a_value_is_in_both_sums_or_in_neither(
    made: Any, bad: float, raises: Any, activities: dict[str, float]
) -> None:
    values: dict[str, Any] = {"thread-cpu": bad, "user": None if bad == 0.5 else 0.5}
    # Threads do not spend those of other contexts.
    data: Any = {
        ("p2p", "0", "inc", "user", "seconds"): 7.0,
        **{("execute", "0", "inc", of, "seconds"): one for of, one in values.items()},
    }
    seconds: dict[str, float] = {}
    with raises:
        made._span_deltas("w", data, seconds)
    assert (seconds, made._time.activities) == ({"0": 0.5}, activities)
