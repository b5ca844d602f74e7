"""``dask-otel history`` of 200 runs: what changed in each of four workflows, and its page."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from dask_otel.cli import main
from dask_otel.report.history.past import past_run, total
from dask_otel.report.page.multiples import panels
from tests.environment import REPOSITORY
from tests.unit.history_files import etl, write
from tests.unit.report_files import Page

# One process of the tests writes the runs, and reads them.
pytestmark = pytest.mark.xdist_group("history")

EXAMPLES = REPOSITORY / "examples" / "history"

#: Runs of each workflow, and the first one of a new level.
RUNS, NEW = 50, 42
#: The tasks and the seconds of a function, before and after.
WORK = {
    "equal": {"load": ((40, 4.0), (40, 4.0)), "clean": ((40, 2.0), (40, 2.0))},
    "slowed": {"load": ((40, 4.0), (40, 4.0)), "clean": ((40, 2.0), (40, 4.0))},
    "doubled": {"load": ((40, 4.0), (80, 8.0)), "clean": ((40, 2.0), (80, 4.0))},
    "noisy": {"load": ((40, 4.0), (40, 4.0)), "clean": ((40, 2.0), (40, 2.0))},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    chance = random.Random(3)
    for number in range(RUNS):
        for place, (name, work) in enumerate(WORK.items()):
            # One run among many is only noisy.
            slow = 3.0 if (name, number) == ("noisy", 30) else 1.0
            functions = {
                function: (sides[number >= NEW][0], sides[number >= NEW][1] * slow * noise)
                for function, sides in work.items()
                for noise in [chance.lognormvariate(0.0, 0.03)]
            }
            seconds = 2.0 + sum(took for _, took in functions.values()) / 2
            own = 4 * number + place
            (folder / name).mkdir(exist_ok=True)
            write(folder / name, own, etl(own, seconds=seconds, name=name, **functions))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    with redirect_stdout(StringIO()) as out:
        assert main(["history", str(folder), "--json"]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_each_workflow_says_what_happened_to_it(found: dict[str, Any]) -> None:
    assert (len(found["runs"]), found["left_out"]) == (4 * RUNS, [])
    trends = {one["name"]: one for one in found["trends"]}
    assert [name for name, one in trends.items() if one["regression"]] == ["slowed"]
    verdicts = {
        name: [(one["figure"], one["verdict"], one["runs_before"]) for one in trend["changes"]]
        for name, trend in trends.items()
    }
    figures = ("duration", "thread-time")
    assert verdicts == {
        "equal": [],
        "noisy": [],
        "slowed": [(figure, "slower", NEW) for figure in figures],
        "doubled": [(figure, "more work", NEW) for figure in figures],
    }
    for name, said in (
        *(
            ("equal", "no change beyond chance in 50 runs"),
            ("noisy", "no change beyond chance in 50 runs"),
        ),
        ("slowed", "; by function: +1.96 s in clean, -4 ms in the rest"),
        ("doubled", "tasks: 80 before, 160 after"),
    ):
        assert said in " ".join(trends[name]["lines"])


def test_what_a_change_is_made_of_closes(found: dict[str, Any]) -> None:
    changes = [(trend["name"], one) for trend in found["trends"] for one in trend["changes"]]
    assert len(changes) == 4
    for name, change in changes:
        field = "seconds" if change["figure"] == "duration" else "thread_seconds"
        values = [run[field] for run in found["runs"] if run["name"] == name]
        whole = fmean(values[NEW:]) - fmean(values[:NEW])
        sums = total(change["terms"]), sum(change["parts"].values())
        assert sums == pytest.approx((whole, whole), abs=1e-9)


def test_the_page_has_small_multiples_with_the_last_run_marked(
    folder: Path, tmp_path: Path, found: dict[str, Any]
) -> None:
    pytest.importorskip("bokeh")
    path = tmp_path / "page.html"
    assert main(["history", str(folder), "-o", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    # Duration, thread-time, path, tasks, and the step, for each name. Each panel of the two names
    # that changed has a line where the change begins.
    rows = len([row for row in page.of("tr") if row])
    counts = (len(page.of("svg")), len(page.of("rect")), rows, text.count("M167.5 -4v44"))
    assert counts == (20, 20, 4 * RUNS, 10)
    assert len(text) < 600_000
    known = [{name: run[name] for name in run.keys() - {"cost"}} for run in found["runs"]]
    runs = [past_run(run) for run in known if run["name"] == "doubled"]
    drawn = {panel["title"]: panel for panel in panels(runs)}
    # Computing, other and idle; computing and transfer.
    assert {title: len(panel["paths"]) for title, panel in drawn.items()} == {
        "duration": 1, "thread-time by part": 3, "path by part": 2, "tasks": 1,
        "duration of doubled/store": 1,
    }  # fmt: skip
    tasks = drawn["tasks"]
    bar = tasks["bar"]
    assert (tasks["last"], tasks["largest"], tasks["width"]) == ("160", "160", RUNS * bar)
    bars = [(n * bar, "20.00" if n < NEW else "0.00") for n in range(RUNS)]
    assert tasks["paths"][0][1] == "".join(f"M{x} {y}h3v{40 - float(y):.2f}h-3z" for x, y in bars)
    # An unknown figure has no bar.
    unknown = [*runs[:-1], past_run({**known[0], "tasks": None, "name": "doubled"})]
    panel = next(one for one in panels(unknown) if one["title"] == "tasks")
    assert (panel["last"], panel["paths"][0][1].count("z")) == ("unknown", RUNS - 1)


def run_in(folder: Path, shell: str, *arguments: str, **environ: str) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [*shell.split(), *arguments],
        cwd=folder,
        env={**os.environ, "PATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_the_example_for_github_fails_at_a_regression(folder: Path, tmp_path: Path) -> None:
    workflow = yaml.safe_load((EXAMPLES / "github_actions.yml").read_text(encoding="utf-8"))
    steps = {step["name"]: step for step in workflow["jobs"]["nightly"]["steps"] if "name" in step}
    for name, code in (("slowed", 1), ("doubled", 0)):
        line = (
            steps["Check"]["run"]
            .replace("dask-telemetry", str(folder / name))
            .replace("nightly", name)
        )
        summary = tmp_path / name
        # As GitHub's `shell: bash` does.
        found = run_in(tmp_path, "bash -eo pipefail -c", line, GITHUB_STEP_SUMMARY=str(summary))
        assert found == (code, summary.read_text())
        assert f"{name}: thread-time +" in found[1]
    assert steps["History"]["run"] == "dask-otel history dask-telemetry -o history.html"


def test_the_example_for_cron_prints_only_a_regression(folder: Path) -> None:
    script = str(EXAMPLES / "mail.sh")
    assert run_in(folder, "sh", script, str(folder / "equal"), "equal") == (0, "")
    _, said = run_in(folder, "sh", script, str(folder / "slowed"), "slowed")
    assert [line[:12] for line in said.splitlines()] == ["slowed: dura", "slowed: thre"]
    # A name that nobody has; and it is no pattern.
    assert "no run of no[" in run_in(folder, "sh", script, str(folder / "equal"), "no[")[1]
    # The PATH of cron has no environment of the user's.
    arguments = ("sh", script, str(folder), "slowed")
    assert "not found" in run_in(folder, *arguments, PATH="/usr/bin:/bin")[1]


@pytest.fixture
def database() -> Any:
    import duckdb

    found = duckdb.connect()
    found.execute((REPOSITORY / "deploy/duckdb/history.sql").read_text(encoding="utf-8"))
    return found


def test_sql_has_the_same_runs(folder: Path, found: dict[str, Any], database: Any) -> None:
    names = ["trace_id", "name", "result", "seconds", "tasks", "thread_seconds", "idle_seconds"]
    files = f"{folder}/doubled/*-traces.jsonl*"
    runs = [run for run in found["runs"] if run["name"] == "doubled"]
    rows = database.execute(f"SELECT {', '.join(names)} FROM dask_runs(?)", [files]).fetchall()
    expected = sorted([run[name] for name in names] for run in runs)
    assert sorted(map(list, rows)) == [pytest.approx(one) for one in expected]
    functions = database.execute(
        "SELECT function, sum(tasks), sum(compute_seconds) FROM dask_functions(?) GROUP BY 1",
        [files],
    ).fetchall()
    assert {name: [*sums] for name, *sums in functions} == {
        name: [
            sum(run["work"][name]["tasks"] for run in runs),
            pytest.approx(sum(run["functions"][name][""] for run in runs)),
        ]
        for name in ("load", "clean")
    }


def test_the_page_s_sql_finds_the_slower_function(folder: Path, database: Any) -> None:
    page = (REPOSITORY / "docs/history.md").read_text(encoding="utf-8")
    first, second = (
        database.execute(
            text.replace("dask-telemetry", str(folder / "slowed")).replace("nightly", "slowed")
        ).fetchall()
        for text in re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    )
    assert (len(first), [row[0] for row in second]) == (RUNS, ["clean", "load"])
    assert second[0][3] > 1.5


def test_sql_reads_half_a_file_and_a_copy_once(tmp_path: Path, database: Any) -> None:
    path = write(tmp_path, 1, etl(1, load=(4, 1.0)), more='{"resourceSp')
    (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    files = f"{tmp_path}/*-traces.jsonl*"
    assert database.execute("SELECT tasks FROM dask_runs(?)", [files]).fetchall() == [(4,)]
