"""The line of a graph log: what it says of any rows, and what it must not say."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

import pytest
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
    known = (("fit", 2.0 + at, 3.0 + at),), 1e8 + at, int(10 * at)
    return Submission(100.0 + at, priorities, ([*needs], [*needs.values()]), {}, *known)


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
    first = submitted(0.0, k=[])._replace(durations=(("fit", took, took),), bandwidth=seconds)
    recorded = log([tuple(odd)], first)
    recorded.seceded["k", start] = took
    found = line(recorded)
    for value in (*found["durations"], *found["longest"], found["scheduler"]["bandwidth"]):
        assert value is None or value >= 0.0
    runs = found["runs"]
    for column in ("start", "sent", "seconds", "transfer", "seceded"):
        (value,) = runs[column]
        assert value is None or isinstance(value, (int, float)), column
    assert runs["seconds"][0] is None or runs["seconds"][0] >= 0.0
    assert runs["nbytes"] == [nbytes if type(nbytes) is int and nbytes >= 0 else None]


OVERLAPPING = (("transfer", 100.5, 0.4), ("transfer", 100.6, 0.2), ("disk-read", 100.9, 0.1))
LIMIT = ((), (), (("gpu", 1),), False)
#: Of a scheduler that had made no task before.
NEW = log([run("a"), run("b", 1.0)], submitted(0.0, b=[]), submitted(0.5, a=[]))
NEW.parts.append(GraphPart("load", "m", [run("c", 2.0)], [submitted(2.0, c=[])]))


@pytest.mark.parametrize(
    ("of", "runs", "more"),
    [
        # Transfers that overlap count once.
        (
            log([run("k", parts=OVERLAPPING)], submitted(0.0, k=[])),
            {"transfer": [0.4], "disk": [0.1]},
            {},
        ),
        # The scheduler knew what it knew at the first submission.
        (
            NEW,
            {},
            {"durations": [2.0, None], "longest": [3.0, None]},
        ),
        # Runs of unknown tasks are left out and counted.
        (
            log([run("a"), run("b")], submitted(0.0, a=[])),
            {"task": [0]},
            {"left_out": 1, "complete": False},
        ),
        # A task is of the first of submissions at one time. The later one only needs the same
        # tasks: Dask shows it these again.
        (
            log(
                [run("a"), run("b", 1.0), run("c", 2.0)],
                submitted(0.0, a=[], b=["a"])._replace(limits={"b": LIMIT}),
                submitted(0.0, b=["a"], c=["b"]),
            ),
            {"restriction": [-1, 0, -1]},
            {},
        ),
    ],
)
def test_what_a_line_says(of: GraphLog, runs: dict[str, Any], more: dict[str, Any]) -> None:
    found = line(of)
    assert {column: found["runs"][column] for column in runs} == runs
    assert {key: found[key] for key in more} == more
    assert found["scheduler"] == {"bandwidth": 1e8, "made": 0}


def test_no_key_and_no_text_without_redaction() -> None:
    keys = submitted(0.0, **{"secret-key": [], "secret-2": ["secret-key"]})
    secret = log([run("secret-key"), run("secret-2", 1.0)], keys)
    assert "secret" not in json.dumps(line(secret))
    found = line(secret, redact=lambda name, text: None)
    assert (found["prefixes"], found["name"]) == (["_EMPTY"], "_EMPTY")
    found = line(secret, redact=lambda name, text: f"{name}:x")
    assert found["prefixes"] == ["dask.task.prefix:x"]
