"""``dask-otel assets`` in a checkout; `tools/smoke.py` asks an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from dask_otel.cli import main

REPOSITORY = Path(__file__).parents[2]


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_every_file_is_written_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "assets"
    assert main(["assets", str(folder)]) == 0
    written = content(folder)
    assert written == content(REPOSITORY / "deploy")
    assert {"grafana/dashboards/overview.json", "prometheus/rules/dask-alerts.yml"} <= set(written)
    assert capsys.readouterr().out == f"{len(written)} files are in {folder}\n"
    assert main(["assets", str(folder)]) == 0, "a second time is as good"


def test_what_was_changed_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["assets", str(tmp_path)]) == 0
    changed = tmp_path / "alertmanager" / "alertmanager.yml"
    shipped = changed.read_bytes()
    changed.write_text("mine\n", encoding="utf-8")
    assert main(["assets", str(tmp_path)]) == 1
    assert changed.read_text(encoding="utf-8") == "mine\n"
    assert "differ: alertmanager/alertmanager.yml;" in capsys.readouterr().err
    assert main(["assets", str(tmp_path), "--force"]) == 0
    assert changed.read_bytes() == shipped


def test_a_folder_that_cannot_be_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    assert main(["assets", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("dask-otel assets: ")


def test_a_package_without_the_files_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask_otel

    monkeypatch.setattr(dask_otel, "__file__", str(tmp_path / "a" / "dask_otel" / "__init__.py"))
    assert main(["assets", str(tmp_path / "out")]) == 1
    assert "packaged without them" in capsys.readouterr().err
