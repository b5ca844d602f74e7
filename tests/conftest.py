"""What every test gets: a clean environment, and nothing left behind."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A change lands or not by what it does, not by the draw; other runs go on searching.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("default", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real processes a second chance where CI runs them.

    They wait for other processes on a machine that is shared and sometimes stands still. What is
    wrong fails twice; what failed once is named in the summary.
    """
    if os.environ.get("CI"):
        for item in items:
            if any(item.get_closest_marker(kind) for kind in ("cluster", "backend")):
                item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def _no_otel_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own exporters out of the tests."""
    for key in list(os.environ):
        if key.startswith(("OTEL_", "DASK_OTEL")):
            monkeypatch.delenv(key)
