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

pytestmark = pytest.mark.cluster

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


def hold(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def spans_by_path(received: Receiver) -> dict[str, Span]:
    assert set(Counter(one.span_id for one in received.spans).values()) <= {1}
    return {one.path: one for one in received.spans if one.type == "span"}


# Three schedulers and two workers, one after the other: a busy machine takes a minute for them.
@pytest.mark.timeout(600)
@pytest.mark.unreconciled("two of the three schedulers export nothing themselves")
def test_what_was_not_sent_survives_a_close_and_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    quick = {
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "DASK_OTEL__SPOOL__PATH": str(path),
        "DASK_OTEL__CLOSE_TIMEOUT": "30s",
    }
    ids: dict[str, str] = {}
    with receiver("http/protobuf") as received, cluster(tmp_path) as dask, refusing() as endpoint:
        nobody = {**quick, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        # Its collector is dead until it is told to end: one span has ended, one is open.
        scheduler = dask.start_scheduler(*PRELOAD, env={**nobody, "DASK_OTEL__SPANS__LINGER": "0s"})
        dask.start_worker("a")
        with Client(dask.address) as client:
            with span("ended") as ids["ended"]:
                assert client.submit(sum, [1, 2]).result() == 3
            eventually(lambda: rows(path, is_open=False) >= 2, 120, "a span and its group")
            with span("cut off") as ids["cut off"]:
                kept = client.submit(hold, 600)
            eventually(lambda: rows(path, is_open=True) == 1, 120, "the note of an open span")
            assert scheduler.terminate(120) == 0
            del kept
        assert "spans remain in the spool" in scheduler.output
        assert rows(path, is_open=True) == 0
        left = rows(path, is_open=False)
        assert left >= 3

        # The next one is killed. Nothing ends there, but one has nothing left to do.
        scheduler = dask.start_scheduler(
            *PRELOAD, env={**nobody, "DASK_OTEL__SPANS__LINGER": "3600s"}
        )
        worker = dask.start_worker("b")
        with Client(dask.address, timeout=120) as client:
            with span("lingers") as ids["lingers"]:
                assert client.submit(sum, [2, 3]).result() == 5
            with span("outer") as ids["outer"], span("inner") as ids["inner"]:
                kept = client.submit(hold, 600)
            eventually(lambda: rows(path, is_open=True) == 3, 120, "notes of all that is open")
            killed_after = time.time_ns()
            scheduler.kill()
            worker.kill()
            del kept
        assert f"{left} spans of earlier runs wait" in scheduler.output

        # And the third has a collector.
        scheduler = dask.start_scheduler(*PRELOAD, env={**quick, **received.environ})
        eventually(lambda: len(received.spans) >= left + 3, 120, "all of them")
        assert scheduler.terminate(120) == 0
        assert "3 of these were open" in scheduler.output
        assert not path.exists()

    spans = spans_by_path(received)
    assert spans.keys() == {"ended", "cut off", "lingers", "outer", "outer/inner"}
    names = {path.rpartition("/")[2]: one for path, one in spans.items()}
    assert {name: one.span_id for name, one in names.items()} == {
        name: identity.span_id(dask_id) for name, dask_id in ids.items()
    }
    whats = {
        name: (one.attributes["dask.span.complete"], one.attributes.get("error.type"))
        for name, one in names.items()
    }
    lost = (False, "SchedulerLost")
    assert whats == {
        "ended": (True, None),
        "cut off": (False, "SchedulerClosed"),
        "lingers": lost,
        "outer": lost,
        "inner": lost,
    }
    assert (names["inner"].parent_id, names["inner"].trace_id) == (
        names["outer"].span_id,
        names["outer"].trace_id,
    )
    for name in ("lingers", "outer", "inner"):
        # To its last sign of life, which comes every second where the machine is not busy.
        assert names[name].start_ns < names[name].end_ns
        assert names[name].end_ns > names[name].start_ns
        assert names[name].end_ns < killed_after + 600 * 10**9
    runs = [names[name].resource["service.instance.id"] for name in ("ended", "outer")]
    assert (len(set(runs)), runs) == (
        2,
        [names[name].resource["service.instance.id"] for name in ("cut off", "lingers")],
    )


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
