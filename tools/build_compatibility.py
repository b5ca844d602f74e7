#!/usr/bin/env python3
"""Write ``docs/compatibility.md`` from what the tests ran.

A run of the tests with ``DASK_OTEL_COMPATIBILITY=FILE`` adds its versions and its outcome to FILE
(``tests/conftest.py``). The page is made of ``docs/compatibility.jsonl``: of the last run of each
combination for which nobody chose some of the tests. With ``--check`` nothing is written, and the
exit status is 1 where the page is not what would be written.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import write_or_check

DOCS = Path(__file__).parents[1] / "docs"
RUNS = DOCS / "compatibility.jsonl"
COLUMNS = ("python", "distributed", "opentelemetry-sdk", "opentelemetry-exporter-otlp")

HEAD = """\
# Compatibility

`make compatibility` makes this page from test runs. `pyproject.toml`
admits these releases and all between them.

| Python | distributed | OpenTelemetry SDK | OTLP exporters | tests passed | failed | left out |
|---|---|---|---|---|---|---|
"""


def _by_version(item: tuple[tuple[str, ...], object]) -> list[list[int]]:
    return [[int(part) for part in re.findall(r"\d+", version)] for version in item[0]]


def texts() -> dict[Path, str]:
    """Return the text of the page."""
    runs: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in RUNS.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        if run["whole"]:
            runs[tuple(run["versions"][column] for column in COLUMNS)] = run
    rows = [
        f"| {' | '.join(versions)} | {run['passed']:,} | {run['failed']} | {run['skipped']} |"
        for versions, run in sorted(runs.items(), key=_by_version, reverse=True)
    ]
    return {DOCS / "compatibility.md": HEAD + "\n".join(rows) + "\n"}


if __name__ == "__main__":
    sys.exit(write_or_check.main(__doc__, texts))
