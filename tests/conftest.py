"""What every test gets: a clean environment, and nothing left behind."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from dask_otel import lab
from dask_otel.whatif import running
from tests import replays
from tests.browser import browser
from tests.waiting import eventually

# Before Dask is imported: it binds Python's clocks by name. Real time stays what it is.
lab.install()
#: Variables with the name of a cluster.
NAMES = ("DASK_CLUSTER_NAME", "DASK_GATEWAY_CLUSTER_NAME", "COILED_CLUSTER_NAME",
         "DASK_COILED__CLUSTER_NAME")  # fmt: skip

# For the processes that run the tests, and those that they start: the order of sets is then the
# same each time, and a simulated history can be run again.
os.environ.setdefault("PYTHONHASHSEED", "0")

# What a shell starts in the background ignores Ctrl-C, and so does all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before Dask is imported, for every process of the tests, and as in Dask's own. Its profiler calls
# `sys._current_frames` a hundred times a second, which in Python before 3.11.9 can lock up the
# process where a garbage collection falls into it (python/cpython#106883): it did, on 3.11.7.
os.environ["DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"] = "False"
# Workers of a LocalCluster need not import Dask anew. Programs that tests start have its default.
os.environ["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] = "forkserver"

# Of this process, where each simulated server would tell of its life in twenty lines.
for _name in ("core", "scheduler", "worker"):
    logging.getLogger(f"distributed.{_name}").setLevel(logging.WARNING)

# How quick the machine is decides nothing.
ANY_PACE: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# A change lands or not by what it does, not by the draw; other runs go on searching.
settings.register_profile("ci", max_examples=30, derandomize=True, print_blob=True, **ANY_PACE)
# `make fuzz` tries the costly ones a million times.
settings.register_profile("default", max_examples=20, **ANY_PACE)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Run the tests that share real servers in one process of several; begin with all groups."""

    def is_alone(item: pytest.Item) -> bool:
        return item.get_closest_marker("xdist_group") is None

    for item in items:
        servers = "start_shared" in getattr(item, "fixturenames", ())
        if item.get_closest_marker("backend") and servers:
            item.add_marker(pytest.mark.xdist_group("backends"))
    # A group that begins late goes on alone. Tests of clusters, which wait, run beside others.
    rest: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in filter(is_alone, items):
        rest["cluster" in item.path.parts].append(item)
    place = {item: n / len(part) for part in rest.values() for n, item in enumerate(part)}
    items.sort(key=lambda item: place.get(item, -1.0))
    yield
    # Otherwise each process would start browsers and servers, and import libraries, for itself.
    ungrouped = [item.nodeid for item in items if not is_alone(item) and "@" not in item.nodeid]
    assert not (getattr(config.option, "loadgroup", False) and ungrouped), "xdist keeps no groups"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect no garbage of imports, neither while they go on nor in a test."""
    # Libraries that look for leaks at the exit are to find none.
    atexit.register(gc.unfreeze)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _no_otel_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own exporters and settings out of the tests.

    Variables of the tests themselves stay, such as ``DASK_OTEL_REQUIRE_BACKENDS``.
    """
    for key in list(os.environ):
        if key.startswith(("OTEL_", "DASK_OTEL__")) or key in ("DASK_OTEL", *NAMES):
            monkeypatch.delenv(key)


@pytest.fixture(autouse=True)
def _our_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Give `caplog` what we log: Dask's loggers tell the root logger nothing."""
    ours = logging.getLogger("distributed.dask_otel")
    ours.addHandler(caplog.handler)
    ours.propagate = False
    yield
    ours.propagate = True
    ours.removeHandler(caplog.handler)


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    """Let no thread of ours run into the next test: it would log there, or draw random numbers."""
    yield

    def none_left() -> bool:
        left = [t.name for t in threading.enumerate() if t.name.startswith("dask-otel")]
        assert not left
        return True

    # The oldest exporters retry for a minute, and wait for the timeout at each try.
    eventually(none_left, what="threads of ours end")


@pytest.fixture
def only_new_garbage() -> None:
    """Let no collection look at what was there before: libraries, and the results of tests."""
    gc.freeze()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a browser: one for all tests, which are in the group `page`."""
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def replays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay in this process, if its sets have the order of those in a replay's own process.

    It has in the processes of `make test`. `tests/whatif/test_running.py` tests the own ones.
    """
    # However slow the machine is, no replay is left out.
    monkeypatch.setattr(running, "_LIMIT", inf)
    if not sys.flags.hash_randomization:
        monkeypatch.setattr(running, "_answers", replays.answers)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write down which versions ran and what came of it, for `docs/compatibility.md`."""
    path = os.environ.get("DASK_OTEL_COMPATIBILITY")
    config = terminalreporter.config
    if not path or hasattr(config, "workerinput"):
        return
    packages = ("distributed", "opentelemetry-sdk", "opentelemetry-exporter-otlp")
    stats = terminalreporter.stats
    run = {
        "versions": {
            "python": ".".join(map(str, sys.version_info[:3])),
            **{package: version(package) for package in packages},
        },
        **{what: len(stats.get(what, ())) for what in ("passed", "failed", "skipped")},
        # Somebody who chose some tests has not tried the releases.
        "whole": not config.option.keyword and config.args == config.getini("testpaths"),
    }
    run["failed"] += len(stats.get("error", ()))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(run) + "\n")
