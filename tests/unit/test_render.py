"""The tree and the table of the demo and the report, made from recorded OTLP messages."""

from __future__ import annotations

import io
import json
from itertools import count

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

pytest.importorskip("rich")

from rich.console import Console, RenderableType

from dask_otel import semconv
from dask_otel._otel.sdk.otlp_json import lines
from dask_otel.report import words as text
from dask_otel.report.meanings import MEANINGS, hex_colour
from dask_otel.report.telemetry.decoding import decode
from dask_otel.report.telemetry.model import Run
from dask_otel.report.telemetry.reading import Reader
from dask_otel.report.terminal import time_table, trace_tree
from dask_otel.report.terminal.time_table import TimeTable
from dask_otel.report.terminal.trace_tree import TraceTree, late_starts, span_names

SPAN_IDLE_TIME = semconv.SPAN_IDLE_TIME.name

CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
TRACE = bytes(range(16))
CLOCK = count(1)


def read(requests):
    """Return the run of some requests, read from what the bridge would write."""
    reader = Reader()
    for request in requests:
        for line in lines(request, lambda: None):
            for item in decode(json.loads(line), reader.skipped):
                reader.add(item)
    assert reader.skipped.counts == {}
    return next(iter(reader.runs()), Run("", ""))


def build_trees(requests):
    return trace_tree.build_trees(read(requests).spans)


def time_by_span(requests, order=()):
    return time_table.time_by_span(read(requests).metrics, order)


def key_value(key, value):
    match value:
        case bool():
            return KeyValue(key=key, value=AnyValue(bool_value=value))
        case int():
            return KeyValue(key=key, value=AnyValue(int_value=value))
        case float():
            return KeyValue(key=key, value=AnyValue(double_value=value))
        case tuple():
            items = [key_value("", item).value for item in value]
            return KeyValue(key=key, value=AnyValue(array_value=ArrayValue(values=items)))
        case _:
            return KeyValue(key=key, value=AnyValue(string_value=value))


def span(number, parent, name, start, end, *, failure=None, **attributes):
    values = {"dask.span.type": "span", "dask.span.complete": True, "dask.span.generation": 1}
    values |= {"dask." + key.replace("__", "."): value for key, value in attributes.items()}
    events = []
    if failure is not None:
        kind, message = failure
        attributes = [
            key_value(semconv.EXCEPTION_TYPE, kind),
            key_value(semconv.EXCEPTION_MESSAGE, message),
        ]
        events = [Span.Event(name=semconv.EVENT_EXCEPTION, attributes=attributes)] * 2
    code = Status.STATUS_CODE_ERROR if failure else Status.STATUS_CODE_UNSET
    return Span(
        trace_id=TRACE,
        span_id=bytes([number] * 8),
        parent_span_id=bytes([parent] * 8) if parent else b"",
        name=name,
        start_time_unix_nano=1_700_000_000_000_000_000 + int(start * 1e9),
        end_time_unix_nano=1_700_000_000_000_000_000 + int(end * 1e9),
        attributes=[key_value(key, value) for key, value in values.items()],
        events=events,
        status=Status(code=code),
    )


def traces(*spans):
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.extend(spans)
    return request


def render(renderable: RenderableType, width: int, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=file, width=width, highlight=False).print(renderable)
    file.flush()
    lines = raw.getvalue().decode(encoding).splitlines()
    assert all(len(line) <= width for line in lines)
    return "\n".join(line.rstrip() for line in lines)


WORKFLOW = traces(
    # Children first, as they settle first.
    span(
        2,
        1,
        "data load",
        0,
        4,
        span__name="Alice/data load",
        span__queue__time=0.25,
        task__count=1200,
        span__result="success",
    ),
    span(
        3,
        1,
        "training",
        4,
        10,
        failure=("ValueError", "no\nconvergence"),
        span__name="Alice/training",
        span__queue__time=0.004,
        task__count=3,
        span__result="failure",
    ),
    span(4, 2, "read_parquet tasks", 0.5, 3.5, span__type="group", task__count=1200),
    span(1, 0, "Alice", 0, 10, span__name="Alice", task__count=1203, span__result="failure"),
)


def test_tree_at_80_columns_has_a_timeline():
    assert render(TraceTree(build_trees([WORKFLOW])), 80) == (
        """\
Trace 000102030405060708090a0b0c0d0e0f
span                                  duration  timeline                tasks
Alice                                   10.0 s  ██████████████████████  1,203 ✗
├── data load                           4.00 s  █████████·············  1,200 ✓
│   └── read_parquet tasks              3.00 s  ·███████··············  1,200
└── training                            6.00 s  ·········█████████████      3 ✗
    └── ✗ ValueError: no convergence (and 1 more)"""
    )


def test_tree_at_60_columns_has_no_room_for_one():
    lines = render(TraceTree(build_trees([WORKFLOW])), 60).splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["span", "duration", "tasks"],
        ["Alice", "10.0", "s", "1,203", "✗"],
    ]


@pytest.mark.parametrize("result", ["cancellation", "incomplete", "unknown"])
def test_what_a_mark_does_not_say_is_in_words(result):
    root = span(1, 0, "root", 0, 1, span__result=result)
    assert f"root ({result})" in render(TraceTree(build_trees([traces(root)])), 80)
    assert result in render(TraceTree(build_trees([traces(root)])), 120)


def test_a_brief_tree_has_the_longest_group_of_each_span_alone():
    groups = [span(10 + n, 1, f"g{n}", 0, n + 1, span__type="group") for n in range(6)]
    root = span(1, 0, "root", 0, 9)
    shown = render(TraceTree(build_trees([traces(root, *groups)]), brief=True), 80)
    assert [line.split()[:2] for line in shown.splitlines()[3:]] == [["└──", "g5"]]


def test_spans_whose_first_task_came_late():
    """Only those of which it explains idle threads: a name of several spans says nothing."""
    roots = build_trees(
        [
            traces(
                span(1, 0, "root", 0, 10, span__name="root", span__queue__time=2.0),
                span(2, 1, "late", 0, 4, span__name="root/late", span__queue__time=2.0),
                span(3, 1, "prompt", 4, 6, span__name="root/prompt", span__queue__time=0.4),
                span(4, 1, "short", 6, 6.1, span__name="root/short", span__queue__time=0.09),
                span(5, 1, "twice", 6, 7, span__name="root/twice", span__queue__time=0.9),
                span(6, 1, "twice", 7, 8, span__name="root/twice", span__queue__time=0.9),
                span(7, 2, "g", 0, 4, span__type="group", span__name="root/g",
                     span__queue__time=2.0),
            )
        ]
    )  # fmt: skip
    assert late_starts(roots) == {"root/late": 2.0}


def test_tree_at_120_columns_has_a_timeline():
    lines = render(TraceTree(build_trees([WORKFLOW])), 120).splitlines()
    assert lines[2].split() == ["Alice", "10.0", "s", "█" * 32, "1,203", "failure"]
    assert "█" * 13 + "·" * 19 in lines[3]
    assert "··" + "█" * 10 + "·" * 20 in lines[4]
    assert "·" * 13 + "█" * 19 in lines[5]


def test_ascii_terminal_gets_ascii_only():
    shown = render(TraceTree(build_trees([WORKFLOW])), 120, encoding="ascii")
    assert "x ValueError" in shown
    assert "#" * 32 in shown


def test_reprs_of_exceptions_do_not_repeat_their_type():
    node = span(1, 0, "root", 0, 1, failure=("BadData", "BadData('no')"))
    assert "✗ BadData('no') (and" in render(TraceTree(build_trees([traces(node)])), 80)


def test_span_delivered_twice_is_shown_once():
    assert render(TraceTree(build_trees([WORKFLOW, WORKFLOW])), 80) == render(
        TraceTree(build_trees([WORKFLOW])), 80
    )


def test_span_without_its_parent_is_a_root():
    roots = build_trees([traces(span(2, 1, "orphan", 0, 1))])
    assert [root.span.name for root in roots] == ["orphan"]


def test_cut_off_span_is_incomplete_whatever_its_result():
    node = span(1, 0, "root", 0, 1, span__complete=False, span__result="error")
    assert "incomplete" in render(TraceTree(build_trees([traces(node)])), 80)


def test_continuation_says_so():
    node = span(1, 0, "root", 0, 1, span__generation=2)
    assert "root (continued, 2)" in render(TraceTree(build_trees([traces(node)])), 80)


def test_only_the_longest_groups_are_shown_and_the_rest_counted():
    groups = [span(10 + n, 1, f"g{n}", 0, n + 1, span__type="group") for n in range(6)]
    shown = render(TraceTree(build_trees([traces(span(1, 0, "root", 0, 9), *groups)])), 80)
    assert "g1" not in shown
    assert "g2" in shown
    assert "2 shorter task groups" in shown


def task(number, parent, key, start, end, **attributes):
    return span(
        number, parent, "load task", start, end, span__type="task", task__key=key,
        task__prefix="load", **attributes,
    )  # fmt: skip


def test_failed_and_slow_tasks_are_shown_below_their_group():
    root = span(1, 0, "root", 0, 9, task__count=12)
    group = span(2, 1, "load tasks", 0, 9, span__type="group", task__count=12)
    tasks = [
        task(10, 2, "('load-0123456789abcdef', 3)", 1, 8, task__queue__time=0.5),
        task(11, 2, "load-x", 1, 4),
        task(12, 2, "('load-0123456789abcdef', 0, 7)", 2, 3, failure=("ValueError", "no")),
    ]
    lines = render(TraceTree(build_trees([traces(root, group, *tasks)])), 120).splitlines()
    assert [[word for word in line.split() if "·" not in word] for line in lines[3:]] == [
        ["└──", "load", "tasks", "9.00", "s", "█" * 32, "12"],
        ["├──", "load", "(3)", "7.00", "s", "500", "ms"],
        ["├──", "load", "(0,", "7)", "1.00", "s", "failure"],
        ["└──", "1", "more", "task", "with", "a", "span"],
    ]


@pytest.mark.parametrize("failed", [False, True])
def test_the_only_task_of_a_group_says_what_its_group_says_unless_it_failed(failed):
    root = span(1, 0, "root", 0, 9)
    group = span(2, 1, "load tasks", 0, 9, span__type="group", task__count=1)
    one = task(3, 2, "load-x", 1, 4, failure=("ValueError", "no") if failed else None)
    shown = render(TraceTree(build_trees([traces(root, group, one)])), 80)
    assert ("load-x" in shown) == failed


def test_a_task_below_a_span_is_shown_where_there_is_no_group():
    shown = render(
        TraceTree(build_trees([traces(span(1, 0, "root", 0, 9), task(2, 1, "load-x", 1, 2))])), 80
    )
    assert "load-x" in shown


@pytest.mark.parametrize("key", ["x" * 300, "('日本語', 1)" * 60, "a\x1b[31mb\x00\n\r\t" * 30, ""])
@pytest.mark.parametrize("width", [80, 120])
def test_hostile_keys_keep_the_columns(key, width):
    root, one = span(1, 0, "root", 0, 1), task(2, 1, key, 0, 1)
    shown = render(TraceTree(build_trees([traces(root, one)])), width)
    assert not any(ord(c) < 32 and c != "\n" for c in shown)
    assert "1.00 s" in shown.splitlines()[3]


@pytest.mark.parametrize("name", ["x" * 300, "日本語" * 60, "a\x1b[31mb\x00\n\r\t" * 30, ""])
def test_hostile_names_keep_the_columns(name):
    shown = render(TraceTree(build_trees([traces(span(1, 0, name, 0, 1))])), 80)
    assert not any(ord(c) < 32 and c != "\n" for c in shown)
    assert shown.splitlines()[2].endswith("1.00 s  " + "█" * 22)


def test_span_names_are_in_the_order_of_their_start():
    assert span_names(build_trees([WORKFLOW])) == ["Alice", "Alice/data load", "Alice/training"]


# ------------------------------------------------------------------------------- metrics


def metrics(*points, temporality=CUMULATIVE, name=semconv.SPAN_EXECUTE_TIME.name):
    """Make one export; a point is (span name, activity, value[, start time])."""
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    metric.sum.aggregation_temporality = temporality
    metric.sum.is_monotonic = True
    for span_name, activity, value, *start in points:
        labels = {semconv.SPAN_NAME: span_name}
        if activity is not None:
            labels[semconv.ACTIVITY] = activity
        point = metric.sum.data_points.add(
            start_time_unix_nano=start[0] if start else 1, time_unix_nano=next(CLOCK)
        )
        point.attributes.extend(key_value(key, label) for key, label in labels.items())
        if isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value
    return request


def seconds(requests):
    found = {}
    for entry in time_by_span(requests):
        for activity, figures in entry.activities.items():
            found[entry.name, activity] = figures.seconds
    return found


def test_last_cumulative_point_counts():
    requests = [metrics(("a", "cpu", 0.0), ("a", "cpu", 1.5)), metrics(("a", "cpu", 4.0))]
    assert seconds(requests) == {("a", "cpu"): 4.0}


def test_series_that_was_born_again_adds_up():
    requests = [metrics(("a", "cpu", 4.0, 1)), metrics(("a", "cpu", 1.0, 9))]
    assert seconds(requests) == {("a", "cpu"): 5.0}


def test_delta_points_add_up():
    requests = [
        metrics(("a", "cpu", value, start), temporality=DELTA)
        for start, value in ((1, 0.0), (2, 1.5), (3, 4.0))
    ]
    assert seconds(requests) == {("a", "cpu"): 5.5}


def test_point_without_a_value_changes_nothing():
    last = metrics(("a", "cpu", 0.0))
    point = last.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points[0]
    point.flags = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
    assert seconds([metrics(("a", "cpu", 4.0)), last]) == {("a", "cpu"): 4.0}


def test_order_of_attributes_makes_no_second_series():
    first, last = metrics(("a", "cpu", 1.0)), metrics(("a", "cpu", 4.0))
    point = last.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points[0]
    attributes = list(point.attributes)
    del point.attributes[:]
    point.attributes.extend(reversed(attributes))
    assert seconds([first, last]) == {("a", "cpu"): 4.0}


def test_other_metrics_are_not_counted():
    assert seconds([metrics(("a", "cpu", 4.0), name="dask.span.p2p.time")]) == {}


RECORDED = [
    metrics(
        ("Alice/data load", "thread-cpu", 6.0),
        ("Alice/data load", "thread-noncpu", 1.99),
        ("Alice/data load", "disk-read", 0.005),
        ("Alice/data load", "deserialize", 0.005),
        ("Alice/training", "thread-cpu", 1.0),
    ),
    metrics(("Alice/data load", "p2p-shards", 3 << 20), name=semconv.SPAN_EXECUTE_IO.name),
    metrics(("Alice/training", None, 1.0), name=SPAN_IDLE_TIME),
]


def rows(table, width):
    shown = [line for line in render(table, width).splitlines() if line.strip()]
    return [tuple(line.split()) for line in (shown[0], *shown[2:])]


def test_table_at_70_columns():
    table = TimeTable(time_by_span(RECORDED, order=["Alice", "Alice/training"]))
    assert rows(table, 70) == [
        ("span", "and", "activity", "time", "share", "data"),
        ("all", "spans", "10.0", "s"),
        ("thread-cpu", "7.00", "s", "70%", "█" * 14),
        ("thread-noncpu", "1.99", "s", "20%", "█" * 4),
        ("idle", "1.00", "s", "10%", "█" * 2),
        ("2", "small", "ones", "10", "ms", "0%", "▌"),
        ("p2p-shards", "3.0", "MiB"),
        ("Alice/training", "2.00", "s"),
        ("thread-cpu", "1.00", "s", "50%", "█" * 10),
        ("idle", "1.00", "s", "50%", "█" * 10),
        ("Alice/data", "load", "8.00", "s"),
        ("thread-cpu", "6.00", "s", "75%", "█" * 15),
        ("thread-noncpu", "1.99", "s", "25%", "█" * 5),
        ("2", "small", "ones", "10", "ms", "0%", "▌"),
        ("p2p-shards", "3.0", "MiB"),
    ]


def test_table_at_80_columns_says_what_activities_mean():
    """And of a span whose first task came late, when it came, beside its idle time."""
    late = {"Alice/training": 0.75}
    table = TimeTable(time_by_span(RECORDED, order=["Alice", "Alice/training"]), late)
    idle = ("free", "threads,", "yet", "work", "to", "do")
    waiting = ("waiting:", "I/O,", "GIL,", "GPU,", "core")
    assert rows(table, 80) == [
        ("span", "and", "activity", "time", "share", "meaning"),
        ("all", "spans", "10.0", "s"),
        ("thread-cpu", "7.00", "s", "70%", "█" * 4, "computing"),
        ("thread-noncpu", "1.99", "s", "20%", "█", *waiting),
        ("idle", "1.00", "s", "10%", "▌", *idle),
        ("2", "small", "ones", "10", "ms", "0%", "▌"),
        ("p2p-shards", "3.0", "MiB,", "p2p", "shuffle"),
        ("Alice/training", "2.00", "s"),
        ("thread-cpu", "1.00", "s", "50%", "█" * 3, "computing"),
        ("idle", "1.00", "s", "50%", "█" * 3, "first", "task", "after", "750", "ms"),
        ("Alice/data", "load", "8.00", "s"),
        ("thread-cpu", "6.00", "s", "75%", "████▌", "computing"),
        ("thread-noncpu", "1.99", "s", "25%", "█▌", *waiting),
        ("2", "small", "ones", "10", "ms", "0%", "▌"),
        ("p2p-shards", "3.0", "MiB,", "p2p", "shuffle"),
    ]


def test_a_brief_table_is_the_sum_of_all():
    table = TimeTable(time_by_span(RECORDED), brief=True)
    assert [row[0] for row in rows(table, 80)[1:]] == [
        "all", "thread-cpu", "thread-noncpu", "idle", "2", "p2p-shards",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [60, 77, 78, 80, 100, 109, 110, 120, 200])
def test_table_fits_its_width(width):
    name = "/".join(["some long tag"] * 20)
    points = [(name, "p2p-shard-partition-noncpu", 1100.0), (name, "x" * 300, 1.5)]
    shown = render(TimeTable(time_by_span([metrics(*points)])), width)
    assert "18 m 20 s" in shown
    assert "100%" in shown
    assert "█" * 6 in shown


def test_table_at_120_columns_says_what_activities_mean():
    assert "free threads, yet work to do" in render(TimeTable(time_by_span(RECORDED)), 120)


def test_small_spans_become_one():
    points = [("large", "thread-cpu", 100.0), *((f"s{n}", "thread-cpu", 0.5) for n in range(3))]
    shown = render(TimeTable(time_by_span([metrics(*points)])), 80)
    assert "3 small spans" in shown
    assert "1.50 s" in shown


def test_no_metrics_no_rows():
    assert time_by_span([], order=["Alice"]) == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 s"),
        (0.0004, "<1 ms"),
        (0.0042, "4 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (9.99, "9.99 s"),
        (12.34, "12.3 s"),
        (185.2, "3 m 05 s"),
    ],
)
def test_seconds(value, shown):
    assert text.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (120 << 20, "120 MiB"),
        (5e15, "4,547.5 TiB"),
    ],
)
def test_size(value, shown):
    assert text.size(value) == shown


def test_long_names_lose_their_outermost_tags():
    assert text.cut_beginning("Alice/preprocessing/shuffle", 12, "…") == "…/shuffle"
    assert text.cut_beginning("Alice/x", 12, "…") == "Alice/x"
    assert text.cut_beginning("Alice/" + "x" * 30, 12, "…") == "…/xxxxxxxxx…"


@pytest.mark.parametrize(
    ("activity", "meaning"),
    [
        ("thread-cpu", "computing"),
        ("p2p-shard-partition-noncpu", "off the CPU"),
        ("disk-read", "spill"),
        ("memory-read", "computing"),
        ("idle", "idle"),
        ("cancelled", "cancelled"),
        ("a user's own", "other"),
    ],
)
def test_an_activity_has_its_colour_on_the_dashboards(activity: str, meaning: str) -> None:
    assert time_table.kind(activity)[0] == hex_colour(MEANINGS[meaning].colour)
