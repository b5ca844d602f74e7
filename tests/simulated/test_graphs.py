"""The graph log says what the program did, by the laboratory's own truth."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from distributed import span, wait

import dask_otel
from dask_otel.whatif.experiments import Experiment
from dask_otel.whatif.graph import read_graphs
from dask_otel.whatif.running import replay
from tests.simulated.bridged import Bridged
from tests.simulated.tasks import nap


def lines(folder: Path) -> list[dict[str, Any]]:
    """The graph logs in a folder, in the order of their export."""
    found = []
    for path in sorted(folder.glob("*-graph.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            found += [json.loads(line) for line in file]
    return found


@pytest.mark.options(begins=False, threads=2, unreconciled="its bridge ends before")
def test_a_small_graph(b: Bridged, tmp_path: Path) -> None:
    dask_otel.register(b.client, {"files": {"path": str(tmp_path)}})
    with span("train"):
        first = b.client.map(nap, [1.0, 2.0, 3.0, 0.5], key=[f"nap-{i}" for i in range(4)])
        wait(b.client.submit(nap, 1.0, *first, key="last-1"))
    b.exported()
    dask_otel.unregister(b.client)
    (graph,) = read_graphs(tmp_path, "train")
    found = replay(graph, [Experiment("one thread", workers=(1,))])
    assert found.recorded == pytest.approx(4.0, abs=1e-3)
    assert found.error == pytest.approx(0.0, abs=1e-3)
    assert [one.seconds for one in found.experiments] == [pytest.approx(7.5, abs=1e-3)]
    (line,) = lines(tmp_path)
    assert (line["name"], line["complete"], line["outside"]) == ("train", True, 0)
    runs = line["runs"]
    assert runs["seconds"] == [0.5, 1.0, 2.0, 3.0, 1.0]
    assert runs["before"] == [[], [], [], [], [0, 1, 2, 3]]
    assert [line["prefixes"][number] for number in runs["prefix"]] == ["nap"] * 4 + ["last"]
