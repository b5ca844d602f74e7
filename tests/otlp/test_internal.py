"""The SDK's own internal metrics go out with ours, where the user turns them on."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider

from tests.otlp.conftest import Build
from tests.otlp.records import ROOT, counter, number
from tests.receiver import Point, Receiver, receiver

ON = {"OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true"}
KNOWN = "meter_provider" in inspect.signature(OTLPSpanExporter).parameters
needs_them = pytest.mark.skipif(not KNOWN, reason="this SDK's exporters count nothing")

SPANS = "otel.sdk.exporter.span.exported"
POINTS = "otel.sdk.exporter.metric_data_point.exported"


def internal(server: Receiver) -> list[Point]:
    return [point for point in server.points if point.metric.startswith("otel.sdk.")]


def last(server: Receiver, metric: str) -> list[Any]:
    return list(server.last(metric).values())


@needs_them
def test_exporters_count_what_they_do(server: Receiver, build: Build) -> None:
    outputs = build(server.environ | ON)
    (spans,), (sink,) = outputs.span_sinks, outputs.metric_sinks
    assert spans.export([ROOT, ROOT])
    assert sink.export([counter(number(1.0, time=2))])
    assert last(server, SPANS) == [2]
    assert sink.export([counter(number(1.0, time=3))])
    # The first request, with at least one of these beside ours, was counted meanwhile.
    assert last(server, POINTS)[0] >= 2
    (labels,) = server.last(SPANS)
    assert dict(labels)["otel.component.type"].startswith("otlp_")
    points = internal(server)
    assert {p.scope[0] for p in points} == {"opentelemetry-sdk"}
    assert {p.resource["service.name"] for p in points} == {"dask-scheduler"}
    # Ours stay ours.
    assert {p.scope[0] for p in server.points if p.metric == "dask.test"} == {"dask_otel"}


@needs_them
def test_they_come_once_at_each_export(server: Receiver, build: Build) -> None:
    (sink,) = build(server.environ | ON).metric_sinks
    for time in (2, 3):
        # One export in two requests, the second of which has a point of the common time.
        assert sink.export([counter(number(1.0, time=time), name="dask.a")])
        assert sink.export([counter(number(1.0, time=time), name="dask.b")])
    requests = [request for signal, request in server.accepted if signal == "metrics"]
    assert {len(request.resource_metrics) for request in requests} == {1}
    scopes = [sum(len(r.scope_metrics) for r in request.resource_metrics) for request in requests]
    assert [scopes[1], scopes[3]] == [1, 1], "the second request of each export"
    assert scopes[2] == 2


@needs_them
def test_deltas_for_who_wants_deltas(build: Build) -> None:
    with receiver() as server:
        preference = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}
        outputs = build(server.environ | ON | preference)
        for time in (2, 3, 4):
            assert outputs.span_sinks[0].export([ROOT])
            assert outputs.metric_sinks[0].export([counter(number(1.0, time=time))])
        counted = [p for p in server.points if p.metric == SPANS]
        assert [p.value for p in counted] == [1, 1, 1]
        assert {p.temporality for p in counted} == {1}


@needs_them
def test_an_applications_own_meter_provider_gets_them(
    server: Receiver, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = MeterProvider(shutdown_on_exit=False)
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", provider)
    (sink,) = build(server.environ | ON).metric_sinks
    assert sink.export([counter(number(1.0))])
    assert not internal(server)


@pytest.mark.parametrize("value", ["", "false", "yes"])
def test_nothing_comes_unasked(server: Receiver, build: Build, value: str) -> None:
    outputs = build(server.environ, OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED=value)
    assert outputs.span_sinks[0].export([ROOT])
    assert outputs.metric_sinks[0].export([counter(number(1.0))])
    assert not internal(server)


def test_other_exporters_need_not_know_them(
    build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = build(ON, OTEL_TRACES_EXPORTER="none", OTEL_METRICS_EXPORTER="console")
    assert outputs.metric_sinks[0].export([counter(number(1.0))])
