"""What a test run says about servers that are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .servers import PINNED, REPOSITORY


def _run_test(cache: Path, required: bool, name: str) -> subprocess.CompletedProcess[str]:
    """Run one backend test in a pytest of its own, with `cache` for the built servers."""
    test = Path(__file__).parent / name
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(test)]
    environment = os.environ | {
        "XDG_CACHE_HOME": str(cache),
        "DASK_OTEL_REQUIRE_BACKENDS": "1" if required else "0",
    }
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )


def _run_prometheus_test(cache: Path, required: bool) -> subprocess.CompletedProcess[str]:
    return _run_test(cache, required, "test_configs.py::test_prometheus")


def _refuse(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    file = PINNED["prometheus"].refusal_file
    file.parent.mkdir(parents=True)
    record = {"digest": PINNED["prometheus"].digest, "answer": "403 Forbidden"}
    file.write_text(json.dumps(record), encoding="utf-8")


def test_a_server_that_is_not_built_is_left_out_with_a_hint(tmp_path: Path) -> None:
    done = _run_prometheus_test(tmp_path, required=False)
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "backend tests left out" in done.stdout
    assert "is not built: run `make backends`" in done.stdout


def test_a_server_that_is_not_built_fails_where_it_is_required(tmp_path: Path) -> None:
    done = _run_prometheus_test(tmp_path, required=True)
    assert done.returncode == 1
    assert "DASK_OTEL_REQUIRE_BACKENDS=1, and Prometheus" in done.stdout


def test_a_refused_server_is_left_out_even_where_it_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse(tmp_path, monkeypatch)
    done = _run_prometheus_test(tmp_path, required=True)
    assert done.returncode == 0, done.stdout
    assert "the registry refused it (403 Forbidden)" in done.stdout


@pytest.fixture
def only_the_collector(tmp_path: Path, backend_binary: Callable[..., str]) -> Path:
    """A cache in which the Collector is built, and nothing else."""
    built = Path(backend_binary("collector")).parent
    folder = tmp_path / "dask-otel" / "backends"
    folder.mkdir(parents=True)
    (folder / built.name).symlink_to(built)
    return tmp_path


@pytest.mark.backend
@pytest.mark.parametrize("required", [False, True])
def test_a_server_that_is_missing_beside_others_is_said_openly(
    only_the_collector: Path, required: bool
) -> None:
    """Also where a test asks for it in the midst of its work."""
    done = _run_test(only_the_collector, required, "test_compose.py::test_the_stack_works")
    assert done.returncode == required, done.stdout
    assert ("1 failed" if required else "1 skipped") in done.stdout
    assert "Alertmanager with amtool 0.33.1 is not built: run `make backends`" in done.stdout
