"""What the report says in numbers: sums that close, failures, costs."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    span,
    traces,
)

# ---------------------------------------------------------------------------------- sums


def test_what_was_not_exported_is_absent() -> None:
    """Traces alone say nothing of the cluster."""
    report = report_of(traces(span(1)))
    (found,) = report.to_dict()["runs"]
    assert "memory" not in found
    assert "Memory" not in report.text(120, everything=True)
    assert "<h2>Memory</h2>" not in report.html()
    expected = {"time": None, "tasks": {}, "workers": []}
    (entry,) = found["spans"]
    assert {key: found[key] for key in expected} == expected
    assert (entry["idle"], entry["capacity"], entry["from_metrics"]) == (None, None, False)


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


# ------------------------------------------------------------------- sums, failures, costs

SECONDS = {"thread-cpu": 3.0, "idle": 4.0, "unused": 2.0, "lost": 0.5}
PARTS = {"Computing": 3, "Idle": 4, "Unused": 2, "Wasted": 0.5}


def total(report: Report) -> tuple[object, ...]:
    time = report.to_dict()["runs"][0]["time"]
    return {part: v for part, v in time["parts"].items() if v}, time["capacity"], time["remainder"]


def counts(name: str, *totals: float, **labels: str) -> dict[str, Any]:
    """A counter at every second second."""
    of = {key.replace("_", "."): value for key, value in labels.items()}
    return counter(name, *(point(one, of, time=2 * n) for n, one in enumerate(totals)))


ERROR = {"exception.type": "OSError", "dask.task.key": "f-1"}
SLOW, RESET = (
    ("dask.task.retried", {**ERROR, "exception.message": message})
    for message in ("503 Slow Down", "reset")
)
LOST = ("dask.task.retried", {"dask.task.key": "f-2", "dask.task.retry.reason": "worker_lost"})
REPEATED = report_of(
    traces(
        span(
            1, "etl", failed=True,
            events=(*[SLOW] * 8, LOST, RESET, ("exception", ERROR)),
        )
    )
)  # fmt: skip
PRICED = report_of(
    cluster({"thread-cpu": 3600, "idle": 1800, "unused": 1800}, capacity=7200),
    of_span("etl/team:acme", 1800.0, thread_cpu=1800.0),
    of_span("other", 0.0, thread_cpu=1800.0),
    traces(span(1, "etl/team:acme", dask_span_tags=["etl", "team:acme"])),
    price=0.5,
)


def costs(report: Report) -> Any:
    return report.to_dict()["runs"][0]["cost"]


@pytest.mark.parametrize(
    ("report", "fact", "value"),
    [
        # The sum is shown with its remainder, also where it does not close: nothing is adjusted.
        *(
            (
                report_of(cluster(SECONDS, capacity=capacity, excess=excess, in_flight=1.5)),
                total,
                (PARTS, capacity, remainder),
            )
            for capacity, excess, remainder in ((10, 1, 0), (9, 0, 2))
        ),
        # A sum without a part has no remainder.
        (
            report_of(metrics(counts("dask.cluster.time", 1, dask_activity="idle"))),
            lambda report: total(report)[1:],
            (None, None),
        ),
        # Over time, each interval has its own seconds.
        (
            report_of(
                metrics(
                    counts("dask.cluster.time", 0, 4, 5, dask_activity="thread-cpu"),
                    counts("dask.cluster.capacity.time", 0, 8, 16),
                )
            ),
            lambda report: (flow(report.runs[0])[1]["Computing"], flow(report.runs[0])[2]),
            ([2, 0.5], [4, 4]),
        ),
        # Why runs were repeated is counted by what they said.
        (
            REPEATED,
            lambda report: [
                (one.message, one.count, one.repeated) for one in findings.failures(report.runs[0])
            ],
            [("", 1, False), ("503 Slow Down", 8, True), ("reset", 1, True)],
        ),
        (
            REPEATED,
            lambda report: (
                "\n  OSError: 503 Slow Down x 8, repeated\n" in report.text(everything=True)
            ),
            True,
        ),
        # The bill adds up to the capacity.
        (
            PRICED,
            lambda report: [costs(report)[key] for key in ("capacity", "unused", "of_no_span")],
            [1.0, 0.25, 0.25],
        ),
        (
            PRICED,
            lambda report: [(one["name"], one["cost"]) for one in costs(report)["roots"]],
            [("etl", 0.5), ("other", 0.25)],
        ),
        (
            PRICED,
            lambda report: {one["name"]: one["idle_cost"] for one in costs(report)["tags"]},
            {"acme": 0.25, "": 0.0},
        ),
        (PRICED, lambda report: bill(report.runs[0], "owner").tags, []),
    ],
)
def test_a_fact_of_a_report(
    report: Report, fact: Callable[[Report], object], value: object
) -> None:
    assert fact(report) == value


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
