"""Jaeger and Tempo: straight and through the Collector, over gRPC and HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dask_otel import read_report, semconv

from .clients import JaegerClient, StoredSpan, TempoClient, get_json
from .processes import eventually, free_ports
from .servers import Collector, Jaeger, Tempo, local, start_collector
from .telemetry import Tree, new_resource, send_tree, span_exporter

pytestmark = pytest.mark.backend

Start = Callable[[Callable[[Path], Any]], Any]
PATHS = [(protocol, way) for protocol in ("grpc", "http") for way in ("straight", "collector")]
EVERY_PATH = pytest.mark.parametrize(("protocol", "way"), PATHS)


class Sent(NamedTuple):
    """A tree, and how much of it must be found."""

    tree: Tree
    service: str


def _collector(start: Start, backend: Jaeger | Tempo) -> Collector:
    """A Collector whose traces go to `backend`; the other backends are down."""
    (closed,) = free_ports(1)
    address = backend.grpc.removeprefix("http://")
    down = local(closed)
    variables = {
        "JAEGER_OTLP_ENDPOINT": address if isinstance(backend, Jaeger) else down,
        "TEMPO_OTLP_ENDPOINT": address if isinstance(backend, Tempo) else down,
        "PROMETHEUS_OTLP_ENDPOINT": f"http://{down}",
    }
    return start(lambda folder: start_collector(folder, variables))


def _send(start: Start, backend: Jaeger | Tempo, protocol: str, way: str) -> Sent:
    target = backend if way == "straight" else _collector(start, backend)
    service = f"dask-scheduler-{protocol}-{way}"
    resource = new_resource(**{"service.name": service})
    exporter = span_exporter(protocol, target.grpc, target.http)
    return Sent(send_tree(exporter, resource, failed=True), service)


def _check_tree(spans: list[StoredSpan], tree: Tree) -> None:
    by_name = {span.name: span for span in spans}
    root, child = by_name[tree.name], by_name["load"]
    assert (root.span_id, root.parent_id) == (tree.root_id, "")
    assert (child.span_id, child.parent_id) == (tree.child_id, tree.root_id)
    assert (root.error, child.error) == (True, False)
    assert root.attributes[semconv.TASK_COUNT] == 7
    assert root.attributes["dask.span.idle.time"] == 90.5


@EVERY_PATH
def test_jaeger(
    protocol: str, way: str, jaeger: Jaeger, jaeger_client: JaegerClient, start: Start
) -> None:
    tree, service = _send(start, jaeger, protocol, way)
    _check_tree(
        eventually(lambda: _whole(jaeger_client.trace(tree.trace_id))),
        tree,
    )
    assert service in jaeger_client.services()
    find = jaeger_client.search
    assert find(service) == {tree.trace_id}
    assert find(service, operation=tree.name) == {tree.trace_id}
    assert find(service, tags={semconv.SPAN_RESULT: "failure"}) == {tree.trace_id}
    assert find(service, tags={semconv.SPAN_RESULT: "success"}) == set()


@EVERY_PATH
def test_tempo(
    protocol: str, way: str, tempo: Tempo, tempo_client: TempoClient, start: Start
) -> None:
    tree, service = _send(start, tempo, protocol, way)
    _check_tree(
        eventually(lambda: _whole(tempo_client.trace(tree.trace_id))),
        tree,
    )
    now = time.time()

    def find(condition: str) -> set[str]:
        query = f'{{ resource.service.name = "{service}" && {condition} }}'
        return tempo_client.search(query, now - 3600, now + 3600)

    wanted = f'span.dask.span.name = "{tree.name}" && status = error'
    # Search lags behind by some seconds; a trace by its id does not.
    assert eventually(lambda: find(wanted), timeout=60) == {tree.trace_id}
    assert find("span.dask.span.idle.time > 60.0") == {tree.trace_id}
    assert find("span.dask.span.idle.time > 100.0") == set()


def _whole(spans: list[StoredSpan]) -> list[StoredSpan]:
    return spans if len(spans) == 2 else []


@pytest.mark.parametrize("api", ["api/v3/traces", "api/traces"])
def test_a_trace_saved_from_jaeger_is_a_report(
    api: str, jaeger: Jaeger, jaeger_client: JaegerClient, start: Start, tmp_path: Path
) -> None:
    tree, service = _send(start, jaeger, "grpc", "straight")
    eventually(lambda: _whole(jaeger_client.trace(tree.trace_id)))
    saved = tmp_path / "trace.json"
    saved.write_text(json.dumps(get_json(f"{jaeger_client._url}/{api}/{tree.trace_id}")))
    report = read_report(saved)
    assert report.skipped.counts == {}
    (run,) = report.runs
    spans = [*run.spans, *run.foreign]
    by_name = {span.name: span for span in spans}
    root, child = by_name[tree.name], by_name["load"]
    assert (root.trace_id, root.span_id, root.parent_id) == (tree.trace_id, tree.root_id, "")
    assert (child.span_id, child.parent_id) == (tree.child_id, tree.root_id)
    assert (root.failed, child.failed) == (True, False)
    assert root.number(semconv.TASK_COUNT) == 7
    assert run.resource[semconv.SERVICE_NAME] == service
