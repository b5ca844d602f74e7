"""What every test gets: a clean environment, and nothing left behind."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A change lands or not by what it does, not by the draw; other runs go on searching.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("default", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of real servers in one process of several: they share the servers."""
    for item in items:
        if item.get_closest_marker("backend"):
            item.add_marker(pytest.mark.xdist_group("backends"))


@pytest.fixture(autouse=True)
def _no_otel_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own exporters out of the tests."""
    for key in list(os.environ):
        if key.startswith(("OTEL_", "DASK_OTEL")):
            monkeypatch.delenv(key)
