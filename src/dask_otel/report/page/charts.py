"""Bokeh charts of the spans' time, the threads' activities, and the workers.

A chart is an item of ``bokeh.embed.json_item``, which the page's own script embeds. The colours of
text, lines and background are placeholders; the script replaces them for light and dark pages.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bokeh.embed import json_item
from bokeh.models import (
    ColumnDataSource,
    DatetimeTickFormatter,
    HoverTool,
    NumeralTickFormatter,
)
from bokeh.plotting import figure
from bokeh.themes import Theme

from dask_otel import semconv
from dask_otel.report import words
from dask_otel.report.account import Account
from dask_otel.report.meanings import NEUTRAL, PART_TITLES, colour_of, hex_colour
from dask_otel.report.memory import HELD, Memory, layers
from dask_otel.report.seconds import SpanTime, flow, largest
from dask_otel.report.telemetry.model import Session
from dask_otel.report.telemetry.series import History, at

#: Placeholders that ``page.js`` replaces.
_TEXT, _LINE, _GROUND = "#010203", "#010204", "#010205"

#: Most spans with a bar of their own, and most workers with a line of their own.
_MOST_BARS, _MOST_LINES = 14, 40
#: Fewest intervals between exports for a chart over time.
_FEWEST_INTERVALS: Final = 2
#: Most events that are marked.
_MOST_EVENTS: Final = 100
#: Most points of a line.
_MOST_POINTS: Final = 300

_TIMED: Final = {"x_axis_type": "datetime", "tools": "xpan,xwheel_zoom,box_zoom,reset"}
_CLOCK: Final = {
    "milliseconds": "%H:%M:%S.%3N",
    "seconds": "%H:%M:%S",
    "minsec": "%H:%M:%S",
    "minutes": "%H:%M",
    "hourmin": "%H:%M",
    "hours": "%H:%M",
}
_THEME: Final = {
    "Plot": {
        "background_fill_color": _GROUND,
        "border_fill_color": _GROUND,
        "outline_line_color": _LINE,
        "output_backend": "canvas",
        "sizing_mode": "stretch_width",
        "toolbar_location": "above",
    },
    "Toolbar": {"logo": None},
    "Axis": {
        "axis_line_color": _LINE,
        "major_tick_line_color": _LINE,
        "minor_tick_line_color": None,
        "major_label_text_color": _TEXT,
        "axis_label_text_color": _TEXT,
        "axis_label_text_font_style": "normal",
    },
    "Grid": {"grid_line_color": _LINE, "grid_line_alpha": 0.6},
    "Legend": {
        "background_fill_alpha": 0,
        "border_line_color": None,
        "label_text_color": _TEXT,
        "label_text_font_size": "12px",
        "glyph_height": 14,
        "glyph_width": 14,
        "orientation": "horizontal",
        "click_policy": "mute",
        "ncols": 5,
    },
}


def charts(account: Account) -> dict[str, Any]:
    """Return the charts that have data, by their place on the page."""
    session = account.session
    drawn = {
        "spans": _spans(account.spans),
        "held": _held(session, account.memory),
        "flow": _flow(session),
        "memory": _workers(session, "MiB, each worker", *_MEMORY),
        "busy": _workers(session, "% CPU, each worker", *_BUSY),
    }
    theme = Theme(json={"attrs": _THEME})
    return {place: json_item(plot, theme=theme) for place, plot in drawn.items() if plot}


def _spans(names: list[SpanTime]) -> Any:
    """Return a bar for each of the largest spans."""
    shown = largest(names, _MOST_BARS)
    if not shown:
        return None
    labels = _labels([entry.name for entry in shown])
    columns: dict[str, list[Any]] = {"span": labels, "name": [entry.name for entry in shown]}
    by_part = {title: [entry.parts()[title] for entry in shown] for title in PART_TITLES}
    taken = {title: seconds for title, seconds in by_part.items() if any(seconds)}
    columns |= taken
    columns |= {f"{title} text": [*map(words.seconds, found)] for title, found in taken.items()}
    plot = figure(
        height=60 + 26 * len(shown), y_range=list(reversed(labels)), tools="xwheel_zoom,xpan,reset"
    )
    bars = plot.hbar_stack(
        [*taken],
        y="span",
        height=0.7,
        source=ColumnDataSource(columns),
        color=[colour_of(title) for title in taken],
        muted_alpha=0.15,
    )
    for title, bar in zip(taken, bars, strict=True):
        _hover(plot, bar, ("", "@name"), (title, f"@{{{title} text}}"))
    plot.xaxis.axis_label = "thread-seconds"
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
    plot.x_range.start = 0
    plot.ygrid.grid_line_color = None
    return plot


def _hover(plot: Any, drawn: Any, *tips: tuple[str, str]) -> None:
    clock = {"@right": "datetime"}
    plot.add_tools(
        HoverTool(renderers=[drawn], tooltips=list(tips), formatters=clock, visible=False)
    )


def _labels(names: list[str]) -> list[str]:
    """Return short, distinct names."""
    result: list[str] = []
    for name in names:
        label = words.cut_beginning(name, 34)
        while label in result:
            label += "\N{ZERO WIDTH SPACE}"
        result.append(label)
    return result


def _flow(session: Session) -> Any:
    """Return the threads' activities over time, as stacked steps."""
    edges, parts, threads = flow(session)
    if len(threads) < _FEWEST_INTERVALS:
        # One block would only repeat the bar above it.
        return None
    left, right = ([edge / 1e6 for edge in part] for part in (edges[:-1], edges[1:]))
    plot = figure(height=270, **_TIMED)
    below = [0.0] * len(left)
    for title, values in parts.items():
        if any(values):
            texts = [f"{value:.2f} threads" for value in values]
            below = _stacked(plot, left, right, below, values, title, texts, color=colour_of(title))
    plot.step(right, threads, mode="before", color=_TEXT, line_width=1.5, legend_label="Threads")
    # A long task's seconds arrive at its end: their peak would make all the rest small.
    plot.y_range.end = 2 * max([*threads, 0.5])
    return _timed(plot, "threads", session)


def _stacked(
    plot: Any, left: list[float], right: list[float], below: list[float],
    values: list[float], name: str, texts: list[str], **style: Any,
) -> list[float]:  # fmt: skip
    """Draw steps on top of others; return where the next ones begin."""
    top = [low + value for low, value in zip(below, values, strict=True)]
    columns = {"left": left, "right": right, "bottom": below, "top": top}
    sides = {side: side for side in columns}
    data = ColumnDataSource({**columns, "name": [name] * len(left), "text": texts})
    drawn = plot.quad(**sides, source=data, muted_alpha=0.15, legend_label=name, **style)
    _hover(plot, drawn, ("@name", "@text"), ("until", "@right{%H:%M:%S}"))
    return top


def _held(session: Session, memory: Memory) -> Any:
    """Return the cluster's memory over time, as stacked steps between exports."""
    times, found = layers(memory)
    if not found:
        return None
    left, right = ([time / 1e6 for time in part] for part in (times[:-1], times[1:]))
    plot = figure(height=270, **_TIMED)
    # The unaccounted part can be negative.
    below, is_result = [0.0] * len(left), 1.0
    for layer in found:
        below = _stacked(
            plot, left, right, below,
            [max(0.0, value) / 2**20 for value in layer.values[:-1]], layer.name,
            [*map(words.size, layer.values[:-1])],
            color=colour_of(layer.state),
            # Holders have no meaning: theirs is one colour in several shades.
            fill_alpha=(is_result := is_result - 0.13) if layer.state == HELD else 1.0,
            line_color=_GROUND,
            line_width=0.5,
        )  # fmt: skip
    for metric, colour, dash, legend in _LEVELS:
        histories = [one.history() for one in session.metrics.of(metric.name)]
        values = [sum(at(one, time) for one in histories) / 2**20 for time in times]
        if any(values):
            plot.step(
                [time / 1e6 for time in times],
                values,
                mode="after",
                color=colour,
                line_dash=dash,
                line_width=1.5,
                legend_label=legend,
            )
    return _timed(plot, "MiB", session)


def _timed(plot: Any, label: str, session: Session) -> Any:
    if events := session.warnings(_MOST_EVENTS):
        columns = {
            "time": [log.time_ns / 1e6 for log in events],
            "level": [log.level for log in events],
            "description": [words.cut(words.one_line(log.description, " "), 300) for log in events],
        }
        marks = plot.scatter(
            "time",
            0,
            marker="triangle",
            size=11,
            source=ColumnDataSource(columns),
            color=hex_colour("red"),
            muted_alpha=0.1,
            legend_label="Events",
        )
        _hover(plot, marks, ("@level", "@description"))
    plot.xaxis.formatter = DatetimeTickFormatter(**_CLOCK)
    plot.yaxis.axis_label = label
    plot.y_range.start = 0
    plot.add_layout(plot.legend[0], "below")
    return plot


#: Lines of the cluster's memory: metric, colour, dash and legend.
_LEVELS: Final = (
    (semconv.WORKER_MEMORY_USAGE, _TEXT, "solid", "processes"),
    (semconv.CLUSTER_MEMORY_SPILLED, hex_colour("yellow"), "solid", "spilled to disk"),
    (semconv.WORKER_MEMORY_LIMIT, hex_colour("red"), "dashed", "limit"),
)
#: Figures of each worker over time: metric, scale of its unit, colour, legend and tip.
_Drawn: TypeAlias = tuple[semconv.Metric, float, str, str, str]
_MEMORY: Final[tuple[_Drawn, ...]] = (
    (semconv.WORKER_MEMORY_USAGE, 2**20, NEUTRAL, "memory of the process", "{0,0} MiB"),
    (semconv.WORKER_MEMORY_SPILLED, 2**20, hex_colour("yellow"), "spilled to disk", "{0,0} MiB"),
)
_BUSY: Final[tuple[_Drawn, ...]] = (
    (semconv.WORKER_CPU_UTILIZATION, 0.01, hex_colour("green"), "CPU of each thread", "{0} %"),
)


def _workers(session: Session, label: str, *figures: _Drawn) -> Any:
    """Return a line per worker for each figure; None if the first has fewer than two points."""
    histories = [_highest(session, metric) for metric, *_ in figures]
    if not any(len(history) > 1 for history in histories[0].values()):
        return None
    plot = figure(height=200, **_TIMED)
    for number, (_, scale, colour, legend, tip) in enumerate(figures):
        of_worker = histories[number]
        if number and not any(value for history in of_worker.values() for _, value in history):
            continue
        for worker, history in of_worker.items():
            points = history[:: max(1, -(-len(history) // _MOST_POINTS))]
            columns = {
                "time": [time / 1e6 for time, _ in points],
                "value": [value / scale for _, value in points],
                "worker": [worker] * len(points),
            }
            line = plot.line(
                "time",
                "value",
                source=ColumnDataSource(columns),
                color=colour,
                alpha=0.75,
                line_width=1.5,
                muted_alpha=0.1,
                legend_label=legend,
            )
            _hover(plot, line, ("worker", "@worker"), (legend, f"@value{tip}"))
    return _timed(plot, label, session)


def _highest(session: Session, metric: semconv.Metric) -> dict[str, History]:
    """Return the histories of the workers with the highest values."""
    found = session.metrics.histories(metric.name, semconv.WORKER_NAME)
    ranked = sorted(found.items(), key=lambda item: -max((v for _, v in item[1]), default=0.0))
    return dict(ranked[:_MOST_LINES])
