"""Rows in memory: bounded, and whole traces are evicted, those that were quiet longest first."""

from __future__ import annotations

import gzip
import os
from types import SimpleNamespace

import pytest

from dask_otel._otel.sdk.otlp_json import RecorderTransport
from dask_otel._otel.sdk.transport import REQUESTS
from dask_otel.core.records import Answer
from dask_otel.pump import recorder as module
from dask_otel.pump.recorder import RecordedRow, Recorder
from dask_otel.report.document import report_of

ROW = 10_000


@pytest.fixture(autouse=True)
def _numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number the rows one by one, as if they came at once."""
    monkeypatch.setattr(module, "clocks", SimpleNamespace(time_ns=lambda: 0))


def add(recorder: Recorder, signal: str, trace: str = "") -> None:
    """Add a row of about `ROW` bytes, which can't be compressed."""
    recorder.add(signal, os.urandom(ROW - 450), trace)


def numbers(recorder: Recorder) -> list[int]:
    """Return the numbers of the rows, each asked for alone."""
    found, more = [0], True
    while more:
        rows, number, more = recorder.part(found[-1], 1)
        found += [number] * len(rows)
    return found[1:]


def test_the_trace_that_was_quiet_longest_goes_with_all_its_rows() -> None:
    recorder = Recorder(5 * ROW)
    # The first row of a trace can be its graph log.
    for signal, trace in zip(("traces", "graph", *["traces"] * 3), "abbac", strict=True):
        add(recorder, signal, trace)
    assert numbers(recorder) == [1, 2, 3, 4, 5]
    add(recorder, "traces", "d")
    # Both rows of b, although one of a is older.
    assert numbers(recorder) == [1, 4, 5, 6]
    lost = [recorder.lost(since) for since in (0, 2, 3)]
    assert lost == [{"traces": 1}, {"traces": 1}, {}]


def test_rows_of_other_signals_go_one_by_one() -> None:
    recorder = Recorder(3 * ROW)
    for signal in ("metrics", "logs", "traces", "metrics", "logs"):
        add(recorder, signal, "a" if signal == "traces" else "")
    assert numbers(recorder) == [3, 4, 5]
    assert recorder.lost() == {"metrics": 1, "logs": 1}
    assert recorder.lost(1) == {"logs": 1}


def test_a_reader_is_told_what_is_being_evicted() -> None:
    recorder = Recorder(3 * ROW)
    read: list[tuple[int, dict[str, int]]] = []

    class Rows(dict[int, RecordedRow]):
        def pop(self, number: int) -> RecordedRow:  # type: ignore[override]
            row = super().pop(number)
            rows, lost = recorder.since(0.0)
            read.append((len(rows), lost))
            return row

    recorder._rows = Rows()
    for trace in ("a", "a", "b", "c"):
        add(recorder, "traces", trace)
    assert read == [(3, {"traces": 1}), (2, {"traces": 1})]


def test_a_row_without_room_is_not_kept_and_is_counted() -> None:
    recorder = Recorder(ROW // 2)
    add(recorder, "traces", "a")
    assert (numbers(recorder), recorder.lost()) == ([], {"traces": 1})
    assert recorder.number == 1


def test_all_that_is_left_out_is_said_in_the_report() -> None:
    report = report_of([], {"traces": 12, "metrics": 1})
    assert report.skipped.lines() == [
        "12 × trace that is no longer in memory (otel.report.memory)",
        "1 × part of the metrics that is no longer in memory (otel.report.memory)",
    ]


def test_a_row_has_the_spans_of_one_trace_and_loses_none() -> None:
    request = REQUESTS["traces"]()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "dask"
    scope = resource.scope_spans.add(schema_url="https://example.org/1")
    ids = [(trace * 16, span * 8) for span in (b"1", b"2") for trace in (b"a", b"b", b"c")]
    for trace, span in ids:
        scope.spans.add(trace_id=trace, span_id=span, name="x")
    recorder = Recorder(10**6)
    transport = RecorderTransport("traces", recorder)
    assert transport.send(request.SerializeToString(), 1.0) == Answer(True)
    transport.close()
    texts = [gzip.decompress(data).decode() for _, data in recorder.since(0.0)[0]]
    assert len(texts) == 3
    for text, trace in zip(texts, (b"a", b"b", b"c"), strict=True):
        assert text.count((trace * 16).hex()) == 2 == text.count('"traceId"')
        assert '"schemaUrl":"https://example.org/1"' in text
        assert '"stringValue":"dask"' in text
        assert text.count("\n") == 1
