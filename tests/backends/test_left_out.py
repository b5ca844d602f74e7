"""A server that is not there: left out and said, or a failure where it is required."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from . import conftest, servers
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


def left_out(monkeypatch: pytest.MonkeyPatch, required: bool) -> str:
    """Ask for a server as a test does, and return what the summary will say."""
    monkeypatch.setattr(conftest, "REQUIRED", required)
    config: Any = SimpleNamespace(stash=pytest.Stash())
    with pytest.raises(servers.Missing) as missing:
        servers.binary("prometheus")
    with pytest.raises(pytest.skip.Exception):
        conftest._left_out(config, missing.value)
    (reason,) = config.stash[conftest.LEFT_OUT]
    return str(reason)


def test_what_is_not_built_is_left_out_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "is not built: run `make backends`" in left_out(monkeypatch, required=False)


def test_what_is_not_built_fails_where_it_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="DASK_OTEL_REQUIRE_BACKENDS=1, and Prometheus"):
        left_out(monkeypatch, required=True)


def test_what_a_registry_refused_is_left_out_even_where_it_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = PINNED["prometheus"].refusal_file
    file.parent.mkdir(parents=True)
    record = {"digest": PINNED["prometheus"].digest, "answer": "403 Forbidden"}
    file.write_text(json.dumps(record), encoding="utf-8")
    reason = left_out(monkeypatch, required=True)
    assert "the registry refused it (403 Forbidden)" in reason


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
