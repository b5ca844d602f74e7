"""`dask-otel why` and `held` ask a real scheduler; their answers are tested in simulated time."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest
from distributed import Client, LocalCluster, span, wait

import dask_otel
from dask_otel.cli import main
from dask_otel.semconv import PATH_PARTS
from tests.environment import OFF
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("nothing is exported; answers are compared with what was arranged"),
]

GATE = threading.Event()


def gated() -> None:
    GATE.wait()


@pytest.mark.usefixtures("only_new_garbage")
def test_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    def said(*asked: str, code: int = 0, command: str = "why") -> str:
        assert main([command, "--scheduler", cluster.scheduler_address, *asked]) == code
        return "".join(capfd.readouterr())

    options = {
        "processes": False, "protocol": "tcp", "dashboard_address": ":0",
        "scheduler_kwargs": {"dashboard": False},
    }  # fmt: skip
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, **options) as cluster,
        Client(cluster) as client,
    ):
        assert dask_otel.register(client, {"environment": OFF}) == "started"
        with span("fit"):
            wait(client.submit(time.sleep, 0.25))
            future = client.submit(gated, key="cli-1")
            eventually(lambda: ": executing" in said("cli-1"), what="a heartbeat")
        text = r"cli-1 \(processing\): executing\n  It has been executing on .*\n  next: Wait; .*\n"
        assert re.fullmatch(text, said("cli-1"))
        assert re.search(r"path so far: .*compute .*; no task of it", said("fit"))
        assert list(json.loads(said("fit", "--json"))["reasons"][0]["path"]) == list(PATH_PARTS)
        assert "unknown" in said("nobody", code=1)
        assert "at most 10,000 characters. Give it a future" in said("x" * 10_001, code=1)
        kept = client.submit(bytes, 1000, key="kept-1")
        wait(kept)
        assert f"default, kept: 1,000 B in 1 result\n  kept by client {client.id}" in said(
            command="held"
        )
        (one,) = json.loads(said("default", "--json", command="held"))["largest"]
        assert (one["prefix"], one["keepers"][0]["name"]) == ("kept", client.id)
        said_of_none = said("nobody", code=1, command="held")
        assert said_of_none.startswith("dask-otel held: the scheduler knows no span")
        dask_otel.unregister(client)
        gone = ": dask-otel does not run on this scheduler: "
        assert said("cli-1", code=1).startswith(f"dask-otel why{gone}")
        assert said(command="held", code=1).startswith(f"dask-otel held{gone}")
        GATE.set()
        wait(future)
