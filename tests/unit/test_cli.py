"""The command line without a cluster."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import os
import re
import sys
from pathlib import Path

import dask
import pytest

from dask_otel.cli import _COMMANDS, demo, main, terminal
from tests.environment import run
from tests.unit.report_files import span, traces

USAGE = "usage: dask-otel"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--version"], 0, "dask-otel "),
        (["--help"], 0, "demo"),
        *(([command, "--help"], 0, "exit codes:") for command in _COMMANDS),
        *(
            (wrong, 2, USAGE)
            for wrong in ([], ["nonsense"], ["demo", "--nonsense"], ["doctor", "--timeout", "0"])
        ),
    ],
)
def test_answers_at_once(capsys, arguments, code, text):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == code
    said = capsys.readouterr()[code // 2]
    # Some terminals show no other characters, and the parser's output can't fall back.
    assert (text in said, said.isascii()) == (True, True)


def test_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr(demo, "_EXTRA", ("rich", "no_such_package"))
    said = "the demo needs no_such_package; try: pip install 'dask-otel[demo]'"
    assert (main(["demo"]), capsys.readouterr().err) == (1, f"dask-otel demo: {said}\n")


@pytest.fixture(params=["doctor", "report"])
def arguments(request, tmp_path, monkeypatch):
    """A command that shows the name "été"."""
    for signal in ("TRACES", "METRICS"):
        monkeypatch.setenv(f"OTEL_{signal}_EXPORTER", "none")
    path = tmp_path / "a-traces.jsonl"
    path.write_text(json.dumps(traces(span(1, "été"))) + "\n")
    with dask.config.set({"otel.files.path": str(tmp_path / "été")}):
        yield {"doctor": ["doctor"], "report": ["report", str(path), "--text"]}[request.param]


def test_neither_a_terminal_of_ascii_nor_a_reader_who_has_seen_enough_is_an_error(
    arguments, monkeypatch, capfd
):
    code = main(arguments)
    assert "été" in capfd.readouterr().out
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as pipe, monkeypatch.context() as patch:
        for stdout in (shown, pipe):
            patch.setattr(sys, "stdout", stdout)
            assert main(arguments) == code
    shown.seek(0)
    assert ("?t?" in shown.read(), capfd.readouterr().err) == (True, "")


@pytest.mark.parametrize(
    ("closed", "path", "option", "code", "said"),
    [
        ("stderr", "a-traces.jsonl", "--text", 0, "etl"),
        ("stderr", "nothing", "--text", 1, ""),
        # A message, or a file's name, is no result.
        ("stdout", "nothing", "--text", 1, "nothing"),
        ("stdout", "a-traces.jsonl", "-o=page", 0, ""),
        ("stdout", "a-traces.jsonl", "--text", 1, "dask-otel report: standard output is closed\n"),
    ],
)
def test_where_a_stream_is_closed_only_a_lost_result_is_an_error(
    tmp_path, monkeypatch, capsys, closed, path, option, code, said
):
    (tmp_path / "a-traces.jsonl").write_text(json.dumps(traces(span(1, "etl"))) + "\n")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sys, closed, None)
        assert main(["report", path, option]) == code
        getattr(sys, closed).close()
    shown = "".join(capsys.readouterr())
    assert said in shown
    assert bool(said) == bool(shown)


#: What Dask's own command line does with the entry points of its group; here with ours alone.
DASK = """
import json, sys
from importlib.metadata import EntryPoint
from dask.cli import _register_command_ep, cli
_register_command_ep(cli, EntryPoint("otel", sys.argv[1], "dask_cli"))
assert "distributed" not in sys.modules
sys.stderr = sys.stdout
for arguments in json.loads(sys.argv[2]):
    try: cli(arguments)
    except SystemExit as end: print("ends with", end.code, flush=True)
"""


def test_dask_s_own_command_line_passes_everything_on():
    project = Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r"^\[project\.entry-points\.dask_cli\]\notel = \"(.*)\"$", project, re.M)
    asked = {
        "--help": r"otel .*\nends with 0",
        "otel --version": r"dask-otel .*\nends with 0",
        "otel --help": r"usage: dask-otel.*\nends with 0",
        "otel demo --help": r"exit codes:.*\nends with 0",
        "otel demo --nonsense": r"--nonsense.*\nends with 2",
        "otel": r"usage: dask-otel.*\nends with 2",
    }
    out = run("-c", DASK, *named, json.dumps([one.split() for one in asked])).stdout
    assert re.search(".*".join(asked.values()), out, re.DOTALL), out
    assert out.count("ends with") == len(asked)


@pytest.mark.usefixtures("only_new_garbage")
def test_a_connection_that_was_given_up_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It does where it is collected, which may be at any time, after the answer has come."""

    async def late() -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(TimeoutError("Timeout"))
        # In a circle, as a real one's traceback is.
        future.circle = future

    before = logging.getLogger("asyncio").level
    with terminal.held_back("asyncio"):
        asyncio.run(late())
    gc.collect()
    assert (caplog.records, logging.getLogger("asyncio").level) == ([], before)
