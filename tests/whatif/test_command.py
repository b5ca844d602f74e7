"""``dask-otel whatif`` and `what_if`: which run and which experiments, and what is wrong."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import dask_otel
from dask_otel.cli import main
from dask_otel.core.diagnosis import Diagnosis
from dask_otel.report import replaying
from dask_otel.report.document import Report, read_report
from dask_otel.whatif.experiments import Experiment, each, usual
from dask_otel.whatif.graph import Graph
from dask_otel.whatif.result import Replayed, WhatIf
from tests.unit.report_files import counter, metrics, point, span, traces
from tests.whatif.graphs import graph


def line(number: int, name: str = "etl", tasks: int = 8, **more: Any) -> dict[str, Any]:
    """The log of a root span: tasks of a second on two workers with a thread each."""
    runs = ({"start": n // 2, "worker": n % 2, "prefix": n % 2} for n in range(tasks))
    start = 1_790_000_000.0 + number
    made = graph(
        *runs,
        name=name,
        span_id=f"{number:016x}",
        trace_id="ab" * 16,
        prefixes=["fit", "load"],
        start=start,
        stop=start + tasks / 2,
        **more,
    )
    return {"version": 1, **vars(made)}


def write(folder: Path, *lines: dict[str, Any]) -> None:
    with gzip.open(folder / f"{len([*folder.iterdir()])}-0001-graph.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(one) + "\n" for one in lines)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with two runs of etl, and one of train between them."""
    write(tmp_path, line(1), line(2, "train", 4), line(3, tasks=6))
    spans = traces(
        *(
            span(n, name, dask_span_root_id=f"id-{n}")
            for n, name in ((1, "etl"), (2, "train"), (3, "etl"))
        )
    )
    (tmp_path / "a-0001-traces.jsonl").write_text(json.dumps(spans) + "\n")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    """What a command prints, which ends with a code."""
    assert main(["whatif", *map(str, arguments)]) == code
    return capsys.readouterr()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """In place of the engine: it records requests, and answers."""

    def answered(
        graph: Graph, experiments: list[Experiment], progress: Callable[[int, int], object]
    ) -> WhatIf:
        progress(1, 2)
        took = graph.stop - graph.start
        tried = [
            Replayed(one.name, took / 2, 0.5, 0.25, sum(one.workers) if one.workers else None)
            for one in experiments
        ]
        base = Replayed("as it was", took, 0.5, 0.5, 2)
        assumed = ("Memory is not simulated.",)
        return WhatIf(graph.name, took, base, (*tried,), assumed, engine.refused)

    engine = Mock(side_effect=answered, refused=None)
    monkeypatch.setattr(replaying, "replay", engine)
    return engine


@pytest.mark.parametrize(
    ("chosen", "found"),
    [((), 3), (("etl",), 3), (("train",), 2), (("0" * 15 + "1",), 1), (("ab" * 16,), 3)],
)
def test_a_name_or_an_id_chooses_the_last_run(run, replays, capsys, chosen, found):
    said(capsys, run, *chosen)
    assert int(replays.call_args.args[0].span_id, 16) == found


def test_options_are_experiments_of_their_own(run, replays, capsys):
    options = "--threads 2x2 --threads 1x8 --bandwidth 10GB/s --without gaps --without stealing"
    options += " --faster fit=2 --faster fit=4 --split longest=4 --split load=2"
    out, _ = said(capsys, run, *options.split(), "--json")
    experiments = replays.call_args.args[1]
    assert experiments == [
        *each([(2, 2), (1, 8)], 1e10, ["gaps", "stealing"], [("fit", 2.0), ("fit", 4.0)]),
        *each(split=[("longest", 4), ("load", 2)]),
    ]
    shown = [(one["name"], one["cost"]) for one in json.loads(out)["experiments"]]
    assert shown == [(one.name, None) for one in experiments]


@pytest.mark.parametrize(
    ("more", "runs", "causes"),
    [
        ({}, {}, []),
        ({"submissions": [0.0, 2.0]}, {}, ["gaps"]),
        ({"restrictions": [{"workers": [0], "resources": {}, "loose": False}]}, {},
         ["restrictions"]),
        ({}, {"transfer": [0.5, None] + 4 * [0.0], "outcome": [*"mmmmfm"]},
         ["failures", "transfers"]),
        # A shuffle reschedules its tasks, and quick transfers bound nothing.
        ({}, {"transfer": [1e-3] * 6, "outcome": [*"mmmmrm"]}, []),
    ],
)  # fmt: skip
def test_without_options_those_that_may_help_are_tried(run, replays, capsys, more, runs, causes):
    last = {**line(4, tasks=6), **more}
    write(run, {**last, "runs": {**last["runs"], **runs}})
    said(capsys, run)
    assert replays.call_args.args[1] == [*usual([1, 1], causes)]


@pytest.mark.parametrize(("workers", "size"), [([(4, None), (2, 0.5)], (2,)), ([(2, 0.5)], (1,))])
def test_the_default_has_the_workers_that_were_there_first(run, replays, capsys, workers, size):
    known = [{"name": f"w{n}", "threads": n, "came": came, "went": None} for n, came in workers]
    write(run, {**line(5), "workers": known})
    said(capsys, run)
    assert replays.call_args.args[1][0].workers == size


def test_costs_and_the_page_come_with_their_options(run, replays, tmp_path, capsys):
    pytest.importorskip("bokeh")
    price = ("--price", "3600", "--currency", "EUR")
    page = tmp_path / "page.html"
    assert said(capsys, run, *price, "-o", page)[0] == f"{page}\n"
    text, _ = said(capsys, run, *price, "--threads", "2x2")
    shown = page.read_text(encoding="utf-8")
    assert shown.count("<h2>What if</h2>") == 1
    assert ["1,800.00 EUR" in one for one in (shown, text)] == [True, True]


@pytest.mark.parametrize("price", [(), ("--price", "1", "--currency", "EUR")])
def test_names_are_whole_on_a_narrow_terminal(run, replays, capsys, monkeypatch, price):
    monkeypatch.setenv("COLUMNS", "60")
    out, _ = said(capsys, run, *price, "--split", "longest=2", "--split", "longest=3")
    _, *rows = out.split("\n\n")[1].splitlines()
    assert max(map(len, rows)) <= 60
    assert [n for n in (2, 3) if f"the longest task split in {n}" in rows] == [2, 3]


def test_a_currency_without_a_price_is_mentioned_and_progress_on_a_terminal(
    run, replays, monkeypatch, capsys
):
    _, err = said(capsys, run, "--currency", "EUR")
    assert err == "dask-otel whatif: --currency has no effect without --price\n"
    # Only now: what pytest captures is another stream in each test.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar, last = said(capsys, run)[1].split("\r")[1:]
    assert (bar[:18], last) == ("replayed  50% ####", "\x1b[K")


def test_a_refusal_is_a_sentence_and_a_code(run, replays, capsys):
    replays.refused = "its replay differs by 40 %."
    out, err = said(capsys, run, code=1)
    assert (out, err) == ("", "dask-otel whatif: No answer for etl: its replay differs by 40 %.\n")
    out, _ = said(capsys, run, "--json", code=1)
    assert json.loads(out)["refused"] == replays.refused


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("{run}/nothing",), "there is no {run}/nothing"),
        (("{run}/a-0001-traces.jsonl",), "no recorded graph in {run}/a-0001-traces.jsonl: the"),
        (("{run}", "eatl"), "no recorded graph of eatl in {run}; there are graphs of etl, train"),
        (("{run}", "--faster", "fti=2"), "etl has no tasks of fti; it has tasks of fit, load"),
        (("{run}", "--split", "fti=2"), "etl has no tasks of fti; it has tasks of fit, load"),
    ],
)
def test_says_what_is_wrong(run, replays, capsys, arguments, wrong):
    _, err = said(capsys, *(one.format(run=run) for one in arguments), code=1)
    assert err.startswith(f"dask-otel whatif: {wrong.format(run=run)}")
    assert (err.count("\n"), replays.called) == (1, False)


@pytest.mark.parametrize(
    ("value", "clock"), [("long", ""), (99.5, ", unless a clock was set meanwhile")]
)
def test_other_runs_are_replayed_beside_a_line_that_is_no_graph(run, replays, capsys, value, clock):
    broken = line(4, "broken")
    broken["runs"]["seconds"][3] = value
    write(run, broken)
    why = f"line 1 of {run / '2-0001-graph.jsonl.gz'} is no graph of a run: column seconds of its "
    why += f"runs has '{value}', which can't be{clock}. Remove the line or the file; other runs can"
    assert why in json.loads(said(capsys, run, "train", "--json")[0])["assumptions"][-1]
    assert why in said(capsys, run, "broken", code=1)[1]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--threads", "4", "'4' is not WORKERSxTHREADS, such as 4x8"),
        ("--threads", "4x8x2", "'4x8x2' is not WORKERSxTHREADS"),
        (
            "--threads",
            "0x8",
            "the number of workers must be a whole number from 1 to 10,000, and not 0",
        ),
        (
            "--threads",
            f"8x{10**400}",
            "threads of a worker must be a whole number from 1 to 1,000,",
        ),
        ("--bandwidth", "fast", "'fast' is not a number of bytes a second, such as 10GB/s"),
        ("--bandwidth", "1e400", "'1e400' is not a number of bytes a second"),
        ("--bandwidth", "1B/s", "the bandwidth in bytes a second must be from 1,000 to"),
        ("--without", "luck", "invalid choice: 'luck'"),
        ("--faster", "fit", "'fit' is not PREFIX=FACTOR, such as fit=2"),
        ("--faster", "fit=nan", "the factor for fit must be from 0.001 to 1,000, and not nan"),
        ("--split", "longest=2.5", "'longest=2.5' is not PREFIX=PIECES or longest=PIECES"),
        ("--price", "-1", "'-1' is not a price"),
    ],
)
def test_wrong_options_say_what_is_allowed(capsys, option, value, said):
    with pytest.raises(SystemExit) as stopped:
        main(["whatif", "anywhere", f"{option}={value}"])
    assert stopped.value.code == 2
    assert re.search(f"^usage: dask-otel whatif(?s:.*){re.escape(said)}", capsys.readouterr().err)


def test_python_takes_a_folder_or_its_report(run, replays):
    shown = dask_otel.what_if(str(run), threads=[(2, 2)], without="gaps", price=3600.0)
    again = dask_otel.what_if(read_report(run, price=3600.0), threads=[(2, 2)], without=["gaps"])
    assert shown == again
    assert isinstance(shown, dask_otel.WhatIfReport)
    assert [one.threads for one in shown.result.experiments] == [4, None]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"without": "luck"}, "without 'luck': allowed are restrictions, failures"),
        ({"without": 5}, "without is 5. Allowed: some of restrictions, failures"),
        ({"threads": 4}, "threads is 4. Allowed: pairs, such as [(4, 8)]."),
        ({"threads": (4, 8)}, "threads is (4, 8). Allowed: pairs, such as [(4, 8)]."),
        (
            {"threads": [(4.5, 8)]},
            "the number of workers must be a whole number from 1 to 10,000, ",
        ),
        ({"threads": [("4", 8)]}, "from 1 to 10,000, and not '4'"),
        ({"bandwidth": "10GB/s"}, "the bandwidth in bytes a second must be from 1,000 to 1e+15, "),
        ({"faster": 2.0}, "faster is 2.0. Allowed: a mapping, such as {'fit': 2}."),
        ({"faster": {"fit": "2"}}, "the factor for fit must be from 0.001 to 1,000, and not '2'"),
        ({"faster": {"fit": None}}, "the factor for fit must be from 0.001 to 1,000, and not None"),
        ({"split": ["fit"]}, "split is ['fit']. Allowed: a mapping, such as {'longest': 4}."),
        ({"split": {"fit": 2.5}}, "pieces of fit must be a whole number from 2 to 1,000, and not"),
        ({"price": "1"}, "the price must be from 0 to 1e+09, and not '1'"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(changes, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        dask_otel.what_if("anywhere", **changes)


WARNED = " of their time: more threads help as much as is shown only with a core"


@pytest.mark.parametrize(
    ("cpu", "noncpu", "warned"),
    [(9.0, 1.0, "90%"), (3.0, 7.0, "30%"), (1.0, 9.0, ""), (0.0, 0.0, "")],
)
def test_tasks_that_need_a_core_are_named(run, replays, cpu, noncpu, warned):
    labels = {"dask.span.name": "etl", "dask.span.root.name": "etl", "dask.task.prefix": "fit"}
    points = [
        point(seconds, {**labels, "dask.activity": activity})
        for activity, seconds in (("thread-cpu", cpu), ("thread-noncpu", noncpu))
    ]
    sums = metrics(counter("dask.span.execute.time", *points))
    (run / "a-0001-metrics.jsonl").write_text(json.dumps(sums) + "\n")
    text = str(dask_otel.what_if(run))
    assert (f"used a CPU for {warned}{WARNED}" in text) == (WARNED in text) == bool(warned)
    assert WARNED not in str(dask_otel.what_if(run, "train"))


@pytest.mark.parametrize(
    ("kind", "name", "warned"),
    [
        ("gil", "etl/fit", True),
        ("cpus", "etl", True),
        ("gil", "train", False),
        ("gil", "etl-2", False),
        ("held", "etl", False),
    ],
)
def test_a_diagnosis_of_what_threads_share_is_a_warning(
    run, replays, monkeypatch, kind, name, warned
):
    report = read_report(run)
    found = Diagnosis(kind, name, 1.0, f"{name} waited", "", "")
    accounts = [replace(one, diagnoses=[found]) for one in report.accounts()]
    monkeypatch.setattr(Report, "accounts", lambda report: accounts)
    assert (f"{name} waited" in str(dask_otel.what_if(report))) == warned
