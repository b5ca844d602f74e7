"""What docs/quickstart.md says, done literally: its programs run, and give what it says."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests import environment
from tests.receiver import receiver

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("a program of its own; its cluster is gone at the end"),
]

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
TEXT = PAGE.read_text(encoding="utf-8")
#: The package under test, installed or not.
PATH = os.pathsep.join(os.path.abspath(part) for part in sys.path if part)


def section(title: str) -> str:
    """Return the text of a section of the page."""
    (found,) = re.findall(rf"^## \d\. {title}$(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return str(found)


def programs(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def exports(text: str) -> dict[str, str]:
    return dict(re.findall(r"^export (\w+)=(.*)$", text, re.MULTILINE))


def run(program: str, folder: Path, variables: dict[str, str]) -> str:
    """Run a program as a reader does, and return what it printed."""
    (folder / "first.py").write_text(program, encoding="utf-8")
    ours = {"PYTHONPATH": PATH, "DASK_CONFIG": str(folder), **variables}
    return environment.run("first.py", within=folder, **ours).stdout


#: What the first program is to print.
TOTAL = f"{sum(n * (n - 1) // 2 for n in range(0, 20_000, 1_000))}\n"
PATHS = ["first run", "first run/add up", "first run/load"]
#: A machine that stalls for seconds has neither two runs of it nor half of one.
PATIENT = {"DASK_OTEL__SPANS__LINGER": "60s", "DASK_OTEL__CLOSE_TIMEOUT": "60s"}


def first_program() -> str:
    """Return the page's, with a thousandth of its work."""
    (program,) = programs(section("Look at a run of your own"))
    assert program.count("1_000_000") == 1
    return program.replace("1_000_000", "1_000")


def _paths(traces: Path) -> list[str]:
    """Return the full names of the Dask spans in a file, read as any JSON."""
    spans = (
        {one["key"]: one["value"].get("stringValue") for one in span["attributes"]}
        for line in traces.read_text(encoding="utf-8").splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    )
    return [span["dask.span.name"] for span in spans if span["dask.span.type"] == "span"]


def test_the_first_program_leaves_its_run_in_files_and_is_one_trace(tmp_path: Path) -> None:
    pytest.importorskip("bokeh")  # of dask-otel[report], as the page installs it
    files = exports(section("Look at a run of your own"))
    assert files == {"DASK_OTEL__FILES__PATH": "telemetry"}
    server = exports(section("See it in a server"))
    assert server.keys() == {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME"}
    with receiver("grpc") as got:
        # Only the port is another one: that of the page may be taken on this machine.
        server["OTEL_EXPORTER_OTLP_ENDPOINT"] = got.endpoint
        assert run(first_program(), tmp_path, files | server | PATIENT) == TOTAL
        spans = [span for span in got.spans if span.type == "span"]
    assert sorted(span.path for span in spans) == PATHS
    assert len({span.trace_id for span in spans}) == 1
    assert {span.resource["service.name"] for span in spans} == {"quickstart"}

    (traces,) = (tmp_path / "telemetry").glob("*-traces.jsonl")
    (metrics,) = (tmp_path / "telemetry").glob("*-metrics.jsonl")
    assert sorted(_paths(traces)) == PATHS
    assert metrics.stat().st_size > 0
    # As the page says, but for a browser.
    command = re.findall(
        r"^dask-otel (report .*) --open$", section("Look at a run of your own"), re.M
    )
    assert command == ["report telemetry --last 1"]
    environment.run("-m", "dask_otel", *command[0].split(), within=tmp_path, PYTHONPATH=PATH)
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_the_second_program_prints_the_numbers(tmp_path: Path) -> None:
    (program,) = programs(section("Ask for the numbers"))
    printed = run(program, tmp_path, {})
    result, tasks, idle = printed.split()
    assert (result, tasks) == ("success", "3")
    assert float(idle) >= 0
