"""Each test here is the program of a user on a simulated cluster of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dask_otel.scheduler import bridge
from dask_otel.scheduler.wiring import make_pump
from tests.simulated.bridged import Bridged
from tests.simulated.observed import Simulated


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    mark = request.node.get_closest_marker("options")
    return mark.kwargs if mark else {}


@pytest.fixture
def o(request: pytest.FixtureRequest) -> Simulated:
    """A simulated cluster, made with the options of the test's marker, that an adapter observes."""
    return Simulated(**_options(request))


@pytest.fixture
def b(request: pytest.FixtureRequest) -> Bridged:
    """Such a cluster with the whole bridge, and a receiver of what it exports."""
    return Bridged(**_options(request))


@pytest.fixture
def slow_exporters(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let a bridge that begins from now on make its exporters for some seconds."""

    def slow(seconds: float) -> None:
        def made(*args: Any, **options: Any) -> Any:
            time.sleep(seconds)
            return make_pump(*args, **options)

        monkeypatch.setattr(bridge, "make_pump", made)

    return slow


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that has a simulated cluster there, in simulated time."""
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    for one in arguments.values():
        if isinstance(one, Simulated | Bridged):
            one.run(lambda: pyfuncitem.obj(**arguments))
            return True
    return None
