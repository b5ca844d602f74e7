"""The text of the report: the trees, the table of activities, and how numbers are written."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dask_otel.core.diagnosis.decision import Diagnosis
from dask_otel.report import words
from dask_otel.report.account import Account, account
from dask_otel.report.text import _SECTIONS, Sheet, plain, run_lines
from tests.unit.report_files import counter, metrics, point, report_of, run_of, span, traces

FAILURE = ("exception", {"exception.type": "ValueError", "exception.message": "no\nconvergence"})


def account_of(*requests: Any) -> Account:
    return account(run_of(*requests))


def section(title: str, found: Account, width: int, everything: bool = True) -> list[str]:
    """The lines of one section, without its title."""
    *lines, _ = [*plain(run_lines(found, Sheet(width, everything))), *("", "Spans")]
    begin = lines.index(title) + 1
    titles = (number for number in range(begin, len(lines)) if lines[number] in _SECTIONS)
    lines = lines[begin : next(titles, len(lines)) - 1]
    assert [line for line in lines if words.fit(line, width).rstrip() != line] == []
    return lines


def tree(width: int, *spans: dict[str, Any], everything: bool = True) -> list[str]:
    lines = section("Spans", account_of(traces(*spans)), width, everything)
    assert (lines[0] == "Trace " + "ab" * 16) == everything
    return lines[everything:]


WORKFLOW = (
    # Children first, as they settle first.
    span(2, "Alice/data load", parent=1, seconds=4, dask_span_queue_time=0.25,
         dask_task_count=1200, dask_span_result="success"),
    span(3, "Alice/training", parent=1, start=4, seconds=6, failed=True, events=(FAILURE,) * 2,
         dask_span_queue_time=0.004, dask_task_count=3, dask_span_result="failure"),
    span(4, "read_parquet tasks", parent=2, start=0.5, seconds=3, kind="group",
         dask_task_count=1200),
    span(1, "Alice", seconds=10, failed=True, dask_task_count=1203, dask_span_result="failure"),
)  # fmt: skip

AT_60 = """\
span                                      duration  tasks
Alice                                       10.0 s  1,203 ✗
├── data load                               4.00 s  1,200 ✓
│   └── read_parquet tasks                  3.00 s  1,200
└── training                                6.00 s      3 ✗
    └── ✗ ValueError: no convergence (and 1 more)"""
AT_80 = """\
span                                  duration  timeline                tasks
Alice                                   10.0 s  ██████████████████████  1,203 ✗
├── data load                           4.00 s  █████████·············  1,200 ✓
│   └── read_parquet tasks              3.00 s  ·███████··············  1,200
└── training                            6.00 s  ·········█████████████      3 ✗
    └── ✗ ValueError: no convergence (and 1 more)"""
AT_100_IN_ASCII = """\
span                               duration  timeline                    queue   tasks  result
Alice                                10.0 s  ########################            1,203  failure
+-- data load                        4.00 s  ##########..............   250 ms   1,200  success
|   `-- read_parquet tasks           3.00 s  .#######................            1,200
`-- training                         6.00 s  ..........##############     4 ms       3  failure
    `-- x ValueError: no convergence (and 1 more)"""


@pytest.mark.parametrize(
    ("width", "adapted", "shown"),
    [(60, str, AT_60), (80, str, AT_80), (100, words.in_ascii, AT_100_IN_ASCII)],
)
def test_a_trace_is_a_tree(width: int, adapted: Callable[[str], str], shown: str) -> None:
    assert adapted("\n".join(tree(width, *WORKFLOW))) == shown


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({"dask_span_result": "cancellation"}, "root (cancellation) "),
        ({"dask_span_result": "unknown"}, "root (unknown) "),
        ({"dask_span_complete": False, "dask_span_result": "error"}, "root (incomplete) "),
        ({"dask_span_generation": 2}, "root (continued, 2) "),
        # Its parent is not there.
        ({"parent": 7}, "root "),
    ],
)
def test_a_span_says_what_a_mark_does_not(more: dict[str, Any], shown: str) -> None:
    assert tree(80, span(1, "root", **more))[1].startswith(shown)


def test_a_repr_of_an_exception_does_not_repeat_its_type() -> None:
    inner = {"exception.type": "shop.BadData", "exception.message": "BadData('no')"}
    shown = tree(80, span(1, failed=True, events=(("exception", inner),)))
    assert shown[2:] == ["└── ✗ BadData('no')"]


def task(number: int, key: str, *, parent: int = 2, **more: Any) -> dict[str, Any]:
    return span(number, "load task", parent=parent, kind="task", dask_task_key=key,
                dask_task_prefix="load", **more)  # fmt: skip


def test_failed_and_slow_tasks_are_shown_below_their_group() -> None:
    lines = tree(
        120,
        span(1, "root", seconds=9, dask_task_count=12),
        span(2, "load tasks", parent=1, seconds=9, kind="group", dask_task_count=12),
        task(10, "('load-0123456789abcdef', 3)", start=1, seconds=7, dask_task_queue_time=0.5),
        task(11, "load-x", start=1, seconds=3),
        task(12, "('load-0123456789abcdef', 0, 7)", start=2, failed=True, events=(FAILURE,)),
    )
    assert [re.sub("[·█ ]+", " ", line).strip() for line in lines[2:]] == [
        "└── load tasks 9.00 s 12",
        "├── load (3) 7.00 s 500 ms",
        "├── load (0, 7) 1.00 s failure",
        "└── 1 more task span",
    ]


def test_a_cure_that_saves_nothing_in_a_replay_has_its_figure() -> None:
    first, bound, vain = (
        Diagnosis("threads", "a", 0.0, "a waited", "", "", experiment=one)
        for one in (None, None, "more threads")
    )
    found = replace(account_of(traces(span(1, "a"))), diagnoses=[first, bound, vain])
    lines = section("Other causes, and what their cures can save", found, 80, False)
    assert lines == ["            a waited", "       0 s  a waited (measured by replay)"]


def names(lines: list[str]) -> list[str]:
    return [line.split("──")[-1].split("  ")[0].strip() for line in lines[1:]]


GROUPS = [
    span(10 + n, f"g{n}", parent=1, seconds=n + 1, kind="group", dask_task_count=1)
    for n in range(6)
]


@pytest.mark.parametrize(
    ("below", "shown"),
    [
        (GROUPS, ["g2", "g3", "g4", "g5", "2 more task groups"]),
        # The only task of a group says what its group says, unless it failed.
        ([GROUPS[0], task(3, "load-x", parent=10)], ["g0"]),
        ([GROUPS[0], task(3, "load-x", parent=10, failed=True)], ["g0", "load-x"]),
        ([task(3, "load-x", parent=1)], ["load-x"]),
    ],
)
def test_the_largest_groups_and_tasks_are_shown(
    below: list[dict[str, Any]], shown: list[str]
) -> None:
    assert names(tree(80, span(1, "root", seconds=9), *below)) == ["root", *shown]


def test_the_short_tree_has_the_longest_spans_directly_below_the_root() -> None:
    steps = [span(20 + n, f"s{n}", parent=1, seconds=n + 1) for n in range(10)]
    steps[0]["status"] = {"code": 2}
    below = span(40, "inner", parent=29)
    lines = tree(80, span(1, "root", seconds=11), *steps, *GROUPS, below, everything=False)
    assert names(lines) == ["root", "s0", *(f"s{n}" for n in range(3, 10)), "2 more spans"]


@pytest.mark.parametrize("text", ["x" * 300, "日本語" * 60, "a\x1b[31mb\x00\n\r\t" * 30, ""])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_hostile_names_and_keys_keep_the_columns(text: str, width: int) -> None:
    _, *lines = tree(width, span(1, text), task(2, text, parent=1))
    assert [(line.isprintable(), "1.00 s" in line) for line in lines] == [(True, True)] * 2


def test_large_traces_end_where_there_is_no_room() -> None:
    tasks = [task(10 + n, f"load-{n}") for n in range(50)]
    wide = tree(80, span(1, "root"), span(2, "load tasks", parent=1, kind="group"), *tasks)
    deep = tree(80, *(span(n, f"s{n}", parent=n - 1) for n in range(1, 1100)))
    assert wide[-1].endswith("48 more task spans")
    assert 5 < len(deep) < 20


# ---------------------------------------------------------------------------- activities


def of_spans(*found: tuple[str, str, float], name: str = "dask.span.execute.time") -> Any:
    labels = ("dask.span.name", "dask.activity")
    return metrics(
        counter(name, *(point(value, dict(zip(labels, of, strict=True))) for *of, value in found))
    )


RECORDED = (
    traces(
        span(1, "Alice/training", start=0),
        span(2, "Alice/data load", start=1),
    ),
    of_spans(
        ("Alice/data load", "thread-cpu", 6.0),
        ("Alice/data load", "thread-noncpu", 1.99),
        ("Alice/data load", "disk-read", 0.005),
        ("Alice/data load", "deserialize", 0.005),
        ("Alice/training", "thread-cpu", 1.0),
    ),
    of_spans(("Alice/data load", "p2p-shards", 3 << 20), name="dask.span.execute.io"),
    of_spans(("Alice/training", "idle", 1.0), name="dask.span.idle.time"),
)

TABLE_AT_80 = """\
span and activity             time share         meaning

all spans                   10.0 s
  thread-cpu                7.00 s   70%  ████   computing
  thread-noncpu             1.99 s   20%  █      waiting: I/O, GIL, GPU, core
  idle                      1.00 s   10%  ▌      free threads despite work
  2 small ones               10 ms    0%  ▌
  p2p-shards                                     3.0 MiB

Alice/data load             8.00 s
  thread-cpu                6.00 s   75%  ████▌  computing
  thread-noncpu             1.99 s   25%  █▌     waiting: I/O, GIL, GPU, core
  2 small ones               10 ms    0%  ▌
  p2p-shards                                     3.0 MiB

Alice/training              2.00 s
  idle                      1.00 s   50%  ███    free threads despite work
  thread-cpu                1.00 s   50%  ███    computing"""


def test_the_table_says_where_the_time_of_each_span_went() -> None:
    assert "\n".join(section("By span and activity", account_of(*RECORDED), 80)) == TABLE_AT_80


@pytest.mark.parametrize("width", [60, 77, 78, 100, 120, 200])
def test_the_table_fits_its_width(width: int) -> None:
    name = "/".join(["some long tag"] * 20)
    found = account_of(
        of_spans((name, "p2p-shard-partition-noncpu", 1100.0), (name, "x" * 300, 1.5)),
        of_spans((name, "memory-read", 3 << 20), name="dask.span.execute.io"),
    )
    shown = "\n".join(section("By span and activity", found, width))
    pieces = ("18 m 20 s", "100%", "█" * 6, "3.0 MiB", "waiting: I/O")
    assert [piece in shown for piece in pieces] == [True] * 4 + [width >= 78]


def test_the_smallest_spans_become_one() -> None:
    small = [(f"s{n}", "thread-cpu", 0.5) for n in range(14)]
    found = account_of(of_spans(("large", "thread-cpu", 100.0), *small))
    lines = section("By span and activity", found, 80)
    assert [" ".join(line.split()[:5]) for line in lines if line[:1] not in ("", " ")][1:] == [
        "all spans 107.0 s",
        "large 100.0 s",
        *(f"s{n} 500 ms" for n in range(11)),
        "3 others 1.50 s",
    ]


# --------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (words.seconds(0), "0 s"),
        (words.seconds(0.0004), "<1 ms"),
        (words.seconds(0.0042), "4 ms"),
        (words.seconds(0.9994), "999 ms"),
        (words.seconds(0.9996), "1.00 s"),
        (words.seconds(9.99), "9.99 s"),
        (words.seconds(12.34), "12.3 s"),
        (words.seconds(185.2), "3 m 05 s"),
        (words.seconds(3599.4), "59 m 59 s"),
        (words.seconds(3599.6), "1 h 00 m"),
        (words.seconds(4e6), "1,111 h 07 m"),
        (words.size(None), ""),
        (words.size(0), "0 B"),
        (words.size(1023), "1,023 B"),
        (words.size(1536), "1.5 KiB"),
        (words.size(120 << 20), "120 MiB"),
        (words.size(5e15), "4,547 TiB"),
        (words.size(3.1 * 2**30, 8 * 2**30), "3.1 of 8.0 GiB"),
        (words.fit("日本語", 5), "日本…"),
        # As wide as before, but for the mark at the end of a line.
        (words.in_ascii("█▌· ▌… ├── │   └── ✗ ✓"), "# . #~ +-- |   `-- x ok"),
        (words.fit("日本語", 4), "日… "),
        (words.fit("e\u0301e", 3), "e\u0301e "),
        # A column has room for its wide characters.
        (
            "\n".join(
                words.aligned([["name", "cost"], ["日本語", "円 5"], ["a", "123"]], {"cost"})
            ),
            "name    cost\n日本語  円 5\na        123",
        ),
        # Long names lose their outermost tags.
        (words.cut_beginning("Alice/preprocessing/shuffle", 12), "…/shuffle"),
        (words.cut_beginning("Alice/x", 12), "Alice/x"),
        (words.cut_beginning("Alice/" + "x" * 30, 12), "…/xxxxxxxxx…"),
    ],
)
def test_numbers_and_names_are_short(shown: str, expected: str) -> None:
    assert shown == expected


def of_outcomes(**counts: float) -> dict[str, Any]:
    points = (point(count, {"dask.task.outcome": one}) for one, count in counts.items())
    return counter("dask.task.finished", *points)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        # A client retried four, of which one failed again; six results were computed again.
        (
            [
                of_outcomes(memory=23 + 6, erred=4 + 1),
                counter(
                    "dask.task.retried",
                    *(
                        point(count, {"dask.task.retry.reason": reason})
                        for reason, count in (("client", 4), ("recomputed", 6), ("error", 2))
                    ),
                ),
            ],
            ["23 tasks done, 1 task failed"],
        ),
        # Tasks without a span are no proof that no work was done.
        (
            [of_outcomes(memory=24)],
            ["24 tasks done", "no span with work that has ended\n  A span is exported when"],
        ),
    ],
)
def test_a_task_counts_once_by_its_last_outcome(found: list[Any], shown: list[str]) -> None:
    text = report_of(metrics(*found)).text()
    assert [words for words in shown if words not in text] == []
