"""The line of a graph log: what it says of any rows, and what it must not say."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_otel.core.graph import graph_line
from dask_otel.core.records import (
    FinishedGraph,
    GraphLog,
    GraphPart,
    GraphWorker,
    RawRun,
    Submission,
    TaskRun,
)
from tests.unit.finished import make_span

SECONDS = st.one_of(st.sampled_from([0.0, -1.0, inf, -inf, nan, 1e300]), st.floats(0, 1e6))


def run(key: object, at: float = 0.5, **about: Any) -> RawRun:
    """Return a run that was sent some seconds after the start of the root."""
    return tuple(TaskRun(1.0, 1, key, "w", 101.0, 102.0, sent=100.0 + at, **about))


def submitted(at: float, **needs: list[Any]) -> Submission:
    """Return a submission at a time after the start, with the dependencies of each task."""
    priorities = dict.fromkeys(needs, (0, at, 2))
    return Submission(100.0 + at, priorities, needs, {}, (("fit", 2.0 + at),), 1e8 + at)


def log(runs: list[RawRun], *submissions: Submission, **outcomes: list[RawRun]) -> GraphLog:
    found = GraphLog()
    found.parts = [
        GraphPart("fit", outcome, own, [*submissions])
        for outcome, own in {"m": runs, **outcomes}.items()
    ]
    found.workers = (GraphWorker("w", "tcp://a", "a", 2, {}, 0.0),)
    return found


def line(of: GraphLog, redact: Any = None) -> dict[str, Any]:
    graph = FinishedGraph(make_span(start=100.0, stop=110.0), of)
    pieces = [*graph_line(graph, redact=redact)]
    found: dict[str, Any] = json.loads("".join(pieces), parse_constant=str.upper)
    return found


@given(SECONDS, SECONDS, SECONDS, st.one_of(st.none(), st.integers(), st.text()))
def test_whatever_workers_report_is_json_and_no_lie(
    start: float, seconds: float, took: float, nbytes: Any
) -> None:
    odd = TaskRun(
        seconds, 1, "k", "w", start, start + seconds, 1, None, nbytes,
        parts=(("transfer", start - took, took),), sent=start,
    )  # fmt: skip
    first = submitted(0.0, k=[])._replace(durations=(("fit", took),), bandwidth=seconds)
    recorded = log([tuple(odd)], first)
    recorded.seceded["k", start] = took
    found = line(recorded)
    for value in (*found["durations"], found["scheduler"]["bandwidth"]):
        assert value is None or value >= 0.0
    runs = found["runs"]
    for column in ("start", "sent", "seconds", "transfer", "seceded"):
        (value,) = runs[column]
        assert value is None or isinstance(value, (int, float)), column
    assert runs["seconds"][0] is None or runs["seconds"][0] >= 0.0
    assert runs["nbytes"] == [nbytes if type(nbytes) is int else None]


def test_transfers_that_overlap_count_once() -> None:
    parts = (("transfer", 100.5, 0.4), ("transfer", 100.6, 0.2), ("disk-read", 100.9, 0.1))
    runs = line(log([run("k", parts=parts)], submitted(0.0, k=[])))["runs"]
    assert (runs["transfer"], runs["disk"]) == ([0.4], [0.1])


def test_the_scheduler_knew_what_it_knew_at_the_first_submission() -> None:
    found = line(log([run("a"), run("b", 1.0)], submitted(0.0, b=[]), submitted(0.5, a=[])))
    assert (found["durations"], found["scheduler"]["bandwidth"]) == ([2.0], 1e8)


def test_runs_of_unknown_tasks_are_left_out_and_counted() -> None:
    found = line(log([run("a"), run("b")], submitted(0.0, a=[])))
    assert (found["runs"]["task"], found["left_out"], found["complete"]) == ([0], 1, False)


def test_no_key_and_no_text_without_redaction() -> None:
    keys = submitted(0.0, **{"secret-key": [], "secret-2": ["secret-key"]})
    secret = log([run("secret-key"), run("secret-2", 1.0)], keys)
    assert "secret" not in json.dumps(line(secret))
    found = line(secret, redact=lambda name, text: None)
    assert (found["prefixes"], found["name"]) == (["_EMPTY"], "_EMPTY")
    found = line(secret, redact=lambda name, text: f"{name}:x")
    assert found["prefixes"] == ["dask.task.prefix:x"]


def test_a_task_is_of_the_first_of_submissions_at_one_time() -> None:
    limit = ((), (), (("gpu", 1),), False)
    first = submitted(0.0, a=[], b=["a"])._replace(limits={"b": limit})
    # It only needs the same tasks: Dask shows it these again.
    later = submitted(0.0, b=["a"], c=["b"])
    found = line(log([run("a"), run("b", 1.0), run("c", 2.0)], first, later))
    assert found["runs"]["restriction"] == [-1, 0, -1]
