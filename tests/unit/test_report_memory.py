"""Memory in the report, from files made by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dask_otel.report import words
from dask_otel.report.account import Account
from dask_otel.report.document import Report
from dask_otel.report.memory import layers, provided
from dask_otel.report.money import Price
from tests.unit.report_files import (
    BEGIN,
    EVIL,
    SECOND,
    Page,
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


def parts(found: Account) -> dict[str, list[float]]:
    """The layers of the picture."""
    return {part.name: [*part.values] for part in layers(found.memory)[1]}


def around(found: Account, seconds: float) -> dict[str, list[float]]:
    """The layers just before a time, and then."""
    place = layers(found.memory)[0].index(BEGIN + int(seconds * SECOND))
    return {name: values[place - 1 : place + 1] for name, values in parts(found).items()}


def holder(prefix: str, of: str = "etl", **more: str) -> dict[str, str]:
    return {"dask.span.name": of, "dask.task.prefix": prefix, **more}


def held(*points: dict[str, Any], spent: Sequence[dict[str, Any]], states: Any) -> dict[str, Any]:
    return metrics(
        level("dask.cluster.memory.usage", *states),
        level("dask.span.memory.usage", *points),
        counter("dask.span.memory.time", *spent),
    )


def in_all(value: float, *times: float) -> list[dict[str, Any]]:
    return [point(value, {"dask.memory.state": "held"}, time=time) for time in times]


WORKER = {"dask.worker.name": "alice"}
TEAMS = [holder("read", **{"dask.tag.team": team}) for team in ("red", "blue")]
HEARTBEAT = {"dask.worker.memory.usage": 3 * GIB, "dask.worker.last_seen.age": 1.5}
LOST = {**HEARTBEAT, "dask.worker.removal.reason": "lost"}
KILLED = {**LOST, "dask.worker.nanny.memory.usage": 5 * GIB}
PEAK = {
    "dask.span.worker_memory.worker.name": "alice",
    "dask.span.worker_memory.worker.time": 1.0,
}

#: Requests, a fact of their account, and its value.
FACTS: dict[str, tuple[tuple[Any, ...], Callable[[Account], object], object]] = {
    "the picture has each byte once": (
        (of_cluster(),),
        parts,
        {
            "merge in etl/join": HOLDERS["etl/join", "merge"][0],
            "read in etl/load": HOLDERS["etl/load", "read"][0],
            **{state: values for state, values in STATES.items() if state != "held"},
        },
    ),
    "results of further holders are one part": (
        (
            held(
                *(point(10.0, holder("read", f"etl/{n}"), time=time)
                  for time in TIMES for n in range(9)),
                spent=[point(10.0 - n, holder("read", f"etl/{n}"), time=20.0) for n in range(9)],
                states=in_all(90.0, *TIMES),
            ),
        ),
        parts,
        {**{f"read in etl/{n}": [10.0] * 2 for n in range(5)}, "other results": [40.0] * 2},
    ),
    "labels of the user divide no holder": (
        (
            held(
                *(point(size, team, time=time)
                  for team, sizes in zip(TEAMS, ((1.0, 5.0, 2.0, 0.0), (4.0, 0.0, 5.0, 0.0)),
                                         strict=True)
                  for time, size in zip(TIMES, sizes, strict=True)),
                spent=[point(20.0, team, time=20.0) for team in TEAMS],
                states=[
                    one
                    for time, value in zip(TIMES, (5.0, 5.0, 7.0, 0.0), strict=True)
                    for one in in_all(value, time)
                ],
            ),
        ),
        lambda found: [tuple(one) for one in found.memory.holders] if found.memory else None,
        [("etl", "read", 7.0, 7.0, 40.0)],
    ),
    "a change of hands is seen though the sum stays": (
        (
            held(
                *(point(5.0 * ((time < 4) == (prefix == "read")), holder(prefix), time=time)
                  for prefix in ("read", "merge") for time in range(1, 10)),
                spent=[point(5.0, holder(prefix)) for prefix in ("read", "merge")],
                states=in_all(5.0, *range(1, 10)),
            ),
        ),
        lambda found: around(found, 4),
        {"read in etl": [5.0, 0.0], "merge in etl": [0.0, 5.0]},
    ),
    "long runs keep their highest points": (
        (
            held(
                spent=(),
                states=[one for time in range(1, 1900)
                        for one in in_all(7e6 if time == 1234 else float(time), time)],
            ),
        ),
        lambda found: [(len(values) <= 240, max(values)) for values in parts(found).values()],
        [(True, 7e6)],
    ),
    # At a heartbeat of the span, it was fuller than at any export; or not.
    **{
        f"the figure of a worker is its largest: {share}": (
            (
                traces(
                    span(
                        1, "etl", start=3.0, seconds=9.0,
                        **{**PEAK, "dask.span.worker_memory.peak": share},
                    )
                ),
                metrics(
                    level(
                        "dask.worker.memory.usage",
                        *(point(value * GIB, WORKER, time=time)
                          for time, value in ((5, 1.0), (10, 5.0), (15, 2.0))),
                    ),
                    level("dask.worker.memory.limit", point(8.0 * GIB, WORKER)),
                ),
            ),
            lambda found: [(one.memory, one.limit, one.memory_after) for one in found.workers],
            [(memory * GIB, 8.0 * GIB, after)],
        )
        for share, memory, after in ((0.875, 7.0, 4.0), (0.5, 5.0, 10.0))
    },
    "so it is of one that was killed, by its nanny or its last heartbeat": (
        (
            logs(
                log(8.0, "", "dask.worker.removed", **WORKER, **KILLED),
                log(9.0, "", "dask.worker.removed", **LOST, **{"dask.worker.name": "bob"}),
                # It left in order.
                log(9.0, "", "dask.worker.removed", **HEARTBEAT, **{"dask.worker.name": "carl"}),
            ),
            metrics(level("dask.worker.memory.usage", point(2 * GIB, {**WORKER}, time=5))),
        ),
        lambda found: [(one.memory, one.memory_after) for one in found.workers],
        [(3 * GIB, 7.5), (None, None), (5 * GIB, 8.0)],
    ),
    **{
        f"one that left before the first export has no figures: {threads}": (
            (
                logs(
                    log(0.0, "It joined.", "dask.worker.added", **WORKER,
                        **{"dask.worker.thread.count": 4})
                ),
                metrics(
                    level("dask.worker.thread.count", point(threads, WORKER)),
                    level("dask.worker.memory.usage", point(memory or 0, WORKER)),
                    level("dask.worker.memory.spilled", point(0, WORKER)),
                ),
            ),
            lambda found: [(one.threads, one.memory, one.spilled) for one in found.workers],
            [(4.0, memory, spilled)],
        )
        for threads, memory, spilled in ((0, None, None), (4, GIB, 0.0))
    },
}  # fmt: skip


@pytest.mark.parametrize(("requests", "fact", "value"), FACTS.values(), ids=FACTS)
def test_an_account_has_what_was_held(
    requests: tuple[Any, ...], fact: Callable[[Account], object], value: object
) -> None:
    (found,) = report_of(*requests).accounts()
    assert fact(found) == value


PEAK_OF_ROOT: dict[str, Any] = {
    "dask.span.memory.peak": 4 * GIB,
    "dask.span.memory.largest.prefix": "read",
    "dask.span.memory.largest.size": 3 * GIB,
}


@pytest.mark.parametrize(
    ("own", "peak", "size"),
    [
        (PEAK_OF_ROOT, "held at most 4.0 GiB, 3.0 GiB of it (75%) by read; ", 4 * GIB),
        (
            {
                **PEAK_OF_ROOT,
                "dask.span.memory.at_peak.merge": float(GIB),
                "dask.span.memory.at_peak.read": 3.0 * GIB,
            },
            "held at most 4.0 GiB, 3.0 GiB of it (75%) by read, 1.0 GiB (25%) by merge; ",
            4 * GIB,
        ),
        # Nothing is known of what came and went between two looks.
        ({}, "", None),
    ],
)
def test_a_trace_alone_has_the_peaks_of_its_roots(
    own: dict[str, Any], peak: str, size: int | None
) -> None:
    both = {"dask.span.root.id": "id-1", "dask.span.memory.time": 60.0 * GIB, **own}
    report = report_of(traces(span(1, "etl", **both)))
    sentence = f"etl: {peak}60.0 GiB·s until its work was done."
    assert [sentence in shown for shown in (report.text(120, everything=True), report.html())] == [
        True,
        True,
    ]
    memory = report.to_dict()["runs"][0]["memory"]
    assert (memory["peak"], memory["exported"], memory["after"]) == (size, None, None)


def test_what_no_export_had_is_absent_at_the_peak() -> None:
    """Two functions of a span, which came and went between exports."""
    groups = (
        span(
            number,
            prefix,
            kind="group",
            **{"dask.span.id": "id-1", "dask.task.prefix": prefix, **own},
        )
        for number, (prefix, own) in enumerate(
            [("read", {"dask.span.memory.peak": 3 * GIB}), ("merge", {})], start=2
        )
    )
    ids = {"dask.span.id": "id-1", "dask.span.root.id": "id-1"}
    root = {**ids, "dask.span.memory.time": 60.0 * GIB, **PEAK_OF_ROOT}
    found = report_of(
        traces(span(1, "etl", **root), *groups),
        held(
            spent=[point(30.0 * GIB, holder(one), time=20.0) for one in ("read", "merge")],
            states=in_all(0.0, *TIMES),
        ),
    )
    memory = found.to_dict()["runs"][0]["memory"]
    assert memory["peak"] == 4 * GIB
    assert {one["prefix"]: (one["at_peak"], one["largest"]) for one in memory["holders"]} == {
        "read": (None, 3 * GIB),
        "merge": (None, None),
    }


def test_the_page_draws_it_and_hostile_names_stay_text() -> None:
    limits = [point(2000.0, WORKER, time=time) for time in TIMES]
    found = report_of(
        of_cluster(name=f"etl/{EVIL}"), metrics(level("dask.worker.memory.limit", *limits))
    )
    page = found.html()
    assert EVIL not in page
    (chart,) = [text for text in Page(page).packed if "unmanaged_old" in text]
    label = re.compile(r'"name":"LegendItem".*?"label":\{"type":"value","value":"(.*?)"\}')
    first, *others = label.findall(chart)
    assert others == ["read in etl/load", *[*STATES][1:], "limit"]
    assert "merge in" in first


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
    times = range(5, 101, 5)
    start = counter(
        "dask.cluster.capacity.time", *(point(float(time), time=time) for time in times)
    )
    both = (
        workers(*((time, 1.0) for time in times)),
        workers(*((time, 7.0) for time in times[-3:]), name="bob"),
    )
    found = run_of(metrics(start, *both))
    assert provided(found) == 100 * 1.0 + 15 * 7.0
    constant = next(found.metrics.of("dask.worker.memory.limit")).history()
    assert constant == [(BEGIN + time * SECOND, 1.0) for time in (5, 100)]


ETL = {"dask.span.name": "etl", "dask.span.root.name": "etl"}


def of_bill(*found: Any) -> Any:
    return metrics(
        counter("dask.cluster.time", point(36.0, {"dask.activity": "unused"})),
        counter("dask.cluster.capacity.time", point(36.0)),
        counter("dask.span.capacity.time", point(18.0, ETL)),
        counter(
            "dask.span.memory.time",
            *(point(360.0 * GIB, {**ETL, "dask.task.prefix": one}) for one in ("read", "merge")),
        ),
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
    ("unused", "capacity", "excess", "of_spans", "lines"),
    [
        # Spans took more than there was; or a sum of floats has a remainder.
        (1.0, 10.0, 0.0, 18.0, ["of no span -8.00 s -8.00 EUR 1.00 EUR"]),
        (1.0, 18.0 - 4e-15, 0.0, 18.0, ["of no span <1 ms 0.000000 EUR 1.00 EUR"]),
        # It is no less than its parts.
        (
            *(4.0, 10.0, 3.0, 9.0),
            [
                "of no span 4.00 s 4.00 EUR 4.00 EUR",
                "booked beyond the threads -3.00 s -3.00 EUR",
                "all 10.0 s 10.00 EUR",
            ],
        ),
    ],
)
def test_what_no_span_has_closes_the_sum(
    unused: float, capacity: float, excess: float, of_spans: float, lines: list[str]
) -> None:
    found = metrics(
        counter("dask.cluster.time", point(unused, {"dask.activity": "unused"})),
        counter("dask.cluster.capacity.time", point(capacity)),
        counter("dask.cluster.excess.time", point(excess)),
        counter("dask.span.capacity.time", point(of_spans, ETL)),
    )
    shown = priced(found, price=3600.0, memory=0.0)
    said = [" ".join(one.split()) for one in shown.text().splitlines()]
    place = said.index(f"etl {words.seconds(of_spans)} {of_spans:.2f} EUR") + 1
    assert said[place : place + len(lines)] == lines
    costs = shown.to_dict()["runs"][0]["cost"]
    assert (costs["unused"], costs["excess"] or 0.0) == (unused, excess)
