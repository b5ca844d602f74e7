"""Jaeger: straight and through the Collector, over gRPC and HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dask_otel import read_report, semconv
from dask_otel.core.records import SpanRecord
from tests.waiting import eventually

from .clients import JaegerClient, get_json
from .conftest import Start
from .servers import Running, backends, start_collector
from .telemetry import check_tree, new_resource, new_tree, request, send

pytestmark = pytest.mark.backend


def _send(
    start: Start, protocol: str, way: str, jaeger: Running
) -> tuple[tuple[SpanRecord, SpanRecord], str]:
    """Send a tree, straight or through a Collector whose other backends are down."""
    to = start(start_collector, backends(jaeger.grpc)) if way == "collector" else jaeger
    tree, service = new_tree(), f"dask-scheduler-{protocol}-{way}"
    send(to, "traces", request(tree, new_resource(**{"service.name": service})), protocol=protocol)
    return tree, service


@pytest.mark.parametrize(
    ("protocol", "way"), [("grpc", "straight"), ("http", "straight"), ("grpc", "collector")]
)
def test_jaeger(
    protocol: str, way: str, jaeger: Running, jaeger_client: JaegerClient, start: Start
) -> None:
    tree, service = _send(start, protocol, way, jaeger)
    eventually(lambda: check_tree(jaeger_client.trace(tree[0].trace_id), tree))
    find = jaeger_client.search
    assert (find(service), find(service, operation=tree[0].name)) == (
        {tree[0].trace_id},
        {tree[0].trace_id},
    )
    for result, found in (("failure", {tree[0].trace_id}), ("success", set())):
        assert find(service, tags=json.dumps({semconv.SPAN_RESULT: result})) == found


@pytest.mark.parametrize("api", ["api/v3/traces", "api/traces"])
def test_a_trace_saved_from_jaeger_is_a_report(
    api: str, jaeger: Running, jaeger_client: JaegerClient, start: Start, tmp_path: Path
) -> None:
    tree, service = _send(start, "grpc", "straight", jaeger)
    eventually(lambda: check_tree(jaeger_client.trace(tree[0].trace_id), tree))
    saved = tmp_path / "trace.json"
    saved.write_text(json.dumps(get_json(f"{jaeger.url}/{api}/{tree[0].trace_id:032x}")))
    report = read_report(saved)
    assert report.skipped.counts == {}
    (run,) = report.runs
    found = {
        (s.name, s.trace_id, s.span_id, s.parent_id, s.failed) for s in run.spans + run.foreign
    }
    assert found == {
        (
            one.name, f"{one.trace_id:032x}", f"{one.span_id:016x}",
            f"{one.parent_span_id:016x}" if one.parent_span_id else "", one.error is not None,
        )
        for one in tree
    }  # fmt: skip
    (tasks,) = {s.number(semconv.TASK_COUNT) for s in run.spans + run.foreign} - {None}
    assert (tasks, run.resource[semconv.SERVICE_NAME]) == (7, service)
