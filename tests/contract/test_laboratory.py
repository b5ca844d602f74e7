"""The laboratory is of use to others: it knows Dask, and nothing of this project."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_laboratory_knows_nothing_of_the_project() -> None:
    imported = set()
    for path in (ROOT / "lab").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
    assert {"lab", "distributed"} <= imported
    assert not imported & {"dask_otel", "opentelemetry", "tests", "benchmarks", "chaos"}
