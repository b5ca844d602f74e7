"""`dask-otel top` against real clusters: what it asks, what it says, and how it ends."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
from distributed import Client, Event, LocalCluster, get_client, span

from dask_otel._wire import Present, present
from dask_otel.cli import main
from dask_otel.scheduler import bridge
from dask_otel.scheduler.plugin import plugin_of
from tests.cluster.conftest import Bridged, Start
from tests.waiting import eventually

pytest.importorskip("rich")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("exports nothing; answers are compared with Dask's state"),
]

#: An address that another process can use.
HOST = "tcp://127.0.0.1"


def hold(name: str) -> None:
    Event(name, client=get_client()).wait()


def ask(client: Client, spans: int = 30, workers: int = 10) -> Present:
    answer = client.run_on_scheduler(present, spans=spans, workers=workers)
    assert isinstance(answer, Present)
    return answer


@pytest.fixture
def busy(start: Start) -> Any:
    """A cluster on which two tasks of a span wait for the event ``go``, and three behind them."""
    with start(host=HOST, n_workers=1, threads_per_worker=2) as bridged:
        event = Event("go", client=bridged.client)
        with span("etl"), span("load"):
            futures = bridged.client.map(lambda i: hold("go"), range(5), pure=False)
        eventually(
            lambda: (
                sum(s.tasks or 0 for s in ask(bridged.client).spans) == 5
                and ask(bridged.client).free == 0
            )
        )
        try:
            yield bridged
        finally:
            event.set()
            bridged.client.gather(futures)


def test_what_goes_on_is_what_dask_says(busy: Bridged) -> None:
    answer = ask(busy.client)
    assert (answer.threads, answer.free) == (2, 0)
    by_name = {one.name: one for one in answer.spans}
    load = by_name["load"]
    assert (load.tasks, load.unfinished, load.failed, load.phase) == (5, 5, 0, "open")
    assert load.parent == by_name["etl"].id
    assert by_name["etl"].unfinished == 0
    assert answer.more_spans == 0
    (worker,) = answer.workers
    assert worker.threads == 2
    assert worker.processing == len(next(iter(busy.scheduler.workers.values())).processing)
    assert answer.more_workers == 0


def test_the_seconds_close_and_never_fall(busy: Bridged) -> None:
    answers = [ask(busy.client)]
    # Exports in between take nothing away.
    busy.client.run_on_scheduler(fold_time)
    answers += [ask(busy.client) for _ in range(3)]
    Event("go", client=busy.client).set()
    eventually(lambda: ask(busy.client).seconds, what="the tasks' seconds")
    answers.append(ask(busy.client))
    for before, after in pairwise(answers):
        for name in ("idle", "unused", "lost", "capacity", "excess"):
            assert getattr(after, name) >= getattr(before, name)
    last = answers[-1]
    known = sum(last.seconds.values()) + last.idle + last.unused + last.lost
    # The rest is in flight: the reports of what runs.
    assert 0 < known <= last.capacity + last.excess + 1e-6


def fold_time(dask_scheduler: Any) -> None:
    dask_scheduler.plugins["dask-otel"].bridge.adapter.fold_time_now()


def test_the_answer_is_bounded(busy: Bridged) -> None:
    futures = []
    for number in range(20):
        with span(f"more {number}"):
            # Groups of their own: Dask books a group on the first span that had it.
            futures.append(busy.client.submit(hold, "go", key=(f"more-{number}", 0)))
    eventually(lambda: len(ask(busy.client).spans) == 22)
    answer = ask(busy.client, spans=5, workers=0)
    assert len(answer.spans) == 5
    assert answer.more_spans == 17
    assert (answer.workers, answer.more_workers) == ((), 1)
    # What is above a span comes with it.
    names = [one.name for one in answer.spans]
    assert "load" not in names or "etl" in names
    assert ask(busy.client, spans=10**9, workers=-1).more_spans == 0
    Event("go", client=busy.client).set()
    busy.client.gather(futures)


# ----------------------------------------------------------------------------- the command


def top(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dask_otel", "top", *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        env={**os.environ, "COLUMNS": "80"},
        check=False,
    )


def test_an_answer_is_a_cost_of_the_bridge(busy: Bridged, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: Any) -> None:
        until = time.perf_counter() + 0.1
        while time.perf_counter() < until:
            pass

    def cost(dask_scheduler: Any) -> float:
        plugin = plugin_of(dask_scheduler)
        assert plugin is not None
        assert plugin.bridge is not None
        before = plugin.bridge._cost._timers
        present(1, 1, dask_scheduler)
        return plugin.bridge._cost._timers - before

    monkeypatch.setattr(bridge, "present", look)
    assert busy.client.run_on_scheduler(cost) >= 0.1


def test_once(busy: Bridged) -> None:
    done = top(busy.scheduler.address, "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert busy.scheduler.address in done.stdout
    assert "2 threads: 2 busy, 0 free" in done.stdout
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("  load")]
    assert line.split()[1] == "0/5"
    assert "since the bridge started" in done.stdout


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "nonsense://x", "1.2.3.4:x", "inproc://1"]
)
def test_no_scheduler_is_said(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dask_otel.cli.top._PATIENCE", "100ms")
    assert main(["top", address, "--once"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"dask-otel top: no Dask scheduler answers at {address}: ")
    assert out == ""


def test_no_bridge_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"n_workers": 0, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(host=HOST, **options) as cluster:
        assert main(["top", cluster.scheduler_address, "--once"]) == 1
    assert "dask-otel does not run on this scheduler" in capsys.readouterr().err


class Terminal:
    """`dask-otel top` in a terminal of its own."""

    def __init__(self, address: str) -> None:
        leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dask_otel", "top", address],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
            start_new_session=True,
        )
        os.close(follower)
        self.leader = leader
        self.text = ""

    def read(self) -> str:
        """Return all that came so far."""
        while select.select([self.leader], [], [], 0)[0]:
            try:
                data = os.read(self.leader, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            self.text += data.decode("utf-8", "replace")
        return self.text

    def until(self, check: Callable[[str], Any]) -> None:
        eventually(lambda: check(self.read()), 60, "what the terminal shows")

    def end(self) -> int:
        """Wait for the end, and take in what comes until then."""
        deadline = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
            time.sleep(0.05)
        self.read()
        return self.process.wait(1)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        os.close(self.leader)


def test_it_goes_on_until_ctrl_c(busy: Bridged) -> None:
    terminal = Terminal(busy.scheduler.address)
    try:
        terminal.until(lambda text: "since the bridge started" in text)
        # The second answer is there.
        terminal.until(lambda text: "of the last " in text)
        os.killpg(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 0
        assert "Traceback" not in terminal.text
        # The screen is given back.
        assert "\x1b[?1049l" in terminal.text
    finally:
        terminal.close()


def test_a_scheduler_that_goes_is_said(start: Start) -> None:
    with ExitStack() as terminals:
        with start(host=HOST, n_workers=0) as bridged:
            terminal = Terminal(bridged.scheduler.address)
            terminals.callback(terminal.close)
            terminal.until(lambda text: "of the last " in text)
        assert terminal.end() == 1
        assert "does not answer any more" in terminal.text
        assert "Traceback" not in terminal.text
