"""The variables of deploy/vendors, as the bridge's exporters understand them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dask_otel._otel.sdk.environment import read_environment
from dask_otel._otel.sdk.exporters import make_sinks
from dask_otel._otel.sdk.sink import ExporterSink
from dask_otel._otel.sdk.transport import GrpcTransport
from tests.receiver import receiver

VENDORS = Path(__file__).parents[2] / "deploy" / "vendors"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"

Make = Callable[[str, str], ExporterSink]


def _variables(vendor: str) -> dict[str, str]:
    lines = (VENDORS / f"{vendor}.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    """The exporter of a signal, with the variables of a vendor and no others."""

    def make_one(vendor: str, signal: str, **changes: str) -> ExporterSink:
        for name, value in (_variables(vendor) | changes).items():
            monkeypatch.setenv(name, value)
        (one,) = make_sinks([signal], partial(ExporterSink, Mock(), Mock()))
        request.addfinalizer(one.transport.close)
        return one

    return make_one


def _headers(make: Callable[..., ExporterSink], vendor: str, signal: str) -> dict[str, str]:
    """The headers that arrive at a server which stands for the vendor's."""
    with receiver() as received:
        one = make(vendor, signal, **{ENDPOINT: received.endpoint})
        assert one.transport.send(b"", 60).taken
        ((arrived, _, headers),) = received.requests
        assert arrived == signal
        return headers


@pytest.mark.parametrize(
    ("vendor", "endpoint"),
    [
        ("grafana-cloud", "https://otlp-gateway-prod-eu-west-2.grafana.net/otlp/v1/{}"),
        ("honeycomb", "https://api.honeycomb.io/v1/{}"),
    ],
)
@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
def test_where_it_goes(make: Make, vendor: str, endpoint: str, signal: str) -> None:
    transport: Any = make(vendor, signal).transport
    assert transport.url == endpoint.format(signal)


@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_grafana_cloud_knows_us(make: Make, signal: str) -> None:
    # `123456:glc_example` in base64; the space is one.
    headers = _headers(make, "grafana-cloud", signal)
    assert headers["authorization"] == "Basic MTIzNDU2OmdsY19leGFtcGxl"


def test_honeycomb_knows_us_and_keeps_metrics_apart(make: Make) -> None:
    traces, metrics = (_headers(make, "honeycomb", signal) for signal in ("traces", "metrics"))
    assert traces["x-honeycomb-team"] == metrics["x-honeycomb-team"] == "EXAMPLE_KEY"
    assert metrics["x-honeycomb-dataset"] == "dask-metrics"
    assert "x-honeycomb-dataset" not in traces


def test_datadog_gets_differences_over_grpc(make: Make) -> None:
    one = make("datadog", "metrics")
    assert one.destination.name == "http://datadog-agent:4317 (OTLP over gRPC)"
    assert isinstance(one.transport, GrpcTransport)
    assert read_environment().temporality == "delta"


def test_each_vendor_is_tested() -> None:
    assert {path.stem for path in VENDORS.iterdir()} == {"grafana-cloud", "honeycomb", "datadog"}
