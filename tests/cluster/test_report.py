"""What a running scheduler remembers, as a report of it."""

from __future__ import annotations

import asyncio
import json

import pytest
from distributed import Client, Event, LocalCluster, span, wait

from dask_otel import _wire
from dask_otel._dask.asked import remembered as dask_remembered
from dask_otel.cli import main, report
from dask_otel.report.document import report_of
from dask_otel.report.findings import failures
from dask_otel.report.seconds import cluster_time, span_activities
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster]


def fail(number):
    raise ValueError(f"no {number}")


def held(name):
    Event(name).wait()


def remembered(client, spans=100):
    found = report_of(client.run_on_scheduler(_wire.remembered, spans))
    assert found.skipped.counts == {}
    (run,) = found.runs
    return run


def test_a_scheduler_tells_what_it_remembers(start, capsys):
    with start() as bridged:
        client = bridged.client
        with span("etl"):
            with span("load"):
                done = client.map(abs, range(5), pure=False)
                wait(done)
            with span("check"):
                bad = client.submit(fail, 7)
                wait(bad)
        event = Event("gate", client)
        with span("open"):
            waiting = client.submit(held, "gate")
        try:

            def known():
                names = {one.full_name: one for one in remembered(client).of_type("span")}
                return names if "open" in names else None

            names = eventually(known, 60, "the span is known")
            assert set(names) == {"etl", "etl/load", "etl/check", "open"}
            assert names["open"].unfinished
            assert not names["etl/load"].unfinished
            assert names["etl/load"].parent_id == names["etl"].span_id
            assert names["etl"].failed
            assert names["etl"].number("dask.task.count") == 6
        finally:
            event.set()
        waiting.result()
        # Ids are those of the trace that was exported.
        received = bridged.exported(60)
        ids = {one.attributes["dask.span.id"]: one.span_id for one in received.spans
               if one.type == "span"}  # fmt: skip
        run = remembered(client)
        for one in run.of_type("span"):
            known_id = ids[one.attributes["dask.span.id"]]
            assert one.span_id == (known_id if isinstance(known_id, str) else f"{known_id:016x}")
        (failure,) = failures(run)
        assert (failure.kind, failure.message, failure.span) == ("ValueError", "no 7", "etl/check")
        assert [one.name for one in run.of_type("group")] != []

        # Seconds are Dask's own.
        def own(dask_scheduler):
            return {
                known.id: sum(
                    value
                    for key, value in known._cumulative_worker_metrics.items()
                    if key[0] == "execute" and key[-1] == "seconds"
                )
                for known in dask_scheduler.extensions["spans"].spans.values()
            }

        truth = client.run_on_scheduler(own)
        for one in run.of_type("span"):
            seconds = sum(span_activities(one).values())
            assert seconds == pytest.approx(truth[one.attributes["dask.span.id"]])
        whole = cluster_time(run)
        assert whole is not None
        assert (whole.capacity or 0) > 0
        assert whole.remainder is None  # what is in flight is not told
        assert len(run.metrics.series["dask.worker.memory.usage"]) == 2

        assert len(remembered(client, 1).of_type("span")) == 1
        address = bridged.cluster.scheduler_address
        capsys.readouterr()
        assert main(["report", "--scheduler", address, "--json"]) == 0
        (shown,) = json.loads(capsys.readouterr().out)["runs"]
        assert {one["name"] for one in shown["traces"]} >= {"etl", "open"}


@pytest.mark.unreconciled("there is no bridge")
def test_a_scheduler_without_a_bridge_tells_of_its_spans():
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        with span("etl"):
            wait(client.submit(abs, -1))
        run = remembered(client)
        assert [one.full_name for one in run.of_type("span")] == ["etl"]
        assert cluster_time(run) is None


@pytest.mark.unreconciled("there is no bridge")
def test_the_event_loop_has_its_turns_while_a_scheduler_tells(monkeypatch):
    # Each step is a long one.
    monkeypatch.setattr(dask_remembered, "_STEP", 0.0)

    async def turns(dask_scheduler):
        answer, count = _wire.remembered(100, dask_scheduler=dask_scheduler), 0
        while True:
            try:
                answer.send(None)
            except StopIteration as done:
                (resource,) = done.value["resourceSpans"]
                return count, len(resource["scopeSpans"][0]["spans"])
            count += 1
            await asyncio.sleep(0)

    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        for number in range(3):
            with span(f"etl {number}"):
                wait(client.submit(abs, -number, key=("x" * (number + 1), number)))
        count, told = client.run_on_scheduler(turns)
    # One after each that is told, and perhaps others.
    assert count >= told >= 3


@pytest.mark.unreconciled("there is no cluster")
def test_where_there_is_no_scheduler_it_is_said(capsys, monkeypatch):
    monkeypatch.setattr(report, "_PATIENCE", "1s")
    # No port of a machine is surely free: this one can't be.
    assert main(["report", "--scheduler", "tcp://127.0.0.1:1", "--text"]) == 1
    assert "dask-otel report: " in capsys.readouterr().err
