"""The command line without a cluster."""

from __future__ import annotations

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
