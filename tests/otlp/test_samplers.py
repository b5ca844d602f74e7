"""Samplers: the SDK's own, which only calculate, and others, which may take their time or hang."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)

from dask_otel._otel.sdk import sampling
from dask_otel._otel.sdk.sampling import PATIENCE, TraceSampler, make_sampler
from dask_otel.core.context import Caller, Traceparent
from dask_otel.core.trace import Trace
from tests.otlp.records import CHILD, ROOT
from tests.waiting import eventually

Decide = Callable[[str], bool]


class Foreign(Sampler):
    """Decides by a function of the name; knows who asked."""

    def __init__(self, decide: Decide = lambda name: True) -> None:
        self.decide = decide
        self.asked: list[str] = []
        self.threads: set[int] = set()

    def should_sample(  # type: ignore[override]
        self, parent_context: Any, trace_id: int, name: str, *args: Any, **kwargs: Any
    ) -> SamplingResult:
        self.asked.append(name)
        self.threads.add(threading.get_ident())
        chosen = ALWAYS_ON if self.decide(name) else ALWAYS_OFF
        return chosen.should_sample(parent_context, trace_id, name)

    def get_description(self) -> str:
        return "foreign"


def waiting(decide: Decide) -> tuple[Foreign, threading.Event]:
    """Return one that answers when it may."""
    go_on = threading.Event()
    return Foreign(lambda name: go_on.wait(60) and decide(name)), go_on


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for an answer for longer than this machine may be busy with other things."""
    monkeypatch.setattr(sampling, "PATIENCE", 60.0)


def threads() -> int:
    return sum(thread.name == "dask-otel-sampler" for thread in threading.enumerate())


@contextmanager
def no_more_threads() -> Iterator[None]:
    before = threads()
    yield
    eventually(lambda: threads() <= before)


FOREIGN = Foreign()


@pytest.mark.parametrize(
    ("sampler", "prompt"),
    [
        *((own, True) for own in (ALWAYS_ON, ALWAYS_OFF, DEFAULT_ON, DEFAULT_OFF)),
        (TraceIdRatioBased(0.5), True),
        (ParentBasedTraceIdRatio(0.5), True),
        (ParentBased(ParentBased(TraceIdRatioBased(0.5))), True),
        (FOREIGN, False),
        (type("Mine", (TraceIdRatioBased,), {})(0.5), False),
        (ParentBased(FOREIGN), False),
        (ParentBased(ALWAYS_ON, remote_parent_sampled=FOREIGN), False),
        (ParentBased(ALWAYS_ON, remote_parent_not_sampled=FOREIGN), False),
        (ParentBased(ALWAYS_ON, local_parent_sampled=FOREIGN), False),
        (ParentBased(ALWAYS_ON, local_parent_not_sampled=FOREIGN), False),
        (ParentBased(ParentBased(FOREIGN)), False),
    ],
)
def test_only_the_sdks_own_samplers_are_asked_in_the_thread_that_wants_to_know(
    sampler: Sampler, prompt: bool
) -> None:
    asked = TraceSampler(sampler)
    assert asked._is_prompt is prompt
    with no_more_threads():
        assert asked.decides(Trace(1 << 127)) in (True, False)


def test_without_an_answer_the_default_decides_and_a_late_one_changes_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "distributed.dask_otel")
    monkeypatch.setattr(sampling, "REST", 600.0)
    with no_more_threads():
        foreign, go_on = waiting(lambda name: False)
        sampler = TraceSampler(foreign)
        own, theirs = Trace(1, "own"), Trace(2, "theirs", Caller(Traceparent(2, 3, 0)))
        assert sampler.decides(own)
        # Nobody could wait for it five hundred times.
        monkeypatch.setattr(sampling, "PATIENCE", 60.0)
        assert not sampler.decides(theirs)
        # While it has not answered, nobody waits, and nothing piles up; also after its rest.
        rest_until, sampler._rest_until = sampler._rest_until, 0.0
        rest = [Trace(n, "rest") for n in range(10, 510)]
        assert all(map(sampler.decides, rest))
        eventually(lambda: foreign.asked == ["own"])
        go_on.set()
        eventually(lambda: threads() == 0, what="the answer")
        assert sampler.decides(own)
        assert all(map(sampler.decides, rest))
        sampler._rest_until = rest_until
        assert sampler.decides(Trace(3)), "it is left alone for a while"
        assert foreign.asked == ["own"]
        sampler._rest_until = 0.0
        assert not sampler.decides(Trace(4, "later"))
        assert foreign.asked == ["own", "later"]
    (record,) = caplog.records
    assert f"Foreign gave no answer within {PATIENCE:g} s" in record.getMessage()


def test_without_room_for_a_thread_the_default_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sampler = TraceSampler(Foreign(lambda name: False))
    monkeypatch.setattr(threading.Thread, "start", no_room)
    assert all(sampler.decides(Trace(number)) for number in range(3))


def test_threads_that_ask_at_once_get_one_decision() -> None:
    foreign, go_on = waiting(lambda name: False)
    sampler = TraceSampler(foreign)
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(sampler.decides, [Trace(1, "own")] * 8)]
    go_on.set()
    assert answers == [True] * 8
    assert foreign.asked in ([], ["own"])


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_one_that_raises_does_not_end_its_thread(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def decide(name: str) -> bool:
        if name == "bad":
            raise error
        return False

    caplog.set_level(logging.WARNING, "distributed.dask_otel")
    sampler = TraceSampler(Foreign(decide))
    assert sampler.decides(Trace(1, "bad")), "as the default one"
    assert not sampler.decides(Trace(2, "bad", Caller(Traceparent(2, 3, 0))))
    assert not sampler.decides(Trace(3, "good"))
    (record,) = caplog.records
    # In a thread, an error that would end it becomes a RuntimeError.
    assert "Foreign raised RuntimeError" in record.getMessage()


@pytest.mark.usefixtures("patient")
def test_all_spans_of_a_root_follow_it_and_its_exemplars_too() -> None:
    """One that keeps state, as rate limits do, is asked for roots alone, with their names."""
    foreign = Foreign()
    foreign.decide = lambda name: len(foreign.asked) <= 2
    sampler = TraceSampler(foreign)
    # The last two roots are in one trace: a decision each.
    traces = [Trace(number, f"root {number}") for number in (1, 2, 3, 3)]
    kept = []
    for trace in traces:
        spans = [replace(CHILD, trace_id=trace)] * 3 + [replace(ROOT, trace_id=trace)]
        kept.append([sampler.decides(trace), *(sampler.decides(one.trace_id) for one in spans)])
    assert (kept, foreign.asked) == (
        [[True] * 5, [True] * 5, [False] * 5, [False] * 5],
        [trace.name for trace in traces],
    )
    assert threading.get_ident() not in foreign.threads


# ------------------------------------------------------------------ of an installed package


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (lambda argument: Foreign(lambda name: name == argument), None),
        (lambda argument: argument, "str"),
        (Mock(side_effect=ValueError("no such ratio")), "no such ratio"),
        (Mock(side_effect=SystemExit), "SystemExit"),
    ],
)
@pytest.mark.usefixtures("patient")
def test_one_of_an_installed_package_decides_or_is_named_and_the_default_decides(
    factory: Callable[..., Any],
    why: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = Mock(return_value=[SimpleNamespace(name="mine", load=lambda: factory)])
    monkeypatch.setattr(sampling, "entry_points", found)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "mine")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    sampler = make_sampler()
    found.assert_called_once_with(group="opentelemetry_traces_sampler", name="mine")
    asked = (Trace(1), Trace(2, "", Caller(Traceparent(2, 3, 0))), Trace(3, "0.5"))
    decisions = [sampler.decides(trace) for trace in asked]
    if why is None:
        assert (decisions, caplog.records) == ([False, False, True], [])
    else:
        assert decisions == [True, False, True]
        (text,) = caplog.messages
        assert [x for x in ("'mine'", why) if x not in text] == []
