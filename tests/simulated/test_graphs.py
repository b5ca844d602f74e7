"""The graph log says what a program did; every other test here compares all runs with the truth."""

from __future__ import annotations

import json
import random
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dask import annotate
from distributed import secede, span, wait
from lab.programs import flaky, moved

import dask_otel
from dask_otel._dask import graphs as recording
from dask_otel.core.graph import graph_line
from dask_otel.core.records import FinishedGraph
from dask_otel.whatif.experiments import Experiment
from dask_otel.whatif.graph import read_graphs
from dask_otel.whatif.running import replay
from tests.simulated.bridged import Bridged
from tests.simulated.graphs import decoded
from tests.simulated.observed import LIMITS, Simulated
from tests.simulated.tasks import fail, nap


def by_key(o: Simulated) -> tuple[dict[str, Any], dict[Any, list[dict[str, Any]]]]:
    """The line of the only root, and the entries of its runs by key."""
    o.quiet()
    (root,) = [one for one in o.exported if one.graph is not None]
    line, keys = decoded(root)
    runs: dict[Any, list[dict[str, Any]]] = {}
    for entries in zip(*line["runs"].values(), strict=True):
        run = dict(zip(line["runs"], entries, strict=True))
        run["before"] = {keys[one] for one in run["before"]}
        runs.setdefault(keys[run["task"]], []).append(run)
    return line, runs


def leave(seconds: float) -> None:
    time.sleep(seconds)
    secede()
    time.sleep(seconds)


@pytest.mark.options(workers=4, threads=2)
def test_a_run_takes_at_most_a_hundred_bytes_of_a_file(o: Simulated) -> None:
    """Of tasks that take any time, and need any others."""
    rng, futures = random.Random(3), list[Any]()
    for n in range(200):
        after = rng.sample(futures, min(n, rng.randrange(4)))
        futures.append(o.client.submit(nap, rng.random(), *after, key=("nap", n)))
    wait(futures)
    del futures
    o.quiet()
    (root,) = [one for one in o.exported if one.graph is not None]
    assert root.graph is not None
    text = "".join(graph_line(FinishedGraph(root, root.graph)))
    assert len(json.loads(text)["runs"]["task"]) == 200
    assert len(zlib.compress(text.encode())) <= 100 * 200


@pytest.mark.options(workers=2, threads=2)
def test_times_dependencies_spans_and_submissions(o: Simulated) -> None:
    with span("train"):
        first = o.client.map(nap, [1.0, 2.0, 3.0], key=[f"nap-{i}" for i in range(3)])
        time.sleep(0.5)
        with span("fit"):
            last = o.client.submit(nap, 1.0, *first, key="last-1", priority=5)
            wait([last, o.client.submit(leave, 0.25, key="leave-1")])
    line, runs = by_key(o)
    assert (line["name"], line["complete"], line["left_out"], line["outside"]) == (
        "train",
        True,
        0,
        0,
    )
    assert {key: [one["seconds"] for one in found] for key, found in runs.items()} == {
        "nap-0": [1.0], "nap-1": [2.0], "nap-2": [3.0], "last-1": [1.0], "leave-1": [0.5],
    }  # fmt: skip
    (last_run,), (left,) = runs["last-1"], runs["leave-1"]
    assert last_run["before"] == {"nap-0", "nap-1", "nap-2"}
    assert (last_run["sent"], last_run["start"]) == (3.0, 3.0)
    assert last_run["priority"][0] == -5
    groups = {key: {one["group"] for one in found} for key, found in runs.items()}
    assert groups["nap-0"] == groups["nap-1"] == groups["nap-2"] != groups["last-1"]
    times = [line["submissions"][runs[key][0]["submission"]] for key in ("nap-0", "last-1")]
    # Clients collect messages for 10 ms.
    assert times == pytest.approx([0.0, 0.5], abs=0.02)
    assert (left["seceded"], left["start"]) == pytest.approx((0.25, 0.5), abs=0.02)
    assert o.named("fit").seceded == pytest.approx(0.25, abs=0.02)
    assert sum(one["nbytes"] is not None for found in runs.values() for one in found) == 5


@pytest.mark.options(workers=2, threads=1)
def test_each_end_of_a_run_and_each_worker(o: Simulated) -> None:
    o.cluster.kill(o.cluster.add_worker("before", threads=1).name)
    time.sleep(1.0)
    with span("ends"):
        futures = [
            o.client.submit(how, 0.5, key=f"{how.__name__}-1", retries=1) for how in (flaky, moved)
        ]
        wait([*futures, o.client.submit(fail, 0.5, key="fail-1")])
        o.cluster.add_worker("w2", threads=1)
        lost = o.client.submit(nap, 2.0, key="lost-1", workers=["w2"], allow_other_workers=True)
        time.sleep(1.0)
        o.cluster.kill("w2")
        wait(lost)
        gone = o.client.submit(nap, 50.0, key="gone-1")
        time.sleep(1.0)
        gone.cancel()
    line, runs = by_key(o)
    outcomes = {key: "".join(one["outcome"] for one in found) for key, found in runs.items()}
    assert outcomes == {
        "flaky-1": "fm", "moved-1": "rm", "fail-1": "e", "lost-1": "lm", "gone-1": "c",
    }  # fmt: skip
    assert [one["seconds"] for one in (*runs["flaky-1"], *runs["fail-1"])] == [0.5, 0.5, 0.5]
    assert {one["task"] for one in runs["lost-1"]} == {runs["lost-1"][0]["task"]}
    names = [line["workers"][one["worker"]]["name"] for one in runs["lost-1"]]
    assert names[0] == "w2" != names[1]
    assert [one["name"] for one in line["workers"]] == ["w2", "w0", "w1"]
    (left,) = [one for one in line["workers"] if one["name"] == "w2"]
    assert 0.5 < left["came"] < left["went"]
    limit = line["restrictions"][runs["lost-1"][0]["restriction"]]
    assert ([line["workers"][n]["name"] for n in limit["workers"]], limit["loose"]) == (
        ["w2"],
        True,
    )


@pytest.mark.options(workers=1, threads=2)
def test_resources_workers_and_data_of_others(o: Simulated) -> None:
    o.cluster.add_worker("w1", threads=1, resources={"GPU": 2})
    data = o.client.scatter(5)
    with span("special"):
        with annotate(resources={"GPU": 1}):
            one = o.client.submit(nap, 0.5, data, key="gpu-1")
        wait([one, o.client.submit(nap, 0.5, key="host-1", workers=["w0"])])
    o.quiet()
    for ws in o.scheduler.workers.values():
        # While a thread writes the log.
        o.scheduler.add_resources(worker=ws.address, resources={"later": 1})
    line, runs = by_key(o)
    assert [one["resources"] for one in line["workers"]] == [{}, {"GPU": 2}]
    gpu, host = (line["restrictions"][runs[key][0]["restriction"]] for key in ("gpu-1", "host-1"))
    assert gpu == {"workers": None, "resources": {"GPU": 1}, "loose": False}
    assert host["workers"] == [[one["name"] for one in line["workers"]].index("w0")]
    assert line["outside"] == 1


@pytest.mark.parametrize("limit", ["MOST_OF_ONE", "MOST"])
def test_a_root_beyond_a_limit_says_so_and_the_next_one_is_whole(
    o: Simulated, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(recording, limit, 8)
    o.is_derivable = False
    for name, count in (("big", 20), ("small", 4)):
        with span(name):
            wait(o.client.map(nap, [0.1] * count, key=[f"{name}-{i}" for i in range(count)]))
        o.quiet()
        root = o.exported.pop()
        line, _ = decoded(root)
        assert len(line["runs"]["task"]) == min(8, count)
        assert (line["left_out"], line["complete"]) == (max(0, count - 8), count < 8)
        # As the pump does when the line is written.
        o.exported.append(replace(root, graph=None))
        del root


@pytest.mark.options(limits=replace(LIMITS, graph=False))
def test_a_recording_that_begins_later_has_the_roots_after_it_and_spoils_no_path(
    o: Simulated,
) -> None:
    def tasks(key: str) -> Any:
        # Most wait for a thread, and the last one for all of them.
        first = o.client.map(nap, [1.0] * 12, key=[f"{key}-{number}" for number in range(12)])
        return o.client.submit(nap, 1.0, first, key=f"{key}-last-1")

    o.is_derivable = False
    with span("outer"):
        outer = tasks("outer")
        for on in (True, False, True):
            time.sleep(0.5)
            o.adapter.record_graphs(on)
        with span("inner"):
            wait([outer, o.client.submit(nap, 0.1, key="inner-1")])
    with span("later"):
        wait(tasks("later"))
    o.quiet()
    assert o.named("outer").graph is None
    line, keys = decoded(o.named("later"))
    assert (line["complete"], len(keys), len(line["workers"])) == (True, 13, 2)
    assert [one["came"] for one in line["workers"]] == [None, None]
    assert line["submissions"] == sorted(line["submissions"])
    assert -1 not in line["runs"]["submission"]
    assert o.named("outer").path is not None
    o.compare_paths()


@pytest.mark.options(workers=1, within=1.0)
def test_little_is_kept_of_tasks_that_never_ran(
    o: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST", 200)
    monkeypatch.setattr(recording, "BLOCK", 50)
    o.adapter.record_graphs(True)
    graphs = o.adapter.spans.graphs
    assert graphs is not None
    with span("cancelled"):
        for _ in range(20):
            blocked = o.client.submit(nap, 100.0, pure=False)
            futures = o.client.map(nap, [1.0] * 50, [blocked] * 50, pure=False)
            time.sleep(0.1)
            o.client.cancel([blocked, *futures])
            del blocked, futures
            time.sleep(1.0)
            kept = {id(one): one for own in graphs.submissions.values() for one in own}
            assert sum(len(one.priorities) for one in kept.values()) <= 2 * 200 + 50 + 2 * 51
        wait(o.client.submit(nap, 0.1))
    line, runs = by_key(o)
    # No run is shown as that of a task without dependencies: it is left out if its task is unknown.
    count = sum(map(len, runs.values()))
    assert (count + line["left_out"], line["complete"]) == (21, False)
    assert 0 < count < 21
    o.is_derivable = False


def test_a_result_that_is_computed_again_for_a_later_root_has_its_dependencies(
    o: Simulated,
) -> None:
    o.cluster.add_worker("w9", threads=1)
    with span("first"):
        one = o.client.submit(nap, 0.1, key="one-1", workers=["w9"], allow_other_workers=True)
        two = o.client.submit(nap, 0.1, one, key="two-1", workers=["w9"], allow_other_workers=True)
        wait(two)
    time.sleep(5.0)
    assert [one.identity.tags for one in o.exported] == [("first",)]
    o.cluster.kill("w9")
    wait(two)
    o.quiet()
    line, keys = decoded(o.exported[-1])
    assert (keys, line["complete"], line["runs"]["before"]) == (["one-1", "two-1"], True, [[], [0]])
    # They are as restricted as before.
    assert [one["loose"] for one in line["restrictions"]] == [True]
    assert line["submissions"] == pytest.approx([0.0, line["runs"]["sent"][1]], abs=0.1)


@pytest.mark.usefixtures("replays_here")
@pytest.mark.options(begins=False, threads=2, unreconciled="its bridge ends before")
def test_files_have_one_line_for_each_root_and_the_report_leaves_them_alone(
    b: Bridged, tmp_path: Path
) -> None:
    dask_otel.register(b.client, {"files": {"path": str(tmp_path)}})
    for name in ("one", "two"):
        with span(name):
            wait(b.client.map(nap, [0.5] * 3, key=[f"{name}-{i}" for i in range(3)]))
    b.exported()
    dask_otel.unregister(b.client)
    graphs = read_graphs(tmp_path)
    assert [(one.name, len(one.runs["task"])) for one in graphs] == [("one", 3), ("two", 3)]
    (path,) = tmp_path.glob("*-graph.jsonl.gz")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "skipped" not in dask_otel.read_report(tmp_path).text(100, everything=True)
    assert {int(one.span_id, 16) for one in graphs} <= {span.span_id for span in b.received.spans}
    found = replay(graphs[1], [Experiment("one thread", workers=(1,))])
    assert found.recorded == pytest.approx(0.5, abs=1e-3)
    assert found.error == pytest.approx(0.0, abs=1e-3)
    assert [one.seconds for one in found.experiments] == [pytest.approx(1.5, abs=1e-3)]
