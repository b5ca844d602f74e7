"""The table of releases has what was tried, and nothing else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import build_compatibility as tool


def run(python: str, passed: int, whole: bool = True) -> str:
    versions = {
        "python": python,
        "distributed": "2025.1.0",
        "opentelemetry-sdk": "1.28.0",
        "opentelemetry-exporter-otlp": "1.28.0",
    }
    outcome = {"passed": passed, "failed": 1, "skipped": 2}
    return json.dumps({"versions": versions, **outcome, "whole": whole}) + "\n"


def test_the_last_whole_run_of_each_combination_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "RUNS", tmp_path / "runs.jsonl")
    lines = [run("3.9.1", 7), run("3.10.1", 1), run("3.10.1", 1200), run("3.10.1", 3, whole=False)]
    tool.RUNS.write_text("".join(lines))
    (text,) = tool.texts().values()
    assert text.endswith(
        "| 3.10.1 | 2025.1.0 | 1.28.0 | 1.28.0 | 1,200 | 1 | 2 |\n"
        "| 3.9.1 | 2025.1.0 | 1.28.0 | 1.28.0 | 7 | 1 | 2 |\n"
    )


def test_deployments_name_the_newest_python_of_the_table() -> None:
    docs = Path(__file__).parents[2] / "docs"
    table = (docs / "compatibility.md").read_text(encoding="utf-8")
    newest = max(int(minor) for minor in re.findall(r"^\| 3\.(\d+)", table, re.MULTILINE))
    named = f"[tried](compatibility.md) up to 3.{newest} "
    assert named in (docs / "deployments.md").read_text(encoding="utf-8")
