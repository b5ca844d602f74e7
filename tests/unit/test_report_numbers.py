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
    parts = {"Computing": 3, "Idle": 4, "Unused": 2, "Wasted": 0.5}
    for capacity, excess, remainder in ((10, 1, 0), (9, 0, 2)):
        report = report_of(cluster(seconds, capacity=capacity, excess=excess, in_flight=1.5))
        time = report.to_dict()["runs"][0]["time"]
        shown = {part: value for part, value in time["parts"].items() if value}
        assert (shown, time["remainder"]) == (parts, remainder)


def test_what_was_not_exported_is_absent() -> None:
    """Traces alone say nothing of the cluster; a sum without a part has no remainder."""
    (found,) = report_of(traces(span(1))).to_dict()["runs"]
    expected = {"time": None, "idle": None, "tasks": {}, "workers": []}
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


@pytest.mark.parametrize(
    ("measured", "found"), [([], (2, 1, 3, False)), ([("etl/load", 3.0, 5.0)], (5, 3, 8, True))]
)
def test_metrics_say_it_and_spans_where_there_are_none(measured: Any, found: Any) -> None:
    own = {"dask.span.activity.time.thread-cpu": 2.0, "dask.span.idle.time": 1.0}
    series = [of_span(name, idle, thread_cpu=cpu) for name, idle, cpu in measured]
    (one,) = span_times(run_of(traces(span(1, "etl/load", **own)), *series))
    assert (one.parts()["Computing"], one.idle, one.seconds, one.measured) == found
    (root,) = by_root([one])
    assert (root.name, root.seconds) == ("etl", one.seconds)


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
    found: Any = flow(run_of(metrics(*both)))
    assert (found.parts["Computing"], found.threads) == ([2, 0.5], [4, 4])


# -------------------------------------------------------------------------------- advice


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
def of_cluster(**seconds: float) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in seconds.items()}
    return cluster(named, capacity=sum(seconds.values()))


def lost(lost: int, recomputed: int) -> list[dict[str, Any]]:
    """A cluster that is closed takes the last heartbeat's seconds with it, and no task."""
    own = {"dask_task_memory_count": 9, "dask_task_lost_count": lost}
    own |= {"dask_task_recomputed_count": recomputed, "dask_span_root_id": "id-1"}
    return [of_cluster(thread_cpu=60, lost=40), traces(span(1, "etl", **own))]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([of_cluster(thread_cpu=490, idle=510)], {"DaskClusterIdle": "warning"}),
        ([of_cluster(thread_cpu=510, idle=490)], {}),
        ([of_cluster(thread_cpu=4.9, idle=5.1)], {"DaskClusterIdle": "note"}),
        # Without unused time, as the alert.
        ([of_cluster(thread_cpu=490, idle=510, unused=5000)], {"DaskClusterIdle": "warning"}),
        ([of_cluster(thread_cpu=40, unused=960)], {"DaskClusterUnused": "warning"}),
        ([of_cluster(thread_cpu=60, unused=940)], {}),
        ([of_cluster(thread_cpu=94, lost=6)], {"DaskTimeLost": "bad"}),
        ([of_cluster(thread_cpu=96, lost=4)], {}),
        (lost(0, 0), {"DaskTimeLost": "note"}),
        (lost(1, 0), {"DaskTimeLost": "bad"}),
        (lost(0, 1), {"DaskTimeLost": "bad"}),
        ([of_span("etl", 0.0, thread_cpu=89, failed=11)], {"DaskWorkWasted": "warning"}),
        ([of_span("etl", 0.0, thread_cpu=91, failed=9)], {}),
        ([of_span("etl", 0.0, thread_cpu=89, disk_read=11)], {"DaskSpilling": "warning"}),
        ([of_span("etl", 0.0, thread_cpu=49, thread_noncpu=51)], {"DaskThreadsWait": "note"}),
        ([of_span("etl", 0.0, thread_cpu=51, thread_noncpu=49)], {}),
    ],
)
def test_advice_begins_where_an_alert_would(
    requests: list[dict[str, Any]], expected: dict[str, str]
) -> None:
    found = [one for one in advice(run_of(*requests)) if one.alert]
    assert {one.alert: one.severity for one in found} == expected
    died = [one for one in found if "died" in one.title]
    assert [one.severity for one in died] == ["bad"] * ("bad" in expected.values())


def grouped(number: int, start: float, seconds: float, count: int = 1) -> Any:
    """A group of the span 1, and its slowest task."""
    own = {"dask_span_id": "id-1", "dask.task_group.name": f"f-{number}"}
    sums = {"dask_task_count": count, "dask.task_group.duration.compute": float(seconds)}
    when = {"start": start, "seconds": seconds}
    return (
        span(number, "f tasks", parent=1, kind="group", **when, **own, **sums),
        span(number + 9, "f task", parent=number, kind="task", dask_task_prefix="f", **when, **own),
    )


def straggler() -> dict[str, Any]:
    group, task = grouped(2, 0, 10, count=11)
    task["endTimeUnixNano"] = str(int(task["startTimeUnixNano"]) + 9 * SECOND)
    return traces(span(1, "etl", seconds=10), group, task)


def test_the_task_that_everybody_waited_for_is_named() -> None:
    found = [
        (one.span, one.task.seconds, one.average)
        for one in findings.stragglers(run_of(straggler()))
    ]
    assert found == [("etl", 9, 0.1)]


@pytest.mark.parametrize(("idle_seconds", "is_named"), [(135.0, True), (20.0, False)])
def alone(idle_seconds: float) -> list[dict[str, Any]]:
    """The only task of a span; threads are free meanwhile."""
    own = {"dask_span_idle_time": idle_seconds, "dask_span_capacity_time": 180.0}
    return [
        traces(span(1, "etl/rank", seconds=45.5, **own), *grouped(2, 0.5, 44.8)),
        of_cluster(thread_cpu=180.0 - idle_seconds, idle=idle_seconds),
        of_span("etl/rank", idle_seconds, thread_cpu=180.0 - idle_seconds),
    ]


def gap(exported: int) -> list[dict[str, Any]]:
    roots = {"dask_span_root_id": "id-1", "dask.task_group.count": exported}
    spans = span(1, "etl", seconds=20, **roots), span(9, "etl/load", parent=1, seconds=4)
    return [traces(*spans, grouped(2, 0.0, 4.0)[0], grouped(3, 10.0, 10.0)[0])]


def unused(*totals: tuple[float, float]) -> dict[str, Any]:
    """Four threads, and the thread-seconds for which nobody had work until some times."""
    labels = {"dask.activity": "unused"}
    return metrics(
        counter("dask.cluster.time", *(point(one, labels, time=time) for time, one in totals)),
        counter("dask.cluster.capacity.time", *(point(4 * t, time=t) for t, _ in totals)),
        level("dask.cluster.thread.count", *(point(4, time=t) for t, _ in totals)),
    )


def scattered(grown: float) -> list[dict[str, Any]]:
    worker = {"dask.worker.name": "a"}
    sizes = [point(75e6 + grown * (t >= 10), worker, time=t) for t in (5, 10, 15)]
    return [
        traces(span(1, "etl", start=14, seconds=5), grouped(2, 14.0, 5.0)[0]),
        unused((0, 0), (5, 20), (10, 40), (15, 56), (20, 56)),
        metrics(level("dask.worker.memory.usage", *sizes)),
    ]


def collided(*other: dict[str, Any]) -> list[dict[str, Any]]:
    own = {"dask_span_collision": True, "dask_span_requested_name": "train/epoch 2"}
    return [traces(span(1, "train"), span(2, "train/epoch 0", parent=1, **own), *other)]


def blocked(tasks: int, **seconds: float) -> list[dict[str, Any]]:
    """The event loop was blocked for 17 % of the time: few tasks on a starved machine are few."""
    role = {"dask.process.role": "scheduler"}
    finished = point(tasks, {"dask.task.outcome": "memory"}, time=100)
    return [
        cluster({"thread-cpu": 400.0}, capacity=400.0),
        metrics(
            counter("dask.task.finished", finished),
            *(
                counter(f"dask.event_loop.{name}.time", point(value, role, time=100))
                for name, value in {"blocked": 17.0, **seconds}.items()
            ),
        ),
    ]


def waits(threads: int, share: float, samples: int) -> list[dict[str, Any]]:
    """Tasks wait off the CPU; their process uses a share of it."""
    worker = {"dask.worker.name": "a"}
    executing = {**worker, "dask.task.state": "executing"}
    times = range(1, samples + 1)
    # A worker that is there at the end has no thread any more.
    counts = [*(point(threads, worker, time=t) for t in times), point(0, worker, time=99)]
    used = [point(share, worker, time=t) for t in times]
    return [
        of_span("etl", 0.0, thread_cpu=20.0, thread_noncpu=80.0),
        metrics(
            level("dask.worker.thread.count", *counts),
            level("dask.worker.cpu.utilization", *used),
            level("dask.worker.task.count", *(point(threads, executing, time=t) for t in times)),
        ),
    ]


LOOP = "The scheduler's event loop was blocked: 17%"
WAITING = "etl: tasks of f wait, off the CPU: 80%"
RESCHEDULED = {"dask_task_rescheduled_count": 4, "dask_task_cancelled_count": 0}
EMPTY = "No task ran for 13.0 s, before the first one"
ONE_TASK = "Its group has no other task; the span took 45.5 s. Split that task, or start it first."
#: Telemetry; a title, what its advice says, and what the advice does not say.
ADVICE: list[tuple[list[dict[str, Any]], str, str, str]] = [
    (
        [of_span("etl", 0.0, thread_cpu=900.0), of_span("io", 0.0, thread_noncpu=100.0)],
        "io: tasks of f wait, off the CPU: 100%",
        *("", "\0"),
    ),
    (
        [traces(span(1, "etl", **RESCHEDULED)), of_span("etl", 0, cancelled=100)],
        *("etl: ", "asked to be rescheduled", "\0"),
    ),
    ([straggler()], "etl: one task of f took 9.00 s", "", "\0"),
    # It said "idle: 75 %", and not why. Where other spans had work, it costs nothing.
    (alone(135.0), "etl/rank: one task of f took 44.8 s", ONE_TASK, "\0"),
    (alone(135.0), "Threads were idle though there was work: 75%", "named below", "\0"),
    (alone(20.0), "", "", ""),
    (gap(2), "etl: no task ran for 6.00 s, from 4.00 s on", "", "\0"),
    # Not all groups were exported: another one may have run then.
    (gap(3), "", "", ""),
    # Four seconds of the first and of the last interval may have been before and after.
    (
        [
            traces(span(1, "etl", seconds=22), grouped(2, 1.0, 20.0)[0]),
            unused((0, 0), (5, 4), (10, 24), (15, 40), (20, 40), (25, 56)),
        ],
        *("etl: no task ran for 9.00 s, in between", "", "\0"),
    ),
    (scattered(1e9), EMPTY, "memory grew by 954 MiB", "\0"),
    (scattered(1e9), EMPTY, "for example by scatter", "\0"),
    (scattered(1e6), EMPTY, "", "memory grew"),
    (
        collided(),
        "train/epoch 0 includes the work of train/epoch 2",
        *("train/epoch 2 has no span of its own", "\0"),
    ),
    (
        collided(span(3, "train/epoch 2", parent=1)),
        "train/epoch 0 includes the work of train/epoch 2",
        *("key='f_2'", "has no span of its own"),
    ),
    (blocked(239, cpu=3.0, starved=20.0), LOOP, "had no CPU for 20% of the time", "fewer"),
    (blocked(239, cpu=15.0, starved=1.0), LOOP, "not tasks, but large graphs", "fewer"),
    (blocked(239, cpu=3.0, starved=1.0), LOOP, "it waited, for the GIL of its process", "fewer"),
    (blocked(90_000, cpu=60.0, starved=1.0), LOOP, "submit fewer and longer tasks", "\0"),
    (blocked(90_000, cpu=60.0), LOOP, "submit fewer and longer tasks", "\0"),
    (blocked(239), LOOP, "do not explain it", "fewer"),
    (waits(4, 0.25, 9), WAITING, "1.0 cores while it ran 4.0 tasks: the GIL is likely.", "\0"),
    (waits(4, 0.01, 9), WAITING, "0.0 cores while it ran 4.0 tasks: they waited for I/O", "\0"),
    (waits(4, 0.9, 9), WAITING, "3.6 cores while it ran 4.0 tasks: they waited for I/O", "\0"),
    (waits(4, 0.25, 2), WAITING, "too few samples", "\0"),
    (waits(1, 0.25, 9), WAITING, "not the GIL: each process has one thread.", "\0"),
]


@pytest.mark.parametrize(("requests", "title", "said", "unsaid"), ADVICE)
def test_what_is_advised(requests: list[Any], title: str, said: str, unsaid: str) -> None:
    found = {one.title: one.advice for one in advice(run_of(*requests))}
    assert bool(title) or found == {}
    matching = [text for name, text in found.items() if name.startswith(title)]
    assert [(said in text, unsaid in text) for text in matching] == [(True, False)] * bool(title)


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
    assert "\n  OSError: 503 Slow Down x 8, repeated\n" in Report([run]).text(everything=True)


def test_idle_is_explained_by_what_could_have_run() -> None:
    times, processing = range(8), {"dask.task.state": "processing"}
    idle_seconds = [point(2 * t, {"dask.activity": "idle"}, time=t) for t in times]
    tasks = [point(1 if t <= 5 else 9, processing, time=t) for t in times]
    threads = [point(4, time=t) for t in times]
    why: Any = idle.explain(
        run_of(
            metrics(
                counter("dask.cluster.time", *idle_seconds),
                level("dask.cluster.thread.count", *threads),
                level("dask.cluster.task.count", *tasks),
            )
        )
    )
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
