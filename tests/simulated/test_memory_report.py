"""The report's memory: planted holders, with the sizes and times that the program itself knows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from dask.sizeof import sizeof
from distributed import span, wait

import dask_otel
from dask_otel import read_report, semconv
from dask_otel.cli import main
from tests.simulated.bridged import Bridged
from tests.simulated.tasks import filled, nap
from tests.waiting import eventually


class Kept:
    """Results that are kept from now on, with their size as this program sees it."""

    def __init__(self, *futures: Any) -> None:
        wait(futures)
        self._futures, self._since = futures, time.time()
        self.size = sum(sizeof(one.result()) for one in futures)
        self.byte_seconds = 0.0

    def release(self) -> None:
        for one in self._futures:
            one.release()
        self.byte_seconds = self.size * (time.time() - self._since)


def planted(folder: Path, size: int = 1000) -> tuple[dict[str, Kept], list[tuple[int, float]]]:
    """Of a run in which *load* has most of the peak, *join* most over time.

    Return also the limits of the workers, and for how long they were there.
    """
    b = Bridged({"files": {"path": str(folder)}}, workers=0)
    held, lives = dict[str, Kept](), list[tuple[int, float]]()

    def run() -> None:
        since = time.time()
        workers = [b.cluster.add_worker(name, memory_limit=4 << 30) for name in "ab"]
        with span("train"):
            busy = b.client.submit(nap, 45.0)
            with span("join"):
                # It takes no thread-time.
                held["join"] = Kept(b.client.submit(filled, 2000, key="join-1"))
            time.sleep(10.0)
            with span("load"):
                keys = [("load-0", number) for number in range(5)]
                held["load"] = Kept(*b.client.map(filled, [size] * 5, key=keys))
            time.sleep(10.0)
            held["load"].release()
            late = b.cluster.add_worker("late", threads=1, memory_limit=2 << 30)
            time.sleep(10.0)
            b.cluster.leave("late")
            lives.append((late.memory_manager.memory_limit, 10.0))
            time.sleep(20.0)
            held["join"].release()
            del busy
        b.exported()
        lives.extend((one.memory_manager.memory_limit, time.time() - since) for one in workers)

    b.run(run)
    return held, lives


def test_planted_holders_and_what_changes_from_run_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a"
    held, lives = planted(folder)
    report = read_report(folder)
    (found,) = report.to_dict()["runs"]
    memory, load, join = found["memory"], held["load"], held["join"]
    # When a result comes and goes, the scheduler knows some milliseconds later.
    load_time, join_time = (pytest.approx(one.byte_seconds, rel=1e-3) for one in (load, join))
    whole = pytest.approx(load.byte_seconds + join.byte_seconds - 5.0 * join.size, rel=1e-3)
    expected = {
        "peak": load.size + join.size,
        "exported": load.size + join.size,
        # The metrics are exported every two seconds.
        "after": pytest.approx(12.0, abs=2.0),
        "roots": [
            {
                "span": "train",
                "peak": load.size + join.size,
                "prefix": "load",
                "of_it": load.size,
                "time": whole,
                "parts": {"load": load.size, "join": join.size},
            }
        ],
        "holders": [
            {
                "span": f"train/{name}",
                "prefix": name,
                "at_peak": one.size,
                "largest": one.size,
                "time": taken,
            }
            for name, one, taken in (("join", join, join_time), ("load", load, load_time))
        ],
    }
    *_, last = memory["holders"]
    assert (last["prefix"], last["largest"]) == ("nap", sizeof(45.0))
    assert {**memory, "holders": memory["holders"][:2]} == expected
    text = report.text(120, everything=True)
    assert (
        "  train: held at most 6.8 KiB, 4.9 KiB of it (71%) by load, 2.0 KiB (29%) by join; "
        "137 KiB·s until its work was done.\n"
    ) in text
    assert (
        """
  span        function  at most  in that export  share   over time  share of it
  train/join  join      2.0 KiB         2.0 KiB    29%  97.7 KiB·s          67%
  train/load  load      4.9 KiB         4.9 KiB    71%  48.8 KiB·s          33%
"""
        in text
    )
    assert "Memory\n" not in report.text(120)
    # At this price, a byte for a second costs 1: of workers by their limits, of spans by results.
    bill = read_report(folder, price=0.0, price_memory=3600.0 * 2**30).to_dict()["runs"][0]
    (root,), capacity = bill["cost"]["roots"], bill["cost"]["capacity"]
    # A worker comes and goes between two exports.
    most = 2.0 * sum(limit for limit, _ in lives)
    assert capacity == pytest.approx(sum(limit * took for limit, took in lives), abs=most)
    assert root["cost"] == pytest.approx(load.byte_seconds + join.byte_seconds, rel=1e-3)
    assert capacity == pytest.approx(root["cost"] + bill["cost"]["of_no_span"])
    # Each of five results is 2,000 bytes larger, for ten seconds.
    planted(tmp_path / "b", 3000)
    comparison = read_report(tmp_path / "b").compared_with(report).comparison
    assert comparison is not None
    (changed,) = comparison.names
    changes = [line for line in changed.beside if line.startswith("memory")]
    assert changes == [
        "memory peak: 6.8 KiB before, 16.6 KiB after",
        "memory-time: 137 KiB·s before, 234 KiB·s after",
    ]
    figures = []
    for name in "ab":
        # Both began at the same simulated time, so that they are one run for a list of both.
        assert main(["history", str(tmp_path / name), "--json"]) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        figures.append((run["memory_peak"], run["memory_time"]))
    (peak, taken), (later_peak, later_taken) = figures
    assert later_peak - peak == 5 * 2000
    assert later_taken - taken == pytest.approx(5 * 2000 * 10.0, rel=1e-3)
    assert main(["history", str(tmp_path / "b")]) == 0
    assert "     16.6 KiB    234 KiB·s" in capsys.readouterr().out


def test_a_short_result_and_threads_that_a_worker_did_not_need(tmp_path: Path) -> None:
    b = Bridged({"files": {"path": str(tmp_path)}}, workers=0)
    held: list[Kept] = []

    def run() -> None:
        b.cluster.add_worker("w0", threads=4, memory_limit=64 << 30)
        with span("train"):
            busy = b.client.map(nap, [15.0] * 3, pure=False)
            # The metrics are exported every two seconds.
            time.sleep(-time.time() % 2.0 + 0.5)
            held.append(Kept(b.client.submit(filled, 2000)))
            time.sleep(1.0)
            held[0].release()
            wait(busy)
        b.exported()

    b.run(run)
    (run_,) = read_report(tmp_path).to_dict()["runs"]
    # No export saw it, but a look in between.
    (found,) = [one for one in run_["memory"]["holders"] if one["prefix"] == "filled"]
    assert found["time"] == pytest.approx(held[0].byte_seconds, rel=1e-2)
    assert (found["at_peak"], found["largest"]) == (0.0, held[0].size)
    (title,) = [one["title"] for one in run_["diagnosis"] if one["kind"] == "sizing"]
    assert " and 3 of 4 threads: " in title


@pytest.mark.options(begins=False, unreconciled="work was done before the bridge")
def test_results_from_before_the_bridge_are_held_from_its_begin(b: Bridged) -> None:
    with span("before"):
        kept = Kept(*b.client.map(filled, [1000, 2000]))
    assert dask_otel.register(b.client) == "started"
    usage = semconv.SPAN_MEMORY_USAGE.name
    held = eventually(lambda: [*b.received.last(usage).items()], what="its first metrics")
    assert [(dict(labels)["dask.span.name"], size) for labels, size in held] == [
        ("before", kept.size)
    ]
