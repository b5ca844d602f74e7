"""What the report says in numbers: sums that close, failures, costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dask_otel.report import findings
from dask_otel.report.document import Report
from dask_otel.report.meanings import MEANINGS, colour_of, hex_colour, part_of
from dask_otel.report.money import bill
from dask_otel.report.seconds import flow
from tests.unit.report_files import (
    cluster,
    counter,
    metrics,
    point,
    report_of,
    run_of,
    span,
    traces,
)

# ---------------------------------------------------------------------------------- sums


def test_the_sum_is_shown_with_its_remainder() -> None:
    """Also where it does not close: nothing is adjusted."""
    seconds = {"thread-cpu": 3.0, "idle": 4.0, "unused": 2.0, "lost": 0.5}
    parts = {"Computing": 3, "Idle": 4, "Unused": 2, "Wasted": 0.5}
    for capacity, excess, remainder in ((10, 1, 0), (9, 0, 2)):
        report = report_of(cluster(seconds, capacity=capacity, excess=excess, in_flight=1.5))
        time = report.to_dict()["runs"][0]["time"]
        shown = {part: value for part, value in time["parts"].items() if value}
        assert (shown, time["remainder"]) == (parts, remainder)


def test_what_was_not_exported_is_absent() -> None:
    """Traces alone say nothing of the cluster; a sum without a part has no remainder."""
    report = report_of(traces(span(1)))
    (found,) = report.to_dict()["runs"]
    assert "memory" not in found
    assert "Memory" not in report.text(120, everything=True)
    assert "<h2>Memory</h2>" not in report.html()
    expected = {"time": None, "tasks": {}, "workers": []}
    (entry,) = found["spans"]
    assert {key: found[key] for key in expected} == expected
    assert (entry["idle"], entry["capacity"], entry["from_metrics"]) == (None, None, False)
    part = metrics(counter("dask.cluster.time", point(1, {"dask.activity": "idle"})))
    time = report_of(part).to_dict()["runs"][0]["time"]
    assert (time["capacity"], time["remainder"]) == (None, None)


def of_span(name: str, idle_seconds: float, **seconds: float) -> dict[str, Any]:
    labels = {"dask.span.name": name, "dask.span.root.name": name.split("/")[0]}
    used = {key.replace("_", "-"): value for key, value in seconds.items()}
    return metrics(
        counter(
            "dask.span.execute.time",
            *(
                point(value, {**labels, "dask.task.prefix": "f", "dask.activity": key})
                for key, value in used.items()
            ),
        ),
        counter("dask.span.idle.time", point(idle_seconds, labels)),
        counter("dask.span.capacity.time", point(idle_seconds + sum(used.values()), labels)),
    )


OWN = {"dask.span.activity.time.thread-cpu": 3.0, "dask.span.idle.time": 1.0}


@pytest.mark.parametrize(
    ("spans", "metered", "shown", "billed"),
    [
        # A rule removed the number; the other two seconds are of a span that is still open.
        (
            [span(1, "etl/c-1", **OWN, **{"dask.span.capacity.time": 4.0})],
            of_span("etl/c", 1.5, thread_cpu=4.5),
            [("etl/c-1", "etl", 1.0, 4.0), ("etl/_OTHER", "etl", 0.5, 2.0)],
            ("etl", 1.5, 6.0),
        ),
        # Labels give the short one the long one's name, whose sum grows by 2 % only.
        (
            [
                span(number, name, dask_span_capacity_time=seconds, dask_span_idle_time=seconds)
                for number, (name, seconds) in enumerate((("etl", 100.0), ("etl/c-1", 2.0)), 1)
            ],
            of_span("etl", 102.0),
            [("etl", "etl", 100.0, 100.0), ("etl/c-1", "etl", 2.0, 2.0)],
            ("etl", 102.0, 102.0),
        ),
    ],
)
def test_what_metrics_have_besides_the_spans_is_shown_once(
    spans: list[Any], metered: Any, shown: list[Any], billed: tuple[str, float, float]
) -> None:
    report = report_of(traces(*spans), metered)
    found = report.to_dict()["runs"][0]["spans"]
    assert [(one["name"], one["root"], one["idle"], one["capacity"]) for one in found] == shown
    (root,) = bill(report.runs[0]).roots
    assert (root.name, root.idle, root.capacity) == billed


@pytest.mark.parametrize(
    ("activity", "part", "meaning"),
    [
        ("thread-cpu", "Computing", "computing"),
        ("p2p-shard-partition-cpu", "Computing", "computing"),
        ("p2p-get-output-noncpu", "Off the CPU", "off the CPU"),
        ("disk-read", "Moving data", "spill"),
        ("memory-read", "Other", "computing"),
        ("executor", "Other", "other"),
        ("mine", "Other", "other"),
        ("cancelled", "Wasted", "cancelled"),
        ("idle", "Idle", "idle"),
    ],
)
def test_every_activity_has_a_part_and_its_colour_of_the_dashboards(
    activity: str, part: str, meaning: str
) -> None:
    colour = hex_colour(MEANINGS[meaning].colour)
    assert (part_of(activity).title, colour_of(activity)) == (part, colour)


def test_over_time_each_interval_has_its_own_seconds() -> None:
    labels = {"dask.activity": "thread-cpu"}
    counts = [point(total, labels, time=time) for time, total in ((0, 0), (2, 4), (4, 5))]
    threads = [point(total, time=time) for time, total in ((0, 0), (2, 8), (4, 16))]
    both = counter("dask.cluster.time", *counts), counter("dask.cluster.capacity.time", *threads)
    _, parts, mean_threads = flow(run_of(metrics(*both)))
    assert (parts["Computing"], mean_threads) == ([2, 0.5], [4, 4])


# ------------------------------------------------------------------------------ failures


def test_why_runs_were_repeated_is_counted_by_what_they_said() -> None:
    error = {"exception.type": "OSError", "dask.task.key": "f-1"}
    slow, reset = (
        ("dask.task.retried", {**error, "exception.message": message})
        for message in ("503 Slow Down", "reset")
    )
    lost = ("dask.task.retried", {"dask.task.key": "f-2", "dask.task.retry.reason": "worker_lost"})
    events = (*[slow] * 8, lost, reset, ("exception", error))
    run = run_of(traces(span(1, "etl", failed=True, events=events)))
    found = [(one.message, one.count, one.repeated) for one in findings.failures(run)]
    assert found == [("", 1, False), ("503 Slow Down", 8, True), ("reset", 1, True)]
    assert "\n  OSError: 503 Slow Down x 8, repeated\n" in Report([run]).text(everything=True)


# ----------------------------------------------------------------------------- costs


def test_the_bill_adds_up_to_the_capacity() -> None:
    seconds = {"thread-cpu": 3600, "idle": 1800, "unused": 1800}
    found = report_of(
        cluster(seconds, capacity=7200),
        of_span("etl/team:acme", 1800.0, thread_cpu=1800.0),
        of_span("other", 0.0, thread_cpu=1800.0),
        traces(span(1, "etl/team:acme", dask_span_tags=["etl", "team:acme"])),
        price=0.5,
    )
    costs = found.to_dict()["runs"][0]["cost"]
    assert (costs["capacity"], costs["unused"], costs["of_no_span"]) == (1.0, 0.25, 0.25)
    assert [(one["name"], one["cost"]) for one in costs["roots"]] == [("etl", 0.5), ("other", 0.25)]
    assert {one["name"]: one["idle_cost"] for one in costs["tags"]} == {"acme": 0.25, "": 0.0}
    assert bill(found.runs[0], "owner").tags == []


def test_text_and_json_are_what_they_should_be() -> None:
    hostile = traces(span(1, "etl\x1b[31m", failed=True, dask_span_result="failure"))
    # The sum closes to the last bit but one: that is no negative zero.
    found = report_of(hostile, cluster({"thread-cpu": 1.0}, capacity=1.0 + 1e-12))
    text = found.text(width=80, everything=True)
    pieces = ("etl?[31m", "Computing", "remainder 0.000000 s", "\x1b")
    assert [piece in text for piece in pieces] == [True, True, True, False]
    assert max(map(len, text.splitlines())) <= 80
    assert found.text(ascii_only=True, everything=True).isascii()
    json.dumps(found.to_dict(), allow_nan=False)
