"""``dask-otel history``: the list of runs, its summaries, and what it says of bad input."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from unittest.mock import Mock

import pytest

from dask_otel.cli import main
from dask_otel.report.telemetry.reader import Reader
from tests.unit.history_files import listed, one, write
from tests.unit.report_files import (
    attributes,
    counter,
    metrics,
    point,
    span,
    traces,
)

pytestmark = pytest.mark.usefixtures("cache")


def test_a_run_is_a_root_with_what_is_below_it(folder, capsys):
    write(folder, 3, one(3, dask_span_result="success"))
    (run,), said = listed(capsys, folder, "--price", "120")
    # Tasks and failures of a root are already those of its tree; seconds are each span's own.
    expected = {"name": "etl", "seconds": 30.0, "tasks": 7, "failed": 1, "thread_seconds": 30.0}
    expected |= {"idle_seconds": 6.0, "cost": 1.0, "start": 1_790_000_300.0, "result": "success"}
    expected |= {"distributed": "2026.8.0", "dask_otel": "0.1.0", "cluster": "cluster"}
    assert ({key: run[key] for key in expected}, said) == (expected, "")
    assert (sum(run["parts"].values()), run["parts"]["Idle"]) == (30.0, 6.0)
    assert main(["history", str(folder), "--currency", "EUR"]) == 0
    printed, said = capsys.readouterr()
    assert said == "dask-otel history: --currency has no effect without --price\n"
    headings, line, *_ = printed.splitlines()
    assert headings.startswith("time (UTC)")
    assert " ".join(line.split()) == (
        "2026-09-21 14:18:20 etl success 30.0 s 7 1 0.008333 20% 2026.8.0 0.1.0 cluster"
    )


@pytest.mark.parametrize(
    ("known", "cost"), [({"dask_span_memory_time": 720.0 * 2**30}, 3.0), ({}, 1.0)]
)
def test_a_cost_is_of_threads_and_of_results_in_memory(known, cost, folder, capsys):
    write(folder, 3, one(3, **known))
    (run,), said = listed(capsys, folder, "--price", "120", "--price-memory", "10")
    assert (run["cost"], said) == (cost, "")
    both = ["--price", "120", "--price-memory", "10", "--currency", "EUR"]
    assert main(["history", str(folder), *both]) == 0
    assert f" {cost:.2f} EUR " in capsys.readouterr().out


def test_its_command_makes_its_report(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder.parent)
    for number in range(2):
        write(folder, number, one(number))
    run = listed(capsys, folder.name)[0][1]
    *command, pattern = shlex.split(run["command"])
    files = [str(path) for path in Path("/").glob(pattern.lstrip("/"))]
    assert (command[0], main([*command[1:], *files, "--json"])) == ("dask-otel", 0)
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert found["traces"][0]["trace_id"] == run["trace_id"]


def test_summaries_alone_list_what_was_read_before(folder, capsys, monkeypatch):
    for number in (2, 0, 1):
        write(folder, number, one(number))
    first, _ = listed(capsys, folder)
    assert [run["start"] for run in first] == [1_790_000_000.0 + 100 * n for n in range(3)]
    assert [path.stat().st_mode & 0o777 for path in folder.glob("*-summary.json")] == [0o600] * 3
    with monkeypatch.context() as patched:
        patched.setattr(Reader, "read", None)
        assert listed(capsys, folder, folder)[0] == first
    # A session that went on is read again, and the report never reads a summary.
    write(folder, 1, one(1, "other"), one(1))
    assert [run["name"] for run in listed(capsys, folder)[0]] == ["etl", "other", "etl", "etl"]
    assert main(["report", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == {}


def test_a_folder_that_is_not_writable_has_its_summaries_in_the_cache(
    folder, capsys, cache, monkeypatch
):
    write(folder, 0, one(0))
    refused = Mock(side_effect=PermissionError(13, "Permission denied"))
    replace = os.replace
    monkeypatch.setattr(
        os, "replace", lambda one, at: (replace, refused)[Path(at).parent == folder](one, at)
    )
    first, _ = listed(capsys, folder)
    assert [path.suffix for path in folder.iterdir()] == [".jsonl"]
    assert len(list(cache.rglob("*-summary.json"))) == 1
    monkeypatch.setattr(Reader, "read", None)
    assert listed(capsys, folder)[0] == first


def test_a_user_without_a_home_has_no_cache(folder, capsys, monkeypatch):
    monkeypatch.setattr(Path, "expanduser", Mock(side_effect=RuntimeError("no home directory")))
    write(folder, 0, one(0))
    (folder / "out.json").write_text(json.dumps(one(4)))
    for _ in range(2):
        assert (len(listed(capsys, folder)[0]), len(list(folder.glob("*-summary.json")))) == (2, 1)


def test_files_that_the_bridge_did_not_write_get_no_neighbour(folder, capsys, cache):
    inside = folder / "collector"
    inside.mkdir()
    (inside / "out.json").write_text(json.dumps(one(4)))
    (folder / "package.json").write_text('{"name": "else"}')
    ((run,), said) = listed(capsys, folder)
    assert (run["command"], said) == (f"dask-otel report {shlex.quote(str(inside))}", "")
    assert [path.name for path in inside.iterdir()] == ["out.json"]
    assert len(list(cache.rglob("*-summary.json"))) == 2


def test_bad_input_is_said_and_left_out(folder, capsys, tmp_path):
    sign = span(9, "open", kind="progress", parent=8, **{"dask.span.root.id": "id-9"})
    paths = [
        write(folder, 0, one(0), more='{"resourceSp'),
        write(folder, 1, one(1), traces(sign, instance="Scheduler-1")),
        write(folder, 2, one(2), one(22, "of another scheduler")),
        *(write(folder, number, one(number)) for number in (3, 4)),
    ]
    starts = [str(path)[:-18] for path in paths]
    summary = Path(f"{starts[3]}-summary.json")
    summary.write_text('{"version": 99}')
    Path(f"{starts[4]}-summary.json").write_text('{"version": 1, "runs": [[')
    for _ in range(2):
        runs, said = listed(capsys, folder, tmp_path / "nowhere")
        assert [run["start"] - 1_790_000_000 for run in runs] == [0, 100, 200, 300, 400, 2200]
        assert said.replace("dask-otel history: ", "").splitlines() == [
            f"can't read {tmp_path / 'nowhere'}: No such file or directory",
            f"{starts[0]}: 1 × line that was cut off ({paths[0].name}:2)",
            f"{starts[1]}: 1 run without an end",
            f"{summary} is of a later version of dask-otel: not used",
        ]
    assert summary.read_text() == '{"version": 99}'


WRONG = [
    {"seconds": "x"},
    {"seconds": 1.5},
    {"start": 1e999},
    {"start": 10**400},
    {"parts": {"Idle": "x"}},
    {"name": None},
    None,
    [],
]


@pytest.mark.parametrize("change", WRONG)
def test_a_summary_that_is_wrong_is_made_anew(folder, capsys, change):
    write(folder, 0, one(0))
    expected, _ = listed(capsys, folder)
    (path,) = folder.glob("*-summary.json")
    found = json.loads(path.read_text())
    found["runs"] = [{**found["runs"][0], **change}] if isinstance(change, dict) else change
    path.write_text(json.dumps(found if change != [] else {**found, "left_out": 1, "runs": 1}))
    assert listed(capsys, folder)[0] == expected


def test_nothing_to_list_is_an_error(folder, capsys):
    assert main(["history", str(folder)]) == 1
    assert capsys.readouterr().err == f"dask-otel history: no run below {folder}\n"
    with pytest.raises(SystemExit):
        main(["history", str(folder), "--json", "-o", "page.html"])


#: An end before the start, a start before the clock's own beginning, and one in 500 years.
JUMPS = [
    ("end", "1000"),
    *(("start", time) for time in ("0", "17000000000000000000", "-5", "9" * 40)),
]


def test_a_clock_that_jumps_is_no_traceback(folder, capsys):
    for number, (what, time) in enumerate(JUMPS):
        jumped = one(number)
        jumped["resourceSpans"][0]["scopeSpans"][0]["spans"][1][f"{what}TimeUnixNano"] = time
        write(folder, number, jumped)
    write(folder, 5, one(5))
    runs, said = listed(capsys, folder)
    assert [run["start"] for run in runs] == [1_790_000_500.0]
    assert said.count("1 run that ended before it began: the clock was set back") == 1
    assert said.count("1 × span without ids or times") == 4
    assert main(["history", str(folder), "-o", str(folder / "page.html")]) == 0
    assert main(["report", "--compare", str(folder), str(folder), "--text"]) == 0


HALVES = [
    b"", b"\x00" * 100, b"{", b'{"resourceSpans": 5}', b'{"resourceSpans": [{"scopeSpans": [7]}]}',
    b"\x1f\x8b\x08\x00broken", b"[" * 100_000, b'{"resourceMetrics": [null]}\n{"x":',
]  # fmt: skip


@pytest.mark.parametrize("content", HALVES, ids=range(len(HALVES)))
@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_half_a_file_leaves_the_others(folder, capsys, content, signal):
    name = write(folder, 0, one(0)).name.replace("-0001", "-0002").replace("traces", signal)
    (folder / name.replace("00000000-", "00000001-")).write_bytes(content)
    runs, said = listed(capsys, folder)
    assert ([run["name"] for run in runs], "Traceback" in said) == (["etl"], False)
    assert main(["history", str(folder), "--check", "etl"]) == 0


@pytest.mark.parametrize(
    ("metered", "terms"),
    # Metrics agree with the spans, or they have a little of another run, too.
    [(24.0, {"thread-cpu": 24.0}), (24.5, {"": 5.0}), (99.0, {"": 5.0})],
)
def test_functions_have_activities_if_the_metrics_are_those_of_the_spans(
    folder, capsys, metered, terms
):
    """Functions come from the groups if the metrics are of another time, or of two runs."""
    group = span(3, "f tasks", parent=1, kind="group", dask_task_prefix="f", dask_task_count=2)
    group["attributes"] += attributes({"dask.task_group.duration.compute": 5.0})
    request = one(0)
    request["resourceSpans"][0]["scopeSpans"][0]["spans"].append(group)
    path = write(folder, 0, request)
    labels = {"dask.span.root.name": "etl", "dask.task.prefix": "f", "dask.activity": "thread-cpu"}
    # What peer-to-peer shuffles did beside tasks is in no span.
    shuffled = counter("dask.span.p2p.time", point(40.0, {**labels, "dask.activity": "idle"}))
    executed = counter("dask.span.execute.time", point(metered, labels))
    measured = metrics(executed, shuffled, instance="Scheduler-0")
    (folder / path.name.replace("traces", "metrics")).write_text(json.dumps(measured))
    (run,), _ = listed(capsys, folder)
    seconds = sum(sum(one.values()) for one in run["functions"].values())
    assert (run["functions"]["f"], seconds) == (terms, pytest.approx(30.0))


def test_logs_and_old_metrics_are_not_read(folder, capsys):
    path = write(folder, 0, one(0))
    for number, signal in ((1, "logs"), (1, "metrics"), (2, "metrics")):
        (folder / path.name.replace("0001-traces", f"{number:04}-{signal}")).write_text("{broken\n")
    (_,), said = listed(capsys, folder)
    # Counters only grow: the last file of metrics has them all.
    (line,) = [line for line in said.splitlines() if "line that is no JSON" in line]
    assert "0002-metrics" in line
