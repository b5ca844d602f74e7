"""Telemetry files to runs, whoever wrote them, and whatever became of them."""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.report.telemetry import json_files
from dask_otel.report.telemetry.model import Session, Skipped
from dask_otel.report.telemetry.reader import Reader
from dask_otel.report.telemetry.series import MOST_POINTS, MOST_TIMES, Point, Series
from tests.unit.report_files import (
    BEGIN,
    SECOND,
    attributes,
    counter,
    metrics,
    point,
    report_of,
    run_of,
    span,
    traces,
)

ROOT = span(1, "etl", dask_span_tags=["etl", "team:acme"], dask_task_count=3)
LOAD = span(
    2,
    "etl/load",
    parent=1,
    failed=True,
    dask_task_count=3,
    dask_span_idle_time=0.5,
    events=(("exception", {"exception.type": "ValueError", "exception.message": "no"}),),
)


def read(*paths: Path, most_spans: int = 1000) -> tuple[list[Session], Skipped]:
    reader = Reader(most_spans)
    reader.read(paths)
    return reader.sessions(), reader.skipped


def write(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in values), encoding="utf-8")
    return path


def seen(run: Session) -> list[Any]:
    """What every way to write the two spans must give."""
    return [
        (
            one.trace_id,
            one.span_id,
            one.parent_id,
            one.full_name,
            one.failed,
            one.start_ns,
            one.number("dask.task.count"),
            [
                event.attributes.get("exception.type")
                for event in one.events
                if event.name == "exception"
            ],
        )
        for one in run.of_type("span")
    ]


EXPECTED = [
    ("ab" * 16, "0" * 15 + "1", "", "etl", False, BEGIN, 3, []),
    ("ab" * 16, "0" * 15 + "2", "0" * 15 + "1", "etl/load", True, BEGIN, 3, ["ValueError"]),
]


# ------------------------------------------------------------------------------ wrappings


def base64_ids(document: Any) -> Any:
    """The same with ids in base64, as Tempo answers."""
    if isinstance(document, dict):
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else base64_ids(item)
            for key, item in document.items()
        }
    return [base64_ids(item) for item in document] if isinstance(document, list) else document


def tags(**plain: str) -> list[dict[str, str]]:
    """As Jaeger's UI downloads them; underscores are dots."""
    return [
        {"key": key.replace("_", "."), "type": "string", "value": value}
        for key, value in plain.items()
    ]


JAEGER = {
    "traceID": "ab" * 16,
    "spans": [
        {
            "traceID": "ab" * 16,
            "spanID": "1",
            "operationName": "etl",
            "references": [],
            "startTime": BEGIN // 1000,
            "duration": 1_000_000,
            "tags": [
                *tags(dask_span_type="span", dask_span_id="id-1", dask_span_name="etl"),
                *tags(dask_span_tags='["etl", "team:acme"]'),
                {"key": "dask.task.count", "type": "int64", "value": 3},
            ],
            "logs": [],
            "processID": "p1",
        },
        {
            "traceID": "ab" * 16,
            "spanID": "2",
            "operationName": "load",
            "references": [{"refType": "CHILD_OF", "traceID": "ab" * 16, "spanID": "0" * 15 + "1"}],
            "startTime": BEGIN // 1000,
            "duration": 1_000_000,
            "tags": [
                *tags(dask_span_type="span", dask_span_id="id-2", dask_span_name="etl/load"),
                {"key": "dask.task.count", "type": "int64", "value": 3},
                {"key": "error", "type": "bool", "value": True},
            ],
            "logs": [
                {
                    "timestamp": BEGIN // 1000,
                    "fields": tags(event="exception", exception_type="ValueError"),
                }
            ],
            "processID": "p1",
        },
    ],
    "processes": {
        "p1": {
            "serviceName": "dask-scheduler",
            "tags": tags(service_instance_id="Scheduler-1", dask_cluster_name="cluster"),
        }
    },
}
PLAIN = traces(ROOT, LOAD)
WRAPPED = {
    "otlp": PLAIN,
    "tempo": base64_ids({"batches": PLAIN["resourceSpans"]}),
    "tempo, version 2": base64_ids({"trace": PLAIN}),
    "jaeger's api": {"result": PLAIN},
    "jaeger's upload": {"data": [PLAIN]},
    "jaeger": {"data": [JAEGER]},
    "several": [traces(ROOT), traces(LOAD)],
}


@pytest.mark.parametrize("document", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "many lines"])
def test_reads_what_others_saved(tmp_path: Path, document: Any, indent: int | None) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document, indent=indent), encoding="utf-8")
    (run,), skipped = read(path)
    found = (seen(run), run.cluster, run.instance, skipped.counts)
    assert found == (EXPECTED, "cluster", "Scheduler-1", {})
    assert run.of_type("span")[0].attributes["dask.span.tags"] == ("etl", "team:acme")


def test_reads_directories_with_rotated_and_compressed_files(tmp_path: Path) -> None:
    write(tmp_path / "c-traces.jsonl.1", traces(ROOT))
    (tmp_path / "c-traces.jsonl.gz").write_bytes(gzip.compress(json.dumps(traces(LOAD)).encode()))
    (tmp_path / "notes.txt").write_text("no telemetry")
    (run,), skipped = read(tmp_path)
    assert (seen(run), skipped.counts) == (EXPECTED, {})


@pytest.mark.parametrize(
    ("name", "said"), [("nothing.json", "there is no"), ("", "no file of JSON")]
)
def test_says_where_there_is_nothing(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(FileNotFoundError, match=said):
        read(tmp_path / name)


def test_tells_runs_apart_and_takes_each_span_once(tmp_path: Path) -> None:
    """Spans of other services go with their trace."""
    web = traces({**span(9, "GET"), "attributes": []})
    web["resourceSpans"][0]["resource"] = {"attributes": attributes({"service.name": "web"})}
    write(tmp_path / "a.jsonl", web, traces(ROOT), traces(ROOT))
    other = {**span(7, "other"), "traceId": "cd" * 16}
    write(tmp_path / "b.jsonl", traces(other, instance="Scheduler-2"))
    assert {
        run.instance: [(one.name, one.service) for one in (*run.spans, *run.foreign)]
        for run in read(tmp_path)[0]
    } == {"Scheduler-1": [("etl", ""), ("GET", "web")], "Scheduler-2": [("other", "")]}


def test_a_span_that_was_never_exported_is_shown_by_its_signs_of_life() -> None:
    own = {"dask_span_name": "etl", "dask_task_count": 8}
    marker = span(11, "etl started", parent=1, kind="marker", dask_span_name="etl")
    later = span(12, "x", parent=1, start=60, seconds=5, kind="progress", **own)
    below = span(13, "y", parent=5, start=61, kind="marker", dask_span_name=r"etl/1\/2")
    etl, half = run_of(traces(marker, later, below)).of_type("span")
    found = (etl.name, etl.unfinished, etl.seconds, etl.number("dask.task.count"))
    assert (found, half.name, half.parent_id) == (("etl", True, 65.0, 8), "1/2", etl.span_id)
    # They were open as long as one below them that has ended.
    ended = span(14, r"etl/1\/2/fit", parent=5, start=62, seconds=40)
    etl, half, _ = run_of(traces(marker, later, below, ended)).of_type("span")
    assert (etl.seconds, half.seconds) == (102.0, 41.0)
    # Of its start alone, no duration is known.
    report = report_of(traces(span(15, "z", parent=6, seconds=1e-9, kind="marker")))
    (alone,) = report.runs[0].of_type("span")
    assert (alone.lasted, etl.lasted) == (None, 102.0)
    assert report.to_dict()["runs"][0]["traces"][0]["seconds"] is None
    # Of the run, it was observed for that long.
    assert (report.text().count("<1 ms"), report.html().count("&lt;1 ms")) == (1, 1)
    # One that was exported in the end is what it is.
    spans = run_of(traces(marker, later, ROOT)).of_type("span")
    assert [(one.name, one.unfinished) for one in spans] == [("etl", False)]


def test_beyond_the_limit_what_failed_is_kept(tmp_path: Path) -> None:
    tasks = [span(n, kind="task", failed=n == 20) for n in range(1, 21)]
    (run,), skipped = read(write(tmp_path / "a.jsonl", traces(*tasks)), most_spans=5)
    assert [one.failed for one in run.spans] == [False] * 5 + [True]
    assert skipped.counts == {"span beyond the limit": 14}


# -------------------------------------------------------------------------- broken files


LINES = b"".join(json.dumps(traces(one)).encode() + b"\n" for one in (ROOT, LOAD))
NOISE = json.dumps({"pad": random.Random(1).randbytes(40_000).hex()}).encode()
PACKED = gzip.compress(LINES + NOISE)
#: What became of a file, and what is said of it.
BROKEN = {
    "killed": (LINES + LINES[:50], "line that was cut off (a.jsonl:3)"),
    "first line": (b'{"resourceSpans"\n' + LINES, "line that is no JSON (a.jsonl:1)"),
    "half a compressed file": (PACKED[: len(PACKED) // 2], "file that ends in an error (a.jsonl: "),
    **{
        name: (LINES + line + b"\n", "line that is no JSON (a.jsonl:3)")
        for name, line in {
            "bytes": b"\xff\xfe\x00",
            "deep": b"[" * 200_000,
            "deep objects": b'{"a":' * 100_000,
            "digits": b'{"resourceSpans": ' + b"9" * 5000 + b"}",
            "text": b'"text"',
            "number": b"17",
        }.items()
    },
}


@pytest.mark.parametrize(("content", "said"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_counted_and_the_rest_is_read(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    (run,), skipped = read(path)
    (line,) = skipped.lines()
    assert (seen(run), line[: len(said) + 4]) == (EXPECTED, f"1 × {said}")


def test_a_line_that_is_too_long_is_passed_by(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(json_files, "LONGEST", 10_000)
    path = write(tmp_path / "a.jsonl", traces(ROOT), {"pad": "x" * 50_000}, traces(LOAD))
    (run,), skipped = read(path)
    assert (seen(run), skipped.counts) == (EXPECTED, {"line that is too long": 1})


_KEYS = st.sampled_from(
    [
        "resourceSpans",
        "resource",
        "attributes",
        "scopeSpans",
        "spans",
        "traceId",
        "spanId",
        "events",
        "key",
        "value",
        "data",
        "startTimeUnixNano",
        "endTimeUnixNano",
        "stringValue",
        "arrayValue",
        "values",
        "intValue",
        "resourceMetrics",
        "scopeMetrics",
        "metrics",
        "sum",
        "dataPoints",
        "asDouble",
        "name",
        "status",
        "batches",
        "result",
        "processes",
        "tags",
    ]
)
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(_ANY, st.integers(0, 400))
def test_no_shape_ends_the_reading(hostile: Any, place: int) -> None:
    """Anything in the place of anything: the rest is read, and nothing is raised."""
    found = json.loads(
        json.dumps([traces(ROOT, LOAD), metrics(counter("dask.cluster.time", point(1)))])
    )
    stack, places = [found], list[tuple[Any, Any]]()
    while stack:
        item = stack.pop()
        inner = [*(item.items() if isinstance(item, dict) else enumerate(item))]
        places += [(item, key) for key, _ in inner]
        stack += [one for _, one in inner if isinstance(one, (dict, list))]
    container, key = places[place % len(places)]
    container[key] = hostile
    spans = (
        one
        for run in report_of(*found, traces(span(77, "kept", start=5))).runs
        for one in run.spans
    )
    assert "kept" in {one.name for one in spans}


# -------------------------------------------------------------------------------- series


def test_counters_count_their_last_point_and_every_birth() -> None:
    one = counter("dask.cluster.time", point(1, time=1), point(3, time=2))
    late = counter("dask.cluster.time", point(2, time=1.5))
    again = counter("dask.cluster.time", point(5, time=9, start=8))
    run = run_of(metrics(one), metrics(again), metrics(late))
    (series,) = run.metrics.of("dask.cluster.time")
    assert (run.metrics.total("dask.cluster.time"), series.history()) == (
        8,
        [(BEGIN + int(time * SECOND), total) for time, total in ((1, 1), (1.5, 2), (2, 3), (9, 8))],
    )


def test_a_point_without_a_value_and_the_order_of_labels_change_nothing() -> None:
    labels = {"dask.span.name": "etl", "dask.activity": "idle"}
    empty = {**point(0, labels, time=11), "flags": 1}
    again = point(4, dict(reversed(labels.items())), time=12)
    both = counter("dask.cluster.time", point(1, labels), empty, again)
    found = run_of(metrics(both, counter("http.server.duration", point(7)))).metrics
    assert [*found.series] == ["dask.cluster.time"]
    assert (found.total("dask.cluster.time"), found.count) == (4, 1)


@pytest.mark.parametrize("raw", [BEGIN + 1, str(BEGIN + 1)])
def test_times_are_read_to_the_nanosecond(raw: Any) -> None:
    assert run_of(traces({**ROOT, "startTimeUnixNano": raw})).start_ns == BEGIN + 1


@pytest.mark.parametrize(
    ("tasks", "more", "names"),
    [
        (0, {}, ["etl"]),
        (0, {"failed": True}, ["etl", "default"]),
        (1, {}, ["etl", "default"]),
    ],
)
def test_work_of_no_span_is_a_row_where_there_is_some(
    tasks: int, more: dict[str, Any], names: list[str]
) -> None:
    """Dask makes ``default`` for data that was scattered, too, which is no task."""
    run = run_of(traces(ROOT, span(7, "default", dask_task_count=tasks, **more)))
    assert [one.full_name for one in run.of_type("span")] == names


def series(
    points: Iterable[Point], *, monotone: bool = True, delta: bool = True, drawn: bool = True
) -> Series:
    found = Series({}, monotone=monotone, delta=delta, drawn=drawn)
    for one in points:
        found.add(one)
    return found


@given(st.permutations(range(40)), st.lists(st.integers(0, 39), max_size=40))
def test_deltas_count_once_in_any_order_and_however_often(
    order: list[int], again: list[int]
) -> None:
    """Every third interval had nothing new, and so no point."""
    found = series(Point(n + 1, n + 2, float(2**n)) for n in (*order, *again) if n % 3)
    assert (found.value, len(found.times)) == (sum(2**n for n in order if n % 3), 13)
    # A request that was written halfway is written again, with what was added since.
    halves = series([Point(1, 2, 3.0), Point(2, 4, 1.0), Point(2, 6, 5.0), Point(6, 8, 1.0)])
    assert (halves.value, [total for _, total in halves.history()]) == (9, [3, 4, 8, 9])


def test_what_is_remembered_of_deltas_is_bounded() -> None:
    points = [Point(3 * n, 3 * n + 1, 1.0) for n in range(1, 2 * MOST_TIMES)]
    found = series(points + points[-MOST_TIMES:], drawn=False)
    assert (found.value, len(found.times)) == (len(points), MOST_TIMES)


@pytest.mark.parametrize("peak", [1000, 1001])
def test_a_thinned_level_keeps_its_peak(peak: int) -> None:
    points = [Point(0, n + 1, 9.0 if n == peak else n % 5) for n in range(5 * MOST_POINTS)]
    found = series(points, monotone=False, delta=False).history()
    assert (len(found) <= 2 * MOST_POINTS, max(value for _, value in found)) == (True, 9.0)


@pytest.mark.parametrize("delta", [False, True])
def test_thinned_series_keep_their_total_and_never_go_back(delta: bool) -> None:
    half, count = 5 * MOST_POINTS // 2, 5 * MOST_POINTS // 2 * 2
    # Counters that began again in between, or deltas.
    counted = [Point(1, n, float(n)) for n in range(1, half + 1)]
    counted += [Point(half, n, float(n - half)) for n in range(half + 1, count + 1)]
    deltas = [Point(n - 1, n, 1.0) for n in range(1, count + 1)]
    found = series(deltas if delta else counted, delta=delta)
    totals = [total for _, total in found.history()]
    assert (len(totals) <= 2 * MOST_POINTS, totals) == (True, sorted(totals))
    assert totals[-1] == found.value == count
