"""The command line without a cluster."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dask_otel.cli import demo, main


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--version"], 0, "dask-otel "),
        (["--help"], 0, "demo"),
        (["demo", "--help"], 0, "exit codes:"),
        (["doctor", "--help"], 0, "exit codes:"),
    ],
)
def test_answers_at_once(capsys, arguments, code, text):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == code
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["demo", "--nonsense"], ["doctor", "--timeout", "0"]]
)
def test_wrong_arguments(capsys, arguments):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "usage: dask-otel" in capsys.readouterr().err


def test_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr(demo, "_EXTRA", ("rich", "no_such_package"))
    assert main(["demo"]) == 1
    assert (
        capsys.readouterr().err
        == "dask-otel demo: the demo needs no_such_package; try: pip install 'dask-otel[demo]'\n"
    )


#: What Dask's own command line does with the entry points of its group; here with ours alone.
DASK = """
import sys
from importlib.metadata import EntryPoint
from dask.cli import _register_command_ep, cli
_register_command_ep(cli, EntryPoint("otel", sys.argv[1], "dask_cli"))
assert "distributed" not in sys.modules
cli(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--help"], 0, "otel "),
        (["otel", "--version"], 0, "dask-otel "),
        (["otel", "--help"], 0, "usage: dask-otel"),
        (["otel", "demo", "--help"], 0, "exit codes:"),
        (["otel", "demo", "--nonsense"], 2, "--nonsense"),
        (["otel"], 2, "usage: dask-otel"),
    ],
)
def test_dask_s_own_command_line_passes_everything_on(arguments, code, text):
    project = Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8")
    named = re.search(r"^\[project\.entry-points\.dask_cli\]\notel = \"(.*)\"$", project, re.M)
    assert named is not None
    done = subprocess.run(
        [sys.executable, "-c", DASK, named[1], *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    assert text in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("option", "path", "reason"),
    [
        ("--output", "a-file", "it is no directory"),
        ("--output", "a-file/x", "no such directory"),
        ("--save-svg", "a-folder", "it is a directory"),
    ],
)
def test_where_the_demo_cannot_write_it_does_not_run(
    monkeypatch, capsys, tmp_path, option, path, reason
):
    showcase = pytest.importorskip("dask_otel.cli.showcase")

    def runs(console):
        raise AssertionError("the demo ran")

    monkeypatch.setattr(showcase, "_destinations", runs)
    (tmp_path / "a-file").touch()
    (tmp_path / "a-folder").mkdir()
    assert main(["demo", option, str(tmp_path / path)]) == 1
    assert f"can't write {tmp_path / path}: {reason}" in capsys.readouterr().err
