"""`dask_otel.performance_report` on real clusters; in simulated time: its numbers, its limits."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, span, wait

import dask_otel
from dask_otel import _wire
from tests.cluster import tasks
from tests.cluster.processes import cluster
from tests.cluster.test_first_minute import README, block
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("nothing is exported"),
]
#: One process of the tests imports what pages are made with.
paged = pytest.mark.xdist_group("page")

OPTIONS: dict[str, Any] = {
    "n_workers": 2,
    "threads_per_worker": 1,
    "processes": False,
    "dashboard_address": "127.0.0.1:0",
    "scheduler_kwargs": {"dashboard": False},
}


def names(report: Any) -> set[str]:
    (run,) = report.runs
    return {span.full_name for span in run.of_type("span")}


@paged
def test_the_lines_of_the_readme_on_a_local_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with LocalCluster(**OPTIONS) as local, Client(local):
        known = {"dask_otel": dask_otel, "result": dask.delayed(sum)([1, 2])}
        exec(block(README, "python", "performance_report"), known)
        assert "dask-otel" not in local.scheduler.plugins
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    said = capfd.readouterr().err.splitlines()
    assert said[-1].strip() == "run.html"
    headline = next(line for line in said if line.strip() and not line.startswith((" ", "20")))
    assert headline in page


# One process of the tests starts the server that forks processes.
@pytest.mark.xdist_group("forked")
def test_processes_that_another_client_uses_too(tmp_path: Path) -> None:
    def work_of_another() -> None:
        with span("theirs"):
            wait(another.map(time.sleep, [0.02] * 20, pure=False))

    with cluster(tmp_path, forked=True) as made:
        made.start_scheduler()
        made.start_worker("a")
        made.start_worker("b")
        with Client(made.address) as another, Client(made.address) as client:
            client.wait_for_workers(2)
            side = threading.Thread(target=work_of_another)
            with dask_otel.performance_report(None, client=client) as block:
                side.start()
                assert client.gather(client.map(tasks.double, range(20))) == [*range(0, 40, 2)]
                # Some of it is within the block.
                side.join()
            plugins = client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.plugins])
            assert "dask-otel" not in plugins
    assert block.report is not None
    (run,) = block.report.runs
    assert {one.label for one in run.of_type("span")} == {
        "performance_report (this block)",
        "theirs",
    }
    (account,) = block.report.accounts()
    # Those of both clients.
    assert account.outcomes == {"memory": 40}


def test_a_client_that_is_closed_in_the_block(caplog: pytest.LogCaptureFixture) -> None:
    with LocalCluster(**OPTIONS) as local, Client(local) as client, Client(**OPTIONS) as owner:
        for one in (client, owner):
            with (
                caplog.at_level(logging.WARNING, "distributed.dask_otel"),
                dask_otel.performance_report(None, client=one) as block,
            ):
                one.close()
            with pytest.raises(RuntimeError, match="the client is closed"):
                dask_otel.why(one, "x")
            assert block.report is None
        said = [one.getMessage() for one in caplog.records if "performance_report" in one.msg]
        assert [one.rpartition(", ")[2] for one in said] == [
            "which is not affected: the client is closed: close it later"
        ] * 2
        eventually(lambda: "dask-otel" not in local.scheduler.plugins)
    # Now its event loop has ended, too.
    with pytest.raises(RuntimeError, match="the client is closed"):
        dask_otel.why(client, "x")


@paged
def test_an_asynchronous_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def program() -> None:
        async with (
            LocalCluster(**OPTIONS, asynchronous=True) as local,
            Client(local, asynchronous=True) as client,
        ):
            async with dask_otel.performance_report(tmp_path / "run.html") as block:
                assert await client.submit(pow, 2, 3) == 8
            assert names(block.report) == {"run"}
            # Neither waits nor raises.
            with dask_otel.performance_report(tmp_path / "no.html") as block:
                assert await client.submit(pow, 2, 4) == 16
            assert block.report is None
            assert "dask-otel" not in local.scheduler.plugins
            # Cancelled when the scheduler has begun, and knows no block yet.
            monkeypatch.setattr(_wire, "record", begun_for_ever)
            block = dask_otel.performance_report(tmp_path / "never.html")
            entering = asyncio.ensure_future(block.__aenter__())
            plugins = local.scheduler.plugins
            await asyncio.to_thread(eventually, lambda: "dask-otel" in plugins)
            entering.cancel()
            await asyncio.wait([entering])
            assert entering.cancelled()
            await asyncio.to_thread(eventually, lambda: "dask-otel" not in plugins)

    # By its name, as a function that is sent by value has variables of its own.
    monkeypatch.setattr(_wire, "begin_record", _wire.record, raising=False)

    async def begun_for_ever(dask_scheduler: Any, **asked: Any) -> None:
        from dask_otel import _wire

        await _wire.begin_record(dask_scheduler=dask_scheduler, **asked)
        await asyncio.Event().wait()

    with caplog.at_level(logging.WARNING, "distributed.dask_otel"):
        asyncio.run(program())
    assert [path.name for path in tmp_path.iterdir()] == ["run.html"]
    (said,) = [one.getMessage() for one in caplog.records if "performance_report" in one.msg]
    assert said.endswith("use `async with` with an asynchronous client, else `with`")
