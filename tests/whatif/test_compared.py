"""A comparison of two runs, separated by replays: each cause alone, and all of them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import wait

from dask_otel.cli import main
from dask_otel.report import cures
from dask_otel.report.cures import separated
from dask_otel.report.document import read_report
from dask_otel.report.history.difference import compare
from dask_otel.whatif import running
from dask_otel.whatif.graph import Graph, read_graphs
from dask_otel.whatif.result import WhatIf
from dask_otel.whatif.running import Room, replay
from tests.simulated.tasks import nap
from tests.unit.history_files import etl
from tests.unit.history_files import write as write_traces
from tests.whatif.graphs import graph, recorded


def record(folder: Path, *, threads: int = 2, tasks: int = 12, seconds: float = 1.0) -> Path:
    """Record a run of tasks that sleep on one worker."""
    recorded(folder, lambda b: wait(b.client.map(nap, [seconds] * tasks, pure=False)), threads)
    return folder


def terms(before: Path, after: Path) -> dict[str, float]:
    report: Any = read_report(after).compared_with(read_report(before), replay=True)
    (one,) = report.comparison.names
    # Without remainder.
    change = one.lasted[1] - one.lasted[0]
    assert sum(by for _, by in one.replayed) == pytest.approx(change, abs=1e-5)
    return {name: round(by, 2) for name, by in one.replayed}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve tasks of a second on two threads: six seconds."""
    return record(tmp_path_factory.mktemp("base"))


@pytest.mark.usefixtures("replays_here")
@pytest.mark.parametrize(
    ("change", "functions", "cluster", "work"),
    [
        ({"seconds": 1.5}, 3.0, 0.0, 0.0),
        ({"threads": 4}, 0.0, -3.0, 0.0),
        ({"tasks": 16}, 0.0, 0.0, 2.0),
        # Six rounds of 1.5 s; then three on four threads; then four with more tasks.
        ({"seconds": 1.5, "threads": 4, "tasks": 16}, 3.0, -4.5, 1.5),
    ],
)
def test_each_cause_has_what_it_took(
    base: Path,
    tmp_path: Path,
    change: dict[str, Any],
    functions: float,
    cluster: float,
    work: float,
) -> None:
    found = terms(base, record(tmp_path, **change))
    assert found == {
        "by the time of the functions": functions, "by the cluster": cluster,
        "by other work": work, "that replays do not explain": 0.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def faster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same on four threads."""
    return record(tmp_path_factory.mktemp("faster"), threads=4)


@pytest.mark.usefixtures("replays_here")
def test_the_command_shows_it_as_text_and_json(
    base: Path, faster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*options: str) -> str:
        assert main(["report", "--compare", str(base), str(faster), *options]) == 0
        return capsys.readouterr().out

    line = "the last run of each, replayed: -3.00 s by the cluster\n"
    assert line in said("--text")
    assert "replayed" not in said("--text", "--no-replay")
    (one,) = json.loads(said("--json", "--replay"))["comparison"]["names"]
    assert dict(one["replayed"])["by the cluster"] == pytest.approx(-3.0, abs=1e-3)
    # Too large, and without an end in time.
    late = f"the last run of each, replayed: {running.NO_TIME}"
    for limit, value in (("_ROOM", 200), ("_LIMIT", 0.0)):
        with monkeypatch.context() as patch:
            patch.setattr(running, limit, value)
            assert late in " ".join(said("--text").split())
            assert line in said("--text", "--replay")


@pytest.mark.usefixtures("replays_here")
def test_names_keep_what_was_replayed_before_the_time_was_over(
    base: Path, faster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = [(read_report(folder).runs, read_graphs(folder)) for folder in (base, faster)]
    known = compare(*(runs for runs, _ in sides))
    comparison = replace(known, names=[*known.names, replace(known.names[0], name="later")])
    both = [
        (runs, [*graphs, *(replace(one, name="later") for one in graphs if one.name == "work")])
        for runs, graphs in sides
    ]
    done: list[str] = []

    def replayed(log: Graph, changes: Any, _: object, room: Room, times: float) -> WhatIf:
        done.append(log.name)
        room.until = 0.0 if len(done) == 2 else room.until
        return replay(log, changes, room=Room(limited=False))

    monkeypatch.setattr(cures, "replay", replayed)
    work, later = separated(comparison, both, lambda *_: None, limited=True).names
    assert done == ["work", "work"]
    assert dict(work.replayed)["by the cluster"] == pytest.approx(-3.0, abs=1e-3)
    assert (later.replayed, later.not_replayed) == ([], running.NO_TIME)


@pytest.mark.usefixtures("replays_here")
@pytest.mark.parametrize("wasteful", [0, 10])
def test_a_regression_is_separated_by_its_last_run_and_the_last_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wasteful: int
) -> None:
    # Runs with much idle time are an older change, of the thread-time alone.
    failed = wasteful + 10
    for number in range(failed + 7):
        took = 16.0 if number > failed else 8.0
        idle = 90.0 if number < wasteful else 20.0 - took if wasteful else 1.0
        made = json.dumps(etl(number, took + number % 2, idle, fit=(8, took)))
        if number == failed:
            made = made.replace('"success"', '"failure"')
        path = write_traces(tmp_path, number, json.loads(made))
        # The failed one began nothing but its first task.
        tasks = {failed - 1: 8, failed: 1, failed + 6: 8}.get(number, 0)
        if tasks:
            line = graph(
                *({"start": took / 8 * n, "seconds": took / 8} for n in range(tasks)),
                workers=[1], name="etl", span_id=f"{100 * number + 1:016x}",
                stop=took + number % 2,
            )  # fmt: skip
            log = path.with_name(path.name.replace("-traces.jsonl", "-graph.jsonl.gz"))
            log.write_bytes(gzip.compress(json.dumps(vars(line)).encode() + b"\n"))
    assert main(["history", str(tmp_path), "--check", "etl"]) == 1
    out, err = capsys.readouterr()
    (said,) = [line for line in out.splitlines() if "replayed" in line]
    assert (said[:15], err) == ("etl: duration +", "")
    assert "the last run before it and the last one, replayed: +8.00 s by the time of the" in said
