"""The examples in docstrings do what they show, on a real cluster."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import span
from opentelemetry.sdk.trace import TracerProvider

import dask_otel
from tests.cluster.conftest import Start
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


def examples() -> Iterator[doctest.DocTest]:
    """Find every example of the package."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    (root,) = map(Path, dask_otel.__path__)
    for path in sorted(root.rglob("*.py")):
        # The others need not be imported, which may need an extra.
        if ">>> " in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
            for found in finder.find(importlib.import_module(name), name):
                if found.examples:
                    yield found


def test_examples_run_as_they_stand(start: Start) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("app")
    names: set[str] = set()
    with start() as bridged:
        for example in examples():
            known: dict[str, Any] = {"client": bridged.client, "span": span, "tracer": tracer}
            example.globs = {**known, "dask_otel": dask_otel}
            said: list[str] = []
            try:
                doctest.DocTestRunner(verbose=False).run(example, out=said.append)
            finally:
                dask_otel.uninstrument()
            assert not said, "".join(said)
            assert not any("SKIP" in one.source for one in example.examples), example.name
            names.add(example.name.rpartition(".")[2])
            # The same task would be there already, and be no work of the next one's span.
            eventually(lambda: not bridged.scheduler.tasks)
        bridged.exported()
    assert names >= {"span", "span_metrics", "trace_context", "instrument"}
