"""A client and a scheduler of neighbouring versions understand each other.

The earlier version is the wheel of the last release's tag, or until there is one that of the last
commit. It is built of the history, and not installed: its content comes first on the path.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest
from distributed import Client, span

import dask_otel
from dask_otel.scheduler.plugin import OtelSchedulerPlugin
from tests import environment
from tests.cluster.processes import cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("about what travels between versions; exports nothing"),
]

REPOSITORY = Path(__file__).parents[2]

OLD_CLIENT = """
import sys, dask_otel
from distributed import Client, span
from dask_otel.scheduler.plugin import OtelSchedulerPlugin
assert dask_otel.__file__.startswith(sys.argv[2]), dask_otel.__file__
with Client(sys.argv[1]) as client:
    assert dask_otel.register(client) == "started"
    assert dask_otel.register(client) == "running"
    with span("old client") as span_id:
        assert client.submit(pow, 2, 3).result() == 8
    metrics = dask_otel.span_metrics(client, span_id)
    assert (metrics.result, metrics.counts["tasks"]) == ("success", 1), metrics
    assert dask_otel.trace_context(span_id, client).trace_id == metrics.trace_id
    if hasattr(dask_otel, "why"):
        (reason,) = dask_otel.why(client, span_id).reasons
        assert (reason.name, reason.kind) == ("old client", "no unfinished task"), reason
    assert dask_otel.unregister(client) == "stopped"
    client.register_plugin(OtelSchedulerPlugin())
    assert dask_otel.unregister(client) == "stopped"
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the content of the earlier version's wheel is."""
    tags = _git("tag", "--list", "v*", "--sort=-version:refname", "--merged").stdout.split()
    archive = _git("archive", "--format=tar", *(tag.decode() for tag in tags[:1] or [b"HEAD"]))
    if archive.returncode:
        _not_here(f"the history of the repository: {archive.stderr.decode().strip()}")
    if find_spec("hatchling") is None:
        _not_here("hatchling, which builds the wheel (dependency group `test`)")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder / "sources", filter="data")
    # In this environment: an isolated one would be fetched.
    environment.run(
        *("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)), within=folder / "sources"
    )
    (wheel,) = folder.glob("dask_otel-*.whl")
    with zipfile.ZipFile(wheel) as archived:
        archived.extractall(folder / "site")
    return folder / "site"


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True)


def _not_here(what: str) -> NoReturn:
    reason = f"not here: {what}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def test_a_client_of_today_and_a_scheduler_of_before(tmp_path: Path, earlier: Path) -> None:
    with cluster(tmp_path) as processes:
        processes.start_scheduler(env={"PYTHONPATH": str(earlier), **environment.OFF})
        processes.start_worker(env={"PYTHONPATH": str(earlier)})
        with Client(processes.address) as client:
            package = client.run_on_scheduler(_package)
            assert package.startswith(str(earlier))
            assert dask_otel.register(client) == "started"
            with pytest.warns(UserWarning, match="otel.spans.linger"):
                assert dask_otel.register(client, {"spans": {"linger": "9s"}}) == "running"
            with span("new client") as span_id:
                assert client.submit(pow, 2, 3).result() == 8
            metrics = dask_otel.span_metrics(client, span_id)
            assert metrics.result == "success"
            assert metrics.counts is not None
            assert (
                metrics.counts["tasks"],
                dask_otel.trace_context(span_id, client).trace_id,
                dask_otel.unregister(client),
            ) == (1, metrics.trace_id, "stopped")
            client.register_plugin(OtelSchedulerPlugin())
            assert dask_otel.unregister(client) == "stopped"
        # Not at the top: the scheduler imports this module, for `_package`.
        from dask_otel.doctor.asking import facts_of_scheduler

        assert facts_of_scheduler(processes.address, 60)["process"]["bridge"]["state"] == "absent"


def test_a_client_of_before_and_a_scheduler_of_today(tmp_path: Path, earlier: Path) -> None:
    with cluster(tmp_path) as processes:
        processes.start_scheduler(env=environment.OFF)
        processes.start_worker()
        environment.run(
            *("-c", OLD_CLIENT, processes.address, str(earlier)), PYTHONPATH=str(earlier)
        )


def _package() -> str:
    import dask_otel

    return str(dask_otel.__file__)
