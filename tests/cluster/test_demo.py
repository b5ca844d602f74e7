"""``dask-otel demo`` as a user runs it: a process, its output, its files, its exit code."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status, TracesData

from dask_otel import semconv
from dask_otel.cli import otlp_json
from dask_otel.cli.received import plain_attributes, spans
from dask_otel.cli.sink import Sink
from dask_otel.cli.trace_tree import build_trees, span_names

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("a program of its own; its cluster is gone at the end"),
]

for package in ("rich", "numpy", "pandas", "pyarrow"):
    pytest.importorskip(package)

NAMES = [
    "Alice's workflow",
    "Alice's workflow/data load",
    "Alice's workflow/preprocessing",
    "Alice's workflow/preprocessing/shuffle",
    "Alice's workflow/preprocessing/features",
    "Alice's workflow/model training",
    "Alice's workflow/model training/iteration 1",
    "Alice's workflow/model training/iteration 2",
]


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def environ(free_port):
    """An environment without OTEL_ variables whose endpoint nobody listens at."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    endpoint = f"http://127.0.0.1:{free_port}"
    # The package under test, also from a checkout that is not installed.
    path = os.pathsep.join(os.path.abspath(part) for part in sys.path if part)
    return clean | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "COLUMNS": "80",
        "PYTHONPATH": path,
    }


def demo(directory, environ, *options):
    return subprocess.run(
        [sys.executable, "-m", "dask_otel", "demo", "--quick", *options],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def read_traces(path):
    (line,) = path.read_text(encoding="utf-8").splitlines()
    data = TracesData()
    otlp_json.from_json(line, data)
    return data


def test_without_an_endpoint_it_shows_and_writes_files(tmp_path, environ, free_port):
    done = demo(tmp_path, environ, "--save-svg", "demo.svg")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Nothing listens at http://127.0.0.1:{free_port} (gRPC)" in done.stdout
    # Piped: text only.
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stdout)
    for line in ("├── data load ", "│   ├── shuffle ", "thread-cpu ", "all spans "):
        assert line in done.stdout
    assert "dask-otel-demo-traces.json" in done.stdout

    data = read_traces(tmp_path / "dask-otel-demo-traces.json")
    roots = build_trees([data])
    assert sorted(span_names(roots)) == sorted(NAMES)
    assert [root.span.name for root in roots] == ["Alice's workflow"]
    for span in spans([data]):
        assert span.end_time_unix_nano >= span.start_time_unix_nano > 0
        attributes = plain_attributes(span.attributes)
        if attributes[semconv.SPAN_TYPE] == "span":
            assert attributes[semconv.SPAN_RESULT] == "success"
            assert attributes[semconv.SPAN_COMPLETE] is True

    lines = (tmp_path / "dask-otel-demo-metrics.json").read_text(encoding="utf-8").splitlines()
    names = set()
    for line in lines:
        request = ExportMetricsServiceRequest()
        otlp_json.from_json(line, request)
        for resource in request.resource_metrics:
            names |= {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
    assert {semconv.SPAN_EXECUTE_TIME.name, semconv.SPAN_P2P_IO.name} <= names

    svg = (tmp_path / "demo.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg")
    assert "@font-face" not in svg


def test_failing_workflow_is_shown_and_is_what_was_asked_for(tmp_path, environ):
    done = demo(tmp_path, environ, "--fail", "--output", "traces.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "has a price of -1.0" in done.stdout
    failed = {
        span.name
        for span in spans([read_traces(tmp_path / "traces.json")])
        if span.status.code == Status.STATUS_CODE_ERROR
        and plain_attributes(span.attributes)[semconv.SPAN_TYPE] == "span"
    }
    assert failed == {"Alice's workflow", "preprocessing", "shuffle"}
    assert (tmp_path / "traces-metrics.json").exists()


def test_endpoint_that_listens_gets_everything(tmp_path, environ):
    with Sink() as sink:
        environ |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_RESOURCE_ATTRIBUTES": "team=shop",
        }
        done = demo(tmp_path, environ)
        telemetry = sink.telemetry()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Sent the traces to {sink.endpoint} (HTTP)." in done.stdout
    assert f"Sent the metrics to {sink.endpoint} (HTTP)." in done.stdout
    assert sorted(span_names(build_trees(telemetry.traces))) == sorted(NAMES)
    assert telemetry.metrics
    resource = telemetry.traces[0].resource_spans[0].resource
    assert plain_attributes(resource.attributes)["team"] == "shop"
    assert list(tmp_path.iterdir()) == []


def test_endpoint_that_is_no_receiver_is_reported_and_files_are_written(tmp_path, environ):
    with Sink() as sink:
        environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint + "/not/here"}
        environ |= {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        done = demo(tmp_path, environ)
    assert done.returncode == 1
    assert "does not take traces (HTTP 404" in done.stderr
    assert (tmp_path / "dask-otel-demo-traces.json").exists()


def test_bridge_that_is_switched_off_is_an_error_with_advice(tmp_path, environ):
    done = demo(tmp_path, environ | {"DASK_OTEL__ENABLED": "False"})
    assert done.returncode == 1
    assert "exported no spans and no metrics of the workers" in done.stderr
    assert "`otel:` in a Dask config file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c(tmp_path, environ):
    process = subprocess.Popen(
        [sys.executable, "-m", "dask_otel", "demo"],
        cwd=tmp_path,
        env=environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        # A terminal sends the signal to the whole process group.
        start_new_session=True,
    )
    with process:
        for line in process.stdout:
            if "Loading the data" in line:
                os.killpg(process.pid, signal.SIGINT)
                break
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("dask-otel demo: interrupted\n")
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--output", "--save-svg"])
def test_unwritable_file_is_reported_at_once(tmp_path, environ, option):
    done = demo(tmp_path, environ, option, "missing/file")
    assert done.returncode == 1
    assert done.stderr.startswith("dask-otel demo: can't write missing/file")
    assert done.stdout == ""


def test_unusable_endpoint_is_reported_at_once(tmp_path, environ):
    done = demo(tmp_path, environ | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
    assert done.returncode == 1
    assert "OTLP protocol 'http/json': it can be grpc or http/protobuf" in done.stderr
