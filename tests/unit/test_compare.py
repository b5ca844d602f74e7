"""What two groups of runs differ by: functions, sums that close, and verdicts."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from dask_otel.report.document import Report
from dask_otel.report.history.difference import apart, compare, difference
from dask_otel.report.history.past import PastRun, ended, total
from tests.unit.history_files import etl
from tests.unit.report_files import counter, metrics, point, report_of, run_of, span, traces


def runs(*requests: Any) -> list[PastRun]:
    return [one for run in report_of(*requests).runs for one in ended(run, "")]


def closes(found: Any) -> None:
    """All sums of a difference are the difference that they divide."""
    change = found.seconds[1] - found.seconds[0]
    assert total(found.terms) == pytest.approx(change, abs=1e-9)
    assert sum(found.parts.values()) == pytest.approx(change, abs=1e-9)
    assert total(found.path) == pytest.approx(found.lasted[1] - found.lasted[0], abs=1e-9)


def test_a_slower_function_is_found_though_the_run_was_shorter() -> None:
    """Wall time is beside it: what else the machine did decides it as much."""
    before = report_of(etl(seconds=13, load=(40, 4.0), clean=(40, 2.0)))
    after = report_of(etl(seconds=11, load=(40, 3.9), clean=(40, 6.0)))
    (found,) = compare(before.runs, after.runs).names
    clean, load = found.functions
    assert (clean.name, clean.tasks, clean.change) == ("clean", (40, 40), 4.0)
    assert clean.each == [0.05, pytest.approx(0.15)]
    assert clean.cells() == ["40", "40", "50 ms", "150 ms", "+4.00 s", ""]
    assert load.cells()[4] == "-100 ms"
    closes(found)
    # One run of each is too few: nothing is called slower, and it says so.
    compared = after.compared_with(before)
    text = compared.text(160) + json.dumps(compared.to_dict()) + compared.html()
    assert text.count("nothing is called slower or faster") == 3
    assert "+4.00 s in clean, -100 ms in load" in text


def test_with_three_runs_a_side_a_slower_function_is_named_alone() -> None:
    chance = random.Random(5)

    def side(first: int, clean: float) -> Report:
        def near(seconds: float) -> float:
            return seconds * chance.uniform(0.97, 1.03)

        return report_of(
            *(
                etl(n, load=(40, near(4.0)), clean=(40, near(clean)))
                for n in range(first, first + 3)
            )
        )

    compared = side(3, 6.0).compared_with(side(0, 2.0))
    plain = compared.to_dict()["comparison"]
    (found,) = plain["names"]
    assert [(one["name"], one["verdict"]) for one in found["functions"]] == [
        ("clean", "slower"),
        ("load", ""),
    ]
    assert found["verdict"] == "slower"
    assert plain["after"] == "B (3 runs)"
    least, most = found["functions"][0]["spreads"][1]
    assert 0.14 < least < most < 0.16
    assert "a task took 4" in compared.text(160)


@pytest.mark.parametrize("count", [3, 4, 5, 8, 20])
@pytest.mark.parametrize("noise", [0.02, 0.5])
def test_chance_seldom_gives_a_verdict(count: int, noise: float) -> None:
    """Of 1,000 equal functions, at most 16 get one."""
    chance = random.Random(11)

    def drawn() -> list[float]:
        return [chance.lognormvariate(0.0, noise) for _ in range(count)]

    assert sum(bool(apart(drawn(), drawn(), fewest=3)) for _ in range(5_000)) <= 80


def test_equal_runs_give_no_verdict() -> None:
    one = [etl(n, load=(40, 4.0)) for n in range(3)]
    again = [etl(n, load=(40, 4.0)) for n in range(3, 6)]
    (found,) = compare(report_of(*one).runs, report_of(*again).runs).names
    assert [*found.lines()] == [
        "3 and 3 runs; lasted 10.0 s, then 10.0 s (+0%); thread-time 5.30 s, then 5.30 s (+0%)",
    ]
    assert found.functions[0].cells()[-2:] == ["+0 s", ""]


@pytest.mark.parametrize(
    ("after", "verdict", "more"),
    [
        ((80, 8.0), "more work", 4.0),
        ((20, 2.0), "less work", -2.0),
        ((40, 4.0), "", 0.0),
        ((40, 6.0), "slower", 0.0),
        ((40, 3.0), "faster", 0.0),
        ((80, 16.0), "slower and more work", 6.0),
        # Twice the bytes in as many tasks.
        ((40, 8.0, 800), "more work", 4.0),
        ((40, 16.0, 800), "slower and more work", 6.0),
        ((40, 4.0, 800), "", 0.0),
    ],
)
def test_more_work_is_not_slower(after: tuple[float, ...], verdict: str, more: float) -> None:
    before = runs(*(etl(n, load=(40, 4.0, 400)) for n in range(3)))
    later = runs(*(etl(n, load=(*after, after[0] * 10)[:3]) for n in range(3)))
    found = difference(before, later)
    (load,) = found.functions
    assert (load.verdict, load.more_work) == (verdict, pytest.approx(more))
    assert found.more_work == pytest.approx(load.more_work)
    closes(found)
    if verdict == "more work":
        assert found.verdict_of(found.apart) == verdict
    # One run of each suffices to see more tasks.
    single = difference(before[:1], later[:1]).functions[0]
    assert single.verdict == verdict.removeprefix("slower and ").replace("slower", "").replace(
        "faster", ""
    )


def test_metrics_divide_the_time_of_a_function_into_activities() -> None:
    labels = {"dask.span.name": "etl", "dask.span.root.name": "etl"}

    def measured(noncpu: float, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        of = {"dask.span.activity.time.thread-cpu": 3.0, "dask.span.root.id": "id-1"}
        of |= {"dask.span.activity.time.thread-noncpu": noncpu, "dask.span.idle.time": 1.0}
        of |= {"dask.span.capacity.time": 4.0 + noncpu, "dask.task.count": 4}
        seconds = (("read", "thread-noncpu", noncpu), ("read", "thread-cpu", 1.0))
        points = [
            point(value, {**labels, "dask.task.prefix": prefix, "dask.activity": activity})
            for prefix, activity, value in (*seconds, ("sum", "thread-cpu", 2.0))
        ]
        moved = point(2048, {**labels, "dask.task.prefix": "sum", "dask.activity": "memory-read"})
        read = counter("dask.task.finished", point(4, {**labels, "dask.task.prefix": "read"}))
        io = counter("dask.span.execute.io", moved)
        where = {"instance": f"Scheduler-{number}"}
        root = span(1, "etl", start=60 * number, **of)
        root["traceId"] = f"{number:032x}"
        return traces(root, **where), metrics(
            counter("dask.span.execute.time", *points), read, io, **where
        )

    (before,), (after,) = (runs(*measured(seconds, n)) for n, seconds in enumerate((2.0, 9.0)))
    assert before.functions == {
        "read": {"thread-noncpu": 2.0, "thread-cpu": 1.0},
        "sum": {"thread-cpu": 2.0},
        "": {"idle": 1.0},
    }
    assert (before.moved, before.work) == ({"memory-read": 2048.0}, {"read": {"tasks": 4.0}})
    found = difference([before], [after])
    assert "the thread-time: +7.00 s thread-noncpu of read" in [*found.lines()]
    # Metrics of one name are of all its runs: two in a session can't be divided.
    two = runs(
        *measured(2.0, 0),
        *measured(9.0, 0)[:1],
        traces(span(9, "etl", **{"dask.span.root.id": "id-9"}), instance="Scheduler-0"),
    )
    assert [run.moved for run in two] == [{}, {}]
    # Metrics that the spans contradict are not used.
    assert runs(measured(2.0, 0)[0], measured(9.0, 0)[1])[0].functions == {
        "": {"": 5.0, "idle": 1.0}
    }


def test_runs_in_different_detail_are_compared_in_what_both_have() -> None:
    coarse = runs(etl(0, load=(40, 4.0)))
    fine = [
        coarse[0].__class__(
            **{
                **vars(coarse[0]),
                "functions": {
                    "load": {"thread-cpu": 5.0, "executor": 0.2},
                    "": {"thread-cpu": 0.1, "idle": 1.0},
                },
                "thread_seconds": 6.3,
                "parts": {"Computing": 5.1, "Other": 0.2, "Idle": 1.0},
            }
        )
    ]
    found = difference(coarse, fine)
    assert found.terms["load"] == {"": 1.0}
    closes(found)


def test_names_of_one_side_and_other_versions() -> None:
    before = traces(
        span(1, "a", dask_span_root_id="id-1"), span(4, "gone", dask_span_root_id="id-4")
    )
    after = json.loads(json.dumps(before).replace("gone", "new").replace("2026.8.0", "2026.9.0"))
    compared = report_of(after).compared_with(report_of(before))
    assert compared.comparison is not None
    found = {one.name: [*one.lines()] for one in compared.comparison.names}
    assert found["gone"] == ["1 and 0 runs: only one side has it"]
    assert found["new"] == ["0 and 1 runs: only one side has it"]
    assert found["a"][-1] == "distributed: 2026.8.0 before, 2026.9.0 after"
    # Nothing is known of their thread-time: it is not 0.
    (a, gone, _) = compared.comparison.names
    assert [one.cells() for one in (a.steps[0], gone.steps[0])] == [
        ["1.00 s", "1.00 s", "", ""],
        ["1.00 s", "", "", ""],
    ]
    assert "only one side has it" in compared.text()


def test_runs_of_one_side_are_averaged() -> None:
    single = report_of(etl(0, load=(4, 8.0)))
    both = report_of(etl(1, load=(4, 7.0)), etl(2, load=(4, 9.0)))
    (found,) = compare(single.runs, both.runs).names
    assert found.runs == (1, 2)
    assert found.seconds[0] == pytest.approx(found.seconds[1])
    assert found.functions[0].cells() == ["4", "4", "2.00 s", "2.00 s", "+0 s", ""]
    assert run_of(etl(0)).roots()


def test_more_work_does_not_hide_a_slower_function() -> None:
    before = runs(*(etl(n, load=(40, 4.0), clean=(40, 2.0)) for n in range(3)))
    both = runs(*(etl(n, load=(80, 8.0), clean=(40, 6.0)) for n in range(3)))
    mostly = runs(*(etl(n, load=(80, 8.0), clean=(40, 2.2)) for n in range(3)))
    found = difference(before, both)
    assert found.verdict_of(found.apart) == "slower and more work"
    assert [(one.name, one.verdict) for one in found.functions] == [
        ("load", "more work"),
        ("clean", "slower"),
    ]
    assert difference(before, mostly).verdict_of(1) == "more work"
    # Overhead that grew with the tasks is more work, too; what did not grow is none.
    idle = runs(*(etl(n, idle=2.0, load=(80, 8.0), clean=(40, 2.0)) for n in range(3)))
    assert difference(before, idle).more_work == pytest.approx(
        4.0 + 40 * (1.3 / 80 + 2.3 / 120) / 2
    )
    # Another direction is another reason.
    assert difference(before, both).verdict_of(-1) == "faster"
    # Without functions, all tasks are one.
    bare = [[replace(run, functions={}, work={}) for run in side] for side in (before, both)]
    assert difference(*bare).verdict_of(1) == "slower and more work"


def test_a_summary_that_counts_no_span_has_no_mean() -> None:
    (run,) = runs(etl(0, load=(40, 4.0, 400)))
    run = replace(run, steps={"etl": replace(run.steps["etl"], count=0.0)})
    (step,) = difference([run], [run]).steps
    assert step.lasted == (None, None)
