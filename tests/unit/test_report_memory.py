"""Memory in the report, from files made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dask_otel.report.account import Account
from dask_otel.report.document import Report
from dask_otel.report.memory import layers, provided
from dask_otel.report.money import Price
from tests.unit.report_files import (
    BEGIN,
    EVIL,
    SECOND,
    counter,
    level,
    log,
    logs,
    metrics,
    point,
    report_of,
    run_of,
    span,
    traces,
)
from tests.unit.test_report_page import _Page

GIB = 1 << 30
#: By state of the cluster's memory: its bytes at 5, 10, 15 and 20 seconds.
STATES = {
    "held": [100, 700, 900, 300],
    "scattered": [0, 50, 50, 50],
    "replica": [0, 0, 200, 0],
    "unmanaged_old": [70, 70, 70, 70],
    "unmanaged_recent": [30, 30, 40, 30],
    "unaccounted": [0, 0, 20, -150],
}
#: By span and function: the same of results, and bytes over time.
HOLDERS = {
    ("etl/load", "read"): ([100, 600, 100, 0], 3000.0),
    ("etl/join", "merge"): ([0, 100, 800, 300], 9000.0),
}
TIMES = (5.0, 10.0, 15.0, 20.0)


def levels(name: str, values: Sequence[float], labels: dict[str, str]) -> dict[str, Any]:
    return level(name, *(point(v, labels, time=t) for t, v in zip(TIMES, values, strict=True)))


def of_cluster(*, name: str = "etl/join") -> dict[str, Any]:
    """The memory of a cluster, in which one span has this name."""
    found = [
        levels("dask.cluster.memory.usage", values, {"dask.memory.state": state})
        for state, values in STATES.items()
    ]
    for (of, prefix), (values, spent) in HOLDERS.items():
        own = {"dask.span.name": name if of == "etl/join" else of, "dask.task.prefix": prefix}
        found.append(levels("dask.span.memory.usage", values, own))
        found.append(counter("dask.span.memory.time", point(spent, own, time=20.0)))
    return metrics(*found)


def account(*requests: Any) -> Account:
    (found,) = report_of(*requests).accounts()
    return found


def test_the_picture_has_each_byte_once() -> None:
    found = account(of_cluster())
    times, parts = layers(found.memory)
    assert len(times) == 4
    sums = [sum(part.values[place] for part in parts) for place in range(4)]
    assert sums == [sum(values) for values in zip(*STATES.values(), strict=True)]
    assert [part.name for part in parts] == [
        "merge in etl/join",
        "read in etl/load",
        *[*STATES][1:],
    ]
    assert parts[0].values == HOLDERS["etl/join", "merge"][0]


def test_results_of_further_holders_are_one_part() -> None:
    labels = [{"dask.span.name": f"etl/{n}", "dask.task.prefix": "read"} for n in range(9)]
    usage = [point(10.0, one, time=time) for time in TIMES for one in labels]
    spent = [point(10.0 - n, one, time=20.0) for n, one in enumerate(labels)]
    states = [point(90.0, {"dask.memory.state": "held"}, time=time) for time in TIMES]
    found = account(
        metrics(
            level("dask.cluster.memory.usage", *states),
            level("dask.span.memory.usage", *usage),
            counter("dask.span.memory.time", *spent),
        )
    )
    _, parts = layers(found.memory)
    assert {part.name: part.values[0] for part in parts} == {
        **{f"read in etl/{number}": 10.0 for number in range(5)},
        "other results": 40.0,
    }


def test_labels_of_the_user_divide_no_holder() -> None:
    own = {"dask.span.name": "etl", "dask.task.prefix": "read"}
    teams = [{**own, "dask.tag.team": team} for team in ("red", "blue")]
    sizes = zip(TIMES, (1.0, 5.0, 2.0, 0.0), (4.0, 0.0, 5.0, 0.0), strict=True)
    usage = [
        point(size, of, time=time)
        for time, *each in sizes
        for of, size in zip(teams, each, strict=True)
    ]
    found: Any = account(
        metrics(
            levels("dask.cluster.memory.usage", (5, 5, 7, 0), {"dask.memory.state": "held"}),
            level("dask.span.memory.usage", *usage),
            counter("dask.span.memory.time", *(point(20.0, one, time=20.0) for one in teams)),
        )
    ).memory
    assert [tuple(one) for one in found.holders] == [("etl", "read", 7.0, 7.0, 40.0)]


def test_a_change_of_hands_is_seen_though_the_sum_stays() -> None:
    own = [{"dask.span.name": "etl", "dask.task.prefix": one} for one in ("read", "merge")]
    times = range(1, 10)
    found = account(
        metrics(
            level(
                "dask.cluster.memory.usage",
                *(point(5.0, {"dask.memory.state": "held"}, time=time) for time in times),
            ),
            level(
                "dask.span.memory.usage",
                *(point(5.0 * (time < 4), own[0], time=time) for time in times),
                *(point(5.0 * (time >= 4), own[1], time=time) for time in times),
            ),
            counter("dask.span.memory.time", *(point(5.0, one) for one in own)),
        )
    )
    when, parts = layers(found.memory)
    changed = when.index(BEGIN + 4 * SECOND)
    assert {part.name: part.values[changed - 1 : changed + 1] for part in parts} == {
        "read in etl": [5.0, 0.0],
        "merge in etl": [0.0, 5.0],
    }


def test_long_runs_keep_their_highest_points() -> None:
    states = [
        point(7e6 if time == 1234 else float(time), {"dask.memory.state": "held"}, time=time)
        for time in range(1, 1900)
    ]
    found = account(metrics(level("dask.cluster.memory.usage", *states)))
    times, (part,) = layers(found.memory)
    assert (len(times) <= 240, max(part.values)) == (True, 7e6)


@pytest.mark.parametrize(
    ("share", "memory", "after"),
    # At a heartbeat of the span, it was fuller than at any export; or not.
    [(0.875, 7.0 * GIB, 4.0), (0.5, 5.0 * GIB, 10.0)],
)
def test_the_figure_of_a_worker_is_its_largest(share: float, memory: float, after: float) -> None:
    worker = {"dask.worker.name": "alice"}
    usage = [point(value * GIB, worker, time=t) for t, value in ((5, 1.0), (10, 5.0), (15, 2.0))]
    own: dict[str, Any] = {
        "dask.span.worker_memory.peak": share,
        "dask.span.worker_memory.worker.name": "alice",
        "dask.span.worker_memory.worker.time": 1.0,
    }
    found = account(
        traces(span(1, "etl", start=3.0, seconds=9.0, **own)),
        metrics(
            level("dask.worker.memory.usage", *usage),
            level("dask.worker.memory.limit", point(8.0 * GIB, worker)),
        ),
    )
    (known,) = found.workers
    assert (known.memory, known.limit, known.memory_after) == (memory, 8.0 * GIB, after)


@pytest.mark.parametrize(("threads", "memory", "spilled"), [(0, None, None), (4, GIB, 0.0)])
def test_a_worker_that_left_before_the_first_export_has_no_figures(
    threads: int, memory: float | None, spilled: float | None
) -> None:
    worker = {"dask.worker.name": "alice"}
    sizes = {"thread.count": threads, "memory.usage": memory or 0, "memory.spilled": 0}
    found = account(
        logs(
            log(0.0, "It joined.", "dask.worker.added", **worker, **{"dask.worker.thread.count": 4})
        ),
        metrics(*(level(f"dask.worker.{one}", point(n, worker)) for one, n in sizes.items())),
    )
    (known,) = found.workers
    assert (known.threads, known.memory, known.spilled) == (4.0, memory, spilled)


def test_a_trace_alone_has_the_peaks_of_its_roots() -> None:
    own: dict[str, Any] = {
        "dask.span.root.id": "id-1",
        "dask.span.memory.peak": 4 * GIB,
        "dask.span.memory.time": 60.0 * GIB,
        "dask.span.memory.largest.prefix": "read",
        "dask.span.memory.largest.size": 3 * GIB,
    }
    report = report_of(traces(span(1, "etl", **own)))
    peak = "etl: held at most 4.0 GiB, 3.0 GiB of it (75%) by read"
    sentence = f"{peak}; 60.0 GiB·s until its work was done."
    assert sentence in report.text(120, everything=True)
    assert sentence in report.html()
    # Nothing is known of what came and went between two looks.
    unknown = {key: own[key] for key in ("dask.span.root.id", "dask.span.memory.time")}
    shown = report_of(traces(span(1, "etl", **unknown))).text(120, everything=True)
    assert "etl: 60.0 GiB·s until its work was done." in shown


def test_what_was_not_exported_is_absent() -> None:
    report = report_of(traces(span(1, "etl")))
    assert "memory" not in report.to_dict()["runs"][0]
    assert "Memory" not in report.text(120, everything=True)
    assert "<h2>Memory</h2>" not in report.html()


def test_the_page_draws_it_and_hostile_names_stay_text() -> None:
    worker = {"dask.worker.name": "alice"}
    limits = [point(2000.0, worker, time=time) for time in TIMES]
    request = of_cluster(name=f"etl/{EVIL}")
    found = report_of(request, metrics(level("dask.worker.memory.limit", *limits)))
    page = found.html()
    assert EVIL not in page
    (chart,) = [text for text in _Page(page).packed if "unmanaged_old" in text]
    legends = [
        one["attributes"]["label"]["value"]
        for one in _objects(json.loads(chart))
        if one.get("name") == "LegendItem"
    ]
    assert legends[1:] == ["read in etl/load", *[*STATES][1:], "limit"]
    assert "merge in" in legends[0]


def _objects(item: Any) -> list[dict[str, Any]]:
    inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    own = [item] if isinstance(item, dict) else []
    return own + [one for each in inner for one in _objects(each)]


def priced(*requests: Any, price: float, memory: float) -> Report:
    return replace(report_of(*requests), price=Price(price, "EUR", memory))


def workers(*points: tuple[float, float], name: str = "alice", what: str = "limit") -> Any:
    """Bytes of a worker at some times."""
    of = {"dask.worker.name": name}
    return level(
        f"dask.worker.memory.{what}", *(point(value, of, time=time) for time, value in points)
    )


@pytest.mark.parametrize(
    ("found", "byte_seconds"),
    [
        # It was there from the start; a figure is that of the time before.
        ([workers((5, 8.0), (10, 8.0))], 80.0),
        # It came before the second export, and left before the fourth.
        (
            [workers((5, 1.0), (20, 1.0)), workers((10, 7.0), (15, 7.0), (20, 0.0), name="bob")],
            90.0,
        ),
        # It was away.
        ([workers((5, 8.0), (10, 0.0), (20, 8.0)), workers((5, 1.0), (15, 1.0), name="bob")], 95.0),
        # Without a limit, its process counts.
        ([workers((5, 3.0), (10, 4.0), what="usage")], 35.0),
        ([workers((5, 3.0), what="usage"), workers((5, 9.0))], 45.0),
        ([workers((5, 3.0), what="managed")], None),
    ],
)
def test_what_workers_had(found: list[Any], byte_seconds: float | None) -> None:
    start = counter("dask.cluster.capacity.time", point(1.0, time=5.0))
    assert provided(run_of(metrics(start, *found))) == byte_seconds


def test_a_worker_that_comes_late_counts_from_the_export_before() -> None:
    """Whatever else stayed the same meanwhile."""
    exports = [point(float(time), time=time) for time in range(5, 101, 5)]
    stays = workers(*((time, 1.0) for time in range(5, 101, 5)))
    late = workers(*((time, 7.0) for time in range(90, 101, 5)), name="bob")
    found = run_of(metrics(counter("dask.cluster.capacity.time", *exports), stays, late))
    assert provided(found) == 100 * 1.0 + 15 * 7.0
    (constant, _) = (series.history() for series in found.metrics.of("dask.worker.memory.limit"))
    assert constant == [(BEGIN + time * SECOND, 1.0) for time in (5, 100)]


def of_bill(*found: Any) -> Any:
    names = {"dask.span.name": "etl", "dask.span.root.name": "etl"}
    held = [{**names, "dask.task.prefix": one} for one in ("read", "merge")]
    return metrics(
        counter("dask.cluster.time", point(36.0, {"dask.activity": "unused"})),
        counter("dask.cluster.capacity.time", point(36.0)),
        counter("dask.span.capacity.time", point(18.0, names)),
        counter("dask.span.memory.time", *(point(360.0 * GIB, one) for one in held)),
        *found,
    )


def test_a_cost_is_of_threads_and_of_memory() -> None:
    found = priced(of_bill(workers((10, 360.0 * GIB))), price=100.0, memory=10.0)
    costs = found.to_dict()["runs"][0]["cost"]
    # 0.01 thread-hours and 1 GiB-hour; half of the threads' time, and a fifth of the memory.
    assert (costs["capacity"], costs["memory_time"]) == (1.0 + 10.0, 3600.0 * GIB)
    ((cost, of_no_span),) = [(one["cost"], costs["of_no_span"]) for one in costs["roots"]]
    assert (cost, of_no_span) == (0.5 + 2.0, 0.5 + 8.0)
    shown = found.text(100).partition("What it cost\n")[2].splitlines()
    assert [" ".join(line.split()) for line in shown] == [
        "root span thread-time cost idle or unused for memory",
        "etl 18.0 s 2.50 EUR 2.00 EUR",
        "of no span 18.0 s 8.50 EUR 1.00 EUR 8.00 EUR",
        "all 36.0 s 11.00 EUR 10.00 EUR",
    ]
    page = found.html()
    assert "and 10 EUR a GiB-hour of the workers’ memory" in page
    assert [shown in page for shown in ("11.00 EUR", "8.50 EUR", "2.50 EUR")] == [True] * 3
    assert ("11.00 EUR", "cost", "") in found.accounts()[0].figures()


def test_a_cost_without_the_memory_of_workers_is_that_of_threads() -> None:
    found = priced(of_bill(), price=100.0, memory=10.0)
    costs = found.to_dict()["runs"][0]["cost"]
    assert (costs["capacity"], costs["memory_time"], costs["price_memory"]) == (1.0, None, None)
    assert [one["cost"] for one in costs["roots"]] == [0.5]
    assert "GiB-hour" not in found.html()


@pytest.mark.parametrize(
    ("capacity", "row"),
    [
        (10.0, "of no span -8.00 s -0.2222 EUR"),
        # What is left of a sum of floats.
        (18.0 - 4e-15, "of no span <1 ms 0.000000 EUR"),
    ],
)
def test_what_no_span_has_is_negative_if_spans_took_more_than_there_was(
    capacity: float, row: str
) -> None:
    names = {"dask.span.name": "etl", "dask.span.root.name": "etl"}
    found = metrics(
        counter("dask.cluster.time", point(1.0, {"dask.activity": "unused"})),
        counter("dask.cluster.capacity.time", point(capacity)),
        counter("dask.span.capacity.time", point(18.0, names)),
    )
    lines = [
        " ".join(one.split()) for one in priced(found, price=100.0, memory=0.0).text().splitlines()
    ]
    assert [line for line in lines if line.startswith(row)]


def test_what_no_span_has_is_no_less_than_its_parts() -> None:
    names = {"dask.span.name": "etl", "dask.span.root.name": "etl"}
    found = metrics(
        counter("dask.cluster.time", point(4.0, {"dask.activity": "unused"})),
        counter("dask.cluster.capacity.time", point(10.0)),
        counter("dask.cluster.excess.time", point(3.0)),
        counter("dask.span.capacity.time", point(9.0, names)),
    )
    shown = priced(found, price=3600.0, memory=0.0)
    lines = [" ".join(one.split()) for one in shown.text().splitlines()]
    assert lines[lines.index("etl 9.00 s 9.00 EUR") + 1 :][:3] == [
        "of no span 4.00 s 4.00 EUR 4.00 EUR",
        "booked beyond the threads -3.00 s -3.00 EUR",
        "all 10.0 s 10.00 EUR",
    ]
    costs = shown.to_dict()["runs"][0]["cost"]
    assert (costs["of_no_span"], costs["unused"], costs["excess"]) == (4.0, 4.0, 3.0)
