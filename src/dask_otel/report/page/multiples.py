"""Small multiples of one workflow: in each panel a bar for each of its runs, the last marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dask_otel.report import words
from dask_otel.report.history.difference import path_parts
from dask_otel.report.history.past import PastRun
from dask_otel.report.meanings import NEUTRAL, PARTS, PATH, hex_colour
from dask_otel.report.seconds import add

#: Most runs of a panel, most steps with one of their own, and the units of a bar and of the height.
_MOST, _STEPS, _BAR, _HEIGHT = 60, 8, 4, 40

_PART_COLOURS: Final = {part.title: hex_colour(part.colour) for part in PARTS}
_PATH_COLOURS: Final = {words.inside(part.title): part.colour for part in PATH.values()}


@dataclass(frozen=True)
class Panel:
    """A figure of the runs in their order: an outline of the bars for each colour.

    `last` and `largest` are in words; `width` and `height` are those of the drawing.
    """

    title: str
    last: str
    largest: str
    paths: list[tuple[str, str]]
    width: int
    height: int = _HEIGHT
    bar: int = _BAR


def panels(runs: Sequence[PastRun]) -> Iterator[Panel]:
    """Yield the panels of the last runs of one name; except where nothing is known."""
    shown = runs[-_MOST:]

    def of(value: Callable[[PastRun], float | None], colour: str = NEUTRAL) -> _Bars:
        return [{} if (one := value(run)) is None else {colour: one} for run in shown]

    yield from _panel("duration", words.seconds, of(lambda run: run.seconds))
    by_part = [_coloured(run.parts, _PART_COLOURS) for run in shown]
    yield from _panel("thread-time by part", words.seconds, by_part)
    paths = [_coloured(dict(path_parts(run.path)), _PATH_COLOURS) for run in shown]
    yield from _panel("path by part", words.seconds, paths)
    yield from _panel("tasks", words.whole, of(lambda run: run.tasks))
    yield from _panel("failed tasks", words.whole, of(lambda run: run.failed, hex_colour("red")))
    yield from _panel("size of all results", words.size, of(lambda run: run.output))
    for title, activity in (("read from memory", "memory-read"), ("spilled", "disk-write")):
        moved = of(lambda run, key=activity: run.moved.get(key))  # type: ignore[misc]
        yield from _panel(title, words.size, moved)
    steps = dict.fromkeys(name for run in reversed(shown) for name in run.steps)
    for name in [step for step in steps if step != runs[-1].name][:_STEPS]:
        lasted = of(lambda run, key=name: run.steps[key].seconds if key in run.steps else None)  # type: ignore[misc]
        yield from _panel(f"duration of {name}", words.seconds, lasted)


#: The stacked values of each run by colour; empty if they are unknown.
_Bars = list[dict[str, float]]


def _coloured(values: Mapping[str, float], colours: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values.items():
        add(found, colours.get(name, NEUTRAL), max(0.0, value))
    return found


def _panel(title: str, text: Callable[[float], str], bars: _Bars) -> Iterator[Panel]:
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
    last = text(totals[-1]) if bars[-1] else "unknown"
    paths = [(colour, "".join(outlines)) for colour, outlines in drawn.items()]
    yield Panel(words.one_line(title), last, text(largest), paths, len(bars) * _BAR)
