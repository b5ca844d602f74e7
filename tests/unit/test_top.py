"""What `dask-otel top` shows of an answer: as much as fits, and never more than is known."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

pytest.importorskip("rich")

from rich.console import Console

from dask_otel._wire import Present, PresentSpan, PresentWorker
from dask_otel.cli import main
from dask_otel.cli.top_view import View


def span(name: str, parent: str | None = None, **changes: object) -> PresentSpan:
    made = PresentSpan(name, parent, name, "open", 5.0, 1, 4, 0, 2.0, 0.5)
    return replace(made, **changes)  # type: ignore[arg-type]


def worker(name: str) -> PresentWorker:
    return PresentWorker(name, 2, 1, 3, 2**30, 2**32, 0.5, 0.25)


NOW = Present(
    time=1_700_000_100.0,
    since=1_700_000_000.0,
    threads=4,
    free=1,
    seconds={"thread-cpu": 60.0, "disk-read": 20.0},
    idle=40.0,
    unused=5.0,
    lost=0.0,
    capacity=130.0,
    excess=0.0,
    spans=(span("etl"), span("load", "etl"), span("other"), span("part", "load")),
    workers=(worker("w1"), worker("w2")),
)


def shown(view: View, width: int = 80, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, highlight=False)
    console.print(view)
    file.seek(0)
    return file.read()


def line(text: str, beginning: str) -> str:
    (found,) = [one for one in text.splitlines() if one.strip().startswith(beginning)]
    return found


def test_it_fits_a_terminal_of_80_columns() -> None:
    text = shown(View("tcp://10.0.0.1:8786", NOW, None))
    assert max(map(len, text.splitlines())) <= 80
    assert "4 threads: 3 busy, 1 free" in text
    assert "2 workers" in text
    assert line(text, "load").split()[1] == "3/4"
    assert line(text, "w1").split()[:6] == ["w1", "1/2", "3", "1.0", "GiB", "25%"]


def test_spans_are_a_tree() -> None:
    lines = shown(View("x", NOW, None)).splitlines()
    start = next(index for index, one in enumerate(lines) if one.startswith("etl"))
    names = [one.split("  3/4")[0].rstrip() for one in lines[start : start + 4]]
    assert [name.partition(" 3/4")[0].rstrip() for name in names] == [
        "etl",
        "  load",
        "    part",
        "other",
    ]


def test_a_span_whose_parent_was_left_out_is_shown_all_the_same() -> None:
    text = shown(View("x", replace(NOW, spans=(span("orphan", "gone"),), more_spans=7), None))
    assert line(text, "orphan").startswith("orphan")
    assert "and 7 more open spans" in text


def test_seconds_are_those_between_two_answers() -> None:
    before = replace(
        NOW, time=NOW.time - 10, seconds={"thread-cpu": 50.0}, idle=38.0, unused=5.0, capacity=96.0
    )
    text = shown(View("x", NOW, before))
    assert "of the last 10.0 s went" in text
    assert line(text, "disk-read").split()[1:4] == ["20.0", "s", "59%"]
    assert line(text, "thread-cpu").split()[1:4] == ["10.0", "s", "29%"]
    # 34 s of capacity, of which 32 are known.
    assert line(text, "in flight").split()[2:5] == ["2.00", "s", "6%"]
    assert "unused" not in text


def test_without_an_earlier_answer_they_are_all_of_them() -> None:
    text = shown(View("x", NOW, None))
    assert "of the 100.0 s since the bridge started went" in text
    assert line(text, "unused").split()[1:3] == ["5.00", "s"]


def test_no_second_is_left_out() -> None:
    seconds = {f"activity-{number}": 10.0 for number in range(9)} | {"tiny": 1.0, "small": 2.0}
    answer = replace(NOW, seconds=seconds, idle=0.0, unused=0.0, capacity=93.0)
    text = shown(View("x", answer, None))
    assert line(text, "3 small ones").split()[3:5] == ["13.0", "s"]
    assert text.count("activity-") == 8


def test_what_is_not_known_is_not_shown() -> None:
    unknown = replace(worker("w"), memory=None, memory_limit=None, cpu=None)
    many = span("many", tasks=None, failed=None, unfinished=12_000)
    text = shown(View("x", replace(NOW, spans=(many,), workers=(unknown,)), None))
    assert "12,000 left" in line(text, "many")
    assert "%" not in line(text, "w ")


def test_failures_show() -> None:
    text = shown(View("x", replace(NOW, spans=(span("bad", failed=2),)), None))
    assert "3/4 ✗2" in line(text, "bad")


def test_an_empty_cluster() -> None:
    empty = Present(1.0, 1.0, 0, 0, {}, 0.0, 0.0, 0.0, 0.0, 0.0)
    text = shown(View("x", empty, None))
    for part in ("no open span", "nowhere yet", "no workers", "0 workers"):
        assert part in text


@pytest.mark.parametrize("name", ["[red]x[/red]", "\x1b[2Jx", "x\nx", "x" * 500, "日本" * 100, ""])
def test_hostile_names(name: str) -> None:
    answer = replace(NOW, spans=(replace(span("id"), name=name),), workers=(worker(name),))
    text = shown(View(name, answer, None))
    assert "\x1b" not in text
    assert "[red]" in text or "red" not in name
    assert len(text.splitlines()) == len(shown(View("x", answer, None)).splitlines())


def test_a_terminal_without_unicode() -> None:
    shown(View("x", NOW, None), encoding="ascii")


@pytest.mark.parametrize("height", [10, 24, 50])
def test_what_does_not_fit_the_height_is_counted(height: int) -> None:
    answer = replace(
        NOW,
        spans=tuple(span(f"s{number}") for number in range(200)),
        workers=tuple(worker(f"w{number}") for number in range(200)),
    )
    lines = shown(View("x", answer, None, height)).splitlines()
    assert len(lines) <= max(height, 21)
    (spans,) = [one for one in lines if one.endswith("more open spans")]
    seen = sum(one.startswith("s") and "3/4" in one for one in lines)
    assert spans == f"and {200 - seen} more open spans"


@pytest.mark.parametrize(
    "arguments", [["--interval", "0.5"], ["--interval", "nan"], ["--spans", "201"], ["a", "b"]]
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["top", *arguments])
    assert caught.value.code == 2
    assert "usage: dask-otel" in capsys.readouterr().err
