"""What the report says in numbers and words: sums that close, limits of the alerts, costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dask_otel.report import findings, idle, words
from dask_otel.report.advice import advice
from dask_otel.report.compare import compare
from dask_otel.report.document import Report, read_report
from dask_otel.report.meanings import part_of
from dask_otel.report.money import bill
from dask_otel.report.seconds import by_root, cluster_time, flow, span_times
from dask_otel.report.telemetry.model import Run
from dask_otel.report.text import _failures
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


def grouped(number: int, start: float, seconds: float, count: int = 1, **more: Any) -> Any:
    """A group of the span 1, and its slowest task."""
    owner = {"dask_span_id": "id-1", **more}
    group = span(number, "f tasks", parent=1, kind="group", start=start, seconds=seconds, **owner)
    group["attributes"] += [
        {"key": "dask.task.count", "value": {"intValue": str(count)}},
        {"key": "dask.task_group.duration.compute", "value": {"doubleValue": seconds}},
        {"key": "dask.task_group.name", "value": {"stringValue": f"f-{number}"}},
    ]
    task = span(number + 100, "f task", parent=number, kind="task", start=start, seconds=seconds,
                dask_task_prefix="f", **owner)  # fmt: skip
    task["attributes"] += [{"key": "dask.task_group.name", "value": {"stringValue": f"f-{number}"}}]
    return group, task


def named(run: Run) -> dict[str, str]:
    return {one.title: one.advice for one in advice(run)}


def test_the_only_task_of_a_span_is_named_where_threads_were_free_meanwhile(
    tmp_path: Path,
) -> None:
    """It said "idle: 75 %", and not why."""

    def advice_with(idle_seconds: float) -> dict[str, str]:
        own = {"dask_span_idle.time": idle_seconds, "dask_span_capacity.time": 180.0}
        requests = traces(span(1, "etl/rank", seconds=45.5, **own), *grouped(2, 0.5, 44.8))
        whole = {"thread-cpu": 180.0 - idle_seconds, "idle": idle_seconds}
        of = of_span("etl/rank", idle_seconds, thread_cpu=180.0 - idle_seconds)
        return named(run_of(tmp_path, requests, cluster(whole, capacity=180.0), of))

    found = advice_with(135.0)
    assert found["etl/rank: one task of f took 44.8 s"].startswith("It had no other, and the span")
    assert not [title for title in found if title.startswith("etl/rank: idle")]
    (said,) = [say for title, say in found.items() if title.startswith("Threads were idle")]
    assert said == "Most of it while one task ran alone: it is named below."
    # Where other spans had work for the threads it cost nothing.
    assert not [title for title in advice_with(20.0) if "one task" in title]


def unused(*totals: tuple[float, float]) -> dict[str, Any]:
    """Four threads, and the thread-seconds for which nobody had work until some times."""
    labels = {"dask.activity": "unused"}
    return metrics(
        counter("dask.cluster.time", *(point(one, labels, time=time) for time, one in totals)),
        counter("dask.cluster.capacity.time", *(point(4 * t, time=t) for t, _ in totals)),
        level("dask.cluster.thread.count", *(point(4, time=t) for t, _ in totals)),
    )


def test_a_gap_without_a_task_is_named_with_its_span(tmp_path: Path) -> None:
    roots = {"dask_span_root_id": "id-1", "dask_task_group.count": 2}
    one, two = span(1, "etl", seconds=20, **roots), span(9, "etl/load", parent=1, seconds=4)
    groups = grouped(2, 0.0, 4.0)[0], grouped(3, 10.0, 10.0)[0]
    run = run_of(tmp_path, traces(one, two, *groups))
    (gap,) = findings.gaps(run)
    assert (gap.span, gap.seconds, gap.after) == ("etl", 6.0, 4.0)
    assert "etl: no task ran for 6.00 s, from 4.00 s on" in named(run)
    # Not all groups were exported: another one may have run then.
    assert findings.gaps(run_of(tmp_path, traces(one, two, groups[0]))) == []


def test_a_gap_inside_of_a_group_is_known_by_the_metrics(tmp_path: Path) -> None:
    own = traces(span(1, "etl", seconds=22), grouped(2, 1.0, 20.0)[0])
    run = run_of(tmp_path, own, unused((0, 0), (5, 4), (10, 24), (15, 40), (20, 40), (25, 56)))
    # Four seconds of the first and of the last interval may have been before and after.
    (gap,) = findings.gaps(run)
    assert (gap.span, gap.seconds, gap.after) == ("etl", 9.0, None)
    assert "etl: no task ran for 9.00 s, in between" in named(run)


def test_data_that_is_sent_before_the_first_task_is_named(tmp_path: Path) -> None:
    def after(grown: float) -> str:
        memory = [point(75e6 + grown * (t >= 10), {"dask.worker.name": "a"}, time=t)
                  for t in (5, 10, 15)]  # fmt: skip
        own = traces(span(1, "etl", start=14, seconds=5), grouped(2, 14.0, 5.0)[0])
        whole = unused((0, 0), (5, 20), (10, 40), (15, 56), (20, 56))
        run = run_of(tmp_path, own, whole, metrics(level("dask.worker.memory.usage", *memory)))
        return named(run)["No task ran for 13.0 s, before the first one"]

    assert "the workers' memory grew by 954 MiB" in after(1e9)
    assert "such as by scatter" in after(1e9)
    assert "memory" not in after(1e6)


def test_work_that_dask_booked_on_another_span_is_said(tmp_path: Path) -> None:
    own = {"dask_span_collision": True}
    epoch = span(2, "train/epoch 0", parent=1, **own)
    epoch["attributes"] += [
        {"key": "dask.span.requested.name", "value": {"stringValue": "train/epoch 2"}}
    ]
    run = run_of(tmp_path, traces(span(1, "train"), epoch))
    (one,) = advice(run)
    assert one.title.startswith("train/epoch 0 has the work of train/epoch 2 in it")
    assert "train/epoch 2 has no span of its own" in one.advice
    assert "key='f_2'" in one.advice
    there = run_of(tmp_path, traces(span(1, "train"), epoch, span(3, "train/epoch 2", parent=1)))
    assert [("no span of its own" in one.advice) for one in advice(there)] == [False]


@pytest.mark.parametrize(
    ("tasks", "used", "starved", "said"),
    [
        (239, 3.0, 20.0, "ready to run and had no CPU for 20% of the time"),
        (239, 15.0, 1.0, "not tasks, but large graphs"),
        (239, 3.0, 1.0, "it waited, for the GIL of its process"),
        (90_000, 60.0, 1.0, "submit fewer and longer tasks"),
        (90_000, 60.0, None, "submit fewer and longer tasks"),
        (239, None, None, "do not explain that"),
    ],
)
def test_why_the_event_loop_was_blocked(
    tmp_path: Path, tasks: int, used: float | None, starved: float | None, said: str
) -> None:
    """17 % of the time: few tasks on a starved machine are none too many."""
    role = {"dask.process.role": "scheduler"}
    known = {"blocked": 17.0, "cpu": used, "starved": starved}
    run = run_of(
        tmp_path,
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
        (1, 0.25, 9, "Not for the GIL: each process has one thread."),
    ],
)
def test_the_gil_is_told_from_other_waits(
    tmp_path: Path, threads: int, share: float, samples: int, said: str
) -> None:
    worker = {"dask.worker.name": "a"}
    executing = {**worker, "dask.task.state": "executing"}
    times = range(1, samples + 1)
    run = run_of(
        tmp_path,
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


def test_why_runs_were_repeated_is_counted_by_what_they_said(tmp_path: Path) -> None:
    def repeated(message: str) -> tuple[str, dict[str, str]]:
        said = {"exception.type": "OSError", "exception.message": message}
        return "dask.task.retried", {"dask.task.key": "f-1", **said}

    final = ("exception", {"exception.type": "OSError", "dask.task.key": "f-1"})
    lost = ("dask.task.retried", {"dask.task.key": "f-2", "dask.task.retry.reason": "worker_lost"})
    events = (*[repeated("503 Slow Down")] * 8, lost, repeated("reset"), final)
    run = run_of(tmp_path, traces(span(1, "etl", failed=True, events=events)))
    found = [(one.message, one.count, one.repeated) for one in findings.failures(run)]
    assert found == [("", 1, False), ("503 Slow Down", 8, True), ("reset", 1, True)]
    assert "  OSError: 503 Slow Down x 8, repeated" in _failures(run, 100, words.ASCII)


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
        traces(span(1, "a"), span(2, "b", seconds=2), span(4, "gone")),
        of_span("a", 1.0, thread_cpu=1.0),
    ).runs
    (after,) = report(
        tmp_path,
        traces(span(1, "a", seconds=2), span(2, "b", seconds=1), span(4, "new")),
        of_span("a", 1.0, thread_cpu=1.5),
    ).runs
    found = compare([before], [after])
    assert (found.before, found.after) == ("A (1 run)", "B (1 run)")
    assert {one.name: one.cells() for one in found.names} == {
        # Nothing is known of the others' thread-time: it is not 0.
        "a": ["1.00 s", "2.00 s", "2.00 s", "2.50 s"],
        "b": ["2.00 s", "1.00 s", "", ""],
        "gone": ["1.00 s", "", "", ""],
        "new": ["", "1.00 s", "", ""],
    }
    (a,) = [one for one in found.names if one.name == "a"]
    assert a.changes() == [("Computing", 0.5)]


def of_function(**functions: tuple[int, float]) -> dict[str, Any]:
    """How many tasks of each function ended, and their thread-seconds."""
    name = {"dask.span.name": "etl", "dask.span.root.name": "etl"}
    every = {
        key: {**name, "dask.task.prefix": key, "dask.activity": "thread-noncpu"}
        for key in functions
    }
    return metrics(
        counter("dask.task.finished", *(point(functions[key][0], every[key]) for key in functions)),
        counter(
            "dask.span.execute.time", *(point(functions[key][1], every[key]) for key in functions)
        ),
    )


def test_a_slower_function_is_found_though_the_run_was_shorter(tmp_path: Path) -> None:
    """Wall time is beside it: what else the machine did decides it as much."""
    before = traces(span(1, "etl", seconds=13)), of_function(load=(40, 4.0), clean=(40, 2.0))
    after = traces(span(1, "etl", seconds=11)), of_function(load=(40, 3.9), clean=(40, 6.0))
    first, second = report(tmp_path, *before), report(tmp_path, *after)
    clean, load = compare(first.runs, second.runs).functions
    assert (clean.name, clean.tasks, clean.change) == ("clean", (40, 40), 4.0)
    assert clean.each == [0.05, pytest.approx(0.15)]
    assert clean.cells() == ["40", "40", "50 ms", "150 ms", "+4.00 s"]
    assert load.cells()[-1] == "-100 ms"
    compared = second.compared_with(first)
    everything = compared.text() + json.dumps(compared.to_dict())
    assert not [word for word in ("slower", "faster", "same", "verdict") if word in everything]


def test_runs_of_one_side_are_averaged(tmp_path: Path) -> None:
    """Two runs that are each like the other side's are no different."""
    one = (
        traces(span(1, "etl", seconds=2)),
        of_function(load=(4, 8.0)),
        cluster({"thread-cpu": 8.0, "idle": 2.0}, capacity=10.0),
    )
    single = report(tmp_path, *one)
    again = json.loads(json.dumps(one).replace("Scheduler-1", "Scheduler-2"))
    for request in again:
        for entry in request.get("resourceSpans", ()):
            entry["scopeSpans"][0]["spans"][0]["spanId"] = f"{77:016x}"
    both = report(tmp_path, *one, *again)
    assert len(both.runs) == 2
    found = compare(single.runs, both.runs)
    assert found.after == "B (2 runs)"
    for row in (found.whole, *found.names):
        lasted, lasted_after, seconds, seconds_after = row.cells()
        assert (lasted, seconds) == (lasted_after, seconds_after)
        assert row.changes() == []
    assert [one.cells() for one in found.functions] == [["4", "4", "2.00 s", "2.00 s", "+0 s"]]


def test_traces_alone_compare_by_their_groups(tmp_path: Path) -> None:
    def run_with(seconds: float) -> Run:
        group = span(2, "f tasks", parent=1, kind="group", dask_task_prefix="f")
        group["attributes"] += [
            {"key": "dask.task.count", "value": {"intValue": "4"}},
            {"key": "dask.task_group.duration.compute", "value": {"doubleValue": seconds}},
        ]
        return run_of(tmp_path, traces(span(1, "etl"), group))

    (found,) = compare([run_with(2.0)], [run_with(4.0)]).functions
    assert found.cells() == ["4", "4", "500 ms", "1.00 s", "+2.00 s"]


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
    # The sum closes to the last bit but one: that is no negative zero.
    almost = cluster({"thread-cpu": 1.0}, capacity=1.0 + 1e-12)
    shown = report(tmp_path, almost)
    assert "remainder 0.000000 s" in shown.text()
    assert found.text(ascii_only=True).isascii()
