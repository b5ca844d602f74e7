"""Exporters made by the standard variables, against a real receiver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from dask_otel._otel.sdk import outputs as _otel
from dask_otel._otel.sdk.outputs import FileTarget, Outputs
from tests.receiver import Receiver, receiver

PROTOCOLS = ("grpc", "http/protobuf")

Build = Callable[..., Outputs]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine that runs the tests counts."""
    for key in list(os.environ):
        if key.startswith(("OTEL_", "DASK_", "COILED_")):
            monkeypatch.delenv(key)


@pytest.fixture(params=PROTOCOLS)
def server(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    with receiver(request.param) as made:
        yield made


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Return a function that makes sinks with variables; they are shut down at the end."""
    with ExitStack() as stack:

        def call(
            environ: Mapping[str, str] | None = None,
            *,
            defaults: Mapping[str, str] | None = None,
            cluster_name: str | None = None,
            files: FileTarget | None = None,
            **variables: str,
        ) -> Outputs:
            for key, value in {**(environ or {}), **variables}.items():
                monkeypatch.setenv(key, value)
            outputs = _otel.build(
                defaults or {},
                service_name="dask-scheduler",
                instance_id="Scheduler-1",
                service_version="2026.1",
                cluster_name=cluster_name,
                version="1.2.3",
                files=files,
            )
            assert outputs is not None
            sinks: tuple[Any, ...] = (*outputs.span_sinks, *outputs.metric_sinks)
            for sink in sinks:
                stack.callback(sink.shutdown)
            # As a thread of the pump does, for the sink that it has.
            for sink in sinks[-1:]:
                stack.enter_context(sink.surroundings())
            return outputs

        yield call


@pytest.fixture
def no_long_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK 1.28 retries for 63 seconds, whatever its timeout says."""
    import opentelemetry.exporter.otlp.proto.grpc.exporter as grpc_exporter
    import opentelemetry.exporter.otlp.proto.http.metric_exporter as metric_exporter
    import opentelemetry.exporter.otlp.proto.http.trace_exporter as trace_exporter

    for module in (grpc_exporter, metric_exporter, trace_exporter):
        if hasattr(module, "_create_exp_backoff_generator"):
            monkeypatch.setattr(module, "_create_exp_backoff_generator", lambda max_value: [0, 64])
