"""Graph logs are read back, also those of a scheduler that was killed."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.whatif import child
from dask_otel.whatif.engine import replayed
from dask_otel.whatif.experiments import Experiment
from dask_otel.whatif.graph import Graph, read_graphs
from dask_otel.whatif.plan import plan
from tests.whatif.graphs import graph


def member(**line: Any) -> bytes:
    made = {**vars(graph({}, {})), "stop": line.get("start", 0.0) + 1.0, **line}
    return gzip.compress(json.dumps(made).encode() + b"\n")


def test_graphs_come_in_the_order_of_their_starts(tmp_path: Path) -> None:
    (tmp_path / "b-0001-graph.jsonl.gz").write_bytes(member(start=2.0) + member(start=3.0))
    (tmp_path / "c-0001-graph.jsonl.gz").write_bytes(member(start=1.0, name="other"))
    assert [one.start for one in read_graphs(tmp_path)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("left", [1, 9, 11, 40, -9, -1])
def test_a_last_line_that_is_cut_off_is_left_out(tmp_path: Path, left: int) -> None:
    (tmp_path / "a-graph.jsonl.gz").write_bytes(member(start=1.0) + member(start=2.0)[:left])
    assert [one.start for one in read_graphs(tmp_path)] in ([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{}\n", "missing 11 required positional arguments: 'trace_id', 'span_id', "),
        (
            json.dumps({**vars(graph({})), "runs": {"task": [0]}}).encode() + b"\n",
            "columns of its runs are missing: prefix, group, before,",
        ),
        (b"[]\n", "line 1 of"),
        (b"nonsense\n", "line 1 of"),
        (b'{"version": 2}\n', "it has version 2, and this release reads 1"),
    ],
)
def test_another_file_is_an_error(tmp_path: Path, text: bytes, why: str) -> None:
    path = tmp_path / "a-graph.jsonl.gz"
    path.write_bytes(gzip.compress(text))
    with pytest.raises(ValueError, match=why):
        read_graphs(path)


def test_a_file_that_is_not_packed_is_named(tmp_path: Path) -> None:
    (tmp_path / "a-graph.jsonl.gz").write_bytes(member(start=1.0))
    (tmp_path / "b-graph.jsonl.gz").write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"line 1 of .*b-graph.jsonl.gz is no graph of a run: Err"):
        read_graphs(tmp_path)


@given(st.data())
def test_a_damaged_bit_changes_no_graph_and_is_said(data: st.DataObject) -> None:
    first, *others = (member(start=start) for start in (1.0, 2.0, 3.0))
    content = bytearray(first + b"".join(others))
    place = data.draw(st.integers(len(first), len(first + others[0]) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    wrong = list[str]()
    found = read_graphs(bytes(content), wrong)
    # Nothing reads the time in the header of a member, for example.
    if wrong or len(found) < 3:
        assert [one.start for one in found] == [1.0]
        assert [one[:10] for one in wrong] == ["line 2 of "]
        assert "The file is damaged from there on, and the rest of it is left out" in wrong[0]
    else:
        assert found == read_graphs(first + b"".join(others))


ODD = st.sampled_from([None, -1, 7, 0.5, -2.5, 1e300, math.nan, math.inf, True, "x", [], [[0]], {}])


def changed(value: Any, draw: Callable[..., Any]) -> Any:
    """Replace, remove or add something at a place in plain data."""
    if not value or not isinstance(value, (dict, list)) or draw(st.integers(0, 9)) == 0:
        return draw(ODD)
    place = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    what = draw(st.integers(0, 9))
    if what == 0:
        del value[place]
    elif what == 1 and isinstance(value, list):
        value.append(draw(ODD))
    else:
        value[place] = changed(value[place], draw)
    return value


@given(st.data())
def test_a_line_that_is_changed_anywhere_is_replayed_or_an_error(data: st.DataObject) -> None:
    runs = ({}, {"before": [0], "start": 1.0, "worker": 1, "restriction": 0, "transfer": 0.1}, {})
    limits = [{"workers": [1], "resources": {"slot": 1}, "loose": False}]
    workers = (1, {"threads": 1, "resources": {"slot": 1}, "hash": 5, "seen": 2.0})
    right = vars(graph(*runs, workers=workers, restrictions=limits, longest=[1.0], durations=[1.0]))
    wrong = list[str]()
    line = json.dumps(changed(json.loads(json.dumps(right)), data.draw)).encode()
    for one in read_graphs(gzip.compress(line), wrong):
        if one.workers and any(took is not None for took in one.runs["seconds"]):
            child.answer(one, [Experiment("as it was")], [1], lambda _: None)
    assert all("is no graph of a run: " in one for one in wrong)


def test_what_is_null_may_be_missing() -> None:
    entry = dict.fromkeys(("came", "went", "resources", "hash", "seen", "place"))
    limit = dict.fromkeys(("workers", "resources", "loose"))
    run, other = {"restriction": 0}, {"restriction": 0, "start": 1.0}
    for empty, free in ((entry, limit), ({}, {})):
        line = vars(graph(run, other, restrictions=[free]))
        read = Graph.of({**line, "workers": [{"threads": 1, **empty}]})
        assert replayed(plan(read, Experiment("as it was"))).seconds == pytest.approx(2.0)
