"""`dask_otel.performance_report`: a page about a block, from a scheduler that sends nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dask
import pytest
from distributed import fire_and_forget, span, wait

import dask_otel
from dask_otel import _wire, semconv
from dask_otel.client import reporting
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.pump.pump import Pump
from dask_otel.report.account import Account
from dask_otel.report.document import report_of
from dask_otel.report.evidence import facts_of
from dask_otel.report.telemetry.model import Block
from dask_otel.scheduler.plugin import NAME
from dask_otel.whatif.graph import read_graphs
from tests.simulated.bridged import Bridged
from tests.simulated.tasks import boom, nap
from tests.waiting import eventually

#: Nothing is exported where there is no bridge.
alone = pytest.mark.options(begins=False, unreconciled="nothing is exported")


def account(block: dask_otel.performance_report) -> Account:
    """Return the account of the only run of a report."""
    assert block.report is not None
    (found,) = block.report.accounts()
    return found


def durations(block: dask_otel.performance_report) -> dict[str, float]:
    return {s.full_name: s.seconds for s in account(block).session.of_type("span")}


def hooks(b: Bridged) -> list[Any]:
    """What a bridge replaces on a scheduler, as it is now."""
    scheduler = b.scheduler
    owners = [scheduler, scheduler.extensions["spans"], type(scheduler)]
    found = [dict(vars(one)) for one in owners[:2]]
    values = [value for one in found for value in one.values() if callable(value)]
    return [
        sorted(map(str, scheduler.plugins)),
        values,
        dict(scheduler.handlers),
        dict(scheduler.stream_handlers),
        sorted(scheduler.worker_plugins),
    ]


def never(name: str, text: str) -> str:
    """Redact like a service that does not answer."""
    threading.Event().wait()
    return text


@alone
def test_without_a_bridge_one_is_there_for_the_block_alone(b: Bridged) -> None:
    before = hooks(b)
    assert not b.scheduler.plugins.get("dask-otel")
    with dask_otel.performance_report(None) as block:
        bridge = weakref.ref(b.bridge)
        with span("train"):
            b.client.gather(b.client.map(nap, [1.0] * 4, pure=False))
        time.sleep(0.5)
    found = account(block)
    # Two workers of two threads: the truth of the program, not of another part of the bridge.
    assert durations(block)["performance_report/train"] == pytest.approx(1.0, abs=0.1)
    assert durations(block)["performance_report"] == pytest.approx(1.5, abs=0.1)
    assert found.outcomes == {"memory": 4}
    assert not any(one.mark for one in found.session.spans)
    received = b.received.spans, b.received.points, b.received.logs
    assert not any(received)
    assert hooks(b) == before
    eventually(lambda: not any(thread._thread.is_alive() for thread in b.threads))
    gc.collect()
    assert bridge() is None


@alone
@pytest.mark.parametrize(("took", "outlasts"), [(1.0, False), (2.0, True)])
def test_time_before_tasks_is_the_clients(b: Bridged, took: float, outlasts: bool) -> None:
    """It counts although they outlast the block."""
    with dask_otel.performance_report(None) as block:
        time.sleep(3.0)
        futures = b.client.map(nap, [took] * 4, pure=False)
        if not outlasts:
            b.client.gather(futures)
    found = account(block)
    first = found.diagnoses[0]
    title = f"The run waited 3.00 s of {3.0 + took:.2f} s for its client"
    assert (first.kind, first.title) == ("client", title)
    assert found.seconds == pytest.approx(3.0 + took, abs=0.05)
    if not outlasts:
        assert durations(block)["performance_report"] == pytest.approx(1.0, abs=0.05)


@alone
def test_computed_seconds_are_those_of_the_block_alone(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each row comes in an answer of its own.
    monkeypatch.setattr(reporting, "_CHUNK", 1)
    with dask_otel.performance_report(None) as outer:
        b.client.gather(b.client.map(nap, [2.0] * 2, pure=False))
        # Longer than between two batches of metrics.
        time.sleep(7.0)
        with dask_otel.performance_report(None) as inner:
            b.client.gather(b.client.map(nap, [1.0] * 3, pure=False))
        b.client.gather(b.client.map(nap, [4.0], pure=False))
    for block, seconds, tasks in ((inner, 3.0, 3), (outer, 11.0, 6)):
        found = account(block)
        computed = sum(one.seconds for one in found.spans)
        assert found.outcomes == {"memory": tasks}
        assert computed - sum(one.idle or 0.0 for one in found.spans) == pytest.approx(
            seconds, abs=0.1
        )
    # The block inside has a name of its own, and is judged alone.
    name = "performance_report/performance_report"
    assert list(durations(inner)) == ["performance_report", name]
    assert [bool(one.mark) for one in account(inner).session.of_type("span")] == [False, True]
    assert account(inner).seconds == pytest.approx(durations(inner)[name], abs=0.001)
    assert not b.scheduler.plugins.get("dask-otel")


@pytest.mark.options(latency=0.3)
def test_what_comes_while_the_rows_are_read_is_not_the_blocks(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each row comes in an answer of its own.
    monkeypatch.setattr(reporting, "_CHUNK", 1)

    def theirs(client: Any) -> None:
        time.sleep(6.0)
        for number in range(3):
            with dask_otel.performance_report(None, client=client) as block, span("theirs"):
                client.submit(nap, 0.5, key=f"theirs-{number}").result()
        other.append(block)

    other: list[dask_otel.performance_report] = []
    b.cluster.user("other", theirs)
    with dask_otel.performance_report(None) as block:
        b.client.gather(b.client.map(nap, [1.0] * 2, pure=False))
    eventually(lambda: other)
    assert account(block).outcomes == {"memory": 2}
    assert list(durations(block)) == ["performance_report"]


@alone
@pytest.mark.parametrize(("name", "tasks"), [("theirs", 4), ("performance_report", 0)])
def test_work_of_others_is_context_and_never_the_headline(
    b: Bridged, name: str, tasks: int
) -> None:
    """Also where the block has no work, and they its name."""

    def theirs(client: Any) -> None:
        with span(name):
            wait([client.submit(boom), client.submit(nap, 1.0)])

    with dask_otel.performance_report(None) as block:
        b.cluster.user("other", theirs)
        b.client.gather(b.client.map(nap, [2.0] * tasks, pure=False))
        time.sleep(5.0)
    found = account(block)
    labels = {one.label for one in found.session.of_type("span")}
    assert labels == ({"performance_report (this block)", name} if tasks else {name})
    assert found.diagnoses[0].kind != "failed"
    none = [one.title == "The block had no work on this cluster" for one in found.diagnoses]
    assert none == [not tasks] * len(none)
    assert [one.span for one in found.failures] == [name]


def test_cancelled_tasks_of_others_hold_their_threads(b: Bridged) -> None:
    with span("first"):
        futures = b.client.map(nap, [5.0] * 4, key="first", pure=False)
        time.sleep(1.0)
        b.client.cancel(futures)
        del futures
    with dask_otel.performance_report(None) as block:
        b.client.gather(b.client.map(nap, [0.5] * 4, key="mine", pure=False))
    first, *_ = account(block).diagnoses
    assert first.title == "performance_report waited 4.00 s of 4.50 s for threads that first held"


@alone
def test_a_block_of_the_same_name_is_that_of_others(b: Bridged) -> None:
    def theirs(client: Any) -> None:
        with dask_otel.performance_report(None, client=client) as block:
            directly = client.map(nap, [1.0] * 20, key="direct", pure=False)
            with span("train"):
                wait(client.map(nap, [1.0] * 20, key="theirs", pure=False))
            wait(directly)
        other.append(block)

    other: list[dask_otel.performance_report] = []
    with dask_otel.performance_report(None) as block:
        b.cluster.user("other", theirs)
        for number in range(5):
            b.client.submit(nap, 2.0, key=("mine", number), priority=1).result()
        eventually(lambda: other)
    for one in (block, *other):
        own = [span for span in account(one).session.of_type("span") if span.mark]
        assert account(one).seconds == pytest.approx(own[-1].seconds, abs=0.02)
    said = " ".join(one.title + one.evidence for one in account(block).diagnoses)
    assert not [name for name in ("theirs", "direct", "train") if name in said]
    assert "open" not in [one.kind for one in account(other[0]).diagnoses]


@pytest.mark.options(otel={"report": {"record": "always"}})
def test_a_report_is_about_its_run_or_block_alone_also_where_all_is_recorded(b: Bridged) -> None:
    ids = []
    for number in range(3):
        with span("nightly") as span_id:
            b.client.gather(b.client.map(nap, [0.5, 1.0 + number], key=f"nap-{number}"))
        ids.append(span_id)
        time.sleep(6.0)
    with dask_otel.performance_report(None) as block:
        b.client.gather(b.client.map(nap, [1.0] * 2, pure=False))
    assert account(block).outcomes == {"memory": 2}
    rows, lost = b.bridge.recording.recorder.since(0.0)
    assert {signal for signal, _ in rows} == {"traces", "metrics", "logs", "graph"}
    (everything,) = report_of(rows, lost).accounts()
    assert everything.outcomes == {"memory": 8}
    for number, span_id in enumerate(ids):
        (found,) = report_of(rows, lost, Block("", span_id)).accounts()
        assert found.seconds == pytest.approx(1.0 + number, abs=0.01)
        facts = facts_of(found.session, [], [])
        (own,) = (one for one in facts.spans if one.name == "nightly")
        assert sum(own.work["nap"].values()) == pytest.approx(1.5 + number, abs=0.01)


@alone
def test_others_are_still_open_and_named_if_they_held_the_threads(b: Bridged) -> None:
    def theirs(client: Any) -> None:
        with span("theirs"):
            futures = client.map(nap, [3.0] * 8 + [6.0], key="theirs", pure=False)
            wait(futures)

    def short(client: Any) -> None:
        with span("short"), span("part"):
            client.submit(nap, 0.1, key=("short", 0)).result()

    with (
        dask.config.set({"otel.spans.linger": "10s"}),
        dask_otel.performance_report(None) as block,
    ):
        b.cluster.user("one", short)
        time.sleep(0.5)
        b.cluster.user("other", theirs)
        time.sleep(0.5)
        b.client.submit(nap, 1.0, key=("mine", 0)).result()
    (first, *_), found = account(block).diagnoses, account(block).session.of_type("span")
    assert (first.kind, first.span) == ("held", "performance_report")
    assert first.title.endswith("for threads that theirs held")
    assert {one.label: one.unfinished for one in found} == {
        "performance_report (this block)": False,
        "theirs": True,
        "short": True,
        "part": True,
    }
    # Its work is done, and its end lingers.
    assert durations(block)["short/part"] == pytest.approx(0.1, abs=0.05)
    assert durations(block)["theirs"] > 4.0
    # Before its first task, the block slept for a second.
    after = durations(block)["performance_report"]
    assert account(block).seconds == pytest.approx(after + 1.0, abs=0.02)
    # They are no fault of the block.
    assert not any(one.kind == "open" for one in account(block).diagnoses)


def test_a_running_bridge_records_only_while_a_block_asks(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    with span("before"):
        b.client.gather(b.client.map(nap, [1.0] * 5, pure=False))
    b.exported()
    exported = [one.name for one in b.received.spans if one.type == "span"]
    assert exported == ["before"]
    threads = len(b.threads)
    with monkeypatch.context() as patch:
        # Every exporter hangs.
        patch.setattr(Pump, "accepts_metrics", lambda _: False)
        with span("hung"), dask_otel.performance_report(None) as block:
            b.client.gather(b.client.map(nap, [1.0] * 2, pure=False))
        assert account(block).outcomes == {"memory": 2}
    with dask_otel.performance_report(None) as block:
        b.client.gather(b.client.map(nap, [1.0] * 3, pure=False))
    assert durations(block).keys() == {"performance_report"}
    assert account(block).outcomes == {"memory": 3}
    assert b.bridge.recording.recorder is None
    eventually(lambda: not any(one._thread.is_alive() for one in b.threads[threads:]))
    # What others receive is complete all the same, and compared with Dask at the end.
    b.exported()
    exported = [one.name for one in b.received.spans if one.type == "span"]
    assert sorted(exported) == ["before", "hung", "performance_report", "performance_report"]


@pytest.mark.options(begins=False, faults=True, otel={"report": {"record": "always"}})
def test_a_recording_without_threads_gets_nothing(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Pump.start

    def full(pump: Pump) -> None:
        if pump.destinations[0].name == "memory":
            raise RuntimeError("can't start new thread")
        start(pump)

    with monkeypatch.context() as patch:
        patch.setattr(Pump, "start", full)
        b.begin()
        eventually(lambda: b.bridge.wired)
    assert b.bridge.hand_over.recorded is None
    with dask_otel.performance_report(None) as block:
        b.client.gather(b.client.map(nap, [1.0] * 2, pure=False))
    assert account(block).outcomes == {"memory": 2}


@pytest.mark.options(
    begins=False, unreconciled="nothing is exported", otel={"redact": f"{__name__}:never"}
)
def test_a_redaction_that_never_returns_holds_up_no_block(
    b: Bridged, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        began = time.monotonic()
        with dask_otel.performance_report(None) as block:
            assert b.client.submit(nap, 1.0).result() == 1.0
        assert time.monotonic() - began < reporting._TIMEOUT + 2.0
        # Not one without what the redaction has.
        assert block.report is None
        assert "operator's function (otel.redact) does not return" in caplog.text
    # Its limit is no setting, and nothing closes.
    assert "1 graph log could not be exported to memory within 5 s" in caplog.text
    assert "otel.close-timeout" not in caplog.text
    eventually(lambda: not b.scheduler.plugins.get("dask-otel"))


@alone
@pytest.mark.parametrize(
    ("how", "interrupted", "reason", "step"),
    [
        ({}, False, "It has been executing on", "Wait"),
        ({"resources": {"GPU": 1}}, False, "it asks for GPU = 1", "Start a worker that has these"),
        ({"resources": {"GPU": 1}}, True, "it asks for GPU = 1", "Start a worker that has these"),
    ],
)
def test_work_that_goes_on_is_shown_as_still_open(
    b: Bridged, how: dict[str, Any], interrupted: bool, reason: str, step: str
) -> None:
    futures = []
    with suppress(KeyboardInterrupt), dask_otel.performance_report(None) as block:
        futures.append(b.client.submit(nap, 60.0, **how))
        time.sleep(1.0)
        began = time.monotonic()
        if interrupted:
            raise KeyboardInterrupt
    assert time.monotonic() - began < reporting._TIMEOUT + 2.0
    (top,) = account(block).session.of_type("span")
    assert (top.unfinished, top.result) == (True, "still open")
    said = account(block).diagnoses
    # No worker has left, and nothing is missing.
    assert [one.kind for one in said] == ["failed"] * interrupted + ["open"]
    assert said[-1].title == "The block ended before its work was done"
    assert reason in said[-1].evidence
    assert said[-1].next.startswith(step)
    # Names of tasks, workers and resources are no figures.
    assert block.report is not None
    (redacted,) = block.report.redacted().accounts()
    assert not any(reason in one.evidence for one in redacted.diagnoses)


@alone
@pytest.mark.parametrize("tasks", [4, 0])
def test_work_that_its_client_has_given_up_is_waited_for(b: Bridged, tasks: int) -> None:
    """Its graph may still be on its way. Without any work, nothing is waited for."""
    with dask_otel.performance_report(None) as block:
        fire_and_forget(b.client.map(nap, [1.0] * tasks, pure=False))
        began = time.monotonic()
    assert account(block).outcomes == ({"memory": 4} if tasks else {})
    assert time.monotonic() - began < reporting._TIMEOUT / 2


@alone
def test_tasks_that_were_cancelled_while_they_waited_are_in_the_headline(b: Bridged) -> None:
    """No thread was free for them until then."""
    with dask_otel.performance_report(None) as block:
        futures = b.client.map(nap, [1.0] * 40, pure=False)
        time.sleep(4.5)
        b.client.cancel(futures)
    first, *_ = account(block).diagnoses
    whole = "Tasks of nap used no CPU for 80% of the threads' time, 24 tasks cancelled"
    assert first.title == whole


@alone
def test_the_spans_of_a_block_end_one_after_the_other(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands at once would block the event loop for seconds."""

    def tick(lifecycle: Lifecycle, *asked: Any) -> None:
        before = len(lifecycle.finished)
        whole(lifecycle, *asked)
        ended.append(len(lifecycle.finished) - before)

    ended, whole = list[int](), Lifecycle.tick
    monkeypatch.setattr(Lifecycle, "tick", tick)
    with dask.config.set({"otel.spans.linger": "60s"}), dask_otel.performance_report(None):
        for number in range(20):
            with span(f"part-{number}"):
                wait(b.client.submit(nap, 0.1, key=(f"part-{number}", 0)))
    # The last one ends with the block.
    assert (sum(ended), max(ended)) == (21, 1)


class _Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def throw(error: BaseException, _: float) -> None:
    raise error


@alone
@pytest.mark.parametrize(
    ("error", "name", "text"),
    [
        (SystemExit(), "", ""),
        (SystemExit(0), "", ""),
        (GeneratorExit(), "", ""),
        (SystemExit(3), "SystemExit", ": 3"),
        (SystemExit("no data"), "SystemExit", ": no data"),
        (KeyboardInterrupt(), "KeyboardInterrupt", ""),
        (LookupError("no such"), "LookupError", ": no such"),
        (_Silent(), "_Silent", ": <unreadable>"),
        (ValueError("\udc80 \0"), "ValueError", ": \ufffd \ufffd"),
    ],
)
def test_the_end_of_a_program_is_the_headline_if_it_is_not_plain_and_goes_on(
    b: Bridged, error: BaseException, name: str, text: str, tmp_path: Path
) -> None:
    block = dask_otel.performance_report(tmp_path / "run.html")
    with pytest.raises(type(error)), block:
        throw(error, b.client.submit(nap, 1.0).result())
    assert block.report is not None
    (redacted,) = block.report.redacted().accounts()
    title = f"The block ended with {name}" * bool(name)
    for found, expected in ((account(block), title + text), (redacted, title)):
        first, *others = found.diagnoses
        assert (first.title if first.kind == "failed" else "") == expected
        assert "failed" not in [one.kind for one in others]
    assert title in (tmp_path / "run.html").read_text(encoding="utf-8")


@alone
def test_the_failure_of_a_task_that_the_block_raises_is_said_once(b: Bridged) -> None:
    failing = dask_otel.performance_report(None)
    with pytest.raises(ValueError), failing:
        b.client.submit(boom).result()
    first, *_ = account(failing).diagnoses
    # Not twice: the task's failure is the same.
    assert (first.kind, first.title) == ("failed", "1 task failed for good")
    assert first.evidence == "ValueError: no?[31m way"
    assert failing.report is not None
    assert failing.report.redacted().accounts()[0].diagnoses[0].evidence == "ValueError"


@alone
def test_a_block_whose_work_is_booked_on_an_open_span_says_so(b: Bridged) -> None:
    kept = b.client.submit(nap, 0.1)
    wait(kept)
    with dask_otel.performance_report(None) as block:
        b.client.gather(b.client.map(nap, [1.0] * 4, pure=False))
    (first,) = account(block).diagnoses
    assert (first.kind, first.span) == ("merged", "default")
    assert "includes the work of performance_report" in first.title


@alone
def test_a_client_that_is_gone_leaves_no_bridge_behind(b: Bridged) -> None:
    asked = b.client.sync(b.client._run_on_scheduler, _wire.record, name="x", owner="Client-gone")
    assert isinstance(asked, _wire.Recorded)
    eventually(lambda: not b.scheduler.plugins.get("dask-otel"), what="the bridge is removed")


@alone
@pytest.mark.parametrize("works", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_a_bridge_that_is_registered_meanwhile_is_the_user_s(
    b: Bridged, caplog: pytest.LogCaptureFixture, slow_exporters: Any, seconds: float, works: bool
) -> None:
    """Also one that has no exporters yet, and no rows. It has all of a span that nobody has."""
    with dask_otel.performance_report(None) as block:
        futures = b.client.map(nap, [2.0] * works)
        time.sleep(1.0)
        slow_exporters(seconds)
        b.begin()
        b.client.gather([*futures, b.client.submit(nap, 1.0)])
    assert block.report is None
    assert "the bridge was stopped or replaced meanwhile" in caplog.text
    assert "AssertionError" not in caplog.text
    (one,) = [one for one in b.exported().spans if one.type == "span"]
    assert (one.name, one.attributes["dask.span.generation"]) == ("performance_report", 1)
    assert [p.labels for p in b.received.points if p.metric == semconv.SPAN_DURATION.name]


@pytest.mark.options(latency=0.3)
def test_a_bridge_that_is_stopped_while_a_block_waits_leaves_nothing(
    b: Bridged, caplog: pytest.LogCaptureFixture
) -> None:
    """No thread goes on, and no metric says that it still runs."""

    def stop(client: Any) -> None:
        time.sleep(3.0)
        stopped.append(dask_otel.unregister(client))

    stopped: list[str] = []
    b.cluster.user("other", stop)
    with dask_otel.performance_report(None) as block:
        fire_and_forget(b.client.submit(nap, 8.0))
    assert eventually(lambda: stopped) == ["stopped"]
    assert block.report is None
    assert "the bridge was stopped or replaced meanwhile" in caplog.text
    eventually(lambda: all(one.closed.is_set() for one in b.threads))
    running = [p.value for p in b.received.points if p.metric == semconv.OTEL_RUNNING.name]
    assert running[-1] == 0


@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.options(begins=False, unreconciled="nothing is exported")
def test_a_request_that_ends_before_its_answer_leaves_no_bridge(
    b: Bridged, slow_exporters: Any, steps: int
) -> None:
    """Its client was cancelled while the bridge for it made its exporters."""
    slow_exporters(3.0)

    async def ask() -> Any:
        asking = asyncio.ensure_future(_wire.record("one", b.client.id, b.scheduler))
        while NAME not in b.scheduler.plugins:
            await asyncio.sleep(0.0)
        for _ in range(steps):
            await asyncio.sleep(0.0)
        await _wire.end_record("one", b.scheduler)
        return await asking

    assert isinstance(b.cluster.do("scheduler", ask), _wire.Refusal)
    assert NAME not in b.scheduler.plugins


@pytest.mark.options(begins=False, otel={"report": {"record": "always"}})
def test_what_passed_while_the_exporters_were_made_has_its_time(
    b: Bridged, slow_exporters: Any
) -> None:
    slow_exporters(3.0)
    b.begin()
    time.sleep(5.0)
    b.client.sync(b.bridge.recording.cut)
    (run,) = report_of(*b.bridge.recording.recorder.since(0.0)).runs
    # Two workers of two threads were there for that time, too.
    capacity = run.metrics.total(semconv.CLUSTER_CAPACITY_TIME.name)
    assert capacity == pytest.approx(4 * 5.0, abs=0.1)


@alone
def test_an_error_of_ours_is_one_warning_and_hides_nothing(
    b: Bridged,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = tmp_path / "run.html"
    page.mkdir()
    with (
        caplog.at_level(logging.WARNING, "distributed.dask_otel"),
        pytest.raises(ZeroDivisionError),
        dask_otel.performance_report(page) as block,
    ):
        raise ZeroDivisionError
    (said,) = [one.getMessage() for one in caplog.records if "performance_report" in one.msg]
    assert said.startswith("dask_otel.performance_report can't make the page of this block")
    assert str(page) in said
    assert str(page) not in repr(block)
    assert block.report is not None
    # The headline needs no page.
    assert f"{block!r}\n" in capsys.readouterr().err
    # Nor is it that of a later block which has no report.
    with dask.config.set({"otel.enabled": False}), block:
        pass
    assert (block.report, repr(block)) == (None, "no report")
    assert "which is not affected: dask-otel does not run on this scheduler;" in caplog.text
    assert not capsys.readouterr().err
    # Of a protocol that is only read, such as HTTP, the error has no words.
    with monkeypatch.context() as patched:
        patched.setattr("fsspec.open", Mock(side_effect=NotImplementedError))
        with dask_otel.performance_report("http://localhost:1/run.html"):
            pass
    assert caplog.messages[-1].endswith("fsspec can't write to http://localhost:1/run.html")
    assert "NotImplementedError" not in caplog.messages[-1]
    capsys.readouterr()
    # One that can be written is.
    page.rmdir()
    with block:
        pass
    assert "no work on this cluster" in page.read_text(encoding="utf-8")
    assert repr(block).endswith(f"\n  {page}")
    assert not b.scheduler.plugins.get("dask-otel")


@alone
def test_a_block_in_a_generator_may_end_in_another_thread(b: Bridged) -> None:
    """Each thread has a context of its own, and so has this call."""

    def program() -> Iterator[dask_otel.performance_report]:
        with dask_otel.performance_report(None) as block:
            b.client.gather(b.client.map(nap, [1.0] * 2, pure=False))
            yield block

    running = program()
    block = copy_context().run(next, running)
    assert not [*running]
    assert account(block).outcomes == {"memory": 2}


@pytest.mark.options(otel={"report": {"record": "always"}})
def test_sums_without_all_their_parts_are_left_out(b: Bridged) -> None:
    """They would contradict what the spans say."""
    for _ in range(2):
        with span("etl"):
            b.client.gather(b.client.map(nap, [10.0] * 12, pure=False))
        b.exported()
    b.client.sync(b.bridge.recording.cut)
    rows, _ = b.bridge.recording.recorder.since(0.0)
    sums = [place for place, (signal, _) in enumerate(rows) if signal == "metrics"]
    lost = sums[: len(sums) // 2]
    kept = [row for place, row in enumerate(rows) if place not in lost]
    (whole,) = report_of(rows, {}).accounts()
    (part,) = report_of(kept, {"metrics": len(lost)}).accounts()
    assert whole.outcomes["memory"] == part.outcomes["memory"] == 24
    assert (whole.cluster is None, part.cluster is None) == (False, True)
    # Levels need no other parts.
    threads = semconv.WORKER_THREAD_COUNT.name
    assert whole.session.metrics.total(threads) == part.session.metrics.total(threads) == 4
    # Without its trace, nobody knows what a block did.
    own = [row for row in rows if row[0] != "traces"]
    for missing, start in (
        ({"traces": 1}, "The block's work is not known"),
        ({}, "The block had no"),
    ):
        (found,) = report_of(own, missing, Block("etl", "gone")).accounts()
        assert found.diagnoses[0].title.startswith(start)


def chained(client: Any) -> None:
    """Four tasks of a second on four threads, then one of two: three seconds."""
    client.submit(nap, 2.0, client.map(nap, [1.0] * 4, pure=False), pure=False).result()


@pytest.mark.usefixtures("replays_here")
def test_a_block_is_replayed_and_not_what_others_did_meanwhile() -> None:
    def theirs(client: Any) -> None:
        with span("theirs"):
            client.submit(nap, 0.5, pure=False).result()

    def program() -> None:
        with block:
            chained(b.client)
            b.cluster.user("other", theirs)
            time.sleep(1.0)

    block = dask_otel.performance_report(None)
    b = Bridged(begins=False, unreconciled="nothing is exported")
    b.run(program)
    assert block.report is not None
    logs = {one.name: one for one in read_graphs(block.report.graph_logs)}
    assert {name: len(one.runs["task"]) for name, one in logs.items()} == {
        "performance_report": 5,
        "theirs": 1,
    }
    # Two workers of two threads: on four others, the four tasks take as long; on one, four seconds.
    result = dask_otel.what_if(block.report, threads=[(4, 1), (1, 1)]).result
    assert (result.span, result.refused) == ("performance_report", None)
    assert result.recorded == pytest.approx(4.0, abs=0.1)
    seconds = [one.seconds for one in result.experiments]
    assert seconds == pytest.approx([result.recorded, result.recorded + 3.0], rel=0.03)


def test_a_block_within_an_older_span_has_no_graph_and_says_why(b: Bridged) -> None:
    with span("older"):
        chained(b.client)
        with dask_otel.performance_report(None) as block:
            chained(b.client)
    assert block.report is not None
    with pytest.raises(ValueError, match="root spans that begin while"):
        dask_otel.what_if(block.report)
    # Nobody keeps them any more.
    assert b.bridge.adapter.spans.graphs is None


def test_a_notebook_links_to_what_its_server_finds() -> None:
    block, shown = dask_otel.performance_report("run.html"), {}
    # Nothing is there before the block.
    assert repr(block) == "no report"
    for name in ("my runs/<1>.html", "/tmp/run.html", "~/run.html", "s3://b/run.html", ""):
        block._place = name
        shown[name] = block._repr_html_().removeprefix("<b>no report</b><br>")
    assert shown == {
        "my runs/<1>.html": (
            '<a href="my%20runs/%3C1%3E.html" target="_blank">my runs/&lt;1&gt;.html</a>'
        ),
        "/tmp/run.html": "/tmp/run.html",
        "~/run.html": "~/run.html",
        "s3://b/run.html": "s3://b/run.html",
        "": "",
    }
