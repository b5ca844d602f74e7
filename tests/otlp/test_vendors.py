"""The variables of deploy/vendors, as the bridge's exporters understand them."""

from __future__ import annotations

import os
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from dask_otel._otel.sdk.environment import read_environment
from dask_otel._otel.sdk.exporters import make_sinks
from dask_otel._otel.sdk.sink import ExporterSink
from tests.receiver import receiver

VENDORS = Path(__file__).parents[2] / "deploy" / "vendors"


@pytest.mark.parametrize(
    ("vendor", "where", "headers", "temporality"),
    [
        (
            "grafana-cloud",
            "https://otlp-gateway-prod-eu-west-2.grafana.net/otlp/v1/{}",
            # `123456:glc_example` in base64; the space is one.
            {"authorization": "Basic MTIzNDU2OmdsY19leGFtcGxl"},
            "cumulative",
        ),
        (
            "honeycomb",
            "https://api.honeycomb.io/v1/{}",
            {"x-honeycomb-team": "EXAMPLE_KEY", "x-honeycomb-dataset": "dask-metrics"},
            "cumulative",
        ),
        ("datadog", "http://datadog-agent:4317 (OTLP over gRPC)", {}, "delta"),
    ],
)
@pytest.mark.parametrize("signal", ["traces", "metrics"])
def test_a_vendor_knows_us(
    vendor: str,
    where: str,
    headers: dict[str, str],
    temporality: str,
    signal: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = (VENDORS / f"{vendor}.env").read_text(encoding="utf-8").splitlines()
    for name, value in [x.split("=", 1) for x in lines if x and not x.startswith("#")]:
        monkeypatch.setenv(name, value)
    assert read_environment().temporality == temporality
    make = partial(ExporterSink, Mock(), Mock())
    (one,) = make_sinks([signal], make)
    assert getattr(one.transport, "url", one.destination.name) == where.format(signal)
    # Metrics are kept apart.
    wanted = {k: v for k, v in headers.items() if "dataset" not in k or signal == "metrics"}
    with receiver(os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"]) as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.endpoint)
        (one,) = make_sinks([signal], make)
        with closing(one.transport):
            assert one.transport.send(b"", 60).taken
        ((arrived, _, sent),) = received.requests
    assert (arrived, {k: v for k, v in sent.items() if k.startswith(("auth", "x-"))}) == (
        signal,
        wanted,
    )


def test_each_vendor_is_tested() -> None:
    assert {path.stem for path in VENDORS.iterdir()} == {"grafana-cloud", "honeycomb", "datadog"}
