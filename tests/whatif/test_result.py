"""The results of replays: the knee of a curve, the headline, text, data and page."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markupsafe import escape

from dask_otel.report.money import Price
from dask_otel.report.whatif import WhatIfReport
from dask_otel.whatif.experiments import Experiment, each, usual
from dask_otel.whatif.result import Knee, Replayed, WhatIf
from tests.unit.report_files import EVIL, report_of, span, traces


def replayed(name: str, seconds: float, threads: int | None = None, there: int = 4) -> Replayed:
    """A replay of 25 thread-seconds of work."""
    hours = (threads or there) * seconds / 3600
    return Replayed(name, seconds, hours, 1 - 25 / (3600 * hours), threads)


AS_IT_WAS = replayed("as it was", 7.65, 4)
MORE = tuple(
    replayed(f"{n} threads", seconds, n) for n, seconds in ((2, 13.0), (8, 5.0), (16, 4.5))
)
RESULT = WhatIf("etl", 7.58, AS_IT_WAS, MORE, ("Memory is not simulated.",))


# ------------------------------------------------------------------------------- the knee


def knee(points: list[tuple[int, float]]) -> Knee | None:
    """The knee of the curve of these numbers of threads, and the durations with them."""
    tried = (Replayed("", seconds, 1.0, 0.0, number) for number, seconds in points)
    return WhatIf("etl", 1.0, None, (*tried,)).knee


threads = st.lists(st.integers(1, 500), min_size=2, max_size=9, unique=True).map(sorted)


@given(threads, st.floats(0.01, 1e4), st.floats(0.01, 1e4))
def test_the_knee_is_where_half_of_a_thread_more_is_of_use(
    numbers: list[int], alone: float, shared: float
) -> None:
    """Of work that is divided, and work that is not, this is where both take as long."""
    border = shared / alone
    assume(all(abs(number / border - 1) > 1e-6 for number in numbers))
    found = knee([(number, alone + shared / number) for number in numbers])
    beyond = [number for number in numbers if number > border]
    before = [number for number in numbers if number < border]
    if len(beyond) > 1:
        # Or between the last number before it and the first one beyond.
        assert found
        assert found.threads in (beyond[0], *before[-1:])
    elif not beyond:
        assert found is None


@given(threads, st.floats(0.001, 1e6))
def test_work_that_is_divided_has_no_knee_and_other_work_nothing_else(
    numbers: list[int], work: float
) -> None:
    assert knee([(number, work / number) for number in numbers]) is None
    assert knee([(number, work) for number in numbers]) == Knee(numbers[0], 0.0)


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=9), st.data())
def test_beyond_the_knee_no_thread_saves_more_than_is_said(
    seconds: list[float], data: st.DataObject
) -> None:
    """Whatever the durations: more threads can make a run longer."""
    sizes = st.integers(1, 500)
    numbers = sorted(
        data.draw(st.lists(sizes, min_size=len(seconds), max_size=len(seconds), unique=True))
    )
    points = [*zip(numbers, seconds, strict=True)]
    found = knee(points)
    steps = [
        (fewer, (1 - after / before) / (more - fewer))
        for (fewer, before), (more, after) in pairwise(points)
    ]
    if found is not None:
        saved = [share for fewer, share in steps if fewer >= found.threads]
        assert found.saved == max(0.0, *saved)
        base, *others = (replayed("", took, number) for number, took in points)
        shown = next(WhatIfReport(WhatIf("etl", 1.0, base, (*others,))).notes())
        assert shown.startswith(f"Beyond {found.threads:,} thread")
        assert found.saved or shown.endswith("saves nothing.")
        less = shown.rpartition("than ")[2].removesuffix("% on average.")
        assert not found.saved or float(less) > 100 * max(saved)


def test_the_curve_has_the_workers_alone_and_the_fastest_of_as_many_threads() -> None:
    others = (replayed("4 x 2", 5.5, 8), replayed("1 x 4", 7.0, 4), replayed("without gaps", 6.0))
    curve = replace(RESULT, experiments=(*MORE, *others)).curve
    assert [(one.threads, one.seconds) for one in curve] == [
        (2, 13.0),
        (4, 7.65),
        (8, 5.0),
        (16, 4.5),
    ]
    came_and_went = replace(RESULT, replayed=replace(AS_IT_WAS, threads=None), experiments=others)
    assert [one.threads for one in came_and_went.curve] == [4, 8]
    notes = [[*WhatIfReport(replace(RESULT, experiments=some)).notes()] for some in (MORE[:2], ())]
    assert notes[0][0] == "Each further thread is of use up to 8, the most tried."
    assert notes[1] == notes[0][1:]
    # One thread moves no data.
    fewest = replace(RESULT, experiments=(replayed("1 x 1", 4.0, 1), *MORE[:2]))
    assert [*WhatIfReport(fewest).notes()] == notes[1]


# ---------------------------------------------------------------------------- the headline


@pytest.mark.parametrize(
    ("experiments", "recorded", "said"),
    [
        # 16 threads are faster, but beyond the knee.
        (MORE, 7.58, "4 more threads and cores: 5.00 s instead of 7.65 s, 31% more cost; ± 1%"),
        (
            (replayed("5 x 1", 5.0, 5),),
            7.65,
            "1 more thread and core: 5.00 s instead of 7.65 s, 18% less cost; ± 0.1%",
        ),
        (
            MORE[2:],
            7.65,
            "12 more threads and cores: 4.50 s instead of 7.65 s, 135% more cost; ± 0.1%",
        ),
        (
            (*MORE, replayed("without gaps", 4.0)),
            7.58,
            "Without gaps: 4.00 s instead of 7.65 s, 48% less cost; ± 1%",
        ),
        (
            (replayed("1 x 4", 6.0, 4), MORE[0]),
            7.0,
            "1 x 4: 6.00 s instead of 7.65 s, 22% less cost; ± 10%",
        ),
        # As fast as it was.
        (
            (replayed("2 threads", 7.7, 2), replayed("3 threads", 7.6, 3)),
            7.65,
            "2 fewer threads: 7.70 s instead of 7.65 s, 50% less cost; ± 0.1%",
        ),
        # Within the error of the replay.
        (
            (replayed("without gaps", 7.2), replayed("8 threads", 7.3, 8)),
            7.0,
            "Nothing that was tried saves more than 9% of 7.65 s; ± 10%",
        ),
        ((), 7.65, "Nothing that was tried saves more than 2% of 7.65 s; ± 0.1%"),
    ],
)
def test_the_headline_has_the_most_useful_result(
    experiments: tuple[Replayed, ...], recorded: float, said: str
) -> None:
    result = replace(RESULT, experiments=experiments, recorded=recorded)
    assert WhatIfReport(result).headline() == said


def test_the_error_of_each_change_is_at_least_what_chance_makes() -> None:
    result = replace(RESULT, experiments=(*MORE[:2], replace(MORE[2], spread=1.8)))
    assert result.error == pytest.approx(1.8 / 4.5)
    shown = WhatIfReport(result)
    assert [row[3] for row in shown.table()] == ["error", "± 1%", "± 1%", "± 1%", "± 41%"]
    # Chance makes less than what it saves, or more.
    assert shown.headline().endswith("31% more cost; ± 1%")
    wide = replace(result, experiments=[replace(MORE[2], spread=1.9)])
    assert WhatIfReport(wide).headline().endswith("saves more than 42% of 7.65 s; ± 43%")
    assert "its replay took 7.65 s, a difference of 0.9%." in str(shown)


# -------------------------------------------------------------------- text, data and page

REFUSED = WhatIf("etl", 7.58, None, refused="The log has only 3 of its runs.")


def test_a_terminal_shows_the_headline_a_table_and_a_curve() -> None:
    same = replace(AS_IT_WAS, name="same", seconds=7.6499)
    result = replace(RESULT, experiments=(*MORE, same))
    text = WhatIfReport(result, Price(3600.0, "EUR")).text(80, ascii_only=True)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 80
    headline, _, *table = text.splitlines()
    error = "+/-", "1%"
    assert headline.endswith("; +/- 1%")
    assert [line.split() for line in table[:7]] == [
        ["replayed", "duration", "change", "error", "idle", "thread-hours", "cost"],
        ["as", "it", "was", "7.65", "s", *error, "18%", "0.008500", "30.60", "EUR"],
        ["2", "threads", "13.0", "s", "+70%", *error, "4%", "0.007222", "26.00", "EUR"],
        ["8", "threads", "5.00", "s", "-35%", *error, "38%", "0.0111", "40.00", "EUR"],
        ["16", "threads", "4.50", "s", "-41%", *error, "65%", "0.0200", "72.00", "EUR"],
        ["same", "7.65", "s", "+0%", *error, "18%", "0.008500", "30.60", "EUR"],
        [],
    ]
    bars = {line.split()[0]: line.count("#") for line in table[8:12]}
    assert bars.keys() == {"2", "4", "8", "16"}
    assert "Beyond 8 threads, each further one saves less than 2% on average." in text
    assert "etl took 7.58 s; its replay took 7.65 s, a difference of 0.9%." in text
    assert text.endswith("Memory is not simulated.")
    assert "cost" not in str(WhatIfReport(RESULT)).partition("\n")[2]


def test_a_script_gets_plain_data() -> None:
    found = json.loads(json.dumps(WhatIfReport(RESULT, Price(3600.0)).to_dict(), allow_nan=False))
    replays = [found.pop("as_it_was"), *found.pop("experiments")]
    assert found == {
        "version": 1,
        "span": "etl",
        "recorded": 7.58,
        "replayed": 7.65,
        "refused": None,
        "error": pytest.approx(0.07 / 7.58),
        "knee": 8,
        "assumptions": ["Memory is not simulated."],
        "headline": WhatIfReport(RESULT).headline(),
        "stuck": [],
    }
    figures = {"name", "seconds", "thread_hours", "idle", "threads", "spread", "error", "cost"}
    assert [one.keys() for one in replays] == [figures] * 4
    last = replays[-1]
    assert (last["seconds"], last["threads"], last["cost"]) == (4.5, 16, pytest.approx(72.0))
    refused = json.loads(json.dumps(WhatIfReport(REFUSED).to_dict()))
    assert [refused[key] for key in ("replayed", "error", "experiments", "refused")] == [
        *(None, None, [], "The log has only 3 of its runs."),
    ]


@pytest.mark.parametrize("replayed", [None, AS_IT_WAS])
def test_a_refusal_has_no_figures(replayed: Replayed | None) -> None:
    shown = WhatIfReport(replace(REFUSED, replayed=replayed))
    assert str(shown) == "No answer for etl: The log has only 3 of its runs."


def _named(name: str) -> WhatIfReport:
    others = tuple(replace(one, name=name) for one in MORE)
    result = WhatIf(name, 7.58, AS_IT_WAS, (*others, replayed(name, 3.0)), (name,))
    return WhatIfReport(result, Price(1.0, name), f"{1:016x}")


def test_names_are_text_in_a_notebook_and_on_the_page() -> None:
    pytest.importorskip("bokeh")
    tame, evil = _named("tame")._repr_html_(), _named(EVIL)._repr_html_()
    harmless = escape(EVIL)
    assert str(evil) == str(tame).replace("tame", harmless).replace("Tame", harmless)
    assert evil.count("<circle") == 8
    report = report_of(traces(span(1, "etl", dask_span_root_id="id-1")))
    page = replace(report, what_ifs=[_named(EVIL)]).html()
    assert (page.count("<h2>What if</h2>"), page.count("<polyline")) == (1, 2)
    other = replace(report, what_ifs=[replace(_named(EVIL), span_id=f"{3:016x}")])
    assert "What if" not in other.html()


def test_a_terminal_obeys_no_name() -> None:
    assert "\x1b" not in _named("\x1b]0;pwned\a\n").text()


# ----------------------------------------------------------------------------- experiments


def test_each_change_is_an_experiment_of_its_own() -> None:
    found = [*each([(4, 8)], 1e10, ["gaps"], [("fit", 2.0)], [("longest", 4), ("fit", 2)])]
    assert found == [
        Experiment("32 threads (4 x 8)", (8, 8, 8, 8)),
        Experiment("10,000 MB/s between workers", bandwidth=1e10),
        Experiment("without gaps", without=("gaps",)),
        Experiment("tasks of fit 2 times as fast", faster={"fit": 2.0}),
        Experiment("the longest task split in 4", split={"longest": 4}),
        Experiment("tasks of fit split in 2", split={"fit": 2}),
    ]


def test_numbers_of_numpy_are_numbers() -> None:
    np = pytest.importorskip("numpy")
    four, two = np.int64(4), np.float32(2.0)
    numpys, plain = (
        [*each([(whole, whole)], bandwidth, (), [("fit", factor)], [("fit", whole)])]
        for whole, bandwidth, factor in ((four, np.float32(1e9), two), (4, 1e9, 2.0))
    )
    assert json.dumps([*map(asdict, numpys)]) == json.dumps([*map(asdict, plain)])


@pytest.mark.parametrize(
    ("workers", "shapes"),
    [
        ([2, 2], [(2,), (2,) * 3, (2,) * 4, (2,) * 8]),
        # Fewer workers than one there are not.
        ([8], [(4,), (8,) * 2, (8,) * 4]),
        ([1], [(1,) * 2, (1,) * 4]),
        ([4, 1, 1], [(4, 1), (4, 1, 1, 4), (4, 1, 1) * 2, (4, 1, 1) * 4]),
    ],
)
def test_usually_half_to_four_times_the_threads_are_tried(
    workers: list[int], shapes: list[tuple[int, ...]]
) -> None:
    found = [*usual(workers, ["gaps"])]
    assert [one.workers for one in found] == [*shapes, None, None]
    assert [one.name for one in found[-2:]] == ["without gaps", "the longest task split in 2"]
