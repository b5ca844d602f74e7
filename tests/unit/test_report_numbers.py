"""What the report says in numbers and words: sums that close, limits of the alerts, costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dask_otel.report import findings, idle
from dask_otel.report.advice import advice
from dask_otel.report.document import Report
from dask_otel.report.meanings import MEANINGS, colour_of, hex_colour, part_of
from dask_otel.report.money import bill
from dask_otel.report.seconds import by_root, flow, span_times
from dask_otel.report.telemetry.model import Run
from tests.unit.report_files import (
    SECOND,
    cluster,
    counter,
    level,
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
    closed = report_of(cluster(seconds, capacity=10, excess=1, in_flight=1.5))
    open_ = report_of(cluster(seconds, capacity=9, in_flight=1.5))
    first, second = (found.to_dict()["runs"][0]["time"] for found in (closed, open_))
    assert (first["remainder"], second["remainder"]) == (0, 2)
    assert {part: value for part, value in second["parts"].items() if value} == {
        "Computing": 3, "Idle": 4, "Unused": 2, "Wasted": 0.5,
    }  # fmt: skip


def test_what_was_not_exported_is_absent() -> None:
    """Traces alone say nothing of the cluster; a sum without a part has no remainder."""
    (found,) = report_of(traces(span(1))).to_dict()["runs"]
    absent = {key: found[key] for key in ("time", "idle", "tasks", "workers")}
    assert absent == {"time": None, "idle": None, "tasks": {}, "workers": []}
    (entry,) = found["spans"]
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


def test_metrics_say_it_and_spans_where_there_are_none() -> None:
    own = {"dask.span.activity.time.thread-cpu": 2.0, "dask.span.idle.time": 1.0}
    first = traces(span(1, "etl/load", **own))
    (alone,), (both,) = (
        span_times(run_of(*requests))
        for requests in ((first,), (first, of_span("etl/load", 3.0, thread_cpu=5.0)))
    )
    assert (alone.parts()["Computing"], alone.idle, alone.measured) == (2, 1, False)
    assert (both.parts()["Computing"], both.idle, both.seconds) == (5, 3, 8)


def test_roots_hold_what_is_below_them() -> None:
    run = run_of(of_span("a/x", 1, thread_cpu=2), of_span("a/y", 1), of_span("b", 0, other=4))
    assert {root.name: root.seconds for root in by_root(span_times(run))} == {"a": 4, "b": 4}


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
    assert part_of(activity).title == part
    assert colour_of(activity) == hex_colour(MEANINGS[meaning].colour)


def test_over_time_each_interval_has_its_own_seconds() -> None:
    labels = {"dask.activity": "thread-cpu"}
    counts = [point(total, labels, time=time) for time, total in ((0, 0), (2, 4), (4, 5))]
    threads = [point(total, time=time) for time, total in ((0, 0), (2, 8), (4, 16))]
    found = flow(
        run_of(
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
    seconds: dict[str, float], expected: dict[str, str]
) -> None:
    assert alerts(run_of(cluster(seconds, capacity=sum(seconds.values())))) == expected


@pytest.mark.parametrize(
    ("lost", "recomputed", "severity"), [(0, 0, "note"), (1, 0, "bad"), (0, 1, "bad")]
)
def test_workers_that_left_in_order_have_not_died(
    lost: int, recomputed: int, severity: str
) -> None:
    """A cluster that is closed takes the last heartbeat's seconds with it, and no task."""
    own = {"dask_task_memory_count": 9, "dask_task_lost_count": lost}
    own |= {"dask_task_recomputed_count": recomputed, "dask_span_root_id": "id-1"}
    whole = cluster({"thread-cpu": 60, "lost": 40}, capacity=100)
    found = [one for one in advice(run_of(whole, traces(span(1, "etl", **own)))) if one.alert]
    assert [(one.alert, one.severity, "died" in one.title) for one in found] == [
        ("DaskTimeLost", severity, severity == "bad")
    ]


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
def test_advice_about_a_root(seconds: dict[str, float], expected: set[str]) -> None:
    assert set(alerts(run_of(of_span("etl", 0.0, **seconds)))) == expected


def test_a_root_is_not_advised_about_what_tasks_of_another_waited() -> None:
    run = run_of(of_span("etl", 0.0, thread_cpu=900.0), of_span("io", 0.0, thread_noncpu=100.0))
    assert [*named(run)] == ["io: tasks of f wait, off the CPU: 100%"]


def test_cancelled_seconds_of_rescheduled_runs_are_no_trouble() -> None:
    count = {"dask_task_rescheduled_count": 4, "dask_task_cancelled_count": 0}
    run = run_of(traces(span(1, "etl", **count)), of_span("etl", 0, cancelled=100))
    (one,) = [one for one in advice(run) if one.alert == "DaskWorkWasted"]
    assert "asked to run elsewhere" in one.advice


def test_the_task_that_everybody_waited_for_is_named() -> None:
    group, task = grouped(2, 0, 10, count=11)
    task["endTimeUnixNano"] = str(int(task["startTimeUnixNano"]) + 9 * SECOND)
    run = run_of(traces(span(1, "etl", seconds=10), group, task))
    found = [(one.span, one.task.seconds, one.average) for one in findings.stragglers(run)]
    assert found == [("etl", 9, 0.1)]
    assert "etl: one task of f took 9.00 s" in named(run)


def grouped(number: int, start: float, seconds: float, count: int = 1) -> Any:
    """A group of the span 1, and its slowest task."""
    own = {"dask_span_id": "id-1", "dask.task_group.name": f"f-{number}"}
    sums = {"dask_task_count": count, "dask.task_group.duration.compute": float(seconds)}
    when = {"start": start, "seconds": seconds}
    return (
        span(number, "f tasks", parent=1, kind="group", **when, **own, **sums),
        span(number + 9, "f task", parent=number, kind="task", dask_task_prefix="f", **when, **own),
    )


def named(run: Run) -> dict[str, str]:
    return {one.title: one.advice for one in advice(run)}


@pytest.mark.parametrize(("idle_seconds", "is_named"), [(135.0, True), (20.0, False)])
def test_the_only_task_of_a_span_is_named_where_threads_were_free_meanwhile(
    idle_seconds: float, is_named: bool
) -> None:
    """It said "idle: 75 %", and not why. Where other spans had work, it costs nothing."""
    own = {"dask_span_idle_time": idle_seconds, "dask_span_capacity_time": 180.0}
    whole = {"thread-cpu": 180.0 - idle_seconds, "idle": idle_seconds}
    run = run_of(
        traces(span(1, "etl/rank", seconds=45.5, **own), *grouped(2, 0.5, 44.8)),
        cluster(whole, capacity=180.0),
        of_span("etl/rank", idle_seconds, thread_cpu=180.0 - idle_seconds),
    )
    assert named(run) == (ALONE if is_named else {})


ALONE = {
    "etl/rank: one task of f took 44.8 s": "Its group has no other task; the span took 45.5 s."
    " Split that task, or start it first.",
    "Threads were idle though there was work: 75%": "Most of it passed while one task ran alone,"
    " which is named below.",
}


def unused(*totals: tuple[float, float]) -> dict[str, Any]:
    """Four threads, and the thread-seconds for which nobody had work until some times."""
    labels = {"dask.activity": "unused"}
    return metrics(
        counter("dask.cluster.time", *(point(one, labels, time=time) for time, one in totals)),
        counter("dask.cluster.capacity.time", *(point(4 * t, time=t) for t, _ in totals)),
        level("dask.cluster.thread.count", *(point(4, time=t) for t, _ in totals)),
    )


@pytest.mark.parametrize(
    ("exported", "found"),
    [
        (2, {"etl: no task ran for 6.00 s, from 4.00 s on"}),
        # Not all groups were exported: another one may have run then.
        (3, set()),
    ],
)
def test_a_gap_without_a_task_is_named_with_its_span(exported: int, found: set[str]) -> None:
    roots = {"dask_span_root_id": "id-1", "dask.task_group.count": exported}
    spans = span(1, "etl", seconds=20, **roots), span(9, "etl/load", parent=1, seconds=4)
    run = run_of(traces(*spans, grouped(2, 0.0, 4.0)[0], grouped(3, 10.0, 10.0)[0]))
    assert {title for title in named(run) if "no task ran" in title} == found


def test_a_gap_inside_of_a_group_is_known_by_the_metrics() -> None:
    own = traces(span(1, "etl", seconds=22), grouped(2, 1.0, 20.0)[0])
    run = run_of(own, unused((0, 0), (5, 4), (10, 24), (15, 40), (20, 40), (25, 56)))
    # Four seconds of the first and of the last interval may have been before and after.
    assert "etl: no task ran for 9.00 s, in between" in named(run)


@pytest.mark.parametrize(("grown", "is_named"), [(1e9, True), (1e6, False)])
def test_data_that_is_sent_before_the_first_task_is_named(grown: float, is_named: bool) -> None:
    worker = {"dask.worker.name": "a"}
    sizes = [point(75e6 + grown * (t >= 10), worker, time=t) for t in (5, 10, 15)]
    run = run_of(
        traces(span(1, "etl", start=14, seconds=5), grouped(2, 14.0, 5.0)[0]),
        unused((0, 0), (5, 20), (10, 40), (15, 56), (20, 56)),
        metrics(level("dask.worker.memory.usage", *sizes)),
    )
    said = named(run)["No task ran for 13.0 s, before the first one"]
    assert ("memory grew by 954 MiB" in said, "such as by scatter" in said) == (is_named, is_named)


@pytest.mark.parametrize("has_its_own", [False, True])
def test_work_that_dask_booked_on_another_span_is_said(has_its_own: bool) -> None:
    own = {"dask_span_collision": True, "dask_span_requested_name": "train/epoch 2"}
    spans = span(1, "train"), span(2, "train/epoch 0", parent=1, **own)
    other = [span(3, "train/epoch 2", parent=1)] if has_its_own else []
    (one,) = advice(run_of(traces(*spans, *other)))
    assert one.title.startswith("train/epoch 0 has the work of train/epoch 2 in it")
    assert ("train/epoch 2 has no span of its own" in one.advice) != has_its_own
    assert "key='f_2'" in one.advice


@pytest.mark.parametrize(
    ("tasks", "used", "starved", "said"),
    [
        (239, 3.0, 20.0, "ready to run and had no CPU for 20% of the time"),
        (239, 15.0, 1.0, "not tasks, but large graphs"),
        (239, 3.0, 1.0, "it waited, for the GIL of its process"),
        (90_000, 60.0, 1.0, "submit fewer and longer tasks"),
        (90_000, 60.0, None, "submit fewer and longer tasks"),
        (239, None, None, "do not explain it"),
    ],
)
def test_why_the_event_loop_was_blocked(
    tasks: int, used: float | None, starved: float | None, said: str
) -> None:
    """17 % of the time: few tasks on a starved machine are none too many."""
    role = {"dask.process.role": "scheduler"}
    known = {"blocked": 17.0, "cpu": used, "starved": starved}
    run = run_of(
        cluster({"thread-cpu": 400.0}, capacity=400.0),
        metrics(
            counter("dask.task.finished", point(tasks, {"dask.task.outcome": "memory"}, time=100)),
            *(
                counter(f"dask.event_loop.{name}.time", point(value, role, time=100))
                for name, value in known.items()
                if value is not None
            ),
        ),
    )
    found = named(run)["The scheduler's event loop was blocked: 17%"]
    assert said in found
    assert ("fewer" in found) == (tasks > 1000)


@pytest.mark.parametrize(
    ("threads", "share", "samples", "said"),
    [
        (4, 0.25, 9, "1.0 cores while it ran 4.0 tasks: the GIL is likely."),
        (4, 0.01, 9, "0.0 cores while it ran 4.0 tasks: they waited for I/O"),
        (4, 0.9, 9, "3.6 cores while it ran 4.0 tasks: they waited for I/O"),
        (4, 0.25, 2, "too few samples"),
        (1, 0.25, 9, "not the GIL: each process has one thread."),
    ],
)
def test_the_gil_is_told_from_other_waits(
    threads: int, share: float, samples: int, said: str
) -> None:
    worker = {"dask.worker.name": "a"}
    executing = {**worker, "dask.task.state": "executing"}
    times = range(1, samples + 1)
    run = run_of(
        of_span("etl", 0.0, thread_cpu=20.0, thread_noncpu=80.0),
        metrics(
            # What is there at the end has no thread any more.
            level(
                "dask.worker.thread.count",
                *(point(threads, worker, time=t) for t in times),
                point(0, worker, time=99),
            ),
            level("dask.worker.cpu.utilization", *(point(share, worker, time=t) for t in times)),
            level("dask.worker.task.count", *(point(threads, executing, time=t) for t in times)),
        ),
    )
    (found,) = [one.advice for one in advice(run) if one.alert == "DaskThreadsWait"]
    assert said in found


def test_a_failure_is_counted_once_with_its_task() -> None:
    event = ("exception", {"exception.type": "ValueError", "dask.task.key": "f-1"})
    owner = {"dask_span_id": "id-1"}
    run = run_of(
        traces(
            span(1, "etl", failed=True, events=(event,)),
            span(2, kind="task", failed=True, events=(event,), dask_task_key="f-1", **owner),
        ),
    )
    (failure,) = findings.failures(run)
    assert (failure.kind, failure.span, failure.count) == ("ValueError", "etl", 1)


def test_why_runs_were_repeated_is_counted_by_what_they_said() -> None:
    def repeated(message: str) -> tuple[str, dict[str, str]]:
        said = {"exception.type": "OSError", "exception.message": message}
        return "dask.task.retried", {"dask.task.key": "f-1", **said}

    final = ("exception", {"exception.type": "OSError", "dask.task.key": "f-1"})
    lost = ("dask.task.retried", {"dask.task.key": "f-2", "dask.task.retry.reason": "worker_lost"})
    events = (*[repeated("503 Slow Down")] * 8, lost, repeated("reset"), final)
    run = run_of(traces(span(1, "etl", failed=True, events=events)))
    found = [(one.message, one.count, one.repeated) for one in findings.failures(run)]
    assert found == [("", 1, False), ("503 Slow Down", 8, True), ("reset", 1, True)]
    assert "\n  OSError: 503 Slow Down x 8, repeated\n" in Report([run]).text()


def test_idle_is_explained_by_what_could_have_run() -> None:
    times = range(8)
    idle_seconds = {"dask.activity": "idle"}
    run = run_of(
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
    assert {one["name"]: one["cost"] for one in costs["roots"]} == {"etl": 0.5, "other": 0.25}
    assert {one["name"]: one["idle_cost"] for one in costs["tags"]} == {"acme": 0.25, "": 0.0}
    assert bill(found.runs[0], "owner").tags == []


def test_text_and_json_are_what_they_should_be() -> None:
    hostile = traces(span(1, "etl\x1b[31m", failed=True, dask_span_result="failure"))
    found = report_of(hostile, cluster({"thread-cpu": 1.0}, capacity=1.0))
    text = found.text(width=80)
    assert [piece in text for piece in ("etl?[31m", "Computing", "\x1b")] == [True, True, False]
    assert all(len(line) <= 80 for line in text.splitlines())
    assert found.text(ascii_only=True).isascii()
    json.dumps(found.to_dict(), allow_nan=False)
    # The sum closes to the last bit but one: that is no negative zero.
    almost = report_of(cluster({"thread-cpu": 1.0}, capacity=1.0 + 1e-12))
    assert "remainder 0.000000 s" in almost.text()
