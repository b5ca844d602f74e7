"""What the report says in numbers and words: sums that close, limits of the alerts, costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dask_otel.report import findings, idle
from dask_otel.report.advice import advice
from dask_otel.report.compare import compare
from dask_otel.report.document import Report, read_report
from dask_otel.report.meanings import part_of
from dask_otel.report.money import bill
from dask_otel.report.seconds import by_root, cluster_time, flow, span_times
from dask_otel.report.telemetry.model import Run
from tests.unit.report_files import cluster, counter, level, metrics, point, span, traces


def report(tmp_path: Path, *requests: Any, **options: Any) -> Report:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in requests), encoding="utf-8")
    return read_report(path, **options)


def run_of(tmp_path: Path, *requests: Any) -> Run:
    (run,) = report(tmp_path, *requests).runs
    return run


# ---------------------------------------------------------------------------------- sums


def test_the_sum_is_shown_with_its_remainder(tmp_path: Path) -> None:
    """Also where it does not close: nothing is adjusted."""
    seconds = {"thread-cpu": 3.0, "idle": 4.0, "unused": 2.0, "lost": 0.5}
    whole = cluster_time(run_of(tmp_path, cluster(seconds, capacity=10, excess=1, in_flight=1.5)))
    assert whole is not None
    assert whole.remainder == 0
    whole = cluster_time(run_of(tmp_path, cluster(seconds, capacity=9, in_flight=1.5)))
    assert whole is not None
    assert whole.remainder == 2
    assert {part: value for part, value in whole.parts().items() if value} == {
        "Computing": 3, "Idle": 4, "Unused": 2, "Wasted": 0.5,
    }  # fmt: skip


def test_what_was_not_exported_is_absent(tmp_path: Path) -> None:
    """Traces alone say nothing of the cluster; a sum without a part has no remainder."""
    run = run_of(tmp_path, traces(span(1)))
    assert cluster_time(run) is None
    assert (flow(run), idle.explain(run), findings.workers(run)) == (None, None, [])
    (entry,) = span_times(run)
    assert (entry.idle, entry.capacity, entry.measured) == (None, None, False)
    part = cluster_time(
        run_of(tmp_path, metrics(counter("dask.cluster.time", point(1, {"dask.activity": "idle"}))))
    )
    assert part is not None
    assert (part.capacity, part.remainder) == (None, None)
    found = report(tmp_path, traces(span(1))).to_dict()["runs"][0]
    assert (found["time"], found["idle"], found["tasks"]) == (None, None, {})


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


def test_metrics_say_it_and_spans_where_there_are_none(tmp_path: Path) -> None:
    own = {"dask.span.activity.time.thread-cpu": 2.0, "dask.span.idle.time": 1.0}
    first = span(1, "etl/load")
    first["attributes"] += [
        {"key": key, "value": {"doubleValue": value}} for key, value in own.items()
    ]
    (alone,) = span_times(run_of(tmp_path, traces(first)))
    assert (alone.parts()["Computing"], alone.idle, alone.measured) == (2, 1, False)
    (entry,) = span_times(run_of(tmp_path, traces(first), of_span("etl/load", 3.0, thread_cpu=5.0)))
    assert (entry.parts()["Computing"], entry.idle, entry.seconds) == (5, 3, 8)


def test_roots_hold_what_is_below_them(tmp_path: Path) -> None:
    run = run_of(
        tmp_path, of_span("a/x", 1, thread_cpu=2), of_span("a/y", 1), of_span("b", 0, other=4)
    )
    assert {root.name: root.seconds for root in by_root(span_times(run))} == {"a": 4, "b": 4}


@pytest.mark.parametrize(
    ("activity", "part"),
    [
        ("thread-cpu", "Computing"),
        ("p2p-shard-partition-cpu", "Computing"),
        ("p2p-get-output-noncpu", "Off the CPU"),
        ("disk-read", "Moving data"),
        ("executor", "Other"),
        ("mine", "Other"),
        ("cancelled", "Wasted"),
        ("idle", "Idle"),
    ],
)
def test_every_activity_has_a_part(activity: str, part: str) -> None:
    assert part_of(activity).title == part


def test_over_time_each_interval_has_its_own_seconds(tmp_path: Path) -> None:
    labels = {"dask.activity": "thread-cpu"}
    counts = [point(total, labels, time=time) for time, total in ((0, 0), (2, 4), (4, 5))]
    threads = [point(total, time=time) for time, total in ((0, 0), (2, 8), (4, 16))]
    found = flow(
        run_of(
            tmp_path,
            metrics(
                counter("dask.cluster.time", *counts),
                counter("dask.cluster.capacity.time", *threads),
            ),
        )
    )
    assert found is not None
    assert (found.parts["Computing"], found.threads) == ([2, 0.5], [4, 4])


# -------------------------------------------------------------------------------- advice


def alerts(run: Run) -> dict[str, str]:
    return {one.alert: one.severity for one in advice(run) if one.alert}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"thread-cpu": 490, "idle": 510}, {"DaskClusterIdle": "warning"}),
        ({"thread-cpu": 510, "idle": 490}, {}),
        ({"thread-cpu": 4.9, "idle": 5.1}, {"DaskClusterIdle": "note"}),
        # Without unused time, as the alert.
        ({"thread-cpu": 490, "idle": 510, "unused": 5000}, {"DaskClusterIdle": "warning"}),
        ({"thread-cpu": 40, "unused": 960}, {"DaskClusterUnused": "warning"}),
        ({"thread-cpu": 60, "unused": 940}, {}),
        ({"thread-cpu": 94, "lost": 6}, {"DaskTimeLost": "bad"}),
        ({"thread-cpu": 96, "lost": 4}, {}),
    ],
)
def test_advice_begins_where_an_alert_would(
    tmp_path: Path, seconds: dict[str, float], expected: dict[str, str]
) -> None:
    assert alerts(run_of(tmp_path, cluster(seconds, capacity=sum(seconds.values())))) == expected


@pytest.mark.parametrize(
    ("lost", "recomputed", "severity"), [(0, 0, "note"), (1, 0, "bad"), (0, 1, "bad")]
)
def test_workers_that_left_in_order_have_not_died(
    tmp_path: Path, lost: int, recomputed: int, severity: str
) -> None:
    """A cluster that is closed takes the last heartbeat's seconds with it, and no task."""
    own = {"dask_task_memory.count": 9, "dask_task_lost.count": lost}
    own |= {"dask_task_recomputed.count": recomputed, "dask_span_root_id": "id-1"}
    run = run_of(
        tmp_path,
        cluster({"thread-cpu": 60, "lost": 40}, capacity=100),
        traces(span(1, "etl", **own)),
    )
    (found,) = [one for one in advice(run) if one.alert == "DaskTimeLost"]
    assert found.severity == severity
    assert ("died" in found.title) == (severity == "bad")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"thread_cpu": 89, "failed": 11}, {"DaskWorkWasted"}),
        ({"thread_cpu": 91, "failed": 9}, set()),
        ({"thread_cpu": 89, "disk_read": 11}, {"DaskSpilling"}),
        ({"thread_cpu": 49, "thread_noncpu": 51}, {"DaskThreadsWait"}),
        ({"thread_cpu": 51, "thread_noncpu": 49}, set()),
    ],
)
def test_advice_about_a_root(tmp_path: Path, seconds: dict[str, float], expected: set[str]) -> None:
    assert set(alerts(run_of(tmp_path, of_span("etl", 0.0, **seconds)))) == expected


def test_cancelled_seconds_of_rescheduled_runs_are_no_trouble(tmp_path: Path) -> None:
    count = {"dask_task_rescheduled_count": 4, "dask_task_cancelled_count": 0}
    run = run_of(tmp_path, traces(span(1, "etl", **count)), of_span("etl", 0, cancelled=100))
    (one,) = [one for one in advice(run) if one.alert == "DaskWorkWasted"]
    assert "asked to run elsewhere" in one.advice


def test_the_task_that_everybody_waited_for_is_named(tmp_path: Path) -> None:
    owner = {"dask_span_id": "id-1", "dask_task_group_name": "f-1"}
    group = span(2, "f tasks", parent=1, kind="group", seconds=10, dask_task_count=11, **owner)
    group["attributes"] = [
        one for one in group["attributes"] if one["key"] != "dask.task.group.name"
    ] + [
        {"key": "dask.task_group.name", "value": {"stringValue": "f-1"}},
        {"key": "dask.task_group.duration.compute", "value": {"doubleValue": 10.0}},
    ]
    task = span(3, "f task", parent=2, kind="task", seconds=9, dask_task_prefix="f", **owner)
    task["attributes"] += [{"key": "dask.task_group.name", "value": {"stringValue": "f-1"}}]
    run = run_of(tmp_path, traces(span(1, "etl", seconds=10), group, task))
    (found,) = findings.stragglers(run)
    assert (found.span, found.task.seconds, found.average) == ("etl", 9, 0.1)
    assert "etl: one task of f took 9.00 s" in [one.title for one in advice(run)]


def test_a_failure_is_counted_once_with_its_task(tmp_path: Path) -> None:
    event = ("exception", {"exception.type": "ValueError", "dask.task.key": "f-1"})
    owner = {"dask_span_id": "id-1"}
    run = run_of(
        tmp_path,
        traces(
            span(1, "etl", failed=True, events=(event,)),
            span(2, kind="task", failed=True, events=(event,), dask_task_key="f-1", **owner),
        ),
    )
    (failure,) = findings.failures(run)
    assert (failure.kind, failure.span, failure.count) == ("ValueError", "etl", 1)


def test_idle_is_explained_by_what_could_have_run(tmp_path: Path) -> None:
    times = range(8)
    idle_seconds = {"dask.activity": "idle"}
    run = run_of(
        tmp_path,
        metrics(
            counter("dask.cluster.time", *(point(2 * t, idle_seconds, time=t) for t in times)),
            level("dask.cluster.thread.count", *(point(4, time=t) for t in times)),
            level(
                "dask.cluster.task.count",
                *(
                    point(1 if t <= 5 else 9, {"dask.task.state": "processing"}, time=t)
                    for t in times
                ),
            ),
        ),
    )
    why = idle.explain(run)
    assert why is not None
    assert (why.total, why.too_few_tasks, why.enough_tasks) == (14, 10, 4)


# --------------------------------------------------------------------- costs, comparison


def test_the_bill_adds_up_to_the_capacity(tmp_path: Path) -> None:
    seconds = {"thread-cpu": 3600, "idle": 1800, "unused": 1800}
    tags = {"dask_span_tags": ["etl", "team:acme"]}
    found = report(
        tmp_path,
        cluster(seconds, capacity=7200),
        of_span("etl/team:acme", 1800.0, thread_cpu=1800.0),
        of_span("other", 0.0, thread_cpu=1800.0),
        traces(span(1, "etl/team:acme", **tags)),
        price=0.5,
    )
    costs = found.to_dict()["runs"][0]["cost"]
    assert (costs["capacity"], costs["unused"], costs["of_no_span"]) == (1.0, 0.25, 0.25)
    assert {one["name"]: one["cost"] for one in costs["roots"]} == {"etl": 0.5, "other": 0.25}
    assert {one["name"]: one["idle_cost"] for one in costs["tags"]} == {"acme": 0.25, "": 0.0}
    (run,) = found.runs
    assert bill(run, "owner").tags == []


def test_compares_by_name(tmp_path: Path) -> None:
    (before,) = report(
        tmp_path,
        traces(span(1, "a"), span(2, "b", seconds=2), span(3, "c"), span(4, "gone")),
        of_span("a", 1.0, thread_cpu=1.0),
    ).runs
    (after,) = report(
        tmp_path,
        traces(span(1, "a", seconds=2), span(2, "b", seconds=1), span(3, "c"), span(4, "new")),
        of_span("a", 1.0, thread_cpu=1.5),
    ).runs
    found = compare([before], [after])
    assert {one.name: one.verdict for one in found.names} == {
        "a": "slower", "b": "faster", "c": "same", "gone": "gone", "new": "new",
    }  # fmt: skip
    (a,) = [one for one in found.names if one.name == "a"]
    assert (a.lasted, a.changes()) == (1.0, [("Computing", 0.5)])
    # Nothing is known of the others' thread-time: it is not 0.
    assert {one.before.seconds for one in found.names if one.before} == {2.0, None}


def test_text_and_json_are_what_they_should_be(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        traces(span(1, "etl\x1b[31m", failed=True, dask_span_result="failure")),
        cluster({"thread-cpu": 1.0}, capacity=1.0),
    )
    text = found.text(width=80)
    assert "etl?[31m" in text
    assert "\x1b" not in text
    assert "Computing" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.text(ascii_only=True).isascii()
