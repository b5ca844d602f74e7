"""``dask-otel report``: what it writes, and how it says that it can't."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dask_otel.cli import main, report
from tests.unit.report_files import cluster, span, traces


@pytest.fixture
def run(tmp_path: Path) -> str:
    path = tmp_path / "run"
    path.mkdir()
    (path / "a-traces.jsonl").write_text(json.dumps(traces(span(1, "etl"))) + "\n")
    (path / "a-metrics.jsonl").write_text(json.dumps(cluster({"idle": 1.0}, capacity=1.0)) + "\n")
    return str(path)


def test_writes_a_page_and_says_where(run, tmp_path, capsys):
    pytest.importorskip("bokeh")
    page = tmp_path / "page.html"
    assert main(["report", run, "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_compares(run, tmp_path, capsys):
    assert main(["report", "--compare", run, run, "--text"]) == 0
    said = capsys.readouterr().out
    assert f"A: {run}" in said
    assert "same" in said
    assert main(["report", "--compare", run, run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparison"]["spans"][0]["verdict"] == "same"


def test_json_has_the_cost(run, capsys):
    assert main(["report", run, "--json", "--price", "3600", "--currency", "EUR"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert (found["cost"]["capacity"], found["cost"]["currency"]) == (1.0, "EUR")


def test_text_needs_no_extra(run, capsys, monkeypatch):
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    assert main(["report", run, "--text"]) == 0
    assert "Where the threads' time went" in capsys.readouterr().out
    assert main(["report", run]) == 1
    assert "pip install 'dask-otel[report]'" in capsys.readouterr().err


def test_says_what_is_wrong(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nothing"), "--text"]) == 1
    assert "there is no" in capsys.readouterr().err
    other = tmp_path / "other.json"
    other.write_text('{"a": 1}')
    assert main(["report", str(other), "--text"]) == 1
    assert "neither traces nor metrics" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a", "--compare", "b", "c"],
        ["a", "--price", "much"],
        ["a", "--price", "-1"],
        ["a", "--text", "--json"],
    ],
)
def test_wrong_arguments(capsys, arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["report", *arguments])
    assert exit_.value.code == 2
    assert "usage: dask-otel report" in capsys.readouterr().err
