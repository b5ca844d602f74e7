"""The context of a task, from what its annotations say."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace

from dask_otel._dask import callers as scheduler_side
from dask_otel._otel.api.current import Context
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
from dask_otel.core.life.open_span import Limits, OpenSpan
from dask_otel.worker.contexts import KEPT, TaskContexts


@dataclass
class Task:
    annotations: Any = field(default_factory=dict)
    span_id: Any = None
    key: Any = "key"
    run_id: Any = 7


def span_of(context: Context | None) -> trace.SpanContext:
    assert context is not None
    return trace.get_current_span(context).get_span_context()


def ids(context: Context | None) -> tuple[int, int, int]:
    span = span_of(context)
    return span.trace_id, span.span_id, int(span.trace_flags)


DECIDED = format_traceparent(Traceparent(7, 8, 1))
SPAN = {"name": ("a", "b"), "ids": ("root-id", "own-id")}
HASHED = (identity.trace_id("root-id"), identity.span_id("own-id"), 1)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        # What the scheduler decided wins; without that, ids are hashes of Dask's.
        ({DECISION_KEY: DECIDED, "span": SPAN}, (7, 8, 1)),
        ({"span": SPAN}, HASHED),
        ({}, (identity.trace_id("own-id"), identity.span_id("own-id"), 1)),
    ],
)
def test_the_context_is_of_the_tasks_span(annotations: Any, expected: Any):
    context = TaskContexts().of(Task(annotations, "own-id"))
    assert ids(context) == expected
    assert span_of(context).is_remote


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
    generations = Generations(Limits())
    root = generations.first("root-id", ("a",), (), None)
    own = generations.first("own-id", ("a", "b"), ("root-id",), None)
    span = OpenSpan(0.0, (OpenSpan(0.0, (), root, False),), own, False)
    before = {k: v for k, v in (annotations or {}).items() if k not in (DECISION_KEY, STATE_KEY)}
    for _ in range(2):
        task = Task(None if annotations is None else dict(annotations), "own-id")
        writer.annotate(task, span)  # type: ignore[arg-type]
        assert ids(TaskContexts().of(task)) == (own.trace_id, own.span_id, int(sampled))
        expected = {**before, DECISION_KEY: format_traceparent(Traceparent(*HASHED[:2], sampled))}
        assert (task.annotations or {}) == (expected if written or not sampled else before)


def test_equal_annotations_are_compared_with_the_workers_computing_once(
    monkeypatch: pytest.MonkeyPatch,
):
    """Dask makes a new one for each task of a span, and hashing ids takes 36,000 instructions."""
    compared = []
    known = scheduler_side._computed
    monkeypatch.setattr(
        scheduler_side, "_computed", lambda *args: compared.append(args) or known(*args)
    )
    writer = scheduler_side.TaskContexts(Callers("adopt", lambda _: None))
    span = OpenSpan(0.0, (), Generations(Limits()).first("own-id", ("a",), (), None), False)
    for ids_, calls in [(("own-id",), 1), (("own-id",), 1), (("other",), 2), (("own-id",), 3)]:
        task = Task({"span": {"name": ("a",), "ids": (*ids_,)}}, "own-id")
        writer.annotate(task, span)  # type: ignore[arg-type]
        assert len(compared) == calls
        assert (DECISION_KEY in task.annotations) == (ids_ == ("other",))


def test_a_task_of_the_default_span_gets_no_annotations():
    writer = scheduler_side.TaskContexts(Callers("adopt", lambda _: None))
    ident = Generations(Limits()).first("own-id", ("default",), (), None)
    task = Task(None, "own-id")
    writer.annotate(task, OpenSpan(0.0, (), ident, False))  # type: ignore[arg-type]
    assert task.annotations is None
    assert ids(TaskContexts().of(task)) == (ident.trace_id, ident.span_id, 1)


def test_a_task_without_an_annotation_is_of_a_span_that_is_known():
    contexts = TaskContexts()
    contexts.of(Task({"span": SPAN}, "own-id"))
    assert ids(contexts.of(Task({}, "own-id"))) == HASHED


@pytest.mark.parametrize("annotations", [{}, None, {"executor": "default"}])
def test_a_task_of_no_span_has_no_context(annotations: Any):
    contexts = TaskContexts()
    assert contexts.of(Task(annotations)) is None
    assert not contexts.garbage


def test_state_and_baggage_of_the_caller_come_along():
    annotations = {
        DECISION_KEY: DECIDED,
        STATE_KEY: "vendor=1",
        CARRIER_KEY: {"traceparent": DECIDED, "baggage": "tenant=a"},
    }
    contexts = TaskContexts()
    context = contexts.of(Task(annotations))
    assert span_of(context).trace_state.to_header() == "vendor=1"
    assert baggage.get_all(context) == {"tenant": "a"}
    # Another caller's are not his, in the same span.
    assert baggage.get_all(contexts.of(Task({DECISION_KEY: DECIDED}))) == {}
    assert contexts.of(Task(dict(annotations))) is context


class NoCarrier(dict):  # type: ignore[type-arg]
    def get(self, key: Any, default: Any = None) -> Any:
        raise RuntimeError(key)


@pytest.mark.parametrize("junk", [{}, [], 5, b"tenant=a", {"tenant": "a"}, "x" * 8193])
def test_junk_beside_a_decision_is_left_out_alone(junk: Any):
    contexts = TaskContexts()
    carrier = {"traceparent": DECIDED, "baggage": junk}
    for _ in range(2):
        given = {DECISION_KEY: DECIDED, STATE_KEY: "vendor=1", CARRIER_KEY: carrier}
        context = contexts.of(Task({**given, "span": SPAN}, "own-id"))
        assert ids(context) == (7, 8, 1)
        assert span_of(context).trace_state.to_header() == "vendor=1"
        assert baggage.get_all(context) == {}
        given = {DECISION_KEY: DECIDED, STATE_KEY: junk, CARRIER_KEY: {"baggage": "tenant=a"}}
        context = contexts.of(Task(given, "own-id"))
        assert ids(context) == (7, 8, 1)
        assert baggage.get_all(context) == {"tenant": "a"}
    assert contexts.garbage == {"baggage": 2, "state": 2}
    assert ids(contexts.of(Task({DECISION_KEY: DECIDED, CARRIER_KEY: NoCarrier()}))) == (7, 8, 1)


def test_what_the_worker_itself_runs_in_is_not_passed_on():
    """In a LocalCluster, that is whatever the application had when it started the cluster."""
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))):
        from opentelemetry import context as otel

        token = otel.attach(otel.set_value("application", "its own"))
        context = TaskContexts().of(Task({DECISION_KEY: DECIDED}))
        otel.detach(token)
    assert context is not None
    assert otel.get_value("application", context) is None


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.just(DECIDED),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts) | st.tuples(parts),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from([DECISION_KEY, STATE_KEY, CARRIER_KEY, "span"]),
        JUNK | st.fixed_dictionaries({"ids": JUNK, "baggage": JUNK}),
    ),
    JUNK,
)
def test_nothing_raises(annotations: dict[str, Any], span_id: Any):
    context = TaskContexts().of(Task(annotations, span_id))
    assert context is None or span_of(context).is_valid


def test_garbage_is_counted_and_named_once(caplog: pytest.LogCaptureFixture):
    contexts = TaskContexts()
    with caplog.at_level(logging.WARNING, "distributed.dask_otel"):
        for _ in range(3):
            assert ids(contexts.of(Task({DECISION_KEY: "junk", "span": SPAN}))) == HASHED
        contexts.of(Task({DECISION_KEY: ["junk"], "span": SPAN}))
        contexts.of(Task({DECISION_KEY: DECIDED, STATE_KEY: "x" * 513}))
        assert contexts.of(Task({"span": {"ids": ()}})) is None
    assert contexts.garbage == {"decision": 4, "state": 1, "span": 1}
    assert len(caplog.records) == 3


def test_what_is_kept_is_bounded():
    contexts = TaskContexts()
    for number in range(3 * KEPT):
        contexts.of(Task({DECISION_KEY: format_traceparent(Traceparent(7, number + 1, 1))}))
        contexts.of(Task({}, str(number)))
    assert len(contexts._decided) <= KEPT
    assert len(contexts._computed) <= KEPT


# --------------------------------------------------- tasks that have a span of their own


def chosen(ratio: float = 1.0) -> TaskContexts:
    contexts = TaskContexts()
    contexts.ratio = ratio
    return contexts


OWN = identity.task_span_id("own-id", "key", 7)


@pytest.mark.parametrize(
    ("annotations", "trace_id", "flags", "state"),
    [
        ({}, HASHED[0], 1, ""),
        ({DECISION_KEY: format_traceparent(Traceparent(9, HASHED[1], 0))}, 9, 0, "a=b"),
        ({DECISION_KEY: format_traceparent(Traceparent(9, HASHED[1], 1))}, 9, 1, "a=b"),
    ],
)
def test_a_chosen_task_has_its_own_span_in_the_trace_of_its_span(
    annotations, trace_id, flags, state
):
    carrier = {STATE_KEY: "a=b", CARRIER_KEY: {"baggage": "c=d"}}
    context = chosen().of(Task({**annotations, **carrier, "span": SPAN}, "own-id"))
    assert ids(context) == (trace_id, OWN, flags)
    assert span_of(context).trace_state.to_header() == state
    assert baggage.get_all(context) == ({"c": "d"} if state else {})
    assert span_of(context).is_remote


def test_the_callers_own_context_and_that_of_a_continuation_stay():
    for parent in (8, identity.span_id("own-id", 2)):
        text = format_traceparent(Traceparent(7, parent, 1))
        assert ids(chosen().of(Task({DECISION_KEY: text}, "own-id"))) == (7, parent, 1)


def test_each_run_has_an_id_and_others_are_not_chosen():
    contexts = chosen(0.5)
    for i in range(50):
        key = ("x", i)
        (_, span_id, _) = ids(contexts.of(Task({"span": SPAN}, "own-id", key, run_id=i)))
        own = identity.task_span_id("own-id", key, i)
        assert span_id == (own if identity.is_sampled(key, 0.5) else HASHED[1])


@pytest.mark.parametrize("key", [object(), ("x", object()), "\ud800", b"\xff"])
def test_keys_that_are_none_change_nothing_for_the_task(key):
    contexts = chosen()
    assert ids(contexts.of(Task({"span": SPAN}, "own-id", key)))[0] == HASHED[0]
    assert not contexts.garbage


def test_a_task_without_a_number_keeps_its_spans_context():
    contexts = chosen()
    task: Any = SimpleNamespace(annotations={"span": SPAN}, span_id="own-id", key="key")
    assert ids(contexts.of(task)) == HASHED
    assert contexts.garbage == {"key": 1}
