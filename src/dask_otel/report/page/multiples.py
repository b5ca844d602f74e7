"""Small multiples of one workflow: in each panel a bar for each of its runs, the last marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dask_otel.core.sums import summed
from dask_otel.report import words
from dask_otel.report.history.difference import path_parts
from dask_otel.report.history.past import MOVED, PastRun
from dask_otel.report.meanings import NEUTRAL, PART_TITLES, PATH, colour_of, hex_colour

#: Most runs of a panel, most steps with one of their own, and the units of a bar and of the height.
_MOST, _STEPS, _BAR, _HEIGHT = 60, 8, 4, 40

_PART_COLOURS: Final = {title: colour_of(title) for title in PART_TITLES}
_PATH_COLOURS: Final = {words.inside(title): colour_of(title) for title in PATH.values()}


def panels(runs: Sequence[PastRun]) -> Iterator[dict[str, Any]]:
    """Yield the template's values of each panel of the last runs of one name, if any is known.

    A panel is a figure of the runs in their order, with an outline of its bars for each colour.
    """
    shown = runs[-_MOST:]

    def of(values: Iterable[float | None], colour: str = NEUTRAL) -> _Bars:
        return [{} if one is None else {colour: one} for one in values]

    steps = dict.fromkeys(name for run in reversed(shown) for name in run.steps)
    below = [step for step in steps if step != runs[-1].name][:_STEPS]
    paths = [_coloured(dict(path_parts(run.path)), _PATH_COLOURS) for run in shown]
    parts = [_coloured(run.parts, _PART_COLOURS) for run in shown]
    figures: list[tuple[str, Callable[[float], str], _Bars]] = [
        ("duration", words.seconds, of(run.seconds for run in shown)),
        ("thread-time by part", words.seconds, parts),
        ("path by part", words.seconds, paths),
        ("tasks", words.whole, of(run.tasks for run in shown)),
        ("failed tasks", words.whole, of((run.failed for run in shown), hex_colour("red"))),
        ("size of all results", words.size, of(run.output for run in shown)),
        ("memory peak", words.size, of(run.memory_peak for run in shown)),
        ("memory-time", words.byte_seconds, of(run.memory_time for run in shown)),
        *(
            (title, words.size, of(run.moved.get(activity) for run in shown))
            for activity, title in MOVED.items()
        ),
        *(
            (
                f"duration of {step}",
                words.seconds,
                of(run.steps[step].seconds if step in run.steps else None for run in shown),
            )
            for step in below
        ),
    ]
    for figure in figures:
        yield from _panel(*figure)


def marks(runs: Sequence[PastRun], starts: Iterable[float]) -> list[int]:
    """Return the places in the panels of the runs with these starts."""
    known = set(starts)
    return [place * _BAR for place, run in enumerate(runs[-_MOST:]) if run.start in known]


#: The stacked values of each run by colour; empty if they are unknown.
_Bars = list[dict[str, float]]


def _coloured(values: Mapping[str, float], colours: Mapping[str, str]) -> dict[str, float]:
    return summed({colours.get(name, NEUTRAL): max(0.0, value)} for name, value in values.items())


def _panel(title: str, text: Callable[[float], str], bars: _Bars) -> Iterator[dict[str, Any]]:
    totals = [sum(bar.values()) for bar in bars]
    largest = max(totals, default=0.0)
    if not largest:
        return
    drawn: dict[str, list[str]] = {}
    for place, bar in enumerate(bars):
        bottom = float(_HEIGHT)
        for colour, value in bar.items():
            height = value / largest * _HEIGHT
            bottom -= height
            outline = f"M{place * _BAR} {bottom:.2f}h{_BAR - 1}v{height:.2f}h{1 - _BAR}z"
            drawn.setdefault(colour, []).append(outline)
    yield {
        "title": words.one_line(title),
        "last": text(totals[-1]) if bars[-1] else "unknown",
        "largest": text(largest),
        "paths": [(colour, "".join(outlines)) for colour, outlines in drawn.items()],
        "width": len(bars) * _BAR,
        "height": _HEIGHT,
        "bar": _BAR,
    }
