"""A client and a scheduler of neighbouring versions understand each other.

The earlier version is that of the last release's tag, or until there is one the last commit. It is
not installed: its sources come first on the path.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from distributed import Client, LocalCluster, span

import dask_otel
from dask_otel.doctor.asking import facts_of_scheduler
from dask_otel.scheduler.plugin import OtelSchedulerPlugin
from tests import environment
from tests.cluster.processes import cluster, ran
from tests.environment import REPOSITORY

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("forked"),
    pytest.mark.unreconciled("about what travels between versions; exports nothing"),
]


OLD_CLIENT = """
import sys
sys.path.insert(0, sys.argv[2])
import dask_otel
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
    if hasattr(dask_otel, "performance_report"):
        with dask_otel.performance_report(None) as block:
            assert client.submit(pow, 2, 4).result() == 16
        assert block.report
    if hasattr(dask_otel, "why"):
        (reason,) = dask_otel.why(client, span_id).reasons
        assert (reason.name, reason.kind) == ("old client", "no unfinished task"), reason
    if hasattr(dask_otel, "held"):
        assert dask_otel.held(client, "old client").span == "old client"
    assert dask_otel.unregister(client) == "stopped"
    client.register_plugin(OtelSchedulerPlugin())
    assert dask_otel.unregister(client) == "stopped"
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package of the earlier version is."""
    tags = _git("tag", "--list", "v*", "--sort=-version:refname", "--merged").stdout.split()
    archive = _git("archive", "--format=tar", *(tag.decode() for tag in tags[:1] or [b"HEAD"]))
    if archive.returncode:
        reason = f"no history of the repository: {archive.stderr.decode().strip()}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src"


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True)


def test_a_client_of_today_and_a_scheduler_of_before(
    earlier: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = ("--preload", f"import sys; sys.path.insert(0, {str(earlier)!r})")
    with cluster(tmp_path, forked=True) as made:
        made.start_scheduler(*before, env=environment.OFF)
        made.start_worker("w", *before)
        with Client(made.address) as client:
            package = client.run_on_scheduler(eval, "__import__('dask_otel').__file__")
            assert package.startswith(str(earlier))
            assert dask_otel.register(client) == "started"
            with pytest.warns(UserWarning, match="otel.spans.linger"):
                assert dask_otel.register(client, {"spans": {"linger": "9s"}}) == "running"
            with span("new client") as span_id:
                assert client.submit(pow, 2, 3).result() == 8
            metrics = dask_otel.span_metrics(client, span_id)
            assert (metrics.result, metrics.counts and metrics.counts["tasks"]) == ("success", 1)
            assert dask_otel.trace_context(span_id, client).trace_id == metrics.trace_id
            assert dask_otel.unregister(client) == "stopped"
            client.register_plugin(OtelSchedulerPlugin())
            assert dask_otel.unregister(client) == "stopped"
            with (
                caplog.at_level(logging.WARNING, "distributed.dask_otel"),
                dask_otel.performance_report(None) as block,
            ):
                assert client.submit(pow, 2, 4).result() == 16
            if block.report is None:
                assert "needs dask-otel, as new as here or newer" in caplog.text
            facts = asyncio.run(facts_of_scheduler(made.address, 60))
            assert facts["process"]["bridge"]["state"] == "absent"


def test_a_client_of_before_and_a_scheduler_of_today(
    earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.set_variables(monkeypatch, environment.OFF)
    options = {
        "processes": False, "protocol": "tcp", "dashboard_address": ":0",
        "scheduler_kwargs": {"dashboard": False},
    }  # fmt: skip
    script = tmp_path / "client.py"
    script.write_text(OLD_CLIENT)
    with LocalCluster(n_workers=1, **options) as cluster:
        ran(script, cluster.scheduler_address, str(earlier), folder=tmp_path)
