"""What the commands say of the files that a run has left, and of its spool."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from distributed import Future, span, wait

import dask_otel
from dask_otel.cli import main
from dask_otel.report.document import read_report
from dask_otel.report.telemetry.reader import Reader
from tests.simulated.bridged import Bridged
from tests.simulated.tasks import inc, nap

#: How many, and the first one with a slower function.
RUNS, SLOWER = 16, 10


def load(number: int) -> bytes:
    time.sleep(0.03)
    return bytes(1000)


def clean(seconds: float, _: bytes) -> None:
    time.sleep(seconds)


def begin(b: Bridged, folder: Path, **more: Any) -> None:
    """Start a bridge that writes files."""
    config = {"files": {"path": str(folder)}, **more}
    assert dask_otel.register(b.client, config) == "started"


def tasks(b: Bridged, function: Callable[..., Any], number: int, *each: Sequence[Any]) -> Any:
    """Submit tasks of a new group, which can't be booked on the span of an earlier one."""
    name = f"{function.__name__}-{number:032x}"
    return b.client.map(function, *each, key=[(name, index) for index in range(len(each[0]))])


@pytest.mark.usefixtures("replays_here")
@pytest.mark.options(begins=False, threads=1, unreconciled="its bridge ends before")
def test_the_slowed_function_is_named(
    b: Bridged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other changes, in files that were written by hand: `tests/unit/test_history_many.py`."""
    begin(b, tmp_path)
    for number in range(RUNS):
        with span("nightly"):
            seconds = 0.1 if number >= SLOWER else 0.02
            loaded = tasks(b, load, number, range(4))
            b.client.gather(tasks(b, clean, number, [seconds] * 4, loaded))
        time.sleep(1.0)
    dask_otel.unregister(b.client)
    assert main(["history", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["runs"]) == RUNS
    for run in found["runs"]:
        # The sums close, run by run.
        for parts in (run["functions"], {"": run["parts"]}):
            assert sum(sum(one.values()) for one in parts.values()) == pytest.approx(
                run["thread_seconds"], abs=1e-6
            )
        path = run["steps"][run["name"]]["path"]
        assert sum(sum(one.values()) for one in path.values()) == pytest.approx(run["seconds"])
    (nightly,) = found["trends"]
    assert nightly["regression"]
    (change,) = [one for one in nightly["changes"] if one["figure"] == "thread-time"]
    assert (change["verdict"], change["runs_before"]) == ("slower", SLOWER)
    by_function = {name: sum(terms.values()) for name, terms in change["terms"].items() if name}
    assert by_function == {"clean": pytest.approx(0.32), "load": pytest.approx(0.0, abs=1e-6)}
    assert main(["history", str(tmp_path), "--check", "nightly"]) == 1
    said = capsys.readouterr().out
    assert "in clean" in said
    assert "more work" not in said


# ------------------------------------------------------------------------------ ends of runs


def ended(
    folder: Path, end: Callable[[Bridged, list[Future]], Any], linger: str = "10s", workers: int = 2
) -> Bridged:
    """Let a script have its result, hold it, and end so."""

    def script() -> None:
        begin(b, folder, spans={"linger": linger})
        with span("job"):
            held = b.client.map(inc, range(10))
            held.append(b.client.submit(sum, held))
            assert held[-1].result() == 55
            end(b, held)

    b = Bridged(begins=False, unreconciled="it is looked at the result", workers=workers, threads=1)
    b.run(script)
    return b


def publish(b: Bridged, held: list[Future]) -> None:
    b.client.publish_dataset(held[:-1], name="held")
    held.clear()


def leave_one_after_another(b: Bridged, held: list[Future]) -> None:
    """As pods do."""
    time.sleep(1.0)
    b.cluster.leave("w0")
    time.sleep(30.0)


def close_client(b: Bridged, held: list[Future]) -> None:
    """The client first, as its block does."""


def close_scheduler(b: Bridged, held: list[Future]) -> None:
    b.cluster.do("scheduler", b.scheduler.close)


def shut_down(b: Bridged, held: list[Future]) -> None:
    b.client.shutdown()
    time.sleep(1.0)
    b.cluster.workers.clear()


def end_late(b: Bridged, held: list[Future]) -> None:
    time.sleep(30.0)


def runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, int]]:
    """Name, result and tasks of each run in the history."""
    assert main(["history", "--json", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    return [(run["name"], run["result"], run["tasks"]) for run in found]


def assert_success(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run has the result that its script got, once, and nothing speaks of its work as lost."""
    assert runs(folder, capsys) == [("job", "success", 11)]
    report = read_report(folder)
    assert report.to_dict()["runs"][0]["tasks"] == {"memory": 11.0}
    for wrong in ("incomplete", "OOM", "SchedulerClosed", "died", "computes again", "runs again"):
        assert wrong not in report.text(100, everything=True)


ENDS = [
    close_client,
    close_scheduler,
    shut_down,
    publish,
    end_late,
    leave_one_after_another,
]


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_succeeded_stays_a_success(
    tmp_path: Path, end: Callable[[Bridged, list[Future]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    workers = 1 if end is leave_one_after_another else 2
    ended(tmp_path, end, "100ms" if end is end_late else "10s", workers)
    assert_success(tmp_path, capsys)


def test_a_task_that_is_unfinished_beside_them_decides(tmp_path: Path, capsys: Any) -> None:
    def close(b: Bridged, held: list[Future]) -> None:
        held.append(b.client.submit(nap, 600))
        time.sleep(1.0)
        close_scheduler(b, held)

    ended(tmp_path, close)
    assert runs(tmp_path, capsys) == [("job", "error, incomplete", 12)]


def test_results_that_are_computed_again_are_work(tmp_path: Path, capsys: Any) -> None:
    def lose_one(b: Bridged, held: list[Future]) -> None:
        # It has a copy of each result; some are nowhere else.
        (address,) = b.client.who_has(held[-1:])[held[-1].key]
        b.cluster.leave(b.scheduler.workers[address].name)
        wait(held[-1])
        assert b.client.gather(held)[-2] == 10

    ended(tmp_path, lose_one)
    assert runs(tmp_path, capsys) == [("job", "success", 11)]
    reader = Reader()
    reader.read([tmp_path])
    assert reader.sessions()[0].roots()[0].number("dask.task.recomputed.count")


@pytest.mark.options(begins=False, workers=1, unreconciled="nothing is accepted")
def test_a_scheduler_that_is_killed_after_its_workers_leaves_a_success_in_its_spool(
    b: Bridged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b.received.answer = 503
    spool = tmp_path / "spool"
    spool.mkdir()
    begin(b, tmp_path / "files", spool={"path": str(spool / "spool.db")})
    with span("job"):
        held = b.client.map(inc, range(10))
        wait(held)
    time.sleep(5.0)
    b.cluster.leave("w0")
    time.sleep(5.0)
    # The files on the disk if it is killed now.
    shutil.copytree(spool, tmp_path / "killed")
    assert main(["spool", str(tmp_path / "killed/spool.db")]) == 0
    listed = capsys.readouterr().out
    assert listed.count("job") == 1, listed
    assert "lost" not in listed
