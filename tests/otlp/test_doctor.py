"""The doctor's test of the export, against real servers: what is wrong is said in words."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import pytest

from dask_otel import semconv
from dask_otel._otel.sdk import listening
from dask_otel._otel.sdk import probe as probing
from dask_otel._otel.sdk.listening import look
from dask_otel.cli import main
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.doctor.asking import facts_of_this_process
from dask_otel.doctor.finding import Finding, exit_code
from dask_otel.doctor.findings import all_findings
from dask_otel.doctor.page import as_json, as_text
from tests.certificates import Certificate, self_signed
from tests.environment import set_variables
from tests.otlp.conftest import PROTOCOLS
from tests.receiver import Receiver, hanging_up, receiver, refusing, silent_server

GRPC, HTTP = PROTOCOLS

Examine = Callable[..., list[Finding]]


@pytest.fixture(autouse=True)
def _first_answers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    # However busy the machine is, it looks until there is something to see.
    monkeypatch.setattr(probing, "_LOOK", 60.0)
    monkeypatch.setattr(listening, "_SLOWEST", 30.0)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch) -> Examine:
    """Return what the doctor finds in an environment, and check that it can be shown."""

    def call(endpoint: str, protocol: str, **variables: str) -> list[Finding]:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        # However busy the machine is; failures are told at once.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
        set_variables(monkeypatch, variables)
        facts = facts_of_this_process(60)
        findings = all_findings(facts)
        page = as_text(facts, findings)
        assert json.loads(as_json(facts, findings))["ok"] is (exit_code(findings) == 0)
        for finding in findings:
            assert finding.what.split()[0] in page
        return findings

    return call


def exports(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.check in ("export.traces", "export.metrics")]


def kinds(findings: list[Finding]) -> set[str]:
    found = exports(findings)
    assert len(found) == 2, findings
    assert all(f.level == "problem" and f.why and f.next for f in found), found
    return {f.kind for f in found}


def test_what_works_is_well(
    server: Receiver, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookers: list[object] = []
    monkeypatch.setattr(probing, "look", lambda *arguments: lookers.append(arguments))
    findings = examine(server.endpoint, server.protocol)
    assert ([f.level for f in exports(findings)], exit_code(findings)) == (["ok", "ok"], 0)
    # Nobody looks who listens: it is known.
    assert (len(server.requests), lookers) == (2, [])
    (span,) = server.spans
    (point,) = server.points
    run = span.attributes[semconv.DOCTOR_RUN]
    assert ((span.name, span.attributes), (point.metric, point.value), point.attributes) == (
        (semconv.DOCTOR_SPAN, {semconv.DOCTOR_RUN: run}),
        (semconv.DOCTOR_CHECKS.name, 1),
        {semconv.DOCTOR_RUN: run},
    )
    assert (point.kind, point.monotonic) == ("sum", True)
    # The same way, with the same origin, as all else.
    assert span.resource["service.name"] == "dask-scheduler"


TO_TLS, TO_PLAIN, BARE = ("http:", "https:"), ("https:", "http:"), ("http://", "")
AS_IT_IS, WITH_A_PATH = ("^", ""), ("$", "/v1/traces")
PAGE = ("text/html", b"<!DOCTYPE html><html>Welcome</html>")


@pytest.mark.parametrize(
    ("spoken", "served", "secured", "change", "answer", "kind", "words"),
    [
        (GRPC, HTTP, False, AS_IT_IS, None, "grpc_to_http", ""),
        (HTTP, GRPC, False, AS_IT_IS, None, "http_to_grpc", ""),
        *((each, each, False, TO_TLS, None, "tls_to_plain", "") for each in PROTOCOLS),
        *((each, each, True, TO_PLAIN, None, "plain_to_tls", "") for each in PROTOCOLS),
        # Without a scheme the exporter speaks TLS to gRPC.
        (GRPC, GRPC, False, BARE, None, "no_scheme", "http://127.0.0.1:"),
        (HTTP, HTTP, False, AS_IT_IS, 401, "unauthenticated", ""),
        (HTTP, HTTP, False, AS_IT_IS, 403, "forbidden", ""),
        (HTTP, HTTP, False, AS_IT_IS, 404, "not_found", ""),
        (HTTP, HTTP, False, AS_IT_IS, 413, "too_large", ""),
        (GRPC, GRPC, False, AS_IT_IS, "UNAUTHENTICATED", "unauthenticated", ""),
        (GRPC, GRPC, False, AS_IT_IS, "PERMISSION_DENIED", "forbidden", ""),
        (GRPC, GRPC, False, AS_IT_IS, "UNIMPLEMENTED", "no_signal", ""),
        (HTTP, HTTP, False, WITH_A_PATH, None, "path_twice", "/v1/traces/v1/"),
        (HTTP, HTTP, False, AS_IT_IS, PAGE, "web_page", ""),
    ],
)
def test_what_is_wrong_has_a_name(
    examine: Examine,
    certificate: Certificate,
    spoken: str,
    served: str,
    secured: bool,
    change: tuple[str, str],
    answer: Any,
    kind: str,
    words: str,
) -> None:
    with receiver(served, tls=certificate if secured else None) as server:
        setattr(server, "content" if answer == PAGE else "answer", answer)
        findings = examine(re.sub(*change, server.endpoint), spoken)
    assert kinds(findings) == {kind}
    # An answer in another protocol is not shown as text.
    assert not any("\ufffd" in f.what for f in findings)
    assert all(words in f"{f.why} {f.next}" for f in exports(findings))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_certificate_that_is_not_trusted_and_one_that_is(
    examine: Examine,
    certificate: Certificate,
    protocol: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # For other programs, on many machines; the exporter's own variable wins.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(self_signed(tmp_path).certificate))
    with receiver(protocol, tls=certificate) as server:
        assert kinds(examine(server.endpoint, protocol)) == {"certificate_untrusted"}
        pem = str(certificate.certificate)
        findings = examine(server.endpoint, protocol, OTEL_EXPORTER_OTLP_CERTIFICATE=pem)
        assert [f.level for f in exports(findings)] == ["ok", "ok"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nobody_there(examine: Examine, protocol: str) -> None:
    with refusing() as endpoint:
        assert kinds(examine(endpoint, protocol)) == {"refused"}
    assert kinds(examine("http://nowhere.invalid:4317", protocol)) == {"unresolved"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_somebody_who_never_answers(
    examine: Examine, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who never answers does not answer later.
    monkeypatch.setattr(listening, "_SLOWEST", 0.1)
    with silent_server() as endpoint:
        assert kinds(examine(endpoint, protocol, OTEL_EXPORTER_OTLP_TIMEOUT="0.1")) == {"timeout"}


def test_nothing_is_exported(examine: Examine) -> None:
    none = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
    found = exports(examine("http://127.0.0.1:1", GRPC, **none))
    assert [f.level for f in found] == ["note", "note"]
    findings = examine("http://127.0.0.1:1", GRPC, OTEL_SDK_DISABLED="true")
    assert [f.level for f in findings if f.check == "export"] == ["problem"]


def test_a_typing_error_in_a_variable(server: Receiver, examine: Examine) -> None:
    wrong = {
        "OTEL_EXPORTER_OTLP_ENDPIONT": "http://geheim:1",
        "OTLE_SERVICE_NAME": "etl",
        "OTEL_METRICS_EXPORT_INTERVAL": "5000",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESION": "gzip",
        # Dask takes these for keys of no section.
        "DASK_OTEL_CLUSTER_NAME": "nightly",
        "DASK_OTEL_SPANS_LINGER": "5s",
        # These are right, or not OpenTelemetry's.
        "OTEL_BLRP_SCHEDULE_DELAY": "5000",
        "OTEL_RESOURCE_ATTRIBUTES_POD_NAME": "pod",
        "OTEL_PYTHON_DISTRO": "ours",
        "HOTEL_NAME": "x",
        "DASK_OTEL__spans__memory": "true",
    }
    with dask.config.set({"otel.environment": {"OTEL_SERVICE_NAMES": "nightly"}}):
        findings = examine(server.endpoint, server.protocol, **wrong)
    found = {f.what: f.why for f in findings if f.level == "problem"}
    assert found == {
        f"Nothing reads the variable {name}.": f"It looks like a misspelt {meant}."
        for name, meant in {
            "OTEL_EXPORTER_OTLP_ENDPIONT": "OTEL_EXPORTER_OTLP_ENDPOINT",
            "OTLE_SERVICE_NAME": "OTEL_SERVICE_NAME",
            "OTEL_METRICS_EXPORT_INTERVAL": "OTEL_METRIC_EXPORT_INTERVAL",
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESION": "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
            "OTEL_SERVICE_NAMES": "OTEL_SERVICE_NAME",
            "DASK_OTEL_CLUSTER_NAME": "DASK_OTEL__CLUSTER_NAME",
            "DASK_OTEL_SPANS_LINGER": "DASK_OTEL__SPANS__LINGER",
        }.items()
    }


def test_a_wrong_value_that_the_bridge_replaces(
    server: Receiver, examine: Examine, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"OTEL_TRACES_SAMPLER": "always_onn", "OTEL_EXPORTER_OTLP_INSECURE": "1"}
    wrong["OTEL_LOGS_EXPORTER"] = "oltp"
    findings = examine(server.endpoint, server.protocol, **wrong)
    found = [f for f in findings if f.check == "configuration"]
    # The protocol decides whether anybody asks for the other one.
    assert {f.level for f in found} == {"problem"}
    for begin in ("OTEL_TRACES_SAMPLER is 'always_onn', ", "OTEL_LOGS_EXPORTER is 'oltp', "):
        assert len([f for f in found if f.what.startswith(begin)]) == 1
    assert len({f.what for f in found}) == len(found) == 2 + (server.protocol == GRPC)
    # The scheduler's log had it at the start.
    assert caplog.messages == []


def test_files(tmp_path: Path) -> None:
    with dask.config.set({"otel.files.path": str(tmp_path / "below" / "telemetry")}):
        found = exports(all_findings(facts_of_this_process(60)))
        assert [f.level for f in found] == ["ok", "ok"], found
        # Nothing is sent anywhere, and nothing is left that somebody would take for a run.
        assert all("files in" in f.what for f in found)
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with dask.config.set({"otel.files.path": str(tmp_path / "file")}):
        found = exports(all_findings(facts_of_this_process(60)))
        assert [f.level for f in found] == ["problem", "problem"]
        assert all("otel.files.path" in f.next for f in found), found
        assert "NotADirectoryError" in found[0].what


@pytest.mark.usefixtures("application")
def test_a_provider_of_its_own_is_tested_as_it_exports(
    server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the application's, nor where that one's environment points."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://geheim-user:word@127.0.0.1:1")
    settings = {"otel.provider": "own", "otel.environment": dict(server.environ)}
    with dask.config.set(settings):
        facts = facts_of_this_process(60)
        findings = all_findings(facts)
    assert [f.level for f in exports(findings)] == ["ok", "ok"], findings
    assert len(server.spans) == len(server.points) == 1
    page = as_text(facts, findings, everything=True)
    assert server.endpoint in page
    assert [x for x in ("127.0.0.1:1 ", "geheim") if x in page] == []


@pytest.mark.usefixtures("application")
def test_an_applications_provider_that_exports_nothing_is_a_problem(server: Receiver) -> None:
    with dask.config.set({"otel.environment": dict(server.environ)}):
        spans, metrics = exports(all_findings(facts_of_this_process(60)))
    assert (spans.level, metrics.level) == ("problem", "ok")
    assert "the application's tracer provider: it has no span processor" in spans.what
    assert "otel.provider" in spans.next


# ------------------------------------------------------------------------ who listens there


def test_who_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(url: str) -> Any:
        return look(Endpoint(url, "HTTP"), 30)

    with hanging_up() as port:
        assert seen(f"http://127.0.0.1:{port}") == "closed"
    assert seen("http://") is None
    assert seen("http://127.0.0.1:port") is None
    # What is behind a proxy can't be seen from here.
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    assert seen("http://collector:4318") is None


def test_what_an_exporter_prints_is_not_in_the_json() -> None:
    console = {f"OTEL_{signal}_EXPORTER": "console" for signal in ("TRACES", "METRICS", "LOGS")}
    # A process of its own: the SDK's exporters print where standard output was at their import.
    ran = subprocess.run(
        [sys.executable, "-m", "dask_otel", "doctor", "--json"],
        env={**os.environ, **console},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    found = [f["check"] for f in json.loads(ran.stdout)["findings"] if f["level"] == "ok"]
    assert [one for one in ("traces", "metrics", "logs") if f"export.{one}" not in found] == []
    assert ran.stderr.count("dask.otel.doctor.run") == 3


def test_an_empty_address_of_a_backend_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with dask.config.set({"otel.files.path": str(tmp_path)}):
        assert main(["doctor", "--jaeger", "", "--patience", "0.1", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    (found,) = [one for one in findings if one["level"] == "problem"]
    assert found["check"] == "backend.jaeger"
