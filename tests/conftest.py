"""What every test gets: a clean environment, and nothing left behind."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_otel_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own exporters out of the tests."""
    for key in list(os.environ):
        if key.startswith(("OTEL_", "DASK_OTEL")):
            monkeypatch.delenv(key)
