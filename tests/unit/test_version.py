"""What is installed, also while a worker of this process takes its folder from `sys.path`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from dask_otel._version import entry_points, installed


@pytest.mark.parametrize(
    ("find", "expected"),
    [
        (lambda: installed("distributed"), metadata.version("distributed")),
        (lambda: [one.name for one in entry_points(group="dask_cli", name="otel")], ["otel"]),
    ],
)
def test_a_folder_that_goes_meanwhile_hides_no_package(
    find: Callable[[], object], expected: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed, path = os.listdir, [str(tmp_path / "worker"), str(tmp_path), *sys.path]

    def listdir(folder: str) -> list[str]:
        if folder == str(tmp_path):
            sys.path.pop(0)
        return listed(folder)

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr(sys, "path", path[:2] + [one for one in path if "site-packages" in one])
    assert find() == expected
    assert sys.path[0] == str(tmp_path)
