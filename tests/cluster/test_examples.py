"""The examples in docstrings do what they show, on a real cluster."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import span
from opentelemetry.sdk.trace import TracerProvider

import dask_otel
from tests.cluster.conftest import Start
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

#: Entry points, which do something when they are imported.
PROGRAMS = {"dask_otel.__main__"}


def examples() -> Iterator[doctest.DocTest]:
    """Find every example of the package."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in pkgutil.walk_packages(dask_otel.__path__, "dask_otel."):
        if module.name not in PROGRAMS:
            for found in finder.find(importlib.import_module(module.name), module.name):
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
