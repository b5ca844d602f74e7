"""Units of work in the report, the history and comparisons, from files made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dask_otel.cli import main
from dask_otel.report.history.past import ended, past_run
from tests.unit.history_files import listed, write
from tests.unit.report_files import EVIL, counter, metrics, point, report_of, run_of, span, traces


def units(name: str, total: float, *, unit: str = "events", activity: str = "events") -> Any:
    root = name.partition("/")[0]
    labels = {"dask.span.name": name, "dask.span.root.name": root, "dask.task.prefix": "gen"}
    return point(total, {**labels, "dask.activity": activity, "dask.unit": unit})


def run(total: float, *points: Any, seconds: float = 10.0, threads: float = 40.0) -> list[Any]:
    root = span(1, "fit", seconds=seconds, **{"dask.span.root.id": "id-1"})
    root["attributes"] += span(9, **{"dask.span.capacity.time": threads})["attributes"][-1:]
    return [traces(root), metrics(counter("dask.span.custom", units("fit", total), *points))]


OF_SPANS = traces(
    span(1, "fit", seconds=10.0, **{"dask.span.root.id": "id-1"}),
    # Two that overlap are open for 3 s.
    span(2, "fit/load", parent=1, start=1.0, seconds=2.0),
    span(3, "fit/load", parent=1, start=2.0, seconds=2.0),
)
CAPACITY = counter(
    "dask.span.capacity.time",
    *(
        point(amount, {"dask.span.name": name, "dask.span.root.name": "fit"})
        for name, amount in (("fit", 30.0), ("fit/load", 6.0))
    ),
)
RATES = ("per_second", "per_thread_second", "per_cost")
DASKS = [units("fit", 7.0, unit=one) for one in ("seconds", "bytes", "count", "_EMPTY")]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        # Rates of a root are of its tree.
        (
            [
                OF_SPANS,
                metrics(
                    counter("dask.span.custom", units("fit", 40.0), units("fit/load", 320.0)),
                    CAPACITY,
                ),
            ],
            [
                ("fit", "events", 360.0, 36.0, 10.0, 10.0),
                ("fit/load", "events", 320.0, 320.0 / 3.0, 320.0 / 6.0, 320.0 / 6.0),
            ],
        ),
        # Units of Dask are no work, and different ones are not added up.
        (
            run(
                100.0,
                *DASKS,
                units("fit", 7.0, unit="_OTHER", activity="_OTHER"),
                units("fit", 3.0, activity="accepted"),
                units("fit", 5.0, unit="rows", activity="rows"),
            ),
            [
                ("fit", "events", 100.0, 10.0, None, None),
                ("fit", "accepted (events)", 3.0, 0.3, None, None),
                ("fit", "rows", 5.0, 0.5, None, None),
            ],
        ),
        # A rate that is unknown is none.
        (
            [metrics(counter("dask.span.custom", units("fit", 5.0)))],
            [("fit", "events", 5.0, None, None, None)],
        ),
        ([traces(span(1))], []),
    ],
)
def test_the_units_of_a_run(requests: list[Any], expected: list[tuple[Any, ...]]) -> None:
    (found,) = report_of(*requests, price=3600.0).to_dict()["runs"]
    names = ("span", "unit", "total", *RATES)
    work = [dict(zip(names, one, strict=True)) for one in expected]
    assert list(found.get("work", [])) == work


def test_the_page_has_them_and_hostile_units_stay_text() -> None:
    report = report_of(*run(1234.0, units("fit", 1.0, unit=EVIL, activity=EVIL)), price=2.0)
    page, text = report.html(), report.text()
    words = ("Units of work", "per thread-second", "per unit of money", "1,234")
    assert [one for one in words if one not in page or one not in text] == []
    assert EVIL not in page
    assert "Units of work" not in report_of(traces(span(1))).html()


def test_the_history_has_the_units_of_the_only_run_of_its_name(tmp_path, capsys, cache) -> None:
    write(tmp_path, 1, *run(120.0)[:1])
    metric_lines = json.dumps(run(120.0)[1])
    name = next(tmp_path.glob("*traces.jsonl")).name.replace("traces", "metrics")
    (tmp_path / name).write_text(metric_lines + "\n")
    (found,), _ = listed(capsys, tmp_path)
    assert found["units"] == {"events": 120.0}
    assert main(["history", str(tmp_path)]) == 0
    assert "120 events, 12/s" in capsys.readouterr().out


def test_a_run_of_a_summary_has_its_units() -> None:
    (known,) = ended(run_of(*run(10.0)), "")
    assert past_run(json.loads(json.dumps(vars(known), default=vars))) == known


def test_a_comparison_says_which_rate_has_changed() -> None:
    before, after = report_of(*run(100.0)), report_of(*run(200.0, seconds=20.0, threads=40.0))
    (one,) = after.compared_with(before, ("A", "B")).comparison.names
    beside = [line for line in one.beside if line.startswith("events")]
    assert beside == [
        "events: 100 before, 200 after",
        "events per thread-second: 2.5 before, 5 after",
    ]
