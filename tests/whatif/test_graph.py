"""Graph logs are read back, also those of a scheduler that was killed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dask_otel.whatif.graph import read_graphs
from tests.whatif.graphs import graph


def member(**line: object) -> bytes:
    return gzip.compress(json.dumps({**vars(graph({}, {})), **line}).encode() + b"\n")


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


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"{}", "Not a gzipped"), (gzip.compress(b"{}")[:10] + b"\xff" * 20, "Error -3")],
    ids=["not packed", "damaged"],
)
def test_a_file_that_cannot_be_unpacked_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "a-graph.jsonl.gz").write_bytes(member(start=1.0))
    (tmp_path / "b-graph.jsonl.gz").write_bytes(content)
    with pytest.raises(ValueError, match=f"b-graph.jsonl.gz is no graph of a run: {why}"):
        read_graphs(tmp_path)
