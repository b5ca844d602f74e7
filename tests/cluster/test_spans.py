"""What is exported of spans of every kind, on a real cluster, against what Dask says."""

from __future__ import annotations

import time
from typing import Any

import dask
import dask.array as da
import pytest
from distributed import span, wait

import dask_otel
from tests.cluster.conftest import Bridged, Start
from tests.cluster.truth import own_values, tree
from tests.receiver import Receiver
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

#: The type of every span attribute on the wire, by key; a prefix for families of keys.
TYPES: dict[str, type] = {
    "dask.span.type": str,
    "dask.span.id": str,
    "dask.span.root.id": str,
    "dask.span.name": str,
    "dask.span.tags": tuple,
    "dask.span.root.name": str,
    "dask.span.result": str,
    "dask.span.complete": bool,
    "dask.span.generation": int,
    "dask.span.queue.time": float,
    "dask.span.capacity.time": float,
    "dask.span.idle.time": float,
    "dask.span.dask.active_cpu.time": float,
    "dask.span.dask.idle.time": float,
    "dask.span.output.size": int,
    "dask.task.count": int,
    "dask.task_group.count": int,
    "dask.worker.count": int,
    "dask.thread.count": int,
    "dask.collection.types": tuple,
    "dask.span.collision": bool,
    "dask.span.requested.name": str,
    "dask.span.late": bool,
    "dask.span.dropped.count": int,
    "code.file.path": str,
    "code.line.number": int,
    "code.function.name": str,
    "error.type": str,
    "dask.task_group.name": str,
    "dask.task.prefix": str,
    "dask.task_group.types": tuple,
    "dask.task.key": str,
    "dask.task.attempt": int,
    "dask.task.queue.time": float,
    "dask.task.output.size": int,
    "dask.task.output.type": str,
    "dask.task.on_path": bool,
    "dask.span.path.tasks": int,
    "dask.worker.name": str,
}
FAMILIES: dict[str, type] = {
    "dask.span.activity.time.": float,
    "dask.span.path.": float,
    "dask.task.path.": float,
    "dask.task_group.duration.": float,
}
OUTCOMES = ("memory", "erred", "cancelled", "retried", "lost", "recomputed", "rescheduled")


def inc(x: int) -> int:
    time.sleep(0.01)
    return x + 1


def expected_type(key: str) -> type:
    if key in {f"dask.task.{outcome}.count" for outcome in OUTCOMES}:
        return int
    if key in TYPES:
        return TYPES[key]
    for family, kind in FAMILIES.items():
        if key.startswith(family):
            return kind
    raise KeyError(key)


def assert_types(received: Receiver) -> None:
    """Every attribute is one of the contract, with the contract's type."""
    for one in received.spans:
        for key, value in one.attributes.items():
            assert type(value) is expected_type(key), (key, value)


# Dask warns that dataframes ignore annotations, and yet their spans work.
@pytest.mark.filterwarnings("ignore:.*nnotations will be ignored")
def test_collections_and_a_p2p_shuffle(start: Start) -> None:
    """Arrays and dataframes in nested spans; every metric of theirs agrees with Dask."""
    # Not imported by each process of the tests.
    import pandas as pd
    from dask import dataframe as dd

    frame = pd.DataFrame({"k": range(2000), "v": range(2000)})
    with start(threads_per_worker=2) as bridged:
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
        received = bridged.exported(60)
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


@pytest.mark.options({"spans": {"default": "metrics-only"}})
def test_untagged_work_can_stay_out_of_the_traces(bridged: Bridged) -> None:
    """`otel.spans.default: metrics-only` keeps its metrics."""
    assert bridged.client.submit(inc, 1).result() == 2
    with span("mine"):
        assert bridged.client.submit(inc, 10, key="mine-1").result() == 11
    received = bridged.received
    received.wait_for(lambda r: [s for s in r.spans if s.name == "mine"])
    received.wait_for(
        lambda r: (
            {dict(k)["dask.span.name"] for k in r.last("dask.span.duration")} == {"default", "mine"}
        )
    )
    assert not [s for s in received.spans if s.attributes["dask.span.root.name"] == "default"]


HOSTILE: list[Any] = ["", "a/b\\c", "NUL\0", "x" * 100_000, 17, None, b"\xff\xfe", ("t", 1), "ü🎉"]


@pytest.mark.relabelled("names are cleaned")
def test_hostile_tags_lose_nothing(bridged: Bridged) -> None:
    """Tags are anything in Dask: they are exported clean, with the rest of the batch intact."""
    for index, tag in enumerate(HOSTILE):
        with span("root", tag), span(f"below {index}"):
            assert bridged.client.submit(inc, index, key=f"k{index}-0").result() == index + 1
    received = bridged.received
    names = {"root", *(f"below {index}" for index in range(len(HOSTILE)))}
    eventually(lambda: [s.name for s in received.spans].count("root") == len(HOSTILE))
    spans = [s for s in received.spans if s.type == "span"]
    assert {s.name for s in spans} >= names
    values = [value for s in received.spans for value in (s.name, *s.attributes.values())]
    texts = [text for v in values for text in (v if isinstance(v, tuple) else (v,))]
    assert all(len(t) <= 1024 and "\0" not in t for t in texts if isinstance(t, str))
    assert {"root/a\\/b\\\\c", "root/17", "root/ü🎉"} <= {s.path for s in spans}
    received.wait_for(lambda r: sum(r.last("dask.otel.sanitized").values()) > 0)
    labels = {dict(k)["dask.span.name"] for k in received.last("dask.span.active")}
    assert all(0 < len(label) <= 210 for label in labels)
    assert not received.last("dask.otel.internal.errors")


def test_ids_that_are_no_uuid(bridged: Bridged) -> None:
    """Any string can be a span id: it is hashed as it is."""
    ids = ("not a uuid", "ü" * 40)
    with dask.annotate(span={"name": ("odd", "child"), "ids": ids}):
        assert bridged.client.submit(inc, 1).result() == 2
    received = bridged.exported()
    child = bridged.received.named("child")
    assert child.attributes["dask.span.id"] == ids[1]
    assert child.parent_id == bridged.received.named("odd").span_id
    assert_types(received)


def test_where_the_code_was_submitted(start: Start) -> None:
    """Only if Dask collects code; the source text itself is not exported."""
    with (
        dask.config.set({"distributed.diagnostics.computations.nframes": 1}),
        start() as bridged,
    ):
        with span("coded"):
            assert bridged.client.submit(inc, 1).result() == 2
        bridged.exported()
        coded = bridged.received.named("coded").attributes
        assert coded["code.file.path"].endswith("test_spans.py")
        assert coded["code.line.number"] > 0
        assert coded["code.function.name"] == "test_where_the_code_was_submitted"
