"""What is kept of a span's own work, and what a client makes of it."""

from __future__ import annotations

import math

import pytest

from dask_otel._wire import Refusal, SpanMetrics
from dask_otel.core.life.summaries import SpanSummary, Summaries
from dask_otel.core.records import TaskCounts


def summary(first_start: float, stop: float, **more: object) -> SpanSummary:
    return SpanSummary(first_start, stop, TaskCounts(tasks=2, memory=1, erred=1), **more)  # type: ignore[arg-type]


def test_generations_add_up() -> None:
    kept = Summaries(10)
    kept.keep("a", summary(1.0, 2.0, idle=0.5, unreported=frozenset({"w"})))
    kept.keep("a", summary(0.0, 4.0, idle=None))
    total = kept.of("a", summary(5.0, 6.0, idle=1.0, capacity=3.0))
    assert total is not None
    assert (total.first_start, total.stop) == (1.0, 6.0)
    assert (total.idle, total.capacity) == (1.5, 3.0)
    assert (total.counts.tasks, total.counts.memory, total.counts.erred) == (6, 3, 3)
    assert total.unreported == {"w"}


def test_asking_changes_nothing() -> None:
    kept = Summaries(10)
    kept.keep("a", summary(1.0, 2.0))
    present = summary(3.0, 4.0)
    assert kept.of("a", present) == kept.of("a", present)
    assert present == summary(3.0, 4.0)


def test_the_oldest_are_forgotten() -> None:
    kept = Summaries(2)
    for name in ("a", "b", "a", "c"):
        kept.keep(name, summary(1.0, 2.0))
    assert len(kept) == 2
    assert kept.of("b", None) is None
    assert kept.of("a", None) is not None


def test_a_frame_takes_keys_of_any_shape() -> None:
    pandas = pytest.importorskip("pandas")
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
    found = [
        tuple(None if part is None or part is pandas.NA or _is_nan(part) else part for part in row)
        for row in frame[["context", "prefix", "activity", "unit"]].itertuples(index=False)
    ]
    assert found == list(keys.values())
    assert list(frame["tree"]) == [3] * 5
    assert list(frame["own"].isna()) == [True] * 4 + [False]
    assert metrics.queue_time is None
    assert metrics.duration == 1.0


def _is_nan(part: object) -> bool:
    return isinstance(part, float) and math.isnan(part)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("unknown", LookupError), ("timeout", TimeoutError), ("no bridge", RuntimeError)],
)
def test_refusals_are_raised_as_what_they_are(kind: str, error: type[Exception]) -> None:
    raised = Refusal(kind, "because").error()
    assert type(raised) is error
    assert str(raised) == "because"
