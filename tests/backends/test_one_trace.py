"""The example in Jaeger: an application, its Dask spans, and HTTP calls in tasks, as one tree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.cluster.processes import cluster
from tests.receiver import Span
from tests.waiting import eventually

from .clients import JaegerClient
from .servers import REPOSITORY, Running

pytestmark = pytest.mark.backend

EXAMPLE = REPOSITORY / "examples" / "one_trace.py"
#: Spans of the trace: request, report, its group and task, and two for each of four prices.
SPANS = 12

#: A service, and what is below: how often each.
Tree: TypeAlias = tuple[str, frozenset[tuple[Any, int]]]


def service_of(span: Span) -> str:
    return str(span.resource["service.name"])


def below(spans: list[Span], span: Span) -> Tree:
    """A span's service and what is below it, as it can be compared."""
    children = Counter(below(spans, child) for child in spans if child.parent_id == span.span_id)
    return service_of(span), frozenset(children.items())


def leaf(service: str) -> Tree:
    return service, frozenset()


def test_jaeger_gives_the_whole_system_back_as_one_tree(
    jaeger: Running, jaeger_client: JaegerClient, tmp_path: Path
) -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "DASK_OTEL__SPANS__LINGER": "200ms",
    }
    with cluster(tmp_path) as dask:
        scheduler = dask.start_scheduler("--preload", "dask_otel.preload", env=environ)
        for name in ("a", "b"):
            dask.start_worker(name, env={**environ, "PYTHONPATH": str(EXAMPLE.parent)})
        ran = subprocess.run(
            [sys.executable, str(EXAMPLE), "--scheduler", dask.address],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert scheduler.terminate() == 0
    trace_id = ran.stdout.split(" in trace ")[1].strip()

    def found() -> list[Span]:
        spans = jaeger_client.trace(int(trace_id, 16))
        return spans if len(spans) == SPANS else []

    spans = eventually(found, what="the whole trace")
    (root,) = [span for span in spans if not span.parent_id]
    asked = ("report-worker", frozenset({(leaf("shop"), 1)}))
    group = ("dask-scheduler", frozenset({(leaf("dask-scheduler"), 1)}))
    report = ("dask-scheduler", frozenset({(group, 1), (asked, 4)}))
    assert below(spans, root) == ("report", frozenset({(report, 1)}))
    names = [span.name for span in spans if service_of(span) in ("report", "dask-scheduler")]
    assert sorted(names) == ["fetch task", "fetch tasks", "report", "request"]
    assert all(span.status != 2 for span in spans)
    assert {span.trace_id for span in spans} == {int(trace_id, 16)}
