"""The check that the sum closes leaves out what a fault has cut off, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster.truth import CLOSED, assert_closed, cut_off
from tests.receiver import Point


def point(metric: str, value: float, when: int) -> Point:
    return Point(
        metric=metric, unit="s", kind="sum", monotonic="inflight" not in metric, temporality=2,
        attributes={"dask.activity": "thread-cpu"} if metric == "dask.cluster.time" else {},
        start_ns=0, time_ns=when, value=value, is_int=False, exemplars=[], resource={},
        scope=("dask_otel", "", ""),
    )  # fmt: skip


def received(*lacks: str, wrong: float = 0.0) -> Any:
    """Return exports, one for each of what they lack; the last one is wrong by some seconds."""
    values = {
        "dask.cluster.time": 3.0, "dask.cluster.inflight.time": 1.0,
        "dask.cluster.capacity.time": 4.0, "dask.cluster.excess.time": 0.0,
    }  # fmt: skip
    assert values.keys() == CLOSED
    points = [
        point(metric, value + (wrong if when == len(lacks) and value == 3.0 else 0.0), when)
        for when, lack in enumerate(("", *lacks))
        for metric, value in values.items()
        if metric != lack
    ]
    return SimpleNamespace(points=points)


def test_whole_exports_close_whatever_the_faults() -> None:
    assert cut_off(received("", "")) == []
    assert_closed(received("", ""))
    assert_closed(received("", ""), faults=1)


@pytest.mark.parametrize("lack", ["dask.cluster.time", "dask.cluster.capacity.time"])
def test_what_a_fault_has_cut_off_is_left_out_at_both_of_its_ends(lack: str) -> None:
    cut = received("", lack, "", lack, "")
    assert cut_off(cut) == [2, 4]
    with pytest.raises(KeyError, match=lack):
        assert_closed(cut)
    assert_closed(cut, faults=1)
    with pytest.raises(AssertionError, match="3 exports lack something"):
        assert_closed(received("", lack, lack, lack), faults=1)


def test_the_others_have_to_close_all_the_same() -> None:
    with pytest.raises(AssertionError):
        assert_closed(received("dask.cluster.time", "", wrong=0.5), faults=1)
