"""The benchmarks' statistics, and that what they count is what the bridge does."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from math import inf

import pytest
from benchmarks import account, marked, path
from benchmarks.instructions import count_work, idle, run_tasks
from benchmarks.results import balanced, interval
from benchmarks.spool import TASKS, _spans
from hypothesis import given
from hypothesis import strategies as st

from dask_otel._dask.graphs import Graphs
from dask_otel.core.graph import graph_line
from dask_otel.scheduler import bridge

# From tables of the sign test, for 95 %.
RANKS = {6: 1, 8: 1, 9: 2, 11: 2, 12: 3, 20: 6, 25: 8}


@pytest.mark.parametrize(("count", "rank"), RANKS.items())
def test_the_interval_has_the_ranks_of_the_sign_test(count, rank):
    assert interval(range(1, count + 1)) == (rank, count + 1 - rank)


@given(st.floats(0.9, 1.1), st.floats(-0.01, 0.01))
def test_a_steady_drift_cancels_out(ratio, drift):
    # Windows in the order A B B A, each of which takes more than the one before.
    first, second, third, fourth = (100 * (1 + drift * i) for i in range(4))
    (found,) = balanced([first, fourth], [ratio * second, ratio * third])
    assert found == pytest.approx(ratio)


@pytest.mark.usefixtures("only_new_garbage")
def test_a_count_is_refused_unless_the_bridge_books_every_task():
    asyncio.run(count_work({}, lambda cluster, _: run_tasks(cluster, 20)))
    asyncio.run(count_work({}, idle))
    with pytest.raises(RuntimeError, match="booked 20 of 21"):
        asyncio.run(count_work({}, lambda cluster, _: run_tasks(cluster, 20) + 1))


@pytest.mark.usefixtures("only_new_garbage")
def test_the_row_of_the_graph_log_records_each_run(monkeypatch):
    # Else a tick of a slow machine leaves the ends of spans to the next one.
    monkeypatch.setattr(bridge, "LONGEST", inf)
    without, recorded = (
        asyncio.run(count_work({**one, "spans": {"linger": "0s"}}, partial(_spans, spans=10)))
        for one in path._FEATURES["16"][1]
    )
    lines = [json.loads("".join(graph_line(one))) for one in recorded.recorded]
    assert {(len(one["runs"]["task"]), one["left_out"]) for one in lines} == {(TASKS, 0)}
    assert without.recorded == []
    assert all(name in vars(Graphs) for name in path._CALLS)


def test_with_a_spool_each_span_is_noted_while_it_is_open():
    settings = {"spool": {"path": "/not/opened"}, "spans": {"linger": "0s"}}
    # Ten end, and are handed over.
    assert asyncio.run(count_work(settings, partial(_spans, spans=10))).notes >= 10


OUT = """fn=(1) eval
10 100
cfn=(2) PyNumber_MatrixMultiply
calls=3 20
10 900
cfn=(3) other
calls=1 30
10 5000
fn=(3)
30 7
cfn=(2)
calls=1 20
31 300
"""


def test_the_inclusive_cost_of_a_mark_is_read_of_what_callgrind_writes() -> None:
    mark = "PyNumber_MatrixMultiply"
    assert all(name in vars(owner) for owner, name, _ in marked.ENTRIES)
    assert account._inclusive(OUT) == {mark: 1200, f"calls of {mark}": 4}


def test_the_account_subtracts_idling_and_marks_and_closes() -> None:
    mark = marked.KINDS["released → waiting"][1]
    idle = {"seconds": 4.0, "total": 1500.0, mark: 30.0, f"calls of {mark}": 1}
    run = {"seconds": 8.0, "total": 1500 * 1000.0, mark: 1500 * 500.0, f"calls of {mark}": 1500}
    empty = {"seconds": 1.0, "total": 1.0, mark: 3000.0, f"calls of {mark}": 10}
    with_it, without = (marked.KINDS[kind][1] for kind in marked.MESSAGES)
    messages = {with_it: 9e3, without: 4e3}
    one = {"run": run, "idle": idle, "empty": empty, "messages": messages}
    more = one | {"run": run | {"total": 1500 * 1250.0}, "idle": idle | {"threads": 2000.0}}
    found = account.attribution({"marked": [one], "without": [one], "with": [more]}, 7.0, 1e-3)
    # 500 with the mark's 300; and of idling, 30 with 300, twice in 1,500 tasks.
    assert found["parts"]["released → waiting"] == pytest.approx(200 + 2 * 270 / 1500)
    assert found["parts"]["messages"] == 5000 / marked.CALLS
    assert found["without"] == pytest.approx(1000 - 2)
    assert found["sum"] + found["remainder"] == pytest.approx(250)
    # 30 in four idle seconds are less than an empty function takes through the mark.
    assert found["idle parts"]["released → waiting"] == (30 - 300) / 4
    assert found["idle parts"]["threads"] == 500.0
