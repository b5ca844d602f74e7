"""The line of a graph log: what it says of any rows, and what it must not say."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_otel.core.graph import Row, graph_line
from dask_otel.core.records import FinishedGraph, GraphLog, GraphWorker, RawRun, TaskRun
from tests.unit.finished import make_identity, make_span

SECONDS = st.one_of(st.sampled_from([0.0, -1.0, inf, -inf, nan, 1e300]), st.floats(0, 1e6))


def run(key: object, **about: Any) -> RawRun:
    return tuple(TaskRun(1.0, 1, key, "w", 101.0, 102.0, sent=100.5, **about))


def row(key: object, *before: object, **about: Any) -> RawRun:
    fields = {"run": run(key), "outcome": "m", "ready": None, "seceded": None, "group": 0}
    fields |= {"before": before, "priority": (0, 1, 2), "submitted": 100.0, "restriction": None}
    return tuple(Row(**{**fields, **about}))


def line(*rows: RawRun, redact: Any = None) -> dict[str, Any]:
    log = GraphLog()
    log.groups = [("fit", make_identity())]
    log.workers = (GraphWorker("w", "tcp://a", "a", 2, {}, 0.0),)
    log.rows = [*rows]
    graph = FinishedGraph(make_span(start=100.0, stop=110.0), log)
    pieces = [*graph_line(graph, redact=redact)]
    found: dict[str, Any] = json.loads("".join(pieces), parse_constant=str.upper)
    return found


@given(st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(0, 30), unique=True))))
def test_tasks_have_numbers_by_their_first_rows(graph: list[tuple[int, list[int]]]) -> None:
    found = line(*(row(key, *before) for key, before in graph))
    keys = [*dict.fromkeys(key for key, _ in graph)]
    runs = found["runs"]
    assert [keys[number] for number in runs.get("task", ())] == [key for key, _ in graph]
    outside = 0
    for index, (_, before) in enumerate(graph):
        # In a number are only tasks whose first run ended before, or this one itself.
        ended = {key for key, _ in graph[: index + 1]}
        assert {keys[number] for number in runs["before"][index]} == ended & {*before}
        outside += len({*before} - ended)
    assert found["outside"] == outside


@given(SECONDS, SECONDS, SECONDS, st.one_of(st.none(), st.integers(), st.text()))
def test_whatever_workers_report_is_json_and_no_lie(
    start: float, seconds: float, took: float, nbytes: Any
) -> None:
    odd = TaskRun(
        seconds, 1, "k", "w", start, start + seconds, 1, None, nbytes,
        parts=(("transfer", start - took, took),), sent=start,
    )  # fmt: skip
    runs = line(row("k", run=tuple(odd), seceded=took))["runs"]
    for column in ("start", "sent", "seconds", "transfer", "seceded"):
        (value,) = runs[column]
        assert value is None or isinstance(value, (int, float)), column
    assert runs["seconds"][0] is None or runs["seconds"][0] >= 0.0
    assert runs["nbytes"] == [nbytes if type(nbytes) is int else None]


def test_transfers_that_overlap_count_once() -> None:
    parts = (("transfer", 100.5, 0.4), ("transfer", 100.6, 0.2), ("disk-read", 100.9, 0.1))
    runs = line(row("k", run=run("k", parts=parts)))["runs"]
    assert (runs["transfer"], runs["disk"]) == ([0.4], [0.1])


def test_a_submission_belongs_to_all_runs_of_its_task() -> None:
    found = line(row("a", outcome="f"), row("a", submitted=None), row("b", submitted=None))
    assert found["runs"]["submission"] == [0, 0, -1]


def test_no_key_and_no_text_without_redaction() -> None:
    rows = row("secret-key"), row("secret-2", "secret-key")
    assert "secret" not in json.dumps(line(*rows))
    found = line(*rows, redact=lambda name, text: None)
    assert (found["prefixes"], found["name"]) == (["_EMPTY"], "_EMPTY")
    found = line(*rows, redact=lambda name, text: f"{name}:x")
    assert found["prefixes"] == ["dask.task.prefix:x"]
