"""Graph logs against what the program did, by the laboratory's own truth."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from lab.truth import Truth

from dask_otel.core.graph import graph_line, with_tasks
from dask_otel.core.path.step import KEY
from dask_otel.core.records import FinishedGraph, FinishedSpan

#: A run: its key, its outcome, its worker's address, compute seconds, and the tasks before it.
Told = tuple[Hashable, str, str | None, float | None, frozenset[Hashable]]


def decoded(span: FinishedSpan) -> tuple[dict[str, Any], list[Hashable]]:
    """Return the line of an exported root, and the keys of its tasks by their numbers."""
    assert span.graph is not None
    pieces = [*graph_line(FinishedGraph(span, span.graph))]
    assert pieces[-1].endswith("\n")
    line = json.loads("".join(pieces))
    return line, [*dict.fromkeys(run[KEY] for run, _, _ in with_tasks(span.graph, bool))]


def told(spans: Iterable[FinishedSpan]) -> Iterator[Told]:
    """Yield the runs of graph logs."""
    for span in spans:
        if span.graph is None:
            continue
        line, keys = decoded(span)
        assert line["complete"] is span.complete
        runs = line["runs"]
        assert len({len(column) for column in runs.values()}) == 1
        for index, task in enumerate(runs["task"]):
            number = runs["worker"][index]
            yield (
                keys[task],
                runs["outcome"][index],
                span.graph.workers[number].address if number >= 0 else None,
                runs["seconds"][index],
                frozenset(keys[one] for one in runs["before"][index]),
            )


def happened(truth: Truth) -> Iterator[Told]:
    """Yield the runs with a result that the scheduler was told of, with all that they needed."""
    workers: dict[Hashable, str | None] = {}
    for move in truth.moves:
        if move.finish == "processing" and move.worker is not None:
            workers[move.key] = move.worker
        computed = [one for one in move.activities if one["action"] == "compute"]
        if (move.start, move.finish) == ("processing", "memory") and computed:
            # A worker reports those of earlier runs, too.
            seconds = round(computed[-1]["stop"] - computed[-1]["start"], 6)
            known = seconds if seconds >= 0.0 else None
            yield move.key, "m", workers.get(move.key), known, frozenset(move.needs)


def compare(spans: Iterable[FinishedSpan], truth: Truth) -> None:
    """Compare all runs with a result; a log may lack a dependency of another root."""
    found = [one for one in told(spans) if one[1] == "m"]
    real = [*happened(truth)]
    known, true = Counter(one[:4] for one in found), Counter(one[:4] for one in real)
    assert known == true, (known - true, true - known)
    needs = {(*one[:4],): one[4] for one in real}
    assert all(one[4] <= needs[one[:4]] for one in found)
