"""What becomes of the spool where it can't be had at all."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dask_otel.scheduler.wiring import _spool


def test_a_python_without_sqlite_exports_without_a_spool(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As where `import sqlite3` fails.
    monkeypatch.setitem(sys.modules, "dask_otel.spool.store", None)
    settings: Any = SimpleNamespace(spool=SimpleNamespace(path="/there.db", max_size=10**6))
    outputs: Any = SimpleNamespace(
        span_sinks=[SimpleNamespace(key="otlp", name="here")], resource={}
    )
    assert _spool(settings, outputs) is None
    (said,) = caplog.messages
    assert "otel.spool.path is /there.db" in said
    assert "sqlite3" in said
