"""What a client makes of a span's metrics."""

from __future__ import annotations

import pytest

from dask_otel._wire import Refusal, SpanMetrics


def test_a_frame_takes_keys_of_any_shape() -> None:
    pytest.importorskip("pandas")
    keys = {
        ("execute", "inc", "thread-cpu", "seconds"): ("execute", "inc", "thread-cpu", "seconds"),
        ("execute", "inc", "outer", "inner", "s"): ("execute", "inc", ("outer", "inner"), "s"),
        ("new", "activity", "count"): ("new", None, "activity", "count"),
        ("new", "count"): ("new", None, None, "count"),
        ("new",): ("new", None, None, None),
    }
    own, tree = {("new",): 2}, dict.fromkeys(keys, 3)
    metrics = SpanMetrics(
        id="id",
        name=("a",),
        root_id="id",
        result=None,
        enqueued=1.0,
        start=None,
        stop=2.0,
        counts=None,
        own=own,
        tree=tree,
        idle_time=None,
        capacity_time=None,
        dask_active_cpu_time=0.0,
        dask_idle_time=0.0,
        trace_id="a" * 32,
        span_id="b" * 16,
    )
    frame = metrics.to_frame()
    labels = frame[["context", "prefix", "activity", "unit"]].astype(object)
    found = [*labels.where(labels.notna(), None).itertuples(index=False, name=None)]
    assert (found, list(frame["tree"])) == (list(keys.values()), [3] * 5)
    assert list(frame["own"].isna()) == [True] * 4 + [False]
    assert metrics.queue_time is None
    assert metrics.duration == 1.0


@pytest.mark.parametrize(
    ("kind", "error"),
    [("unknown", LookupError), ("timeout", TimeoutError), ("no bridge", RuntimeError)],
)
def test_refusals_are_raised_as_what_they_are(kind: str, error: type[Exception]) -> None:
    raised = Refusal(kind, "because").error()
    assert (type(raised), str(raised)) == (error, "because")
