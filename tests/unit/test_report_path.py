"""What bounded a run: the report's bar and chain, from the attributes of spans."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

import pytest

from dask_otel.report.history.difference import compare
from dask_otel.report.page.payload import timeline
from dask_otel.semconv import PATH_PARTS
from tests.unit.report_files import report_of, run_of, span, traces

TITLE = "Where the duration went"


def bounded(
    number: int, name: str, parts: dict[str, float], *, threads: float = 0.0, **more: Any
) -> dict[str, Any]:
    """A span with a path, whose duration is the sum of its parts."""
    bounds = {"dask.span.path.bound.chain.time": parts.get("compute", 0.0)}
    return span(
        number,
        name,
        seconds=sum(parts.values()),
        dask_span_path_tasks=2,
        **{f"dask.span.path.{part}.time": seconds for part, seconds in parts.items()},
        **bounds,
        **({"dask.span.path.bound.threads.time": threads} if threads else {}),
        **({} if "/" in name else {"dask.span.root.id": f"id-{number}"}),
        **more,
    )


def link(number: int, owner: int, prefix: str, end: float, **parts: float) -> dict[str, Any]:
    """A task on the path of a span, that ended at a time."""
    path = {f"dask.task.path.{part}.time": seconds for part, seconds in parts.items()}
    return span(
        number,
        f"{prefix} task",
        kind="task",
        parent=owner,
        start=end - parts.get("compute", 0.0) - parts.get("report", 0.0),
        seconds=parts.get("compute", 0.0),
        **{"dask.span.id": f"id-{owner}", "dask.task.on_path": True, "dask.task.prefix": prefix},
        **{"dask.task.key": f"{prefix}-{number}", "dask.worker.name": "w1", **path},
    )


TRAIN = (
    bounded(1, "train", {"compute": 41.0, "no_thread": 9.0, "client": 2.0}, threads=30.0),
    *(link(number, 1, "fit", number * 2.5, compute=2.5) for number in range(2, 16)),
    link(16, 1, "sum", 46.0, compute=6.0),
)
LOAD = (
    bounded(20, "load", {"no_thread": 31.0, "compute": 9.0}, threads=36.0),
    link(21, 20, "read", 40.0, no_thread=31.0, compute=9.0),
)


def test_the_bar_has_the_roots_and_the_functions_of_all() -> None:
    found = report_of(traces(*TRAIN, *LOAD, bounded(30, "train/b", {"compute": 1.0}, parent=1)))
    (told,) = (one["path"] for one in found.to_dict()["runs"])
    assert (told["seconds"], told["parts"]["no_thread"]) == (92.0, 40.0)
    functions = {one["name"]: one["functions"] for one in told["spans"]}
    assert (functions["train"]["fit"], functions["load"]) == (
        {"tasks": 14, "seconds": 35.0},
        {"read": {"tasks": 1, "seconds": 40.0}},
    )
    text = found.text(80, everything=True)
    bar, functions_of = r"  Computing +50\.0 s +54%", r" +35\.0 s  14 tasks of fit in train"
    assert re.search(rf"{TITLE}(?s:.*)\n{bar}(?s:.*)\n{functions_of}(?s:.*)\nSpans", text)
    page = rf"{TITLE}(?s:.*)54%</b> Computing(?s:.*)Tasks on the path"
    assert re.search(page, found.html())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    "own", [{}, {"dask.span.path.compute.time": -1.0}, {"dask.span.path.compute.time": 0.0}]
)
def test_without_a_path_there_is_no_section(own: dict[str, float]) -> None:
    root = traces(span(1, "etl", **{"dask.span.root.id": "id-1"}, **own))
    found = report_of(root)
    assert found.to_dict()["runs"][0]["path"] is None
    assert TITLE not in found.text(everything=True) + found.html()
    (name,) = compare([run_of(root)], [run_of(traces(bounded(1, "etl", {"compute": 9.0})))]).names
    assert (name.path, name.steps[0].path_in_words()) == ({}, "")


def test_a_comparison_says_which_part_and_function_moved() -> None:
    before = traces(*LOAD, bounded(1, "same", {"compute": 1.0}))
    after = traces(
        bounded(20, "load", {"no_thread": 1.0, "compute": 9.5}),
        link(21, 20, "read", 10.5, no_thread=1.0, compute=9.5),
        bounded(1, "same", {"compute": 1.01}),
    )
    found = report_of(after).compared_with(report_of(before))
    said = "path: -30.0 s no free thread, +500 ms computing, -29.5 s in read"
    assert [text.count(said) for text in (found.text(120), found.html())] == [1, 1]
    assert found.text(120).count("    path: ") == 1
    names = {one["name"]: one["path"] for one in found.to_dict()["comparison"]["names"]}
    assert names["load"]["read"] == {"no_thread": -30.0, "compute": 0.5}
    assert sum(names["load"][""].values()) == pytest.approx(0.0)


def test_the_links_of_the_chain_lead_to_the_rows_of_their_tasks() -> None:
    packed = timeline(run_of(traces(*TRAIN[:2], *LOAD)))["packed"]
    data = json.loads(gzip.decompress(base64.b64decode(packed)))
    named = {
        data["rows"][row][3]: (lane, end, {*zip(PATH_PARTS, parts, strict=True)})
        for row, lane, end, parts in data["path"]
    }
    assert (named.keys(), len({lane for lane, *_ in named.values()})) == ({"fit-2", "read-21"}, 2)
    _, end, parts = named["read-21"]
    assert end == 40.0
    assert {one for one in parts if one[1]} == {("no_thread", 31.0), ("compute", 9.0)}


def test_a_comparison_says_which_other_cause_there_is() -> None:
    before, after = (
        report_of(traces(bounded(1, "load", parts)))
        for parts in ({"no_thread": 30.0, "compute": 9.0}, {"client": 5.0, "compute": 1.0})
    )
    said = (
        "cause: threads: load waited for a free thread: doubling the threads can save "
        "about 30.0 s of 39.0 s before; client: load waited 5.00 s of 6.00 s for its client after"
    )
    (name,) = compare(before.runs, after.runs).names
    assert said in name.beside
    (same,) = compare(before.runs, before.runs).names
    assert same.beside == []
