"""The spool on real clusters: what a scheduler leaves behind goes out with the next one."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest
from distributed import Client, span

import dask_otel
from dask_otel.core import identity
from tests.cluster.conftest import Start
from tests.cluster.processes import cluster
from tests.receiver import Receiver, Span, receiver, refusing
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("forked")]

PRELOAD = ("--preload", "dask_otel.preload")


def rows(path: Path, is_open: bool) -> int:
    """Return how many spans, or notes of open ones, are in the file."""
    if not path.exists():
        return 0
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        ((count,),) = connection.execute(
            "SELECT count(*) FROM rows WHERE (ids IS NOT NULL) = ?", (is_open,)
        )
    except sqlite3.OperationalError:
        # It is being made.
        return 0
    finally:
        connection.close()
    return int(count)


def spans_by_path(received: Receiver) -> dict[str, Span]:
    assert set(Counter(one.span_id for one in received.spans).values()) <= {1}
    return {one.path: one for one in received.spans if one.type == "span"}


@pytest.mark.unreconciled("one of the two schedulers exports nothing itself")
def test_what_was_not_sent_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "50", "DASK_OTEL__SPOOL__PATH": str(path)}
    ids: dict[str, str] = {}
    with (
        receiver("http/protobuf") as received,
        cluster(tmp_path, forked=True) as dask,
        refusing() as endpoint,
    ):
        # Its collector is dead until it is killed: one span has ended, two are open.
        nobody = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "DASK_OTEL__SPANS__LINGER": "0s"}
        scheduler = dask.start_scheduler(*PRELOAD, env={**quick, **received.environ, **nobody})
        worker = dask.start_worker("a")
        with Client(dask.address) as client:
            with span("ended") as ids["ended"]:
                assert client.submit(sum, [1, 2]).result() == 3
            eventually(lambda: rows(path, is_open=False) >= 2, what="a span and its group")
            with span("outer") as ids["outer"], span("inner") as ids["inner"]:
                kept = client.submit(time.sleep, 600)
            eventually(lambda: rows(path, is_open=True) == 2, what="notes of all that is open")
            killed_after = time.time_ns()
            scheduler.kill()
            worker.kill()
            del kept
        left = rows(path, is_open=False)

        # And the next one has a collector.
        scheduler = dask.start_scheduler(*PRELOAD, env={**quick, **received.environ})
        eventually(lambda: len(received.spans) >= left + 2, what="all of them")
        assert scheduler.terminate() == 0
        assert f"spans of earlier runs: {left + 2}, open" in scheduler.output
        assert "open at their end: 2)" in scheduler.output
        assert not path.exists()

    spans = spans_by_path(received)
    assert spans.keys() == {"ended", "outer", "outer/inner"}
    names = {path.rpartition("/")[2]: one for path, one in spans.items()}
    assert {name: one.span_id for name, one in names.items()} == {
        name: identity.span_id(dask_id) for name, dask_id in ids.items()
    }
    lost = (False, "SchedulerLost")
    assert {
        name: (one.attributes["dask.span.complete"], one.attributes.get("error.type"))
        for name, one in names.items()
    } == {"ended": (True, None), "outer": lost, "inner": lost}
    outer, inner = names["outer"], names["inner"]
    assert (inner.parent_id, inner.trace_id) == (outer.span_id, outer.trace_id)
    for one in (outer, inner):
        # To its last sign of life, which comes every second where the machine is not busy.
        assert one.start_ns < one.end_ns < killed_after + 600 * 10**9
    # As the run that was killed has made them.
    assert len({one.resource["service.instance.id"] for one in received.spans}) == 1


@pytest.mark.unreconciled("two bridges count, one after the other; the first is compared")
def test_a_bridge_that_is_stopped_releases_the_spool(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    with start({"spool": {"path": str(path)}}) as bridged:
        client = bridged.client
        with span("work"):
            assert client.submit(sum, [1, 2]).result() == 3
        bridged.exported()
        assert bridged.bridge.condition()["spool"]["usable"]
        assert dask_otel.unregister(client) == "stopped"
        # Nothing waits in it.
        assert not path.exists()
        dask_otel.register(client)
        eventually(lambda: bridged.exporting, what="exporters")
        assert bridged.bridge.condition()["spool"]["usable"]
