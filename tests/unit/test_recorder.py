"""Rows in memory: bounded, and whole traces are evicted, those that were quiet longest first."""

from __future__ import annotations

import gzip
import os
from types import SimpleNamespace
from typing import Any

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


#: Rows of two traces; the first row of one is its graph log.
FIVE = [("traces", "a"), ("graph", "b"), ("traces", "b"), ("traces", "a"), ("traces", "c")]


@pytest.mark.parametrize(
    ("room", "rows", "left", "lost"),
    [
        (5 * ROW, FIVE, [1, 2, 3, 4, 5], {0: {}}),
        # The trace that was quiet longest goes with all its rows, although one of a is older.
        (5 * ROW, [*FIVE, ("traces", "d")], [1, 4, 5, 6],
         {0: {"traces": 1}, 2: {"traces": 1}, 3: {}}),
        # Rows of other signals go one by one.
        (3 * ROW, [("metrics",), ("logs",), ("traces", "a"), ("metrics",), ("logs",)], [3, 4, 5],
         {0: {"metrics": 1, "logs": 1}, 1: {"logs": 1}}),
        # A row without room is not kept.
        (ROW // 2, [("traces", "a")], [], {0: {"traces": 1}}),
    ],
)  # fmt: skip
def test_what_stays_is_bounded_and_what_goes_is_counted(
    room: int,
    rows: list[tuple[str, ...]],
    left: list[int],
    lost: dict[int, dict[str, int]],
) -> None:
    recorder = Recorder(room)
    for row in rows:
        add(recorder, *row)
    assert (numbers(recorder), recorder.number) == (left, len(rows))
    assert {since: recorder.lost(since) for since in lost} == lost


def test_a_reader_is_told_what_is_being_evicted() -> None:
    recorder = Recorder(3 * ROW)
    read: list[tuple[int, dict[str, int]]] = []
    seen: list[int] = []

    class Rows(dict[int, tuple[RecordedRow, int]]):
        def get(self, number: int, *_: object) -> Any:
            seen.append(number)
            return super().get(number)

        def pop(self, number: int) -> Any:  # type: ignore[override]
            row = super().pop(number)
            rows, lost = recorder.since(0.0)
            read.append((len(rows), lost))
            return row

    recorder._rows = Rows()
    for trace in ("a", "a", "b", "c"):
        add(recorder, "traces", trace)
    assert read == [(3, {"traces": 1}), (2, {"traces": 1})]
    # The event loop looks at the rows of its answer alone.
    seen.clear()
    assert (recorder.part(3, 1)[1], seen, recorder._numbers) == (4, [4], [3, 4])


def test_all_that_is_left_out_is_said_in_the_report() -> None:
    report = report_of([], {"traces": 12, "metrics": 1})
    assert report.skipped.lines() == [
        "12 × trace that is no longer in memory (otel.report.memory)",
        "1 × part of the metrics that is no longer in memory (otel.report.memory)",
    ]


def test_a_row_has_the_spans_of_one_trace_and_loses_none() -> None:
    ids = [(trace * 16, span * 8) for span in (b"1", b"2") for trace in (b"a", b"b", b"c")]
    spans = [{"trace_id": trace, "span_id": span, "name": "x"} for trace, span in ids]
    scope = {"schema_url": "https://example.org/1", "spans": spans}
    name = {"key": "service.name", "value": {"string_value": "dask"}}
    resource = {"resource": {"attributes": [name]}, "scope_spans": [scope]}
    request = REQUESTS["traces"](resource_spans=[resource])
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
