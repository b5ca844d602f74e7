"""docs/telemetry.md and `semconv` say the same, and so does what is exported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from dask_otel import semconv
from dask_otel.core.context import Traceparent
from dask_otel.core.events import narration
from dask_otel.core.records import (
    Failure,
    FinishedGroup,
    FinishedSpan,
    FinishedTask,
    GraphLog,
    Progress,
    Retry,
    SpanIdentity,
    SpanMemory,
    SpanPathFacts,
    SpanRecord,
    TaskCounts,
    TaskPath,
    TaskRun,
    WorkerPeak,
)
from dask_otel.core.traces.translate import translate
from tests.environment import REPOSITORY

PAGE = (REPOSITORY / "docs" / "telemetry.md").read_text(encoding="utf-8")

INSTRUMENTS = {
    "counter": "Counter",
    "updowncounter": "UpDownCounter",
    "gauge": "Gauge",
    "histogram": "Histogram",
}
TYPES = {"string": str, "bool": bool, "int": int, "double": float, "string[]": tuple}


def tables() -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield each table: the heading above it, its header, its rows."""
    for section in re.split(r"^#+ ", PAGE, flags=re.MULTILINE):
        heading, _, text = section.partition("\n")
        for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
            lines = [line.strip("|").split("|") for line in table.splitlines()]
            header, _, *body = [[cell.strip() for cell in line] for line in lines]
            yield heading, header, body


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def one(cell: str) -> str:
    (text,) = code(cell)
    assert cell == f"`{text}`"
    return text


def rows_of(first: str) -> list[tuple[str, list[str]]]:
    """Return the rows of all tables with this first column, each with the heading above."""
    return [
        (heading, row) for heading, header, rows in tables() if header[0] == first for row in rows
    ]


# As sorted lists: what stands there twice is not what is defined.


def test_every_metric_is_documented_and_every_documented_metric_exists() -> None:
    defined = [
        (metric.name, f"{INSTRUMENTS[metric.instrument]}, {metric.unit}", metric.labels)
        for metric in semconv.METRICS.values()
    ]
    found = [
        (one(name), kind, tuple(semconv.SPAN if part == "span" else one(part) for part in labels))
        for _, (name, kind, text, _) in rows_of("Metric")
        for labels in [[part for part in text.split(", ") if part]]
    ]
    assert sorted(found, key=str) == sorted(defined, key=str)


@pytest.mark.parametrize(
    ("first", "defined"),
    [("Attribute", semconv.SPAN_ATTRIBUTES), ("Event", semconv.EVENT_ATTRIBUTES)],
)
def test_what_spans_have_is_documented_and_all_that_is_documented_exists(
    first: str, defined: dict[str, dict[str, str]]
) -> None:
    """Attributes by type of span and attributes of events, with types and without units."""
    found = [
        (code(heading)[1], one(row[0]), row[1].partition(",")[0])
        if first == "Attribute"
        else (one(row[0]), *code(row[1]), row[2])
        for heading, row in rows_of(first)
        if first == "Event" or "dask.span.type" in heading
    ]
    keys = [(of, key, kind) for of, types in defined.items() for key, kind in types.items()]
    bare = [(of, "") for of, types in defined.items() if not types]
    assert sorted(found) == sorted([*keys, *bare])


def test_events_that_are_log_records_are_documented_with_all_that_they_have() -> None:
    rows = [row for _, row in rows_of("Log record")]
    assert ({one(row[0]): set(code(row[3])) for row in rows}, len(rows)) == (
        {name: set(types) for name, types in semconv.LOG_EVENTS.items()},
        len(semconv.LOG_EVENTS),
    )
    told = {name: {template.severity} for name, template in narration._TEMPLATES.items()}
    told[semconv.WORKER_LOG] = set(semconv.SEVERITIES)
    told[semconv.WORKER_REMOVED] = {semconv.INFO, semconv.WARN, semconv.ERROR}
    numbers = {text: number for number, text in semconv.SEVERITIES.items()}
    assert {one(row[0]): {numbers[part] for part in row[1].split(", ")} for row in rows} == told
    types: dict[str, str] = {semconv.EVENT_NAME: "string"}
    for known in semconv.LOG_EVENTS.values():
        assert all(types.setdefault(key, kind) == kind for key, kind in known.items())
    found = [
        (one(row[0]), row[1].partition(",")[0]) for _, row in rows_of("Attribute of log records")
    ]
    assert sorted(found) == sorted(types.items())


def test_the_reasons_of_a_lost_worker_are_documented() -> None:
    page = (REPOSITORY / "docs" / "logs.md").read_text(encoding="utf-8")
    section = page.partition("## Why a worker was lost")[2]
    rows = re.findall(r"^\| `(\w+)` \| .* \| (\w+) \|$", section, flags=re.MULTILINE)
    assert dict(rows) == {
        reason: semconv.SEVERITIES[template.severity]
        for reason, template in narration._REMOVED.items()
    }


def test_labels_resource_and_bounds_are_documented_and_all_that_is_documented_exists() -> None:
    (rows,) = [rows for heading, _, rows in tables() if heading == "Labels"]
    used = {label for metric in semconv.METRICS.values() for label in metric.labels}
    assert {one(row[0]) for row in rows} == used - {semconv.SPAN} | set(semconv.SPAN_KEYS)
    (rows,) = [rows for heading, _, rows in tables() if heading == "Resource and scope"]
    assert [one(row[0]) for row in rows] == [
        semconv.SERVICE_NAME,
        semconv.SERVICE_INSTANCE_ID,
        semconv.SERVICE_VERSION,
        semconv.RUNTIME_VERSION,
        semconv.CLUSTER_NAME,
    ]
    bounds = ", ".join(f"{bound:g}" for bound in semconv.DURATION_BOUNDS)
    assert f"in seconds: {bounds}." in " ".join(PAGE.split())


def test_no_name_of_the_code_is_in_no_table() -> None:
    """A constant that is none of attribute, event, label or resource is forgotten or dead."""
    known = {
        *semconv.METRICS,
        *semconv.EVENT_ATTRIBUTES,
        *(key for keys in semconv.SPAN_ATTRIBUTES.values() for key in keys),
        *(key for keys in semconv.EVENT_ATTRIBUTES.values() for key in keys),
        *(label for metric in semconv.METRICS.values() for label in metric.labels),
        semconv.SERVICE_NAME,
        semconv.SERVICE_INSTANCE_ID,
        semconv.SERVICE_VERSION,
        semconv.RUNTIME_VERSION,
        semconv.CLUSTER_NAME,
        *semconv.LOG_EVENTS,
        *(key for keys in semconv.LOG_EVENTS.values() for key in keys),
        semconv.EVENT_NAME,
        # On docs/doctor.md.
        semconv.DOCTOR_RUN,
        semconv.DOCTOR_EVENT,
    }
    families = {semconv.TASK_OUTCOME_COUNT, semconv.SPAN_ACTIVITY_TIME}
    families |= {semconv.SPAN_PATH_PART_TIME, semconv.TASK_PATH_PART_TIME}
    families |= {semconv.TASK_GROUP_DURATION, semconv.TAG, semconv.SCHEMA_URL}
    families |= {semconv.SPAN_MEMORY_AT_PEAK}
    names = {
        value
        for name, value in vars(semconv).items()
        if name.isupper() and isinstance(value, str) and "." in value
    }
    assert names - families <= known


# ------------------------------------------------------------------ what is really exported

COUNTS = TaskCounts(9, 1, 2, 3, 4, 5, 6)
FAILURE = Failure(
    time=2.0,
    key="k",
    prefix="p",
    worker="tcp://w",
    text="KeyError(1)",
    traceback="Traceback",
    worker_name="w",
)
EVERYTHING = FinishedSpan(
    identity=SpanIdentity("b", "a", ("x", "y"), 2, 1, 2, 1, (1, 1)),
    start=1.0,
    stop=9.0,
    first_start=2.0,
    result="failure",
    complete=True,
    counts=COUNTS,
    output_bytes=7,
    group_count=1,
    worker_count=1,
    thread_count=1,
    active_cpu=1.5,
    dask_idle=0.5,
    activities={"thread-cpu": 0.25},
    idle=0.5,
    capacity=0.75,
    elsewhere=0.5,
    seceded=0.25,
    groups=(
        FinishedGroup(
            "g",
            "p",
            1,
            2.0,
            3.0,
            COUNTS,
            7,
            {"compute": 1.0},
            ("int",),
            "workers",
            ("a", 0.5, 3.0, 1.0),
            SpanMemory(2_000, 4_000.0),
        ),
    ),
    dropped_groups=1,
    tasks=(
        FinishedTask(
            TaskRun(
                seconds=0.5,
                number=1,
                key="k",
                worker="w",
                start=2.5,
                stop=3.0,
                attempt=2,
                queued=0.5,
                nbytes=7,
                type="int",
                parts=(("transfer", 2.1, 0.1), ("disk-read", 2.3, 0.1)),
                failure=FAILURE,
            ),
            group="g",
            prefix="p",
            ordinal=1,
            path=TaskPath((0.5,) * 11, ("j", 1)),
        ),
    ),
    computed=0.5,
    ran_on=frozenset({"tcp://w0"}),
    memory=SpanMemory(3_000, 9_000.0, (("load", 2_000), ("join", 1_000))),
    worker_peak=WorkerPeak(0.7, "w0", 5.0, 40, 2),
    path=SpanPathFacts((1.0,) * 12, 3, 1, 0.5),
    dropped_tasks=1,
    failures=(FAILURE,),
    dropped_failures=1,
    tree_failure=FAILURE,
    retries=(Retry(2.0, "k", "error", replace(FAILURE, traceback=None, worker_name=None)),),
    dropped_retries=1,
    callers=(Traceparent(3, 4),),
    collections=("DataFrame",),
    code=("file.py", 1, "main"),
    requested=("z",),
    late=True,
    attributes={"tenant": "acme"},
    graph=GraphLog(),
)


def exported() -> dict[str, SpanRecord]:
    signs = [Progress(EVERYTHING.identity, n, 1.0, 2.0, COUNTS if n else None) for n in (0, 1)]
    found = translate(EVERYTHING, profile_of=lambda _: ("run-profile.pb.gz", 0.5))
    records = [*found, *(r for sign in signs for r in translate(sign))]
    return {str(record.attributes[semconv.SPAN_TYPE]): record for record in records}


def named(key: str) -> str:
    """Return the key as it is documented."""
    parts = {
        semconv.SPAN_ACTIVITY_TIME: "activity",
        semconv.SPAN_MEMORY_AT_PEAK: "prefix",
        semconv.TASK_GROUP_DURATION: "action",
    }
    for family, part in parts.items():
        if key.startswith(f"{family}."):
            return f"{family}.<{part}>"
    return key


def check_types(attributes: Any, types: dict[str, str]) -> None:
    shown = {named(key): value for key, value in attributes.items()}
    assert shown.keys() == types.keys()
    for key, value in shown.items():
        assert type(value) is TYPES[types[key]], key


def test_a_span_with_everything_has_every_attribute_with_its_type_and_every_event() -> None:
    unset = [f.name for f in fields(FinishedSpan) if not getattr(EVERYTHING, f.name)]
    assert not unset, "what is not set is not tested"
    records = exported()
    assert records.keys() == semconv.SPAN_ATTRIBUTES.keys()
    for kind, record in records.items():
        ours = {k: v for k, v in record.attributes.items() if k not in EVERYTHING.attributes}
        assert (len(ours) < len(record.attributes)) == (kind == "span"), "the user's own"
        check_types(ours, semconv.SPAN_ATTRIBUTES[kind])
    found = [*records["span"].events, *records["task"].events]
    events = {event.name: event.attributes for event in found}
    assert events.keys() == semconv.EVENT_ATTRIBUTES.keys()
    for name, attributes in events.items():
        check_types(attributes, semconv.EVENT_ATTRIBUTES[name])
