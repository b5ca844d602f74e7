"""Spans that wait on the disk: two runs of the whole export side, one after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dask_otel._otel.sdk.encode import Encoder, reread
from dask_otel.core import identity
from dask_otel.core.records import OpenNote, SpanIdentity, TaskCounts
from dask_otel.core.traces.translate import translate_lost
from dask_otel.settings.reading import read_settings
from dask_otel.spool.store import Store
from tests.otlp.conftest import Begin
from tests.otlp.pipeline import T, make_span
from tests.receiver import Receiver, Span, refusing_endpoint
from tests.receiver import receiver as run_receiver
from tests.waiting import eventually


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with run_receiver("http/protobuf") as made:
        yield made


@pytest.fixture
def begin(begin: Begin, path: Path) -> Begin:
    """Start a run of the export side, as the bridge does."""

    def start(scheduler: str, variables: dict[str, str], **spool: object) -> Any:
        settings = read_settings({"spool": {"path": str(path), **spool}})
        return begin(variables, settings, scheduler)

    return start


def nobody() -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": refusing_endpoint(),
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }


def lost(dask_id: str, start: float) -> OpenNote:
    who = SpanIdentity(
        dask_id, dask_id, ("lost",), 1, identity.trace_id(dask_id), identity.span_id(dask_id), None
    )
    return OpenNote(
        identity=who,
        start=start,
        time=start + 1,
        first_start=start + 0.5,
        counts=TaskCounts(tasks=5, memory=2),
    )


def by_id(received: Receiver) -> dict[int, Span]:
    found = {span.span_id: span for span in received.spans}
    assert len(found) == len(received.spans), "something came twice"
    return found


def test_the_next_run_sends_what_an_earlier_one_left_as_that_ones(
    begin: Begin, receiver: Receiver, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    wired, export = begin("Scheduler-1", nobody())
    assert wired.summary.endswith(f"; spool {path}")
    assert all(export.spans(make_span("a", groups=2), make_span("b")))
    export.close()
    assert f"4 spans wait in the spool {path}" in caplog.text
    assert "within otel.close-timeout" not in caplog.text
    # Another one is killed, while a span is open.
    encoder = Encoder({"service.instance.id": "Scheduler-2"}, "0.0.7")
    (record,) = translate_lost(lost("c", T))
    store = Store.open(path, 1_000_000, encoder.origin, time.time_ns(), reread)
    store.write([("otlp", b"c", encoder.span(record))], alive_ns=int((T + 77) * 1e9))
    store.close(clean=False)

    wired, export = begin("Scheduler-3", receiver.environ)
    assert "in which 5 spans of earlier runs wait; 1 of these was open" in wired.summary
    export.spans(make_span("d"))
    eventually(lambda: len(receiver.spans) == 6, 60, "all of them")
    export.close()
    spans = by_id(receiver)
    runs = {name: spans[identity.span_id(name)].resource["service.instance.id"] for name in "abcd"}
    assert runs == {
        "a": "Scheduler-1", "b": "Scheduler-1", "c": "Scheduler-2", "d": "Scheduler-3"
    }  # fmt: skip
    assert {span.resource["service.instance.id"] for span in spans.values()} == set(runs.values())
    was_open = spans[identity.span_id("c")]
    assert was_open.trace_id == identity.trace_id("c")
    assert (was_open.start_ns, was_open.end_ns) == (int(T * 1e9), int((T + 77) * 1e9))
    assert was_open.scope[1] == "0.0.7"
    assert was_open.attributes["error.type"] == "SchedulerLost"
    assert was_open.attributes["dask.span.complete"] is False
    assert was_open.attributes["dask.task.memory.count"] == 2
    assert spans[identity.span_id("a")].attributes["dask.span.complete"] is True
    # Nothing waits any more.
    assert list(path.parent.iterdir()) == []


def test_where_nothing_can_use_a_spool_that_is_said(
    begin: Begin, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wired, _ = begin("Scheduler-1", {"OTEL_TRACES_EXPORTER": "none", **nobody()})
    assert "no spool is used: no spans are exported" in caplog.text
    assert not path.exists()
    assert "spool" not in wired.pump.condition()
