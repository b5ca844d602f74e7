"""``dask-otel demo`` as a user runs it: a process, its output, its files, its exit code."""

from __future__ import annotations

import io
import os
import re
import stat
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
from dask_otel.settings.variables import environment_of
from tests.environment import OFF, run, set_variables
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


#: The command, with replays that answer at once: `tests/whatif` has real ones, which take seconds.
DEMO = """
from dask_otel.cli import main
from dask_otel.whatif import running

def answers(asked, until):
    graph, changes, orders = asked
    took = graph.stop - graph.start
    for number, change in enumerate(changes):
        result = {"name": change.name, "seconds": took, "thread_hours": 1.0, "idle": 0.5}
        result["threads"] = sum(change.workers or (number,))
        yield {"done": number, "total": len(changes), "first": took, "result": result}

running._answers = answers
main()
"""


@pytest.fixture
def showcase():
    """Return the demo's module, which imports its libraries."""
    return import_module("dask_otel.cli.showcase")


def test_it_shows_writes_files_and_exports_or_says_why_not(tmp_path):
    with receiver("http/protobuf") as server, receiver("http/protobuf") as other:
        other.answer = 404
        server.keeps = frozenset({"metrics", "logs"})
        variables = OFF | server.environ | {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "",
            "OTEL_LOGS_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{other.endpoint}/v1/traces",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_RESOURCE_ATTRIBUTES": "team=shop",
            "COLUMNS": "80",
            # The package under test, also from a checkout that is not installed.
            "PYTHONPATH": os.pathsep.join(os.path.abspath(part) for part in sys.path if part),
        }  # fmt: skip
        done = run("-c", DEMO, "demo", "--quick", "--output", "out", within=tmp_path, **variables)
        assert f"The telemetry goes to {server.endpoint} (OTLP over HTTP), too." in done.stdout
        assert server.last(semconv.SPAN_EXECUTE_TIME.name)
        reasons = [one.attributes.get(semconv.WORKER_REMOVAL_REASON) for one in server.logs]
        assert (reasons.count("lost"), server.logs[0].resource["team"]) == (1, "shop")
    # On a busy machine, Dask warns of itself.
    (warning,) = [line for line in done.stderr.splitlines() if "export" in line]
    where = re.escape(f"can't export spans to {other.endpoint}")
    assert re.search(where + r".*\(OTLP over HTTP\): HTTP status 404", warning)
    # Piped: text only.
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stdout)
    steps, ran, rest = done.stdout.partition("Ran a workflow")
    assert steps.count("\n✓ ") == 8
    about = f"{ran}{rest}".splitlines()
    # A terminal, which shows no ended step, has room for all of it.
    assert (len(about) <= 40, max(map(len, about)) <= 80) == (True, True)
    written = "Jaeger's UI and the Collector can read the files in out/"
    places = [about.index(line) for line in ("Where to look next", "Spans", written)]
    assert places == sorted(places)
    assert places[0] <= 27
    commands = ("report out --open", "report out --text --all", "whatif out")
    assert {f"  dask-otel {command}" for command in commands} <= {*about}
    assert [line[:13] for line in about if "── " in line] == [
        "├── data load",
        "├── preproces",
        "└── model tra",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()} == {0o600}
    report = read_report(tmp_path / "out")
    (ended,) = report.runs
    assert (report.skipped.counts, sorted(one.full_name for one in ended.of_type("span"))) == (
        {},
        sorted(NAMES),
    )
    assert {one.attributes[semconv.SPAN_RESULT] for one in ended.of_type("span")} == {"success"}
    assert {semconv.SPAN_EXECUTE_TIME.name, semconv.SPAN_P2P_IO.name} <= set(ended.metrics.series)
    # The worker that the demo ends, and its last line.
    happened = report.text(everything=True).partition("What happened")[2]
    last = r"\| [0-9.]+ m?s before: ERROR demo: This worker ends now: it is part of the demo"
    assert re.search(last, " ".join(happened.split()))


@pytest.mark.parametrize(
    ("variables", "listens", "expected"),
    [
        ({}, False, (False, {})),
        ({}, True, (True, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317"})),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1"}, True, (True, {})),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, True, (False, {})),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, True, (False, OFF)),
    ],
)
def test_where_the_telemetry_goes(showcase, monkeypatch, variables, listens, expected):
    set_variables(monkeypatch, variables)
    monkeypatch.setattr(exporters, "nobody_listens", lambda: not listens)
    sent, more = expected
    found = showcase._destinations(Console(file=io.StringIO()))
    assert found == (sent, environment_of(variables) | more)


@pytest.mark.parametrize(("sent", "copied"), [(True, 0), (False, 1)])
def test_without_telemetry_it_fails_and_files_are_for_those_without_an_endpoint(
    showcase, monkeypatch, sent, copied
):
    copies = []
    monkeypatch.setattr(showcase, "_destinations", lambda _: (sent, {}))
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


@pytest.mark.parametrize(
    ("options", "variables", "config", "said"),
    [
        *(
            (["--output", path], {}, {}, f"can't write the files: Not a directory: {path}")
            for path in ("a-file", "a-file/x")
        ),
        ([], {}, {"otel.enabled": False}, "the bridge is switched off: `otel.enabled` is false"),
        (
            [],
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            {},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'. Allowed: grpc",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_done(
    showcase, monkeypatch, capsys, tmp_path, options, variables, config, said
):
    set_variables(monkeypatch, variables)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(showcase, "_compute", None)
    Path("a-file").touch()
    with dask.config.set(config):
        assert main(["demo", "--quick", *options]) == 1
    printed = capsys.readouterr()
    assert (said in printed.err, "✓" in printed.out, os.listdir()) == (True, False, ["a-file"])


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
