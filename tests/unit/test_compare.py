"""What two groups of runs differ by: functions, sums that close, and verdicts."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any
from unicodedata import east_asian_width

import pytest

from dask_otel.report.history.difference import apart, compare, difference, in_words
from dask_otel.report.history.past import PastRun, ended, total
from tests.unit.history_files import etl
from tests.unit.report_files import counter, metrics, point, report_of, span, traces


def runs(*requests: Any) -> list[PastRun]:
    return [one for run in report_of(*requests).runs for one in ended(run, "")]


def closes(found: Any) -> None:
    """All sums of a difference are the difference that they divide."""
    change, longer = (after - before for before, after in (found.seconds, found.lasted))
    sums = (total(found.terms), sum(found.parts.values()), total(found.path))
    assert sums == pytest.approx((change, change, longer), abs=1e-9)


def test_a_slower_function_is_found_though_the_run_was_shorter() -> None:
    """Wall time is beside it: what else the machine did decides it as much."""
    before = report_of(etl(seconds=13, load=(40, 4.0), clean=(40, 2.0)))
    after = report_of(etl(seconds=11, load=(40, 3.9), clean=(40, 6.0)))
    (found,) = compare(before.runs, after.runs).names
    clean, load = found.functions
    assert (clean.name, clean.cells(), clean.verdict, load.cells()[4]) == (
        *("clean", ["40", "40", "50 ms", "150 ms", "+4.00 s"], ""),
        "-100 ms",
    )
    closes(found)
    # One run of each is too few: nothing is called slower, and it says so.
    compared = after.compared_with(before)
    text = compared.text(160) + json.dumps(compared.to_dict()) + compared.html()
    assert text.count("nothing is called slower or faster") == 3
    assert "+4.00 s in clean, -100 ms in load" in text


@pytest.mark.parametrize("count", [3, 4, 5, 8, 20])
@pytest.mark.parametrize("noise", [0.02, 0.5])
def test_chance_seldom_gives_a_verdict(count: int, noise: float) -> None:
    """Of 1,000 equal functions, at most 16 get one."""
    chance = random.Random(11)

    def drawn() -> list[float]:
        return [chance.lognormvariate(0.0, noise) for _ in range(count)]

    assert sum(bool(apart(drawn(), drawn(), fewest=3)) for _ in range(2_000)) <= 32


def test_equal_runs_give_no_verdict() -> None:
    """Those of one side are averaged."""
    one = report_of(*(etl(n, load=(40, 4.0)) for n in range(3)))
    again = report_of(*(etl(n, load=(40, took)) for n, took in enumerate((3.5, 4.0, 4.5), 3)))
    (found,) = compare(one.runs, again.runs).names
    assert [*found.lines(), *found.functions[0].cells(), found.functions[0].verdict] == [
        "3 and 3 runs; lasted 10.0 s, then 10.0 s (+0%); thread-time 5.30 s, then 5.30 s (+0%)",
        *("40", "40", "100 ms", "100 ms", "+0 s", ""),
    ]


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
    sums = (load.more_work, found.more_work)
    assert (load.verdict, sums) == (verdict, pytest.approx((more, more)))
    closes(found)
    assert verdict != "more work" or found.verdict_of(found.apart) == verdict
    # One run of each suffices to see more tasks.
    single = difference(before[:1], later[:1]).functions[0]
    assert single.verdict == re.sub("slower and |slower|faster", "", verdict)


def measured(noncpu: float, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A run in spans and metrics, whose function read waits for so long."""
    labels = {"dask.span.name": "etl", "dask.span.root.name": "etl"}
    of = {"dask.span.activity.time.thread-cpu": 3.0, "dask.span.root.id": "id-1"}
    of |= {"dask.span.activity.time.thread-noncpu": noncpu, "dask.span.idle.time": 1.0}
    of |= {"dask.span.capacity.time": 4.0 + noncpu, "dask.task.count": 4}
    seconds = (("read", "thread-noncpu", noncpu), ("read", "thread-cpu", 1.0))
    points = [
        point(value, {**labels, "dask.task.prefix": prefix, "dask.activity": activity})
        for prefix, activity, value in (*seconds, ("sum", "thread-cpu", 2.0))
    ]
    moved = point(2048, {**labels, "dask.task.prefix": "sum", "dask.activity": "memory-read"})
    where = {"instance": f"Scheduler-{number}"}
    root = {**span(1, "etl", start=60 * number, **of), "traceId": f"{number:032x}"}
    return traces(root, **where), metrics(
        counter("dask.span.execute.time", *points),
        counter(
            "dask.task.finished",
            *(
                point(count, {**labels, "dask.task.prefix": "read", "dask.task.outcome": outcome})
                for outcome, count in (("memory", 3), ("erred", 1), ("cancelled", 6))
            ),
        ),
        counter("dask.span.execute.io", moved),
        **where,
    )


def test_metrics_divide_the_time_of_a_function_into_activities() -> None:
    (before,), (after,) = (runs(*measured(seconds, n)) for n, seconds in enumerate((2.0, 9.0)))
    assert (before.functions, before.moved, before.work) == (
        {
            "read": {"thread-noncpu": 2.0, "thread-cpu": 1.0},
            "sum": {"thread-cpu": 2.0},
            "": {"idle": 1.0},
        },
        {"memory-read": 2048.0},
        {"read": {"tasks": 4.0}},
    )
    lines = [*difference([before], [after]).lines()]
    assert "the thread-time: +7.00 s thread-noncpu of read" in lines
    # Metrics of one name are of all its runs: two in a session can't be divided.
    second = traces(span(9, "etl", **{"dask.span.root.id": "id-9"}), instance="Scheduler-0")
    assert [run.moved for run in runs(*measured(2.0, 0), *measured(9.0, 0)[:1], second)] == [{}, {}]
    # Metrics that the spans contradict are not used.
    (one,) = runs(measured(2.0, 0)[0], measured(9.0, 0)[1])
    assert one.functions == {"": {"": 5.0, "idle": 1.0}}


def test_runs_in_different_detail_are_compared_in_what_both_have() -> None:
    coarse = runs(etl(0, load=(40, 4.0)))
    functions = {
        "load": {"thread-cpu": 5.0, "executor": 0.2},
        "": {"thread-cpu": 0.1, "idle": 1.0},
    }
    parts = {"Computing": 5.1, "Other": 0.2, "Idle": 1.0}
    fine = replace(coarse[0], functions=functions, thread_seconds=6.3, parts=parts)
    found = difference(coarse, [fine])
    assert found.terms["load"] == {"": 1.0}
    closes(found)
    # A summary that counts no span has no mean.
    none = replace(fine, steps={"etl": replace(fine.steps["etl"], count=0.0)})
    assert [step.lasted for step in difference([none], [none]).steps] == [[None, None]]


def test_names_of_one_side_and_other_versions() -> None:
    both = [span(n, name, dask_span_root_id=f"id-{n}") for n, name in ((1, "a"), (4, "gone"))]
    before = traces(*both)
    after = json.loads(json.dumps(before).replace("gone", "new").replace("2026.8.0", "2026.9.0"))
    compared: Any = report_of(after).compared_with(report_of(before))
    # Nothing is known of their thread-time: it is not 0.
    assert [
        (one.name, [*one.lines()][-1], one.steps[0].cells()) for one in compared.comparison.names
    ] == [
        (
            "a",
            "distributed: 2026.8.0 before, 2026.9.0 after",
            ["1.00 s", "1.00 s", "", ""],
        ),
        ("gone", "1 and 0 runs: only one side has it", ["1.00 s", "", "", ""]),
        ("new", "0 and 1 runs: only one side has it", ["", "1.00 s", "", ""]),
    ]
    assert "only one side has it" in compared.text()


def test_more_work_does_not_hide_a_slower_function() -> None:
    before, both, mostly, idle = (
        runs(*(etl(n, idle=idle, load=(tasks, tasks / 10), clean=(40, clean)) for n in range(3)))
        for idle, tasks, clean in ((1.0, 40, 2.0), (1.0, 80, 6.0), (1.0, 80, 2.2), (2.0, 80, 2.0))
    )
    found = difference(before, both)
    # Another direction is another reason.
    assert [found.verdict_of(1), found.verdict_of(-1)] == ["slower and more work", "faster"]
    assert [(one.name, one.verdict) for one in found.functions] == [
        ("load", "more work"),
        ("clean", "slower"),
    ]
    assert difference(before, mostly).verdict_of(1) == "more work"
    # Overhead that grew with the tasks is more work, too; what did not grow is none.
    overhead = 40 * (1.3 / 80 + 2.3 / 120) / 2
    assert difference(before, idle).more_work == pytest.approx(4.0 + overhead)
    # Without functions, all tasks are one.
    bare = [[replace(run, functions={}, work={}) for run in side] for side in (before, both)]
    assert difference(*bare).verdict_of(1) == "slower and more work"


def test_figures_are_below_their_headings_beside_wide_names() -> None:
    made = report_of(etl(name="日本語", 読む=(4, 2.0)))
    lines = made.compared_with(made).text().splitlines()
    # The lines of names, without the sums.
    named = (one for one in lines if one.startswith(("function ", "読む ", "span ", "日本語 ")))
    ends = [sum(1 + (east_asian_width(one) in "WF") for one in line) for line in named]
    assert (len(ends), ends[0], ends[2]) == (4, ends[1], ends[3])


@pytest.mark.parametrize(
    ("small", "said"),
    [([-0.2], "-200 ms other 0"), ([-0.1, -0.1], "-200 ms in the rest"), ([], None)],
)
def test_what_is_too_small_to_be_listed_is_one_sum(small: list[float], said: str | None) -> None:
    changes = [("idle", 50.0), *((f"other {n}", took) for n, took in enumerate(small))]
    assert in_words(changes) == ", ".join(filter(None, ["+50.0 s idle", said]))
