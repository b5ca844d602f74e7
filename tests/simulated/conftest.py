"""Each test here is the program of a user on a simulated cluster of its own."""

from __future__ import annotations

import pytest

from tests.simulated.observed import Simulated


@pytest.fixture
def o(request: pytest.FixtureRequest) -> Simulated:
    """A simulated cluster, made with the options of the test's marker, that the bridge observes."""
    mark = request.node.get_closest_marker("options")
    return Simulated(**(mark.kwargs if mark else {}))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that has a simulated cluster there, in simulated time."""
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    o = arguments.get("o")
    if not isinstance(o, Simulated):
        return None
    o.run(lambda: pyfuncitem.obj(**arguments))
    return True
