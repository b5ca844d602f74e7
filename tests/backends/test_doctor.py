"""``dask-otel doctor`` with real servers: what it sends arrives; their answers are understood."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dask_otel.cli import main

from .servers import Running

pytestmark = pytest.mark.backend


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the doctor's exit code and its findings by check, with variables set."""

    def call(*arguments: str, **variables: str) -> tuple[int, dict[str, dict[str, Any]]]:
        for name, value in variables.items():
            monkeypatch.setenv(f"OTEL_{name}", value)
        capsys.readouterr()
        code = main(["doctor", "--json", "--timeout", "60", "--patience", "60", *arguments])
        document = json.loads(capsys.readouterr().out)
        return code, {finding["check"]: finding for finding in document["findings"]}

    return call


def test_it_is_read_back_from_jaeger_and_prometheus(
    doctor: Any, jaeger: Running, prometheus: Running
) -> None:
    code, findings = doctor(
        "--jaeger",
        jaeger.url,
        "--prometheus",
        prometheus.url,
        EXPORTER_OTLP_PROTOCOL="http/protobuf",
        EXPORTER_OTLP_ENDPOINT=jaeger.http,
        EXPORTER_OTLP_METRICS_ENDPOINT=f"{prometheus.http}/v1/metrics",
    )
    assert code == 0, findings
    for check in ("export.traces", "export.metrics", "backend.jaeger", "backend.prometheus"):
        assert findings[check]["level"] == "ok", findings[check]


def test_it_is_read_back_through_the_collector(
    doctor: Any, collector: Running, prometheus: Running
) -> None:
    code, findings = doctor("--prometheus", prometheus.url, EXPORTER_OTLP_ENDPOINT=collector.grpc)
    assert code == 0, findings
    assert findings["backend.prometheus"]["level"] == "ok"


@pytest.mark.parametrize(
    ("endpoint", "protocol", "kind"),
    [
        ("http://{http}", "grpc", "grpc_to_http"),
        ("http://{grpc}", "http/protobuf", "http_to_grpc"),
        ("https://{grpc}", "grpc", "tls_to_plain"),
        ("https://{http}", "http/protobuf", "tls_to_plain"),
        ("{grpc}", "grpc", "no_scheme"),
        ("http://{http}/v1/traces", "http/protobuf", "path_twice"),
    ],
)
def test_a_collector_asked_wrongly(
    doctor: Any, collector: Running, endpoint: str, protocol: str, kind: str
) -> None:
    grpc, http = (one.removeprefix("http://") for one in (collector.grpc, collector.http))
    address = endpoint.format(grpc=grpc, http=http)
    code, findings = doctor(EXPORTER_OTLP_ENDPOINT=address, EXPORTER_OTLP_PROTOCOL=protocol)
    assert code == 1
    for check in ("export.traces", "export.metrics"):
        assert (findings[check]["level"], findings[check]["kind"]) == ("problem", kind), findings


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_jaeger_takes_no_metrics(doctor: Any, jaeger: Running, protocol: str) -> None:
    address = jaeger.grpc if protocol == "grpc" else jaeger.http
    code, findings = doctor(EXPORTER_OTLP_ENDPOINT=address, EXPORTER_OTLP_PROTOCOL=protocol)
    assert (code, findings["export.traces"]["level"], findings["export.metrics"]["level"]) == (
        1,
        "ok",
        "problem",
    )
    assert "OTEL_METRICS_EXPORTER=none" in findings["export.metrics"]["next"], findings


def test_a_user_interface_is_no_receiver(doctor: Any, jaeger: Running) -> None:
    code, findings = doctor(
        EXPORTER_OTLP_ENDPOINT=jaeger.url, EXPORTER_OTLP_PROTOCOL="http/protobuf"
    )
    assert code == 1
    assert findings["export.traces"]["kind"] in ("web_page", "not_found"), findings
