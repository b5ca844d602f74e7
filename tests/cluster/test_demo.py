"""``dask-otel demo`` as a user runs it: a process, its output, its files, its exit code."""

from __future__ import annotations

import io
import os
import re
import stat
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import dask
import pytest
from rich.console import Console

from dask_otel import semconv
from dask_otel._otel.sdk import exporters
from dask_otel.cli import main
from dask_otel.cli.terminal import Failed
from dask_otel.report.document import read_report
from dask_otel.report.seconds import cluster_time
from dask_otel.report.telemetry.model import tree_of
from tests.environment import OFF, inherited, set_variables
from tests.receiver import receiver

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("a program of its own; its cluster is gone at the end"),
    # Its libraries are imported by one process of the tests, by `showcase`.
    pytest.mark.xdist_group("demo"),
]

if None in map(find_spec, ("numpy", "pandas", "pyarrow")):
    pytest.skip("the demo's libraries are not installed", allow_module_level=True)

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
def showcase():
    """Return the demo's module, which imports its libraries."""
    return import_module("dask_otel.cli.showcase")


@pytest.fixture
def environ():
    """An environment in which nothing is sent anywhere."""
    # The package under test, also from a checkout that is not installed.
    path = os.pathsep.join(os.path.abspath(part) for part in sys.path if part)
    return inherited(COLUMNS="80", PYTHONPATH=path, **OFF)


WRITTEN = "Jaeger's UI and the Collector can read the files in out/"


def lost_in(logs):
    """The records of workers that were lost."""
    return [one for one in logs if one.attributes.get("dask.worker.removal.reason") == "lost"]


def demo(directory, environ, *options):
    return subprocess.run(
        [sys.executable, "-m", "dask_otel", "demo", "--quick", *options],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_it_shows_writes_files_and_exports_or_says_why_not(tmp_path, environ):
    with receiver("http/protobuf") as server, receiver("http/protobuf") as other:
        other.answer = 404
        server.keeps = frozenset({"metrics", "logs"})
        environ |= server.environ | {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "",
            "OTEL_LOGS_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{other.endpoint}/v1/traces",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_RESOURCE_ATTRIBUTES": "team=shop",
        }
        done = demo(tmp_path, environ, "--output", "out")
        assert f"The telemetry goes to {server.endpoint} (OTLP over HTTP), too." in done.stdout
        assert server.last(semconv.SPAN_EXECUTE_TIME.name)
        (lost,) = lost_in(server.logs)
        assert lost.resource["team"] == "shop"
    assert done.returncode == 0
    # On a busy machine, Dask warns of itself.
    (warning,) = [line for line in done.stderr.splitlines() if "export" in line]
    assert [
        x
        for x in (f"can't export spans to {other.endpoint}", "(OTLP over HTTP): HTTP status 404")
        if x not in warning
    ] == []
    # Piped: text only.
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stdout)
    steps, _, about = done.stdout.partition("Ran a workflow")
    assert steps.count("\n✓ ") == 8
    about = f"Ran a workflow{about}".splitlines()
    assert "New workers import pandas and pyarrow with their first tasks." in about
    # A terminal, which shows no ended step, has room for all of it.
    assert len(about) <= 40
    assert max(map(len, about)) <= 80
    places = [about.index(line) for line in ("Where to look next", "Spans", WRITTEN)]
    assert places == sorted(places)
    assert places[0] <= 27
    commands = ("report out --open", "report out --text --all", "whatif out")
    assert {f"  dask-otel {command}" for command in commands} <= {*about}
    assert [line[:13] for line in about if "── " in line] == [
        "├── data load",
        "├── preproces",
        "└── model tra",
    ]
    for path in (tmp_path / "out").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    report = read_report(tmp_path / "out")
    assert report.skipped.counts == {}
    (run,) = report.runs
    assert (
        sorted(one.full_name for one in run.of_type("span")),
        [root.name for root in tree_of(run.spans)[0]],
    ) == (sorted(NAMES), ["Alice's workflow"])
    for span in run.spans:
        assert span.end_ns >= span.start_ns > 0
        if span.type == "span":
            assert span.attributes[semconv.SPAN_RESULT] == "success"
            assert span.attributes[semconv.SPAN_COMPLETE] is True

    assert {semconv.SPAN_EXECUTE_TIME.name, semconv.SPAN_P2P_IO.name} <= set(run.metrics.series)
    # What the report says of a real run is what Dask's sum says.
    whole = cluster_time(run)
    assert whole is not None
    assert whole.remainder == pytest.approx(0, abs=1e-6)
    assert whole.used > 0

    # The worker that the demo ends, and its last line.
    (lost,) = lost_in(run.logs)
    assert lost.body.endswith("s before: ERROR demo: This worker ends now: it is part of the demo")
    happened = report.text(everything=True).partition("What happened")[2]
    assert re.search(r"\| [0-9.]+ m?s before: ERROR demo", happened)


@pytest.mark.parametrize(
    ("variables", "listens", "expected"),
    [
        ({}, False, (False, None)),
        ({}, True, (True, "http://localhost:4317")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1"}, True, (True, None)),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, True, (False, None)),
        ({"OTEL_SDK_DISABLED": "true"}, True, (False, None)),
    ],
)
def test_where_the_telemetry_goes(showcase, monkeypatch, variables, listens, expected):
    set_variables(monkeypatch, variables)
    monkeypatch.setattr(exporters, "nobody_listens", lambda: not listens)
    assert showcase._destinations(Console(file=io.StringIO())) == expected


def test_a_program_that_disables_the_sdk_sends_nothing(showcase):
    given = {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1"}
    made = showcase.export_environment(given, disabled=True)
    assert "OTEL_SDK_DISABLED" not in made
    assert made["OTEL_TRACES_EXPORTER"] == made["OTEL_METRICS_EXPORTER"] == "none"
    assert made["OTEL_LOGS_EXPORTER"] == "none"


@pytest.mark.parametrize(("sent", "copied"), [(True, 0), (False, 1)])
def test_without_telemetry_it_fails_and_files_are_for_those_without_an_endpoint(
    showcase, monkeypatch, sent, copied
):
    copies = []
    monkeypatch.setattr(showcase, "_destinations", lambda _: (sent, None))
    monkeypatch.setattr(showcase, "_compute", lambda *_: None)
    monkeypatch.setattr(showcase, "_copy", lambda *given: copies.append(given) or [])
    with pytest.raises(Failed, match="exported no spans and no metrics of the workers"):
        showcase.perform(quick=True, fail=False, output=None)
    assert len(copies) == copied


def test_a_second_run_leads_to_its_own_report(showcase, tmp_path):
    command = f"dask-otel report {tmp_path}"
    assert showcase._command(tmp_path / "new") == f"{command}/new"
    assert showcase._command(tmp_path) == command
    (tmp_path / "dask-scheduler-20260101T000000Z-0001-traces.jsonl").touch()
    assert showcase._command(tmp_path) == f"{command} --last 1"


def test_its_folder_is_no_part_of_a_checkout(showcase):
    ignored = Path(__file__).parents[2] / ".gitignore"
    assert f"/{showcase.DEFAULT_OUTPUT}/" in ignored.read_text().splitlines()


@pytest.mark.parametrize(
    ("variables", "config", "said"),
    [
        ({}, {"otel.enabled": False}, "the bridge is switched off: `otel.enabled` is false"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            {},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'. Allowed: grpc",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_done(
    showcase, monkeypatch, capsys, tmp_path, variables, config, said
):
    set_variables(monkeypatch, variables)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(showcase, "_compute", None)
    with dask.config.set(config):
        assert main(["demo", "--quick"]) == 1
    printed = capsys.readouterr()
    assert (said in printed.err, "✓" in printed.out, list(tmp_path.iterdir())) == (True, False, [])


@pytest.mark.parametrize(
    ("fail", "failure", "said"),
    [
        (True, "BadData", None),
        (True, None, "should have failed with BadData, but: it succeeded"),
        (False, ValueError("x"), "the workflow failed: ValueError: x"),
        (False, None, None),
    ],
)
def test_a_workflow_fails_where_it_was_asked_to(showcase, fail, failure, said):
    """On a cluster: `tests/backends/test_compose.py`."""
    if failure == "BadData":
        failure = showcase.workflow.BadData("a price of -1.0")
    found = showcase._unexpected(fail, failure)
    assert [said in one for one in found] == [True] * (said is not None)
