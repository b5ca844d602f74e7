"""Units of work from tasks to the report: they are those that the tasks counted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import span, wait
from distributed.metrics import context_meter

from dask_otel import read_report
from dask_otel.lab.threads import burn
from dask_otel.report.money import Price
from tests.simulated.bridged import Bridged

PAGE = Path(__file__).parents[2] / "docs" / "units.md"
#: What the tasks made.
MADE: list[int] = []


def sample(number: int, seed: int) -> range:
    burn(0.5)
    MADE.append(number + seed)
    return range(number + seed)


def fit(chunks: Any) -> None:
    burn(1.0)


def test_the_example_of_the_page(tmp_path: Path) -> None:
    """Sixteen tasks of 0.5 s on four threads of one worker, then one of 1.0 s."""
    program, shown = re.findall(r"```(?:python|text)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    b = Bridged({"files": {"path": str(tmp_path)}}, workers=1, threads=4)
    MADE.clear()

    def run() -> None:
        exec(program, {"client": b.client, "sample": sample, "fit": fit})
        b.exported()

    b.run(run)
    report = replace(read_report(tmp_path), price=Price(0.5, "EUR"))
    assert shown in report.text(100)
    whole, generate = report.to_dict()["runs"][0]["work"]
    events = sum(MADE)
    assert (whole["span"], whole["unit"], whole["total"]) == ("analysis", "events", events)
    assert whole["per_second"] == pytest.approx(events / 3.0, rel=1e-3)
    assert whole["per_thread_second"] == pytest.approx(events / (4 * 3.0), rel=1e-3)
    assert whole["per_cost"] == pytest.approx(events / (4 * 3.0 / 3600 * 0.5), rel=1e-3)
    assert (generate["span"], generate["total"]) == ("analysis/generate", events)
    assert generate["per_second"] == pytest.approx(events / 2.0, rel=1e-3)


def half(number: int) -> None:
    context_meter.digest_metric("rows", number, "rows")
    MADE.append(number)
    if len(MADE) % 2:
        raise ValueError("after it was metered")


def test_each_run_of_a_task_counts(tmp_path: Path) -> None:
    b = Bridged({"files": {"path": str(tmp_path)}}, workers=1, threads=1)
    MADE.clear()

    def run() -> None:
        with span("flaky"):
            wait([b.client.submit(half, 5, retries=3), b.client.submit(half, 7, retries=3)])
        b.exported()

    b.run(run)
    (found,) = read_report(tmp_path).to_dict()["runs"][0]["work"]
    assert len(MADE) == 4
    assert found["total"] == sum(MADE)
