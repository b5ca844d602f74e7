"""What the cure of a planted cause saves in a replay is what it saves in the cluster."""

from __future__ import annotations

import gzip
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import wait

from dask_otel.cli import main
from dask_otel.report.document import read_report
from dask_otel.whatif import running
from tests.planted.means import tasks
from tests.planted.recording import CASES, judged, record


def unpinned(client: Any, cluster: Any) -> Any:
    return tasks(client, "fit", [0.5] * 20)


def reliable(client: Any, cluster: Any) -> Any:
    return tasks(client, "fetch", [3.0] * 4)


def without_pause(client: Any, cluster: Any) -> None:
    for name in ("load", "fit"):
        wait(tasks(client, name, [0.5] * 4))


def in_pieces(client: Any, cluster: Any) -> Any:
    before: list[Any] = []
    for _ in range(10):
        before = tasks(client, "step", [0.125] * 4, *[[one] * 4 for one in before[:1]])
    return before


#: By case: what it is without the cause.
CURED: dict[str, dict[str, Any]] = {
    "pinned": {"program": unpinned},
    "one-unit-of-a-resource": {"program": unpinned, "config": {}},
    "flaky-tasks": {"program": reliable},
    "worker-killed": {"events": {}},
    "graph-building": {"program": without_pause},
    "slow-network": {"latency": None},
    "chain": {"program": in_pieces},
    "slow-worker": {"events": {}},
    "no-stealing": {"config": {}},
    "late-workers": {"workers": 2, "events": {}},
    "too-few-threads-queued": {"workers": 4},
}


@pytest.fixture(autouse=True)
def _one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay each change once; that the median of several counts, `tests/whatif` shows."""
    monkeypatch.setattr(running, "ORDERS", 1)


def took(folder: Path) -> float:
    (run,) = read_report(folder).runs
    return sum(one.seconds for one in run.roots())


@pytest.mark.usefixtures("replays_here")
@pytest.mark.parametrize("name", CURED)
def test_a_measured_saving_is_true(name: str, tmp_path: Path) -> None:
    case = replace(CASES[name], most=float("inf"))
    estimated, faults = judged(CASES[name], tmp_path / "with")
    assert not faults
    report = read_report(tmp_path / "with", replay=True)
    (account,) = report.accounts()
    found = account.diagnoses
    assert report.what_ifs
    assert not case.faults(found)
    assert found[0].experiment
    record(replace(case, **CURED[name]), tmp_path / "without")
    saved = took(tmp_path / "with") - took(tmp_path / "without")
    # Of equal tasks, chance decides which worker gets the last one, and the moment of stealing.
    by_chance = ("pinned", "one-unit-of-a-resource", "no-stealing", "too-few-threads-queued")
    last = 0.5 if name in by_chance else 0.02
    assert found[0].seconds == pytest.approx(saved, rel=0.05, abs=last)
    # As for the cases of `test_planted`.
    assert 0.85 * saved <= estimated[0].seconds <= 1.35 * saved


@pytest.mark.usefixtures("replays_here")
@pytest.mark.parametrize(
    ("name", "tried"),
    [
        # Tasks that tasks submit are not known to follow them on more threads.
        ("worker-client-at-once", {"threads": None}),
        # A client is replayed if it waits for all its results.
        ("four-at-a-time", {"client": None}),
        ("think-after-three", {"client": "without gaps"}),
        # Workers from the start cure no death.
        ("a-late-worker-killed", {"lost": "without failures", "no_workers": None}),
    ],
)
def test_a_cure_is_tried_if_its_replay_says_something(
    name: str, tried: dict[str, str | None], tmp_path: Path
) -> None:
    found, faults = judged(CASES[name], tmp_path, replay=True)
    assert not faults
    assert tried.items() <= {one.kind: one.experiment for one in found}.items()


def said(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> tuple[str, str]:
    """What the command prints of a folder."""
    assert main(["report", str(folder), "--text", *options]) == 0
    out, err = capsys.readouterr()
    return out, err


def test_a_report_without_the_answers_of_its_replays_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(CASES["pinned"], tmp_path)
    before = said(capsys, tmp_path, "--no-replay")
    assert "The cure can save about 2.50 s." in " ".join(before[0].split())
    # The process dies; it takes too long, except for those who want to wait.
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        out, err = said(capsys, tmp_path)
        assert out == before[0]
        assert err.startswith("dask-otel report: no replays: The process of the replay ended with")
    with monkeypatch.context() as patch:
        patch.setattr(running, "_LIMIT", 0.0)
        assert said(capsys, tmp_path)[0] == before[0]
        replayed, _ = said(capsys, tmp_path, "--replay")
        assert "Measured by replay, without restrictions:" in " ".join(replayed.split())
    # The graph is too large, damaged, or missing.
    monkeypatch.setattr(running.subprocess, "Popen", None)
    with monkeypatch.context() as patch:
        patch.setattr(running, "_ROOM", 150)
        assert said(capsys, tmp_path) == before
    (graph,) = tmp_path.glob("*-graph.jsonl.gz")
    graph.write_bytes(gzip.compress(b"[]\n"))
    out, err = said(capsys, tmp_path)
    assert (out, err.count("no replays: line 1 of")) == (before[0], 1)
    graph.unlink()
    assert said(capsys, tmp_path) == before
