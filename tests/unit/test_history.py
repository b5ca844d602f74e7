"""``dask-otel history``: the list of runs, its summaries, and what it says of bad input."""

from __future__ import annotations

import json
import os
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dask_otel.cli import main
from dask_otel.report.telemetry.reader import Reader
from tests.unit.report_files import EVIL, everything, span, traces


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "all runs"
    path.mkdir()
    return path


def write(folder: Path, number: int, *requests: dict[str, Any], more: str = "") -> Path:
    """Write a session's file of traces, with ids of its own, as the bridge names it."""
    ids = (f"{number:024x}{index + 1:08x}" for index in range(len(requests)))
    lines = [
        json.dumps(one).replace("ab" * 16, new) for one, new in zip(requests, ids, strict=True)
    ]
    path = folder / f"nightly-20261121T203353Z-{number:08x}-0001-traces.jsonl"
    path.write_text("\n".join(lines) + "\n" + more)
    return path


def one(number: int, name: str = "etl", **of: Any) -> dict[str, Any]:
    """A run of two spans, with 10 + 20 thread-seconds, of which 2 + 4 were idle."""
    both = {"dask.span.root.id": "id-1", "dask.task.erred.count": 1}
    both["dask.span.activity.time.thread-cpu"] = 8.0
    own = {"dask.span.capacity.time": 10.0, "dask.span.idle.time": 2.0, "dask.task.count": 7}
    both_below = {**both, "dask.span.activity.time.transfer": 8.0}
    below = {"dask.span.capacity.time": 20.0, "dask.span.idle.time": 4.0, "dask.task.count": 5}
    root = span(1, name, start=100.0 * number, seconds=30.0, **both, **own, **of)
    child = span(2, f"{name}/load", parent=1, start=100.0 * number, **both_below, **below)
    return traces(child, root, instance=f"Scheduler-{number}")


def listed(capsys, *arguments: str | Path, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    assert main(["history", *map(str, arguments), "--json"]) == code
    captured = capsys.readouterr()
    return json.loads(captured.out)["runs"] if captured.out else [], captured.err


def test_a_run_is_a_root_with_what_is_below_it(folder, capsys):
    write(folder, 3, one(3, dask_span_result="success"))
    (run,), said = listed(capsys, folder, "--price", "120")
    assert said == ""
    # Tasks and failures of a root are already those of its tree; seconds are each span's own.
    expected = {"name": "etl", "seconds": 30.0, "tasks": 7, "failed": 1, "thread_seconds": 30.0}
    expected |= {"idle_seconds": 6.0, "cost": 1.0, "start": 1_790_000_300.0, "result": "success"}
    expected |= {"distributed": "2026.8.0", "dask_otel": "0.1.0", "cluster": "cluster"}
    assert {key: run[key] for key in expected} == expected
    assert (sum(run["parts"].values()), run["parts"]["Idle"]) == (30.0, 6.0)
    assert main(["history", str(folder)]) == 0
    line = capsys.readouterr().out.splitlines()[1].split()
    assert " ".join(line[2:]) == "etl success 30.0 s 7 1 0.008333 20% 2026.8.0 0.1.0 cluster"


def test_its_command_makes_its_report(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder.parent)
    for number in range(2):
        write(folder, number, one(number))
    for run in listed(capsys, folder.name)[0]:
        program, command, pattern = shlex.split(run["command"])
        assert (program, command) == ("dask-otel", "report")
        files = [str(path) for path in Path("/").glob(pattern.lstrip("/"))]
        assert main(["report", *files, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["runs"]
        assert found["traces"][0]["trace_id"] == run["trace_id"]


def test_summaries_alone_list_what_was_read_before(folder, capsys, monkeypatch):
    for number in (2, 0, 1):
        write(folder, number, one(number))
    first, _ = listed(capsys, folder)
    assert [run["start"] for run in first] == [1_790_000_000.0 + 100 * n for n in range(3)]
    summaries = sorted(folder.glob("*-summary.json"))
    assert len(summaries) == 3
    assert {path.stat().st_mode & 0o777 for path in summaries} == {0o600}
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
    replace = os.replace

    def refused(source, target):
        if Path(target).parent == folder:
            raise PermissionError(13, "Permission denied")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refused)
    first, _ = listed(capsys, folder)
    assert [path.suffix for path in folder.iterdir()] == [".jsonl"]
    assert len(list(cache.rglob("*-summary.json"))) == 1
    monkeypatch.setattr(Reader, "read", None)
    assert listed(capsys, folder)[0] == first


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
    half = write(folder, 0, one(0), more='{"resourceSp')
    sign = span(9, "open", kind="progress", parent=8, **{"dask.span.root.id": "id-9"})
    write(folder, 1, one(1), traces(sign, instance="Scheduler-1"))
    write(folder, 2, one(2), one(22, "of another scheduler"))
    later = write(folder, 3, one(3))
    summary = folder / f"{later.name[:-18]}-summary.json"
    summary.write_text('{"version": 99}')
    broken = write(folder, 4, one(4))
    (folder / f"{broken.name[:-18]}-summary.json").write_text('{"version": 1, "runs": [[')
    for _ in range(2):
        runs, said = listed(capsys, folder, tmp_path / "nowhere")
        assert [run["start"] - 1_790_000_000 for run in runs] == [0, 100, 200, 300, 400, 2200]
        lines = said.replace("dask-otel history: ", "").splitlines()
        assert lines == [
            f"can't read {tmp_path / 'nowhere'}: No such file or directory",
            f"{half.with_name(half.name[:-18])}: 1 × line that was cut off ({half.name}:2)",
            f"{str(folder / half.name[:-18])[:-1]}1: 1 run without an end",
            f"{summary} is of a later version of dask-otel: not used",
        ]
    assert summary.read_text() == '{"version": 99}'


WRONG = [
    {"seconds": "x"},
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


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append(dict(attrs))


def test_the_page_shows_hostile_names_as_text(folder, capsys, tmp_path):
    pytest.importorskip("bokeh")
    write(folder, 0, *everything(EVIL), one(0, EVIL, dask_span_result=EVIL))
    write(folder, 1, one(1, "two\nlines \ud800"))
    page = tmp_path / "page.html"
    assert main(["history", str(folder), "-o", str(page), "--price", "1"]) == 0
    found = _Page()
    found.feed(page.read_text(encoding="utf-8"))
    assert (found.tags.count("script"), "img" in found.tags, found.tags.count("b")) == (1, False, 2)
    names = [row["data-name"] for row in found.rows if row]
    assert sorted(names) == sorted([EVIL, "two?lines ?"])
    assert found.rows[-1]["data-name"] in names
