"""``dask-otel report``: what it writes, and how it says that it can't."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from dask_otel.cli import main, report
from tests.unit.history_files import one, write
from tests.unit.report_files import cluster, span, traces


@pytest.fixture
def run(tmp_path: Path) -> str:
    path = tmp_path / "run"
    path.mkdir()
    (path / "a-traces.jsonl").write_text(
        json.dumps(traces(span(1, "etl", dask_span_root_id="id-1"))) + "\n"
    )
    (path / "a-metrics.jsonl").write_text(json.dumps(cluster({"idle": 1.0}, capacity=1.0)) + "\n")
    return str(path)


def said(capsys, *arguments, code=0, error=False):
    """What a command prints, which ends with a code."""
    assert main(["report", *map(str, arguments)]) == code
    return capsys.readouterr()[error]


def test_writes_a_page_and_says_where(run, tmp_path, capsys):
    pytest.importorskip("bokeh")
    page = tmp_path / "page.html"
    assert said(capsys, run, "-o", page) == f"{page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("command", ["report", "history"])
def test_a_page_can_go_to_standard_output(tmp_path, monkeypatch, command):
    pytest.importorskip("bokeh")
    write(tmp_path, 0, one(0, "été"))
    monkeypatch.chdir(tmp_path)
    # Its encoding is in the page.
    shown = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="latin-1"))
        assert main([command, str(tmp_path), "-o", "-"]) == 0
        page = shown.getvalue().decode()
    assert page.startswith("<!DOCTYPE html>")
    assert "été" in page
    assert not Path("-").exists()


def test_compares(run, tmp_path, capsys):
    compare = ("--compare", run, run)
    assert f"A: {run} (1 run)" in said(capsys, *compare, "--text")
    (compared,) = json.loads(said(capsys, *compare, "--json"))["comparison"]["names"]
    assert (compared["name"], compared["lasted"], compared["verdict"]) == ("etl", [1.0, 1.0], "")
    (Path(run) / "a-traces.jsonl").write_text(json.dumps(traces(span(1, "etl"))) + "\n")
    assert "no root span has ended" in said(capsys, *compare, "--text")


def test_takes_the_last_runs_of_a_folder(run, tmp_path, capsys):
    for number in range(3):
        spans = traces(span(10 + number, f"run {number}", start=10 * number), instance=str(number))
        (Path(run) / f"{number}-traces.jsonl").write_text(json.dumps(spans) + "\n")
    for options, expected in (
        ((run, "--last", "2"), ["run 1", "run 2"]),
        ((run,), ["run 0", "etl", "run 1", "run 2"]),
        (("--compare", run, run, "--last", "1"), ["run 2", "run 2"]),
    ):
        runs = json.loads(said(capsys, *options, "--json"))["runs"]
        assert sorted(one["name"] for found in runs for one in found["traces"]) == sorted(expected)


def test_json_has_the_cost(run, capsys):
    shown = said(capsys, run, "--json", "--price", "3600", "--currency", "EUR")
    (found,) = json.loads(shown)["runs"]
    assert (found["cost"]["capacity"], found["cost"]["currency"]) == (1.0, "EUR")


def test_text_needs_no_extra(run, capsys, monkeypatch):
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    short, everything = (
        said(capsys, run, *options) for options in (("--text",), ("--text", "--all"))
    )
    command = f"  dask-otel report {run}"
    more = f"\nWhere to look next\n{command} --open\n{command} --text --all\n"
    threads = "\nWhere the threads' time went\n"
    assert [(more in shown, threads in shown) for shown in (short, everything)] == [
        (True, False),
        (False, True),
    ]
    assert "pip install 'dask-otel[report]'" in said(capsys, run, code=1, error=True)


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ((), ""),
        (("--price", "1"), ""),
        (("--price", "1", "--tag", "team"), ""),
        (("--price", "1", "--tag", "squad"), "no span that took thread-time has a tag squad:…"),
        (("--price-memory", "1"), "--price-memory has no effect without --price"),
        (("--price", "1", "--price-memory", "1"), "the files have no memory of workers"),
        (("--currency", "EUR"), "--currency has no effect without --price"),
        (("--tag", "team", "--currency", "EUR"), "--currency and --tag have no effect without"),
    ],
)
def test_says_what_changes_nothing(tmp_path, capsys, options, warning):
    about = {"dask.span.tags": ["etl", "team:red"], "dask.span.capacity.time": 1.0}
    (tmp_path / "a-traces.jsonl").write_text(json.dumps(traces(span(1, "etl", **about))) + "\n")
    printed = said(capsys, tmp_path, "--text", *options, error=True)
    assert (warning in printed, printed.count("\n")) == (True, bool(warning))


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["{at}/nothing", "--text"], "there is no"),
        (["{at}/other.json", "--text"], "neither traces, metrics nor logs"),
        (["--compare", "{run}", "{at}/empty.json", "--text"], "no Dask telemetry in {at}/empty"),
        (["{run}", "-o", "{at}/empty.json/x"], "can't write {at}/empty.json/x: not a directory\n"),
    ],
)
def test_says_what_is_wrong(run, tmp_path, capsys, arguments, wrong):
    if "-o" in arguments:
        pytest.importorskip("bokeh")
    for name, content in (("other", '{"a": 1}'), ("empty", '{"resourceSpans": []}')):
        (tmp_path / f"{name}.json").write_text(content)
    given = [one.format(run=run, at=tmp_path) for one in arguments]
    error = said(capsys, *given, code=1, error=True)
    assert error.startswith("dask-otel report: ")
    assert wrong.format(at=tmp_path) in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("report",), "give PATH, or --compare A B"),
        (("report", "{run}", "--compare", "b", "c"), "give PATH, or --compare A B"),
        (("report", "{run}", "--text", "--json"), "--json: not allowed with argument --text"),
        (("report", "{run}", "--last", "0"), "'0' is not a number of schedulers"),
        (("report", "{run}", "--last", "-1"), "'-1' is not a number of schedulers"),
        (("report", "{run}", "--price", "abc"), "'abc' is not a price"),
        (("report", "{run}", "--price", "-1"), "'-1' is not a price"),
        (("report", "{run}", "--last", "few"), "'few' is not a number of schedulers"),
        (("report", "{run}", "--json", "-o", "x"), "-o and --open are for the page"),
        (("report", "{run}", "--json", "--all"), "--all is for --text"),
        (("report", "{run}", "--text", "--open"), "-o and --open are for the page"),
        (("report", "{run}", "-o", "-", "--open"), "--open needs a file, not -o -"),
        (("doctor", "--patience", "soon"), "'soon' is not more than 0"),
        (("doctor", "--timeout", "3601"), "'3601' is not more than 0 and at most 3600 seconds"),
        (("spool", "{run}", "--patience", "-1"), "'-1' is not from 0 to 86400 seconds"),
    ],
)
def test_wrong_arguments_are_said_in_words(run, capsys, arguments, said):
    with pytest.raises(SystemExit) as stopped:
        main([argument.format(run=run) for argument in arguments])
    assert stopped.value.code == 2
    assert re.search(
        rf"^usage: dask-otel {arguments[0]}(?s:.*){re.escape(said)}", capsys.readouterr().err
    )


@pytest.mark.parametrize("address", ["nonsense", "http://127.0.0.1:8786"])
def test_an_address_that_is_none_starts_no_client(address, capsys, monkeypatch):
    # One that can't read its address hangs when it is closed.
    monkeypatch.setattr("distributed.Client", Mock(side_effect=AssertionError("it hangs")))
    assert main(["doctor", "--scheduler", address]) == 3
    said = capsys.readouterr().err
    assert "nonsense" in said or "unknown address scheme" in said
    assert "hangs" not in said
