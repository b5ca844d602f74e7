"""What a finished Dask span looks like as OpenTelemetry spans."""

from __future__ import annotations

import math
import traceback
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.core import identity
from dask_otel.core.records import (
    Event,
    Failure,
    FinishedGroup,
    FinishedSpan,
    FinishedTask,
    Link,
    Progress,
    Retry,
    SpanIdentity,
    SpanRecord,
    TaskCounts,
    TaskRun,
)
from dask_otel.core.text import Sanitizer
from dask_otel.core.traces.exceptions import built_in_message, error_type
from dask_otel.core.traces.translate import translate
from dask_otel.core.traces.values import SpanLimits
from tests.unit.finished import (
    T_NS,
    T,
    make_failure,
    make_group,
    make_identity,
    make_span,
    make_task,
)
from tests.unit.garbage import Broken


def failed(**changes) -> FinishedSpan:
    failures = changes.pop("failures", (make_failure(),))
    return make_span(result="failure", failures=failures, tree_failure=failures[0], **changes)


#: Attributes of three tasks with a result.
ALL_IN_MEMORY = {
    "dask.task.count": 3,
    "dask.task.memory.count": 3,
    "dask.task.erred.count": 0,
    "dask.task.cancelled.count": 0,
    "dask.task.retried.count": 0,
    "dask.task.lost.count": 0,
    "dask.task.recomputed.count": 0,
    "dask.task.rescheduled.count": 0,
}


def test_a_span_that_went_well():
    attributes: dict[str, Any] = {
        "dask.span.type": "span",
        "dask.span.id": "root",
        "dask.span.root.id": "root",
        "dask.span.name": "workflow",
        "dask.span.tags": ("workflow",),
        "dask.span.root.name": "workflow",
        "dask.span.result": "success",
        "dask.span.complete": True,
        "dask.span.generation": 1,
        "dask.span.queue.time": 2.5,
        "dask.span.dask.active_cpu.time": 40.0,
        "dask.span.dask.idle.time": 33.5,
        "dask.span.capacity.time": 39.75,
        "dask.span.idle.time": 33.25,
        "dask.span.activity.time.thread-cpu": 6.0,
        "dask.span.activity.time.disk-read": 0.5,
        "dask.span.output.size": 300,
        **ALL_IN_MEMORY,
        "dask.task_group.count": 1,
        "dask.worker.count": 2,
        "dask.thread.count": 4,
    }
    assert translate(make_span()) == [
        SpanRecord(
            trace_id=identity.trace_id("root"),
            span_id=identity.span_id("root"),
            parent_span_id=None,
            name="workflow",
            kind="server",
            start_ns=T_NS,
            end_ns=T_NS + 10 * 10**9,
            attributes=attributes,
            events=(Event("dask.span.start", T_NS + 2_500_000_000, {}),),
            links=(),
            error=None,
        )
    ]


def child(**fields) -> SpanRecord:
    """A record below the span."""
    return SpanRecord(
        **{
            "trace_id": identity.trace_id("root"),
            "parent_span_id": identity.span_id("root"),
            "kind": "internal",
            "events": (),
            "links": (),
            "error": None,
            **fields,
        }
    )


def test_a_group_is_a_child_named_by_its_prefix_and_what_it_is():
    assert translate(make_span(groups=(make_group(),)))[1] == child(
        name="load tasks",
        span_id=identity.group_span_id("root", 1, "load-123", 1),
        start_ns=T_NS + 2 * 10**9,
        end_ns=T_NS + 6 * 10**9,
        attributes={
            "dask.span.type": "group",
            "dask.span.id": "root",
            "dask.span.root.id": "root",
            "dask.span.root.name": "workflow",
            "dask.task_group.name": "load-123",
            "dask.task.prefix": "load",
            **ALL_IN_MEMORY,
            "dask.span.output.size": 300,
            "dask.task_group.duration.compute": 6.5,
            "dask.task_group.duration.transfer": 1.0,
            "dask.task_group.types": ("numpy.ndarray",),
        },
    )


BELOW = {"dask_id": "child", "tags": ("workflow", "a/b"), "parent_span_id": 7}


@pytest.mark.parametrize(
    ("changes", "fields", "attributes"),
    {
        "a nested span is internal and named by its last tag": (
            {"identity": make_identity(**BELOW)},
            {"name": "a/b", "kind": "internal", "parent_span_id": 7},
            {
                "dask.span.name": "workflow/a\\/b",
                "dask.span.tags": ("workflow", "a/b"),
                "dask.span.root.name": "workflow",
            },
        ),
        "a continuation links to the first generation": (
            {"identity": make_identity(generation=2, first=(11, 22))},
            {"kind": "internal", "links": (Link(11, 22),)},
            {"dask.span.generation": 2},
        ),
        "where nothing started there is no queue time": (
            {"first_start": None, "result": "cancellation"},
            {"events": (), "error": None},
            {"dask.span.queue.time": None},
        ),
        "a failure below is named by its type": (
            {"result": "failure", "tree_failure": make_failure("KeyError('b')")},
            {"error": "A task below failed: KeyError"},
            {"error.type": "KeyError"},
        ),
        "a scheduler that closed is an error": (
            {"result": "error", "complete": False},
            {"error": "The scheduler closed before the work was done"},
            {"error.type": "SchedulerClosed", "dask.span.complete": False},
        ),
        "the client asked for another span": (
            {"requested": ("other", "x"), "late": True},
            {},
            {
                "dask.span.collision": True,
                "dask.span.requested.name": "other/x",
                "dask.span.late": True,
            },
        ),
        "activities that get one name are summed": (
            {"activities": {"a b": 1, "a.b": 2.5, 1: 3, "": 4}},
            {},
            {
                "dask.span.activity.time.a_b": 3.5,
                "dask.span.activity.time.1": 3.0,
                "dask.span.activity.time._EMPTY": 4.0,
            },
        ),
        "beyond the largest activities the rest is one": (
            {"activities": {f"a{n}": float(n) for n in range(40)}},
            {},
            {
                "dask.span.activity.time._OTHER": sum(range(9)),
                "dask.span.activity.time.a8": None,
                **{f"dask.span.activity.time.a{n}": float(n) for n in range(9, 40)},
            },
        ),
        "what is left out is counted": (
            {
                "result": "failure",
                "failures": (make_failure(),) * 20,
                "dropped_failures": 100,
                "dropped_retries": 3,
                "dropped_groups": 5,
            },
            {},
            {"dask.span.dropped_event.count": 100 + 3, "dask.span.dropped.count": 5},
        ),
        "where it was submitted": (
            {"code": ("a.py", 3, None), "collections": ("Array", "Array", "Bag")},
            {},
            {
                "code.file.path": "a.py",
                "code.line.number": 3,
                "code.function.name": None,
                "dask.collection.types": ("Array", "Bag"),
            },
        ),
    }.values(),
)
def test_a_fact_and_its_place_in_the_record(changes, fields, attributes):
    """None stands for an attribute that is absent."""
    (record,) = translate(make_span(**changes))
    assert {name: getattr(record, name) for name in fields} == fields
    assert {key: record.attributes.get(key) for key in attributes} == attributes


EXCEPTION = {
    "exception.type": "KeyError",
    "exception.message": "'b'",
    "exception.stacktrace": "Traceback (most recent call last):\n"
    '  File "a.py", line 1, in load\n    return table["b"]\n'
    "KeyError: 'b'",
    "dask.task.key": "load-1",
    "dask.task.prefix": "load",
    "dask.worker.name": "w-1",
}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("KeyError('b')", "KeyError"),
        ("pkg.mod.Err('x', code=1)", "pkg.mod.Err"),
        ("ValueError()", "ValueError"),
        ("ValueError: no", "ValueError"),
        ("StopIteration", "StopIteration"),
        ("<HTTPError 404: 'Not Found'>", "_OTHER"),
        ("1 validation error for Model", "_OTHER"),
        ("could not read file 17", "_OTHER"),
        ("", "_OTHER"),
        (None, "_OTHER"),
    ],
)
def test_the_type_is_the_leading_dotted_name(text, name):
    by_the_scheduler = make_failure(text, scheduler_error="KilledWorker")
    found = [error_type(one, Sanitizer()) for one in (make_failure(text), by_the_scheduler)]
    assert found == [name, "KilledWorker"]


def exported(failure: Failure, limits: SpanLimits | None = None, *sanitizer: Sanitizer) -> Any:
    """The status of a span with this failure, and message and stacktrace of its exception."""
    (record,) = translate(failed(failures=(failure,)), limits or SpanLimits(), *sanitizer)
    (event,) = [event for event in record.events if event.name == "exception"]
    parts = ("exception.message", "exception.stacktrace")
    return record.error, *(event.attributes.get(part) for part in parts)


@pytest.mark.parametrize(
    "error",
    [
        ValueError('it\'s "two"\nlines\tand \\ é \u200b 日 \x07'),
        KeyError("b"),
        KeyError("it's"),
        OSError("full"),
        ZeroDivisionError("division by zero"),
        SystemExit("enough"),
        RuntimeError("ValueError('x')"),
        AssertionError("x" * 500),
        ValueError(" "),
    ],
)
def test_what_a_built_in_exception_said_is_as_python_has_it(error: BaseException) -> None:
    try:
        raise error
    except BaseException as caught:
        frames = "".join(traceback.format_tb(caught.__traceback__))
        printed = "".join(traceback.format_exception(type(caught), caught, caught.__traceback__))
    assert exported(make_failure(repr(error), traceback=frames)) == (
        f"Task load-1 failed: {type(error).__name__}: {error}",
        str(error),
        printed.rstrip("\n"),
    )


@pytest.mark.parametrize(
    "text",
    [
        # Nobody knows what the repr of a class of the user's means.
        "Custom('x')",
        "pkg.ValueError('x')",
        "ValueError()",
        "ValueError('')",
        "ValueError(1)",
        "ValueError(b'x')",
        "ValueError(('a',))",
        "ValueError('a', 'b')",
        "ValueError('a' 'b')",
        "ValueError('a' + 'b')",
        "ValueError(f'{1}')",
        "ValueError('\\N{BULLET}')",
        "ValueError('\\d')",
        "ValueError('cut",
        "OSError(2, 'No such file or directory')",
        "ExceptionGroup('x', [ValueError('y')])",
        "print('x')",
        "ValueError: 'x'",
        "<HTTPError 404: 'Not Found'>",
    ],
)
def test_other_exceptions_keep_their_repr(text: str) -> None:
    status, message, stack = exported(make_failure(text))
    assert (status, message, stack.splitlines()[-1]) == (f"Task load-1 failed: {text}", text, text)


@pytest.mark.parametrize(
    ("text", "line"),
    [("ValueError('secret')", "ValueError"), ("<secret>", '    return table["b"]')],
)
def test_a_hidden_message_is_not_at_the_end_of_the_stacktrace(text: str, line: str) -> None:
    status, message, stack = exported(make_failure(text), SpanLimits(message=0))
    assert (message, stack.splitlines()[-1], "secret" in status) == (None, line, False)


@given(st.text(st.characters(), max_size=50))
def test_any_string_is_read_back(text: str) -> None:
    assert built_in_message(repr(ValueError(text))) == (text or None)


def test_repeated_runs_are_events_in_the_order_of_time():
    # Of a run that is repeated, Dask's scheduler keeps no traceback, nor do we.
    unplaced = replace(make_failure(), traceback=None, worker_name=None)
    retries = (Retry(T + 9, unplaced.key, "error", unplaced), Retry(T + 1, "a", "worker_lost"))
    keys = ("exception.type", "exception.message", "dask.task.key", "dask.task.prefix")
    for limits, left_out in ((SpanLimits(), set()), (SpanLimits(message=0), {"exception.message"})):
        (record,) = translate(failed(retries=retries), limits)
        assert [(event.name, (event.time_ns - T_NS) / 1e9) for event in record.events] == [
            *(("dask.task.retried", 1), ("dask.span.start", 2.5)),
            *(("exception", 5), ("dask.task.retried", 9)),
        ]
        assert [record.events[place].attributes for place in (0, 3)] == [
            {"dask.task.retry.reason": "worker_lost", "dask.task.key": "a"},
            {"dask.task.retry.reason": "error"}
            | {key: EXCEPTION[key] for key in keys if key not in left_out},
        ]


def test_what_identifies_a_span_comes_first_and_stays_under_a_limit():
    """The encoder keeps the first attributes, up to ``OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT``."""
    (record,) = translate(failed())
    assert list(record.attributes)[:7] == [
        "dask.span.type",
        "dask.span.id",
        "dask.span.root.id",
        "dask.span.root.name",
        "dask.span.name",
        "dask.span.result",
        "error.type",
    ]


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        # They would be one operation in Jaeger, and one series of Tempo's span metrics.
        ("workflow", {}),
        # The part that distinguishes a child from its span is never cut off.
        (
            "x" * 5000,
            {what: "x" * (1023 - len(what)) + "…" for what in (" tasks", " started", " running")},
        ),
    ],
)
def test_no_name_of_a_child_is_that_of_its_span(name, subject):
    _, group = translate(make_span(groups=(make_group(prefix=name),)))
    signs = [Progress(make_identity(tags=(name,)), ordinal, T, T + 1) for ordinal in (0, 1)]
    names = [group.name, *(translate(sign)[0].name for sign in signs)]
    assert names == [subject.get(what, name) + what for what in (" tasks", " started", " running")]


@pytest.mark.parametrize(
    "item",
    [
        *[make_span(groups=(make_group(start=at, stop=at),)) for at in (T, T + 4, T + 10)],
        make_span(start=T, stop=T, groups=(make_group(start=T, stop=T),)),
        make_span(tasks=(make_task(start=T + 10, stop=T + 10, seconds=0.0),)),
        *[Progress(make_identity(), ordinal, T, T) for ordinal in (0, 1)],
    ],
)
def test_nothing_is_of_no_length_nor_leaves_its_span(item):
    """Jaeger calls that a negative duration, and what leaves its parent a clock skew."""
    span, *_ = records = translate(item)
    last = records[-1]
    assert last.end_ns - last.start_ns == 1
    assert span.start_ns <= last.start_ns < last.end_ns <= span.end_ns


NUMBERS = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from([None, "x", 1e300, -1e300, T, T + 1, math.nan, math.inf, 10**400, Broken()]),
)
TEXTS = st.one_of(
    st.text(st.characters()),
    st.sampled_from(["\0", "\ud800", "x" * 9000, None, 5, b"\xff", ("a", 1), Broken()]),
)
COUNTS = st.builds(TaskCounts, *[NUMBERS] * 7)
PARTS = st.dictionaries(st.one_of(st.text(), st.integers(), st.none()), NUMBERS, max_size=40)
FAILURES = st.builds(Failure, NUMBERS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, st.none() | TEXTS)
RETRIES = st.builds(Retry, NUMBERS, TEXTS, st.just("error"), st.none() | FAILURES)
GROUPS = st.builds(
    FinishedGroup,
    name=st.text(st.characters()),
    prefix=TEXTS,
    ordinal=st.integers(1, 3),
    start=NUMBERS,
    stop=NUMBERS,
    counts=COUNTS,
    output_bytes=NUMBERS,
    durations=PARTS,
    types=st.lists(st.one_of(TEXTS, st.just([])), max_size=3).map(tuple),
)


RUNS = st.builds(
    TaskRun,
    seconds=NUMBERS,
    number=st.integers(0, 2**70),
    key=TEXTS,
    worker=st.none() | TEXTS,
    start=NUMBERS,
    stop=NUMBERS,
    attempt=st.none() | NUMBERS,
    queued=st.none() | NUMBERS,
    nbytes=st.none() | NUMBERS,
    type=st.none() | TEXTS,
    parts=st.lists(
        st.tuples(TEXTS | st.sampled_from(["transfer", "disk-read"]), NUMBERS, NUMBERS), max_size=3
    ).map(tuple),
    failure=st.none() | FAILURES,
)
TASKS = st.builds(
    FinishedTask,
    RUNS,
    group=st.text(st.characters()),
    prefix=TEXTS,
    ordinal=st.integers(1, 3),
)


def tuples(items):
    return st.lists(items, max_size=3).map(tuple)


HOSTILE = st.builds(
    FinishedSpan,
    identity=st.builds(
        SpanIdentity,
        dask_id=st.text(st.characters()),
        root_id=TEXTS,
        tags=tuples(TEXTS),
        generation=st.integers(1, 3),
        trace_id=st.just(1),
        span_id=st.just(2),
        parent_span_id=st.none(),
    ),
    start=NUMBERS,
    stop=NUMBERS,
    first_start=NUMBERS,
    result=st.sampled_from(["success", "cancellation", "error", "failure"]),
    complete=st.booleans(),
    counts=COUNTS,
    output_bytes=NUMBERS,
    group_count=NUMBERS,
    worker_count=NUMBERS,
    thread_count=NUMBERS,
    active_cpu=NUMBERS,
    idle=st.none() | NUMBERS,
    capacity=st.none() | NUMBERS,
    dask_idle=NUMBERS,
    activities=PARTS,
    groups=tuples(GROUPS),
    dropped_groups=NUMBERS,
    tasks=tuples(TASKS),
    dropped_tasks=NUMBERS,
    failures=tuples(FAILURES),
    dropped_failures=NUMBERS,
    tree_failure=st.none() | FAILURES,
    retries=tuples(RETRIES),
    dropped_retries=NUMBERS,
    collections=st.lists(st.one_of(TEXTS, st.just([])), max_size=3).map(tuple),
    code=st.none() | st.tuples(TEXTS, NUMBERS, TEXTS),
    requested=st.none() | tuples(TEXTS),
    late=st.booleans(),
)

SECONDS = (
    "dask.span.queue.time",
    "dask.task.queue.time",
    "dask.task.part.",
    "dask.span.dask.",
    "dask.span.activity.",
    "dask.task_group.dur",
)
INTEGERS = (".count", ".size", ".generation", ".line.number")


def check_attributes(attributes, limit) -> None:
    for key, value in attributes.items():
        key.encode()
        items = value if isinstance(value, tuple) else (value,)
        kinds: Any = (str, bool, int, float)
        if key.startswith(SECONDS):
            kinds = (float,)
        elif key.endswith(INTEGERS) and key.startswith(("dask.", "code.")):
            kinds = (int,)
        assert {type(item) for item in items} <= {*kinds}
        for item in items:
            if type(item) is str:
                assert "\0" not in item
                assert len(item.encode().decode()) <= limit
            else:
                assert math.isfinite(item)
                assert type(item) is float or -(2**63) <= item < 2**63


@given(HOSTILE)
def test_whatever_comes_the_records_are_valid(finished):
    records = translate(finished)
    assert len(records) == finished.weight
    for record in records:
        assert 0 <= record.start_ns < record.end_ns < 2**63
        assert type(record.start_ns) is type(record.end_ns) is int
        assert record.name
        (record.name + (record.error or "")).encode()
        times = [event.time_ns for event in record.events]
        assert [0, *times, 2**63 - 1] == sorted([0, *times, 2**63 - 1])
        check_attributes(record.attributes, 1024)
        for event in record.events:
            check_attributes({"name": event.name, **event.attributes}, 8192)
    is_error = finished.result in ("failure", "error")
    assert (records[0].error is not None) == is_error
    assert ("error.type" in records[0].attributes) == is_error


# ------------------------------------------------------------------------------ tasks


def test_a_task_below_its_group() -> None:
    _, group, task = translate(make_span(groups=(make_group(),), tasks=(make_task(),)))
    assert task == child(
        name="load task",
        span_id=identity.task_span_id("root", "load-1", 7),
        parent_span_id=group.span_id,
        start_ns=T_NS + 3 * 10**9,
        end_ns=T_NS + 5 * 10**9,
        attributes={
            "dask.span.type": "task",
            "dask.span.id": "root",
            "dask.span.root.id": "root",
            "dask.span.root.name": "workflow",
            "dask.task.key": "load-1",
            "dask.task.prefix": "load",
            "dask.task_group.name": "load-123",
            "dask.worker.name": "w-1",
            "dask.task.attempt": 1,
            "dask.task.queue.time": 0.5,
            "dask.task.output.size": 100,
            "dask.task.output.type": "numpy.ndarray",
        },
        events=(Event("dask.task.compute", T_NS + 3 * 10**9, {"dask.task.part.time": 2.0}),),
    )


def test_a_task_that_failed() -> None:
    failure = make_failure("ValueError('no')")
    task = make_task(failure=failure, nbytes=None, type=None, queued=None, attempt=None)
    about = {key: EXCEPTION[key] for key in EXCEPTION if not key.startswith("exception.")}
    about["exception.type"] = "ValueError"
    said = {
        "exception.message": "no",
        "exception.stacktrace": str(EXCEPTION["exception.stacktrace"]).replace(
            "KeyError: 'b'", "ValueError: no"
        ),
    }
    for limits, error, attributes in (
        (SpanLimits(), "ValueError: no", {**about, **said}),
        (SpanLimits(message=0, stacktrace=0), "ValueError", about),
    ):
        span, record = translate(failed(failures=(failure,), tasks=(task,)), limits)
        assert (span.error, record.error) == (f"Task load-1 failed: {error}", error)
        assert [one.attributes["error.type"] for one in (span, record)] == ["ValueError"] * 2
        assert not {key for key in record.attributes if "output" in key or "queue" in key}
        assert [one.events[1].attributes for one in (span, record)] == [attributes] * 2


@pytest.mark.parametrize(
    ("key", "shown", "counted"),
    [
        (("x", 0, "y"), "('x', 0, 'y')", {}),
        (7, "7", {}),
        (b"\xffa", "\\xffa", {"type": 1}),
        ("x" * 5000, "x" * 1023 + "…", {"cut": 1}),
        (("x" * 5000, 1), "('" + "x" * 1021 + "…", {"cut": 1}),
        ("a\0b\ud800", "a\ufffdb\ufffd", {"nul": 1, "surrogate": 1}),
        (Broken(), "<unreadable>", {"type": 1, "repr": 1}),
    ],
)
def test_keys_of_any_kind(key, shown: str, counted: dict[str, int]) -> None:
    sanitizer = Sanitizer()
    _, task = translate(make_span(tasks=(make_task(key=key),)), sanitizer=sanitizer)
    assert (task.attributes["dask.task.key"], sanitizer.counts) == (shown, counted)
