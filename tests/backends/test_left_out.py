"""A server that is not there: left out and said, or a failure where it is required."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from . import conftest, servers
from .servers import PINNED


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
