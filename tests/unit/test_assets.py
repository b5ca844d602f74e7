"""``dask-otel assets`` in a checkout; `tools/smoke.py` asks an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

import dask_otel
from dask_otel.cli import main
from tests.environment import REPOSITORY


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_every_file_is_written_as_it_is_and_what_was_changed_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "assets"
    assert main(["assets", str(folder)]) == 0
    written = content(folder)
    assert written == content(REPOSITORY / "deploy")
    assert {"grafana/dashboards/overview.json", "prometheus/rules/dask-alerts.yml"} <= set(written)
    assert capsys.readouterr().out == f"{len(written)} files are in {folder}\n"
    changed = folder / "alertmanager" / "alertmanager.yml"
    shipped = changed.read_bytes()
    changed.write_text("mine\n", encoding="utf-8")
    for options, code, there in (([], 1, b"mine\n"), (["--force"], 0, shipped), ([], 0, shipped)):
        assert (main(["assets", str(folder), *options]), changed.read_bytes()) == (code, there)
    assert "differ: alertmanager/alertmanager.yml;" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"), [("file", "dask-otel assets: "), ("out", "packaged without them")]
)
def test_where_nothing_can_be_written_it_is_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    said: str,
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    if name == "out":
        monkeypatch.setattr(dask_otel, "__file__", str(tmp_path / "a" / "b" / "__init__.py"))
    assert main(["assets", str(tmp_path / name)]) == 1
    assert said in capsys.readouterr().err
