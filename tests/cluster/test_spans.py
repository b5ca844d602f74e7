"""Collections and a p2p shuffle, with real threads, buffers and disks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import dask
import dask.array as da
import pytest
from dask.utils import parse_timedelta
from distributed import span, wait

import dask_otel
from dask_otel.whatif.graph import read_graphs
from tests.cluster.conftest import Start
from tests.cluster.truth import own_values, tree
from tests.simulated.test_spans import assert_types

# One process of the tests imports dataframes, as for the demo.
pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("demo")]


# Dask warns that dataframes ignore annotations, and yet their spans work.
@pytest.mark.filterwarnings("ignore:.*nnotations will be ignored")
def test_collections_and_a_p2p_shuffle(start: Start, tmp_path: Path) -> None:
    """Arrays and dataframes in nested spans; every metric of theirs agrees with Dask."""
    # Not imported by each process of the tests.
    import pandas as pd
    from dask import dataframe as dd

    frame = pd.DataFrame({"k": range(2000), "v": range(2000)})
    with start({"files": {"path": str(tmp_path)}}, threads_per_worker=2) as bridged:
        config = {"optimization.fuse.active": False, "dataframe.shuffle.method": "p2p"}
        # Its block holds it: it does not end between two steps, however long these take to plan.
        with dask.config.set(config), dask_otel.span("analysis"):
            with span("load"):
                data = dd.from_pandas(frame, npartitions=8).persist()
                wait(data)
            with span("shuffle"):
                shuffled = data.shuffle("k").persist()
                wait(shuffled)
            with span("model"):
                x = da.random.random((400, 400), chunks=(100, 100))
                assert (x @ x.T).sum().compute() > 0
        received = bridged.exported()
        root = bridged.received.named("analysis")
        assert tree([s for s in received.spans if s.trace_id == root.trace_id]) == (
            "analysis success\n  load success\n  shuffle success\n  model success"
        )
        assert bridged.received.named("load").attributes["dask.collection.types"] != ()
        truth = bridged.client.run_on_scheduler(own_values)
        assert any(key[1] == "p2p" for key in truth), "no p2p metrics to compare"
        assert received.last("dask.span.p2p.time")
        assert received.last("dask.cluster.transfer.time")
        # Output tasks move to the worker that has their part: as they wish, no trouble.
        moved = bridged.received.named("shuffle")
        assert moved.attributes["dask.task.rescheduled.count"] >= 1
        assert not {"dask.task.retried", "exception"} & {event[0] for event in moved.events}
        assert_types(received)
    # The bridge has closed.
    (graph,) = [one for one in read_graphs(tmp_path) if one.name == "analysis" and one.runs["task"]]
    assert (graph.complete, graph.left_out) == (True, 0)
    assert graph.span_id == f"{root.span_id:016x}"
    ended = Counter(graph.runs["outcome"])
    assert ended == {"m": root.attributes["dask.task.memory.count"], "r": ended["r"]}
    assert ended["r"] == root.attributes["dask.task.rescheduled.count"]
    interval = parse_timedelta(
        dask.config.get("distributed.scheduler.work-stealing-interval"), "ms"
    )
    assert 0.0 <= graph.scheduler["stealing_at"] < interval
    assert 0.0 <= graph.scheduler["copies_at"] < 2.0
    assert graph.scheduler == {
        "stealing": True,
        "stealing_at": graph.scheduler["stealing_at"],
        "stealing_interval": interval,
        "copies_at": graph.scheduler["copies_at"],
        "copies_interval": 2.0,
        "saturation": 1.1,
        "unknown_duration": 0.5,
        "bandwidth": 1e8,
        "made": 0,
    }
    assert all(one["seen"] > 0.0 for one in graph.workers if one["went"] is None)
    assert sum(map(len, graph.runs["before"])) > ended["m"]
