"""The context of a task, from what its annotations say."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry import context as otel

from dask_otel._dask import callers as scheduler_side
from dask_otel.core import identity
from dask_otel.core.context import (
    CARRIER_KEY,
    DECISION_KEY,
    STATE_KEY,
    Traceparent,
    format_traceparent,
)
from dask_otel.core.life.callers import Callers
from dask_otel.core.life.generations import Generations
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.worker.contexts import KEPT, TaskContexts
from tests.limits import make_limits


@dataclass
class Task:
    annotations: Any = field(default_factory=dict)
    span_id: Any = "own-id"
    key: Any = "key"
    run_id: Any = 7


def ids(context: Any) -> tuple[int, int, int]:
    span = trace.get_current_span(context).get_span_context()
    return span.trace_id, span.span_id, int(span.trace_flags)


def seen(context: Any) -> tuple[Any, ...]:
    """All that is in a context: ids, state, baggage, and whether its span is of elsewhere."""
    span = trace.get_current_span(context).get_span_context()
    return ids(context), span.trace_state.to_header(), baggage.get_all(context), span.is_remote


DECIDED = format_traceparent(Traceparent(7, 8, 1))
SPAN = {"name": ("a", "b"), "ids": ("root-id", "own-id")}
HASHED = (identity.trace_id("root-id"), identity.span_id("own-id"), 1)


OWN = identity.task_span_id("own-id", "key", 7)
WITH_ALL: dict[str, Any] = {"span": SPAN, STATE_KEY: "a=b", CARRIER_KEY: {"baggage": "c=d"}}


@pytest.mark.parametrize(
    ("chosen", "tasks", "expected", "garbage"),
    [
        # What the scheduler decided wins; without that, ids are hashes of Dask's.
        (False, [Task({DECISION_KEY: DECIDED, "span": SPAN})], ((7, 8, 1), "", {}), {}),
        (
            False,
            [Task()],
            ((identity.trace_id("own-id"), identity.span_id("own-id"), 1), "", {}),
            {},
        ),
        (False, [Task({"span": SPAN})], (HASHED, "", {}), {}),
        # Of a span that is known by now.
        (False, [Task({"span": SPAN}), Task()], (HASHED, "", {}), {}),
        # A chosen task has a span of its own in the trace of its span.
        (True, [Task(WITH_ALL)], ((HASHED[0], OWN, 1), "", {}), {}),
        *(
            (
                True,
                [Task({**WITH_ALL, DECISION_KEY: format_traceparent(Traceparent(*decided))})],
                (found, "a=b", {"c": "d"}),
                {},
            )
            for decided, found in (
                ((9, HASHED[1], 0), (9, OWN, 0)),
                ((9, HASHED[1], 1), (9, OWN, 1)),
                # The caller's own context, and that of a continuation, stay.
                *[((7, one, 1),) * 2 for one in (8, identity.span_id("own-id", 2))],
            )
        ),
        # Keys that are none change nothing for the task.
        *(
            (
                True,
                [Task({"span": SPAN}, "own-id", key)],
                ((HASHED[0], identity.task_span_id("own-id", key, 7), 1), "", {}),
                {},
            )
            for key in (object(), ("x", object()), "\ud800", b"\xff")
        ),
        # Without a number it keeps its span's context.
        (
            True,
            [SimpleNamespace(annotations={"span": SPAN}, span_id="own-id", key="key")],
            (HASHED, "", {}),
            {"key": 1},
        ),
    ],
)
def test_the_context_is_of_the_tasks_span_or_of_its_own(
    chosen: bool, tasks: list[Any], expected: tuple[Any, ...], garbage: dict[str, int]
):
    contexts = TaskContexts()
    contexts.ratio = float(chosen)
    found = [seen(contexts.of(task)) for task in tasks]
    assert (found[-1], contexts.garbage) == ((*expected, True), garbage)


#: Annotations of a task of the span own-id below root-id, and whether its context is written. A
#: carrier can hold baggage, which the worker needs.
PLAIN = [
    ({"span": SPAN}, False),
    ({"span": SPAN, "priority": 1}, False),
    ({"span": SPAN, DECISION_KEY: "of before", STATE_KEY: "x=1"}, False),
    ({"span": SPAN, CARRIER_KEY: {"traceparent": DECIDED}}, True),
    # Dask books a group's tasks on the group's first span, and users write anything.
    ({"span": {"ids": ("root-id", "other")}}, True),
    ({"span": {"ids": ("own-id",)}}, True),
    ({"span": 7}, True),
    ({}, True),
    (None, True),
]


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize(("annotations", "written"), PLAIN)
def test_the_scheduler_writes_a_context_only_if_the_worker_would_compute_another(
    annotations: Any, written: bool, sampled: bool
):
    writer = scheduler_side.TaskContexts(Callers("link", lambda _: None))
    writer.decide_with(lambda _: sampled)
    span = own_span(root=("root-id",))
    before = {k: v for k, v in (annotations or {}).items() if k not in (DECISION_KEY, STATE_KEY)}
    for _ in range(2):
        task = Task(None if annotations is None else dict(annotations))
        writer.annotate(task, span)  # type: ignore[arg-type]
        assert ids(TaskContexts().of(task)) == (*HASHED[:2], int(sampled))
        expected = {**before, DECISION_KEY: format_traceparent(Traceparent(*HASHED[:2], sampled))}
        assert (task.annotations or {}) == (expected if written or not sampled else before)


def own_span(*, root: tuple[str, ...] = (), tags: tuple[str, ...] = ("a", "b")) -> OpenSpan:
    """A span of the Dask id own-id."""
    generations = Generations(make_limits())
    above = tuple(OpenSpan(0.0, (), generations.first(i, ("a",), (), None), False) for i in root)
    return OpenSpan(0.0, above, generations.first("own-id", tags, root, None), False)


def test_the_annotations_of_each_task_count_and_one_of_the_default_span_gets_none():
    writer = scheduler_side.TaskContexts(Callers("adopt", lambda _: None))
    span = own_span()
    tasks = [Task({"span": {"name": ("a",), "ids": (own,)}}) for own in ("own-id", "x", "own-id")]
    default = Task(None)
    for task in tasks:
        writer.annotate(task, span)  # type: ignore[arg-type]
    writer.annotate(default, own_span(tags=("default",)))  # type: ignore[arg-type]
    assert [DECISION_KEY in task.annotations for task in tasks] == [False, True, False]
    assert default.annotations is None


class NoCarrier(dict):  # type: ignore[type-arg]
    def get(self, key: Any, default: Any = None) -> Any:
        raise RuntimeError(key)


@pytest.mark.parametrize("junk", [{}, [], 5, b"tenant=a", {"tenant": "a"}, "x" * 8193])
def test_junk_beside_a_decision_is_left_out_alone(junk: Any):
    contexts = TaskContexts()
    both = {DECISION_KEY: DECIDED, "span": SPAN}
    carriers = {"traceparent": DECIDED, "baggage": junk}, {"baggage": "tenant=a"}
    for _ in range(2):
        for state, carrier, expected in (
            ("vendor=1", carriers[0], ((7, 8, 1), "vendor=1", {}, True)),
            (junk, carriers[1], ((7, 8, 1), "", {"tenant": "a"}, True)),
        ):
            task = Task({**both, STATE_KEY: state, CARRIER_KEY: carrier})
            assert seen(contexts.of(task)) == expected
    assert contexts.garbage == {"baggage": 2, "state": 2}
    assert ids(contexts.of(Task({DECISION_KEY: DECIDED, CARRIER_KEY: NoCarrier()}))) == (7, 8, 1)


def test_what_the_worker_itself_runs_in_is_not_passed_on():
    """In a LocalCluster, that is whatever the application had when it started the cluster."""
    token = otel.attach(otel.set_value("application", "its own"))
    try:
        with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))):
            context = TaskContexts().of(Task({DECISION_KEY: DECIDED}))
    finally:
        otel.detach(token)
    assert (ids(context), otel.get_value("application", context)) == ((7, 8, 1), None)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.just(DECIDED),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts) | st.tuples(parts),
    max_leaves=3,
)


@settings(max_examples=10)
@given(
    st.dictionaries(
        st.sampled_from([DECISION_KEY, STATE_KEY, CARRIER_KEY, "span"]),
        JUNK | st.fixed_dictionaries({"ids": JUNK, "baggage": JUNK}),
    ),
    JUNK,
)
def test_nothing_raises(annotations: dict[str, Any], span_id: Any):
    context = TaskContexts().of(Task(annotations, span_id))
    assert context is None or trace.get_current_span(context).get_span_context().is_valid


def test_garbage_is_counted_and_named_once(caplog: pytest.LogCaptureFixture):
    contexts = TaskContexts()
    for decision in ("junk", "junk", "junk", ["junk"]):
        assert ids(contexts.of(Task({DECISION_KEY: decision, "span": SPAN}))) == HASHED
    contexts.of(Task({DECISION_KEY: DECIDED, STATE_KEY: "x" * 513}))
    # Without a span there is no context, and nothing wrong.
    for none in ({}, None, {"executor": "default"}, {"span": {"ids": ()}}):
        assert contexts.of(Task(none, None)) is None
    assert (contexts.garbage, len(caplog.records)) == ({"decision": 4, "state": 1, "span": 1}, 3)


def test_what_is_kept_is_bounded():
    contexts = TaskContexts()
    for number in range(3 * KEPT):
        contexts.of(Task({DECISION_KEY: format_traceparent(Traceparent(7, number + 1, 1))}))
        contexts.of(Task({}, str(number)))
    assert max(len(contexts._decided), len(contexts._computed)) <= KEPT
