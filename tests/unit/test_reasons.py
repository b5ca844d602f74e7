"""What is said of a task or a span that is not done, by facts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel import _wire
from dask_otel.client.asking import ask
from dask_otel.client.registration import register
from dask_otel.client.why import why
from dask_otel.core.reasons import _RULES, reasons
from dask_otel.core.text import Sanitizer, line_text, span_path, span_tags

CLUSTER = {
    "workers": 3, "deserted": False, "running_workers": 2, "idle": 1, "all_threads": 6,
    "queued": 1200, "busiest": {"load": 8, "sum": 1},
}  # fmt: skip
TASK = {
    "name": "fit-1", "seconds": 3.21, "mean": 0.5, "dependencies": 7, "waiting": 6, "waits": [],
    "places": [], "resources": [], "fitting": [], "ahead": None, "holders": ["tcp://a"],
    "wanted": False, "blame": None, "error": "ValueError('x')", "visited": 300, "found": 0,
    "depth": 0,
}  # fmt: skip
AT_WORKER = {
    "worker": "tcp://a", "status": "running", "leaving": False, "paused": False, "silent": False,
    "heartbeat": 20.0, "memory": None, "threads": 2, "busy": False, "running": {}, "longest": 60.0,
    "processing": 9, "seceded": False, "executing": False, "began": 12.5, "unheard": False,
    "remote": 0, "sources": [],
}  # fmt: skip
SPAN = {"name": "train", "states": {}, "least": "", "missing": "it has ended"}
BUSY = {"busy": True, "running": {"load": 2}}
WAITS = [
    (f"load-{i}", "processing", "tcp://a", 1.0) if i < 4 else ("sum-1", "waiting", None, None)
    for i in range(5)
]
GPU = {"resources": [("GPU", 2, 1)]}

#: State, facts, whether a task that holds it up is known, kind, and what is said.
SAID: list[tuple[str, dict[str, Any], bool, str, tuple[str, ...]]] = [
    ("unknown", {}, False, "unknown", ("no task with this key",)),
    ("span", {"states": {"processing": 2, "queued": 0, "waiting": 1000}, "least": "at least "},
     True, "unfinished", ("not done: at least 2 processing, 1,000 waiting.", "See load-1.")),
    ("span", {"states": {"waiting": 1}}, False, "unfinished", ("None of them", "client, future")),
    ("span", {"states": {"waiting": 1}, "path": {"client": 0.01, "compute": 5.0, "no_thread": 7.5},
              "since": 2.25}, True, "unfinished",
     ("1 waiting. Its path so far: no thread 7.5 s, compute 5.0 s; no task of it has ended for 2.2",
      "s. Below are")),
    ("span", {"states": {}, "path": {"client": 0.01}, "since": 1.0}, False, "no unfinished task",
     ("it has ended. Its path so far: less than 0.1 s; no task of it has ended for 1.0 s.",)),
    ("span", {"states": {"waiting": 0}}, False, "no unfinished task", ("to do: it has ended.",)),
    ("waiting", {"waits": WAITS, "found": 2, "depth": 3}, True, "dependencies",
     ("6 of 7: load-0 (processing on tcp://a for 1.0 s), ", "sum-1 (waiting), and 1 more",
      "at work: 2. The most urgent is load-1, at depth 3", "See load-1.")),
    ("waiting", {}, False, "dependencies", ("visited (300)",)),
    ("no-worker", {}, False, "no workers", ("no workers. The task has been ready for 3.2 s.",)),
    ("no-worker", {"fitting": ["tcp://a (paused)"]}, False, "workers not running",
     ("take no tasks: tcp://a (paused).",)),
    ("no-worker", {**GPU, "places": ["tcp://b", "alice"]}, False, "restrictions",
     ("(of 3)", "for 3.2 s", "a worker at tcp://b, alice and GPU = 2 (the most on a worker: 1",
      "other resources= and workers=. allow_other_workers= applies to workers= only.")),
    ("no-worker", {"places": ["tcp://b"]}, False, "restrictions",
     ("asks for a worker at tcp://b.", "with other workers=, or with allow_other_workers=True.")),
    ("no-worker", {"seconds": None}, False, "restrictions", ("it asks for a running worker",)),
    ("queued", {"ahead": 17}, False, "no free thread",
     ("for 3.2 s; tasks before it: 17; tasks in the queue: 1,200",
      "2 of 3, threads: 6", "8 of load, 1 of sum")),
    ("queued", {}, False, "no free thread", ("queue for 3.2 s; tasks in the queue: 1,200",)),
    ("queued", {}, False, "no workers", ("no workers. The task has been ready for 3.2 s.",)),
    ("queued", {"fitting": ["tcp://a (paused)", "tcp://b (silent)"]}, False,
     "workers not running", ("take no tasks: tcp://a (paused), tcp://b (silent). The task has",)),
    ("processing", {"silent": True, "leaving": True, "executing": True}, False, "worker silent",
     ("sent 3.2 s ago to tcp://a, whose last heartbeat came 20.0 s ago", "worker-ttl")),
    ("processing", {"leaving": True, "status": "closing_gracefully", "executing": True}, False,
     "worker leaving", ("which is closing_gracefully", "restart_workers")),
    ("processing", {"seceded": True, "executing": True}, False, "seceded", ("(secede)", "stack")),
    ("processing", {"executing": True, "paused": True, **BUSY}, False, "executing",
     ("executing on tcp://a for 12.5 s; tasks of this name take 0.5 s on average",)),
    ("processing", {"executing": True, "mean": None}, False, "executing", ("for 12.5 s.",)),
    ("processing", {"paused": True, "memory": (7.5 * 2**30, 2**33), **BUSY}, False, "worker paused",
     ("it uses 7.5 of 8.0 GiB",)),
    ("processing", {"paused": True}, False, "worker paused", ("its memory is full.",)),
    ("processing", {"remote": 2, "sources": ["tcp://b (silent)"], **BUSY}, False, "fetching",
     ("2 of 7, from tcp://b (silent)", "(2) execute 2 of load")),
    ("processing", BUSY, False, "worker busy",
     ("(2) execute 2 of load, the longest for 60.0 s", "worker: 9; idle workers: 1")),
    ("processing", {"unheard": True, **GPU}, False, "just sent", ("has not reported since",)),
    ("processing", GPU, False, "resources in use", ("It asks for GPU = 2",)),
    ("processing", {"seconds": None}, False, "not begun",
     ("sent to tcp://a, which has a free thread", "it is stuck: restart the worker")),
    ("memory", {}, False, "done", ("its result is on tcp://a.",)),
    ("released", {"wanted": True}, False, "released", ("about to run again",)),
    ("released", {}, False, "released", ("no client wants one",)),
    ("erred", {"blame": "load-1"}, False, "dependency failed", ("because load-1 failed: Value",)),
    ("erred", {}, False, "failed", ("It failed: ValueError('x')",)),
]  # fmt: skip


@pytest.mark.parametrize(("state", "changes", "below", "kind", "said"), SAID)
def test_what_is_said(
    state: str, changes: dict[str, Any], below: bool, kind: str, said: tuple[str, ...]
) -> None:
    base = {"unknown": {"name": "x"}, "span": SPAN, "processing": {**TASK, **AT_WORKER}}
    subject = {**base.get(state, TASK), "state": state, **changes}
    more = [{**TASK, **AT_WORKER, "name": "load-1", "state": "processing"}] if below else []
    found = reasons([subject, *more], {**CLUSTER, "deserted": kind == "no workers"})
    assert (found[0]["name"], found[0]["state"], found[0]["kind"]) == (subject["name"], state, kind)
    assert found[0]["worker"] == subject.get("worker")
    text = f"{found[0]['what']} {found[0]['next_step']}"
    assert [part for part in said if part not in text] == []
    assert not {*"{}"} & {*text}


def test_each_rule_is_shown_above() -> None:
    assert {(state, kind) for state, _, _, kind, _ in SAID} == {
        (state, kind) for state, rules in _RULES.items() for _, kind, _, _ in rules
    }


@given(st.lists(st.text(min_size=1), min_size=1))
def test_a_span_is_found_by_its_full_name(tags: list[str]) -> None:
    assert span_tags(span_path(tags, Sanitizer())) == tuple(tags)


@given(st.text() | st.binary() | st.tuples(st.text(), st.integers()))
def test_hostile_names_stay_on_a_line(name: object) -> None:
    assert line_text(name).isprintable()
    assert len(line_text(name, 100)) <= 1100


def nested(kind: type, levels: int) -> object:
    value: object = "x"
    for _ in range(levels):
        value = kind([value])
    return value


@pytest.mark.parametrize(
    "asked",
    [
        "x" * 10_001,
        ("x",) * 5000,
        nested(tuple, 101),
        nested(tuple, 50_000),
        nested(list, 50_000),
        ["x"],
        ("a", ["b"]),
        None,
    ],
    ids=["long", "wide", "deep", "deeper", "deep list", "list", "list in it", "None"],
)
def test_what_can_be_no_key_is_refused_before_it_is_sent(asked: Any) -> None:
    with pytest.raises(ValueError, match=r"is neither a key nor a span: .* Give it a future"):
        why(None, asked)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "question",
    [lambda client: asyncio.run(ask(client, _wire.why, asked=("x",))), register],
    ids=["why", "register"],
)
@pytest.mark.parametrize(
    "error",
    [
        AttributeError("Can't get attribute 'why'"),
        ModuleNotFoundError("No module named 'dask_otel'"),
    ],
)
def test_a_scheduler_that_can_not_answer_is_named(question: Any, error: Exception) -> None:
    class Client:
        scheduler = object()

        async def run_on_scheduler(self, question: object, **more: object) -> None:
            raise error

        def sync(self, call: Any, *args: object, asynchronous: object) -> object:
            return asyncio.run(call(*args))

    with pytest.raises(RuntimeError, match="the scheduler needs dask-otel, as new as here"):
        question(Client())
