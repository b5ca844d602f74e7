"""What a history says of 63 real runs: one function became slower, and other work became more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from distributed import Client, Future, span

from dask_otel.cli import main
from tests.cluster.conftest import Start
from tests.waiting import lateness

pytestmark = pytest.mark.cluster

#: On a busy machine, five runs after a change are not always enough.
RUNS, MORE_RUNS = 30, 33
#: The share of the time by which short sleeps are late on a calm machine, at most.
CALM = 0.02
#: The first run with a slower function, and the first one with twice the data.
SLOWER, DOUBLED = 20, 25


def load(number: int) -> bytes:
    time.sleep(0.03)
    return bytes(1000)


def clean(seconds: float, _: bytes) -> None:
    time.sleep(seconds)


def tasks(client: Client, function: Callable[..., Any], *each: Sequence[Any]) -> list[Future]:
    """Submit tasks of a new group, which can't be booked on the span of an earlier one."""
    name = f"{function.__name__}-{uuid4().hex}"
    return client.map(function, *each, key=[(name, number) for number in range(len(each[0]))])


def record(start: Start, folder: Path) -> None:
    """Run both workflows."""
    with start({"files": {"path": str(folder)}}) as bridged:
        client = bridged.client
        for number in range(RUNS):
            with span("nightly"):
                loaded = tasks(client, load, range(4))
                seconds = 0.1 if number >= SLOWER else 0.02
                client.gather(tasks(client, clean, [seconds] * 4, loaded))
        for number in range(MORE_RUNS):
            with span("hourly"):
                client.gather(tasks(client, load, range(16 if number >= DOUBLED else 8)))
        bridged.exported()


def changes(trend: dict[str, Any]) -> list[int]:
    """Return how many runs came before each change of thread-time."""
    return [one["runs_before"] for one in trend["changes"] if one["figure"] == "thread-time"]


def test_the_slowed_function_is_named_and_more_data_is_more_work(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A machine that is busy for a while makes real runs slower, which is a change, too.
    for number in range(3):
        folder = tmp_path / str(number)
        began = time.monotonic()
        with lateness() as late:
            record(start, folder)
        busy = late[0] / (time.monotonic() - began)
        assert main(["history", str(folder), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found["runs"]) == RUNS + MORE_RUNS
        trends = {one["name"]: one for one in found["trends"]}
        for run in found["runs"]:
            # The sums close, run by run.
            for parts in (run["functions"], {"": run["parts"]}):
                assert sum(sum(one.values()) for one in parts.values()) == pytest.approx(
                    run["thread_seconds"], abs=1e-6
                )
            path = run["steps"][run["name"]]["path"]
            assert sum(sum(one.values()) for one in path.values()) == pytest.approx(run["seconds"])
        nightly, hourly = trends["nightly"], trends["hourly"]
        named = changes(nightly), changes(hourly)
        if named == ([SLOWER], [DOUBLED]) and not hourly["regression"]:
            break
    else:
        assert busy > CALM, (named, hourly["lines"])
        pytest.skip(f"the machine was busy: sleeps were late by {busy:.0%} of the time")

    assert nightly["regression"]
    (change,) = [one for one in nightly["changes"] if one["figure"] == "thread-time"]
    assert change["verdict"] == "slower"
    by_function = {name: sum(terms.values()) for name, terms in change["terms"].items() if name}
    assert max(by_function, key=lambda name: abs(by_function[name])) == "clean"
    assert 0.25 < by_function["clean"] < 0.5
    assert abs(by_function["load"]) < 0.1

    (change,) = [one for one in hourly["changes"] if one["figure"] == "thread-time"]
    assert change["verdict"] == "more work"
    assert any(line.startswith("tasks: 8 before, 16 after") for line in change["beside"])
    assert main(["history", str(folder), "--check", "hourly"]) == 0
    assert main(["history", str(folder), "--check", "nightly"]) == 1
    said = capsys.readouterr().out
    assert "in clean" in said
    assert "more work" not in said.partition("nightly: ")[2]
