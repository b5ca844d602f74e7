"""The laboratory is of use to others: it knows Dask, and nothing of this project."""

from __future__ import annotations

import ast

from tests.environment import REPOSITORY

LABORATORY = {
    f"dask_otel.lab.{path.stem}" for path in (REPOSITORY / "src/dask_otel/lab").glob("*.py")
}


def test_the_laboratory_knows_nothing_of_the_project() -> None:
    imported = set()
    for path in [
        *(REPOSITORY / "lab").glob("*.py"),
        *(REPOSITORY / "src/dask_otel/lab").glob("*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
    assert "dask_otel.lab.clock" in imported
    others = {name.split(".")[0] for name in imported - LABORATORY}
    assert {"lab", "distributed"} <= others
    assert not others & {"dask_otel", "opentelemetry", "tests", "benchmarks", "chaos"}
