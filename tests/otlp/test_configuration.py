"""The standard variables: what they choose, and one clear error where they are wrong."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import distributed
import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from dask_otel._otel.sdk import environment
from dask_otel._otel.sdk import outputs as _otel
from dask_otel._otel.sdk.environment import defaults_for_environment
from dask_otel.core import identity
from dask_otel.core.context import Caller, Traceparent
from dask_otel.core.records import Answer, Link
from dask_otel.core.trace import Trace
from dask_otel.pump.limits import PumpLimits
from dask_otel.settings.keys import Settings
from dask_otel.settings.problems import ConfigurationError
from tests import foreign
from tests.certificates import self_signed
from tests.environment import python
from tests.otlp.conftest import PROTOCOLS, Build, send
from tests.otlp.records import CHILD, HISTOGRAM, ROOT, counter, number
from tests.receiver import Receiver, receiver

REMOTE = replace(
    ROOT,
    trace_id=Trace(ROOT.trace_id, "nightly", Caller(Traceparent(ROOT.trace_id, 99, 1), "a=b")),
    parent_span_id=99,
    remote_parent=True,
)

# --------------------------------------------------------------------------------- choice


def test_two_exporters_each_get_everything(build: Build) -> None:
    with receiver("grpc") as one, receiver("http/protobuf") as other:
        outputs = build(
            OTEL_TRACES_EXPORTER="otlp, otlp_proto_http,otlp",
            OTEL_METRICS_EXPORTER="none",
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=one.endpoint,
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
        )
        assert [sink.destination.name for sink in outputs.span_sinks] == [
            f"{one.endpoint} (OTLP over gRPC)",
            f"{one.endpoint} (OTLP over HTTP)",
        ]
        assert ([sink.key for sink in outputs.span_sinks], outputs.metric_sinks) == (
            ["otlp", "otlp_proto_http"],
            (),
        )
        assert send(outputs.span_sinks[0], [ROOT]).taken
        assert (len(one.spans), other.spans) == (1, [])


@pytest.mark.parametrize("names", ["none", "None", " none ", "none,none"])
def test_none(build: Build, names: str) -> None:
    outputs = build(OTEL_TRACES_EXPORTER=names, OTEL_METRICS_EXPORTER=names)
    assert outputs.span_sinks == outputs.metric_sinks == ()


def test_a_blank_variable_counts_as_not_set(server: Receiver, build: Build) -> None:
    outputs = build(
        server.environ,
        OTEL_TRACES_EXPORTER="",
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="",
        OTEL_EXPORTER_OTLP_TIMEOUT=" ",
        OTEL_SPAN_LINK_COUNT_LIMIT="",
        OTEL_SERVICE_NAME="",
    )
    (sink,) = outputs.span_sinks
    assert send(sink, [ROOT]).taken
    assert server.spans[0].resource["service.name"] == "dask-scheduler"
    assert os.environ["OTEL_TRACES_EXPORTER"] == "", "and it stays as it was"


def test_opentelemetrys_own_exporters_are_used_as_they_are(build: Build) -> None:
    """They get what ours send: the same spans and points, with the same resource."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    records = [ROOT, replace(CHILD, links=(Link(7, 8),)), REMOTE]
    metrics = [
        counter(number(1.5, a="x"), number(2)),
        counter(number(-3), name="dask.u", instrument="updowncounter", temporality="delta"),
        counter(number(0.5, start=0), name="dask.g", instrument="gauge"),
        counter(HISTOGRAM, name="dask.h", instrument="histogram"),
    ]
    with receiver("grpc") as theirs, receiver("grpc") as ours:
        for server, name in ((theirs, "otlp_proto_grpc"), (ours, "otlp")):
            outputs = build(server.environ, OTEL_TRACES_EXPORTER=name, OTEL_METRICS_EXPORTER=name)
            assert (
                send(outputs.span_sinks[0], records),
                send(outputs.metric_sinks[0], metrics),
            ) == (Answer(True), Answer(True))
            if server is theirs:
                transport: Any = outputs.span_sinks[0].transport  # type: ignore[union-attr]
                assert isinstance(transport.exporter, OTLPSpanExporter)
        for found, expected in ((theirs.spans, ours.spans), (theirs.points, ours.points)):
            assert len(found) == len(expected) > 2
            # The encoder of SDK 1.28 leaves the schema of the scope out.
            for one, other in zip(found, expected, strict=True):
                one.scope = other.scope
                assert one == other


def test_what_an_exporter_of_others_refuses_is_a_no(build: Build) -> None:
    (sink,) = build(OTEL_TRACES_EXPORTER="console").span_sinks
    transport: Any = sink.transport  # type: ignore[union-attr]
    transport.exporter.export = lambda spans: SpanExportResult.FAILURE
    answer = send(sink, [ROOT])
    assert (answer.taken, answer.blames, answer.absent) == (False, False, False)

    def raises(spans: Any) -> None:
        raise ConnectionError("the way is closed")

    transport.exporter.export = raises
    assert "the way is closed" in send(sink, [ROOT]).reason


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a package with exporters on the path, as pip would."""
    exporters = """
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricReader
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
SPANS, METRICS, CLOSED = [], [], []
class Spans(SpanExporter):
    def shutdown(self): CLOSED.append("Spans")
    def export(self, spans):
        SPANS.extend(spans)
        return SpanExportResult.SUCCESS
class Metrics(MetricExporter):
    def export(self, metrics_data, timeout_millis=1, **kwargs):
        METRICS.append(metrics_data)
        return MetricExportResult.SUCCESS
    def force_flush(self, timeout_millis=1): return True
    def shutdown(self, timeout_millis=1, **kwargs): CLOSED.append("Metrics")
class Pull(MetricReader):
    def __init__(self): raise AssertionError("a port was opened")
    def _receive_metrics(self, *args, **kwargs): pass
    def shutdown(self, *args, **kwargs): pass
def broken(): raise RuntimeError("no credentials")
def other(): return object()
def talkative():
    import os
    said = [os.environ["OTEL_EXPORTER_OTLP_" + name] for name in ("HEADERS", "ENDPOINT")]
    raise RuntimeError(f"cannot do with {said}")
def http():
    import os, requests
    session = requests.Session()
    session.verify = os.environ["MINE_AUTHORITY"]
    session.headers["x-mine"] = "HTTP"
    return session
def grpc():
    import os
    from pathlib import Path
    from grpc import (
        composite_channel_credentials, metadata_call_credentials, ssl_channel_credentials
    )
    authority = ssl_channel_credentials(Path(os.environ["MINE_AUTHORITY"]).read_bytes())
    call = metadata_call_credentials(lambda context, tell: tell((("x-mine", "GRPC"),), None))
    return composite_channel_credentials(authority, call)
"""
    entries = {
        "traces_exporter": "mine = mine_exporter:Spans\nbroken = mine_exporter:broken\n"
        "other = mine_exporter:other\nabsent = mine_exporter:absent\n"
        "talkative = mine_exporter:talkative",
        "metrics_exporter": "mine = mine_exporter:Metrics\npull = mine_exporter:Pull",
        "resource_detector": "mine = mine_detector:Detector\nbroken = mine_detector:broken",
        "otlp_credential_provider": "http = mine_exporter:http\ngrpc = mine_exporter:grpc\n"
        "broken = mine_exporter:absent",
    }
    foreign.install(tmp_path, "mine_exporter", exporters, entries)
    (tmp_path / "mine_detector.py").write_text(
        """
from opentelemetry.sdk.resources import Resource, ResourceDetector
class Detector(ResourceDetector):
    def detect(self):
        return Resource({"service.instance.id": "detected", "service.version": "detected",
                         "host.name": "here", "service.name": "detected"})
def broken(): raise RuntimeError("no such host")
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))


# ----------------------------------------------------------------------------------- errors


def problem(build: Build, **variables: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        build(**variables)
    for name in variables:
        del os.environ[name]
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


EARLY = """
from dask_otel._otel.sdk.encode import Encoder
from dask_otel.settings.problems import ConfigurationError

try:
    Encoder({}, "")
except ConfigurationError as error:
    print(*error.problems)
"""


def test_a_variable_that_the_sdk_reads_as_it_is_imported_has_the_same_error() -> None:
    # In a process of its own, where nothing has imported the SDK.
    assert python(EARLY, OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT="many") == (
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT is 'many'. Allowed: a whole number, 0 or more."
    )
    assert python(EARLY, OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=" ") == ""


SECRET = {
    "OTEL_EXPORTER_OTLP_HEADERS": "x-key=geheim%2042",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://geheim-user:geheim-word@collector:4318",
}
HTTP = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
PEM = "Allowed: a file in PEM format"
#: Variables, and what the one error says.
WRONG: list[tuple[dict[str, str], tuple[str, ...]]] = [
    *(
        ({variable: value}, (variable, value.split(",")[-1], allowed))
        for variable, value, allowed in (
            ("OTEL_TRACES_EXPORTER", "jaeger", "otlp_proto_grpc"),
            ("OTEL_METRICS_EXPORTER", "otlp,statsd", "console"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "grpc, http/protobuf"),
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "tcp", "grpc, http/protobuf"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "deflate", "none, gzip"),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zstd", "none, gzip"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "ten", "seconds"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0", "seconds"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "lots", "1 or more"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "1 or more"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "2.5", "1 or more"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1", "1 or more"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096", "OTEL_BSP_MAX_QUEUE_SIZE, which is 2048"),
            ("OTEL_BSP_SCHEDULE_DELAY", "nan", "milliseconds, 0 or more"),
            ("OTEL_BSP_EXPORT_TIMEOUT", "soon", "milliseconds, 1 or more"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "inf", "milliseconds, 100 or more"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "60", "milliseconds, 100 or more"),
            ("OTEL_METRIC_EXPORT_TIMEOUT", "-5", "milliseconds, 1 or more"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "both", "cumulative, delta"),
            ("OTEL_METRICS_EXEMPLAR_FILTER", "yes", "always_on, always_off, trace_based"),
            ("OTEL_SPAN_LINK_COUNT_LIMIT", "many", "whole number, 0 or more"),
            ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "-1", "whole number, 0 or more"),
        )
    ),
    # Keys where their file belongs.
    *(
        ({"OTEL_EXPORTER_OTLP_CLIENT_KEY": key}, ("OTEL_EXPORTER_OTLP_CLIENT_KEY", PEM))
        for key in ("-----BEGIN PRIVATE KEY-----\ngeheim", "Geheim42" * 300)
    ),
    # A folder of certificates is for HTTP alone.
    ({"OTEL_EXPORTER_OTLP_CERTIFICATE": "/"}, ("Is a directory", PEM)),
    *(
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, f"OTEL_EXPORTER_OTLP_{signal}HEADERS": wrong},
            (
                f"OTEL_EXPORTER_OTLP_{signal}HEADERS",
                f"no. {wrong.count(',') + 1} is no header",
                "Allowed: name=value",
            ),
        )
        for protocol in PROTOCOLS
        for signal in ("", "TRACES_", "METRICS_")
        for wrong in (
            "authorization: Bearer geheim",
            "x-tenant=one,geheim",
            "x tenant=geheim",
            "=geheim",
            "key=geheim%0d%0ax",
            "key=geheim%E4%B8%80im",
            "key=geheim;im",
        )
    ),
    (
        {**HTTP, "OTEL_EXPORTER_OTLP_ENDPOINT": "user:geheim@collector:4318"},
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "'collector:4318'", "http://"),
    ),
    *(
        (
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:geheim@[::1",
            },
            ("OTEL_EXPORTER_OTLP_ENDPOINT is 'an address that is no URL'. Allowed: ",),
        )
        for protocol in PROTOCOLS
    ),
    # Exporters that pull are refused before they open a port.
    *(
        ({"OTEL_METRICS_EXPORTER": name}, ("otel.metrics.prometheus", "OTEL_METRICS_EXPORTER"))
        for name in ("prometheus", "pull", "otlp,prometheus")
    ),
    *(
        ({**SECRET, "OTEL_TRACES_EXPORTER": name}, (name,))
        for name in ("broken", "other", "absent")
    ),
    ({**SECRET, "OTEL_TRACES_EXPORTER": "talkative"}, ("talkative", "cannot do with")),
]


def test_what_is_wrong_is_one_error_that_shows_no_secret(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    for variables, said in WRONG:
        text = problem(build, **variables)
        assert [part for part in said if part not in text] == [], variables
        assert "geheim" not in text.lower(), variables


@pytest.mark.parametrize("content", [None, b"not a certificate"])
def test_a_file_of_no_certificate_is_one_error(
    build: Build, tmp_path: Path, content: bytes | None
) -> None:
    path, what = tmp_path / "ca.pem", "PEM" if content else "No such file"
    if content is not None:
        path.write_bytes(content)
    for protocol, signal, name in product(
        PROTOCOLS, ("", "TRACES_", "METRICS_"), ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE")
    ):
        variable = f"OTEL_EXPORTER_OTLP_{signal}{name}"
        text = problem(build, OTEL_EXPORTER_OTLP_PROTOCOL=protocol, **{variable: str(path)})
        said = (variable, str(path), what, "Allowed: a file in PEM format")
        assert [part for part in said if part not in text] == []


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ("X-Key=a%20b", {"x-key": "a b"}),
        ("x-key=Bearer abc, x-tenant = one ,", {"x-key": "Bearer abc", "x-tenant": "one"}),
        ("x-key=Basic YWJj==", {"x-key": "Basic YWJj=="}),
        ("x-key=", {"x-key": ""}),
        # For gRPC, such a name means bytes.
        ("x-key-bin=a%20b", {"x-key-bin": "a b"}),
    ],
)
def test_headers_as_people_write_them(
    server: Receiver, build: Build, headers: str, sent: dict[str, str]
) -> None:
    (sink,) = build(server.environ, OTEL_EXPORTER_OTLP_HEADERS=headers).span_sinks
    assert send(sink, [ROOT]).taken
    ((_, _, got),) = server.requests
    assert sent.items() <= got.items()
    assert re.match(r"dask-otel/\S+ OTel-OTLP-Exporter-Python/", got["user-agent"])


def test_a_folder_of_certificates_is_for_http(build: Build, tmp_path: Path) -> None:
    assert build(HTTP, OTEL_EXPORTER_OTLP_CERTIFICATE=str(tmp_path)).span_sinks


def test_exporters_of_another_package_are_used_and_released_if_others_cannot_be_made(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    outputs = build(OTEL_TRACES_EXPORTER="mine", OTEL_METRICS_EXPORTER="mine")
    assert outputs.span_sinks[0].destination.name == "mine"
    assert send(outputs.span_sinks[0], [ROOT]).taken
    assert send(outputs.metric_sinks[0], [counter(number(1))]).taken
    import mine_exporter  # type: ignore[import-not-found]

    assert [span.name for span in mine_exporter.SPANS] == ["nightly"]
    assert len(mine_exporter.METRICS) == 1
    problem(build, OTEL_TRACES_EXPORTER="mine", OTEL_METRICS_EXPORTER="mine,nothing")
    assert mine_exporter.CLOSED == ["Metrics", "Spans"]


@pytest.mark.parametrize("signal", ["", "TRACES_"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_credential_provider_makes_the_session_or_the_credentials(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, signal: str
) -> None:
    install(tmp_path, monkeypatch)
    certificate = self_signed(tmp_path)
    monkeypatch.setenv("MINE_AUTHORITY", str(certificate.certificate))
    # They win over the session.
    for bundle in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(bundle, raising=False)
    family = "GRPC" if protocol == "grpc" else "HTTP"
    variable = f"OTEL_PYTHON_EXPORTER_OTLP_{family}_{signal}CREDENTIAL_PROVIDER"
    with receiver(protocol, tls=certificate) as server:
        outputs = build(server.environ, **{variable: family.lower()})
        assert send(outputs.span_sinks[0], [ROOT]) == Answer(True)
        assert send(outputs.metric_sinks[0], [counter(number(1))]).taken is (not signal)
        assert {headers["x-mine"] for _, _, headers in server.requests} == {family}
    for name in ("unknown", "broken"):
        text = problem(build, **{**server.environ, variable: name})
        assert f"{variable} names '{name}', which could not be loaded" in text


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://a:1", "http://a:1/v1/traces"),
        ("http://a:1/otlp/", "http://a:1/otlp/v1/traces"),
        ("http://a:1/?tenant=acme", "http://a:1/v1/traces?tenant=acme"),
        ("https://u:p@a:1/otlp?k=a%2Fb&x=/#part", "https://u:p@a:1/otlp/v1/traces?k=a%2Fb&x=/"),
        ("http://a:1#part", "http://a:1/v1/traces"),
    ],
)
def test_the_path_of_a_signal_comes_before_a_query(build: Build, given: str, used: str) -> None:
    (sink,) = build(HTTP, OTEL_EXPORTER_OTLP_ENDPOINT=given).span_sinks
    assert sink.transport.url == used  # type: ignore[union-attr]
    (sink,) = build(HTTP, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=given).span_sinks
    assert sink.transport.url == given  # type: ignore[union-attr]


# ------------------------------------------------------------------------------ environment


def test_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _otel.build(Settings(environment={"OTEL_SDK_DISABLED": "true"}), "i", 0) is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", " TRUE ")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "not even looked at")
    assert _otel.build(Settings(), "i", 0) is None


def test_defaults_count_where_the_environment_has_nothing(server: Receiver, build: Build) -> None:
    before = dict(os.environ)
    outputs = build(defaults={**server.environ, "OTEL_SERVICE_NAME": "from-dask"})
    assert dict(os.environ) == before, "nothing of ours stays behind"
    assert send(outputs.span_sinks[0], [ROOT]).taken
    assert server.spans[0].resource["service.name"] == "from-dask"


@pytest.mark.parametrize(("win", "name"), [(False, "shop"), (True, "dask")])
def test_the_environment_is_changed_for_a_call_of_the_sdk_alone(
    monkeypatch: pytest.MonkeyPatch, win: bool, name: str
) -> None:
    """Ours win over an application's if the bridge has its own provider."""
    for key, value in (("SERVICE_NAME", "shop"), ("TRACES_SAMPLER", "always_off"), ("BLANK", " ")):
        monkeypatch.setenv(f"OTEL_{key}", value)
    before = dict(os.environ)
    ours = {"OTEL_X": "1", "OTEL_SERVICE_NAME": "dask", "PATH": "no"}
    seen: list[dict[str, str]] = []

    def fails() -> None:
        seen.append(dict(os.environ))
        raise RuntimeError

    with defaults_for_environment(ours, win):
        assert (environment.variables()["OTEL_SERVICE_NAME"], dict(os.environ)) == (name, before)
        with suppress(RuntimeError):
            environment.shown_to_sdk(fails)
        assert dict(os.environ) == before
    assert environment.variables()["OTEL_SERVICE_NAME"] == "shop"
    del before["OTEL_BLANK"]
    assert seen == [before | {"OTEL_X": "1", "OTEL_SERVICE_NAME": name}]


def test_the_pump_is_set_by_the_variables(build: Build) -> None:
    default = build().environment
    assert default == environment.Environment(
        spans=PumpLimits(2048, 128, 1.0),
        logs=PumpLimits(2048, 128, 1.0),
        metric_interval=60.0,
        file_interval=5.0,
        temporality="cumulative",
        exemplars="trace_based",
    )
    outputs = build(
        OTEL_BSP_MAX_QUEUE_SIZE="16",
        OTEL_BSP_SCHEDULE_DELAY="250",
        OTEL_BLRP_MAX_EXPORT_BATCH_SIZE="8",
        OTEL_METRIC_EXPORT_INTERVAL="5000",
        OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE="LowMemory",
        OTEL_METRICS_EXEMPLAR_FILTER="always_on",
    )
    assert outputs.environment == environment.Environment(
        PumpLimits(16, 16, 0.25),
        PumpLimits(2048, 8, 1.0),
        5.0,
        None,
        "delta",
        "always_on",
    )
    assert outputs.sampled is None
    sampled: Any = build(OTEL_METRICS_EXEMPLAR_FILTER="always_off").sampled
    assert not sampled(ROOT.trace_id)


# ---------------------------------------------------------------------------------- resource


def resource_of(build: Build, **options: str) -> dict[str, object]:
    return dict(build(cluster_name=options.pop("cluster_name", None), **options).resource)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {},
            {
                "service.name": "dask-scheduler",
                "dask.cluster.name": "dask-scheduler",
                "service.instance.id": "Scheduler-1",
                "service.version": distributed.__version__,
                "process.runtime.version": platform.python_version(),
                "telemetry.sdk.language": "python",
            },
        ),
        (
            {
                "OTEL_SERVICE_NAME": "mine",
                "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,service.instance.id=7,team=a,"
                "service.version=v%201,dask.cluster.name=prod",
                "cluster_name": "from-config",
            },
            {
                "service.name": "mine",
                "dask.cluster.name": "prod",
                "service.instance.id": "7",
                "service.version": "v 1",
                "team": "a",
            },
        ),
        (
            {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "mine"},
            {
                "service.name": "detected",
                "service.instance.id": "detected",
                "service.version": "detected",
                "host.name": "here",
            },
        ),
        (
            {
                "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "otel,*",
                "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=p,service.instance.id=7",
            },
            {
                "k8s.pod.name": "p",
                "service.instance.id": "7",
                "service.name": "detected",
                "host.name": "here",
            },
        ),
        # Bytes that are no UTF-8.
        (
            {
                "OTEL_RESOURCE_ATTRIBUTES": "bad=\udcff,good=1",
                "OTEL_SERVICE_NAME": "name\udcff",
            },
            {"service.name": "name\ufffd", "bad": "\ufffd", "good": "1"},
        ),
        # The cluster always has a name.
        *(
            (given, {"dask.cluster.name": name})
            for given, name in (
                ({"OTEL_SERVICE_NAME": "svc"}, "svc"),
                ({"DASK_CLUSTER_NAME": "operator"}, "operator"),
                ({"DASK_GATEWAY_CLUSTER_NAME": "gateway"}, "gateway"),
                ({"DASK_COILED__CLUSTER_NAME": "coiled"}, "coiled"),
                ({"DASK_CLUSTER_NAME": "operator", "cluster_name": "config"}, "config"),
                ({"OTEL_RESOURCE_ATTRIBUTES": "service.name="}, "dask-scheduler"),
            )
        ),
    ],
)
def test_the_user_wins_over_a_detector_and_that_over_ours(
    build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    expected: dict[str, str],
) -> None:
    install(tmp_path, monkeypatch)
    assert resource_of(build, **options).items() >= expected.items()


def test_detectors_that_fail_are_left_out_with_one_warning(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, monkeypatch)
    detectors = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "broken,unknown"}
    assert resource_of(build, **detectors)["service.name"] == "dask-scheduler"
    (record,) = caplog.records
    for said in ("broken (RuntimeError: no such host)", "unknown (", *detectors):
        assert said in record.getMessage()


# ---------------------------------------------------------------------------------- sampling


@pytest.mark.parametrize(
    ("sampler", "arg", "low", "high"),
    [
        ("always_on", "", 1000, 1000),
        ("always_off", "", 0, 0),
        ("traceidratio", "0.25", 200, 300),
        ("parentbased_traceidratio", "0.25", 200, 300),
        ("parentbased_always_off", "", 0, 0),
        ("parentbased_always_on", "", 1000, 1000),
    ],
)
def test_samplers_are_chosen_by_the_variables(
    build: Build, sampler: str, arg: str, low: int, high: int
) -> None:
    variables = {"OTEL_TRACES_SAMPLER": sampler} | ({"OTEL_TRACES_SAMPLER_ARG": arg} if arg else {})
    decides = build(**variables).decides
    ids = [identity.trace_id(f"00000000-0000-4000-8000-{number:012x}") for number in range(1000)]
    assert low <= sum(decides(Trace(trace_id)) for trace_id in ids) <= high


@pytest.mark.parametrize(
    ("sampler", "arg", "said"),
    [
        ("xray", "", ("OTEL_TRACES_SAMPLER is 'xray'", "Allowed: always_off, always_on, parent")),
        *(
            (sampler, arg, (f"OTEL_TRACES_SAMPLER_ARG is '{arg}'", "Allowed: a number from 0 to 1"))
            for sampler in ("traceidratio", "ParentBased_TraceIdRatio")
            for arg in ("10%", "2", "nan")
        ),
        # As specified, 1 by default.
        ("traceidratio", "", ()),
        (" always_on ", "ignored", ()),
    ],
)
def test_a_wrong_sampler_is_one_warning_and_all_traces_are_sampled(
    build: Build, caplog: pytest.LogCaptureFixture, sampler: str, arg: str, said: tuple[str, ...]
) -> None:
    outputs = build(OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=arg)
    assert len(caplog.messages) == bool(said)
    assert [part for part in said if part not in caplog.text] == []
    assert outputs.decides(Trace(2**128 - 1))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_SDK_DISABLED", "1"),
        ("OTEL_EXPORTER_OTLP_INSECURE", "yes"),
        ("OTEL_EXPORTER_OTLP_TRACES_INSECURE", "0"),
    ],
)
def test_what_is_neither_true_nor_false_is_false_with_a_warning(
    build: Build, caplog: pytest.LogCaptureFixture, variable: str, value: str
) -> None:
    outputs = build(**{variable: value})
    assert {f"{variable} is '{value}', which means false. Allowed: true, false."} == {
        message.removeprefix("dask-otel: ") for message in caplog.messages
    }
    assert outputs.decides(Trace(2**128 - 1))


@pytest.mark.parametrize(
    ("variables", "flags", "sampled"),
    [
        ({}, 0x00, False),
        ({}, 0x01, True),
        ({}, 0x02, False),
        ({}, 0x03, True),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, 0x01, True),
        (
            {
                "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                "OTEL_TRACES_SAMPLER_ARG": "0",
            },
            0x03,
            True,
        ),
        # One that does not go by parents is what the operator asked for.
        ({"OTEL_TRACES_SAMPLER": "always_off"}, 0x01, False),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, 0x00, True),
    ],
)
def test_the_caller_has_decided_where_the_sampler_goes_by_parents(
    build: Build, variables: dict[str, str], flags: int, sampled: bool
) -> None:
    outputs = build(**variables)
    (sink,) = outputs.span_sinks
    trace = Trace(ROOT.trace_id, "nightly", Caller(Traceparent(ROOT.trace_id, 99, flags)))
    root = replace(ROOT, trace_id=trace, parent_span_id=99, remote_parent=True)
    child = replace(CHILD, trace_id=trace, parent_span_id=root.span_id)
    assert outputs.sampled is not None
    assert outputs.sampled(trace) is sampled
    assert outputs.decides(trace) is sampled
    assert [sink.wants(child), sink.wants(root)] == [sampled, sampled]
