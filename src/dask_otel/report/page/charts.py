"""Bokeh's charts: where the time of each span went, what threads did, and the workers.

A chart is an item of ``bokeh.embed.json_item``, which the page's own script embeds. Colours of
text, lines and ground are placeholders that it replaces, so that light and dark pages get theirs.
"""

from __future__ import annotations

from typing import Any, Final

from bokeh.embed import json_item
from bokeh.models import (
    ColumnDataSource,
    DatetimeTickFormatter,
    HoverTool,
    NumeralTickFormatter,
)
from bokeh.plotting import figure

from dask_otel import semconv
from dask_otel.report import words
from dask_otel.report.meanings import NEUTRAL, PARTS, hex_colour
from dask_otel.report.seconds import SpanTime, flow, merged
from dask_otel.report.telemetry.model import Run

#: See ``page.js``.
_TEXT, _LINE, _GROUND = "#010203", "#010204", "#010205"

#: Spans with a bar of their own, and workers with a line of their own.
_MOST_BARS, _MOST_LINES = 14, 40
#: Intervals between exports from which on something is shown over time.
_FEWEST_INTERVALS: Final = 2
#: Points of a line.
_MOST_POINTS: Final = 300

_TOOLS: Final = "xpan,xwheel_zoom,box_zoom,reset"


def charts(run: Run, names: list[SpanTime]) -> dict[str, Any]:
    """Return the charts that there is something for, by their place on the page."""
    found = {
        "spans": _spans(names),
        "flow": _flow(run),
        "memory": _memory(run),
        "busy": _busy(run),
    }
    return {place: chart for place, chart in found.items() if chart is not None}


def _item(plot: Any) -> Any:
    plot.background_fill_color = _GROUND
    plot.border_fill_color = _GROUND
    plot.outline_line_color = _LINE
    plot.toolbar.logo = None
    for axis in plot.axis:
        axis.axis_line_color = _LINE
        axis.major_tick_line_color = _LINE
        axis.minor_tick_line_color = None
        axis.major_label_text_color = _TEXT
        axis.axis_label_text_color = _TEXT
        axis.axis_label_text_font_style = "normal"
    plot.grid.grid_line_color = _LINE
    plot.grid.grid_line_alpha = 0.6
    for legend in plot.legend:
        legend.background_fill_alpha = 0
        legend.border_line_color = None
        legend.label_text_color = _TEXT
        legend.label_text_font_size = "12px"
        legend.glyph_height = legend.glyph_width = 14
        legend.orientation = "horizontal"
        legend.click_policy = "mute"
    return json_item(plot)


def _figure(height: int, **options: Any) -> Any:
    return figure(
        height=height,
        sizing_mode="stretch_width",
        toolbar_location="above",
        output_backend="canvas",
        **options,
    )


def _spans(names: list[SpanTime]) -> Any:
    """Return a bar for each of the largest spans."""
    found = sorted((entry for entry in names if entry.seconds > 0), key=lambda e: -e.seconds)
    if not found:
        return None
    shown, rest = found[:_MOST_BARS], found[_MOST_BARS:]
    if rest:
        shown.append(merged(f"{len(rest)} others", rest))
    labels = _labels([entry.name for entry in shown])
    columns: dict[str, list[Any]] = {"span": labels, "name": [entry.name for entry in shown]}
    for part in PARTS:
        columns[part.title] = [entry.parts()[part.title] for entry in shown]
    titles = [part.title for part in PARTS if any(columns[part.title])]
    for title in titles:
        columns[f"{title} said"] = [words.seconds(value) for value in columns[title]]
    plot = _figure(
        60 + 26 * len(shown), y_range=list(reversed(labels)), tools="xwheel_zoom,xpan,reset"
    )
    source = ColumnDataSource(columns)
    bars = plot.hbar_stack(
        titles,
        y="span",
        height=0.7,
        source=source,
        color=[hex_colour(part.colour) for part in PARTS if part.title in titles],
        muted_alpha=0.15,
    )
    for title, bar in zip(titles, bars, strict=True):
        said = [("", "@name"), (title, f"@{{{title} said}}")]
        plot.add_tools(HoverTool(renderers=[bar], tooltips=said, visible=False))
    plot.xaxis.axis_label = "thread-seconds"
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
    plot.x_range.start = 0
    plot.ygrid.grid_line_color = None
    return _item(plot)


def _labels(names: list[str]) -> list[str]:
    """Return short names that differ."""
    result: list[str] = []
    for name in names:
        label = words.cut_beginning(name, 34, "…")
        while label in result:
            label += "\N{ZERO WIDTH SPACE}"
        result.append(label)
    return result


def _flow(run: Run) -> Any:
    """Return what threads did over time, as steps that lie on each other."""
    found = flow(run)
    if found is None or len(found.threads) < _FEWEST_INTERVALS:
        # One block would say no more than the bar above it.
        return None
    left = [edge / 1e6 for edge in found.edges[:-1]]
    right = [edge / 1e6 for edge in found.edges[1:]]
    plot = _figure(270, x_axis_type="datetime", tools=_TOOLS)
    below = [0.0] * len(left)
    for part in PARTS:
        values = found.parts[part.title]
        if not any(values):
            continue
        top = [low + value for low, value in zip(below, values, strict=True)]
        source = ColumnDataSource(
            {"left": left, "right": right, "bottom": below, "top": top, "threads": values}
        )
        quads = plot.quad(
            left="left",
            right="right",
            bottom="bottom",
            top="top",
            source=source,
            color=hex_colour(part.colour),
            muted_alpha=0.15,
            legend_label=part.title,
        )
        said = [(part.title, "@threads{0.00} threads"), ("until", "@right{%H:%M:%S}")]
        plot.add_tools(
            HoverTool(
                renderers=[quads], tooltips=said, formatters={"@right": "datetime"}, visible=False
            )
        )
        below = top
    plot.step(
        right, found.threads, mode="before", color=_TEXT, line_width=1.5, legend_label="Threads"
    )
    plot.yaxis.axis_label = "threads"
    # What a long task brings when it ends would make all the rest small.
    plot.y_range.end = 2 * max([*found.threads, 0.5])
    return _item(_timed(plot))


def _timed(plot: Any) -> Any:
    plot.xaxis.formatter = DatetimeTickFormatter(
        milliseconds="%H:%M:%S.%3N",
        seconds="%H:%M:%S",
        minsec="%H:%M:%S",
        minutes="%H:%M",
        hourmin="%H:%M",
        hours="%H:%M",
    )
    plot.y_range.start = 0
    if plot.legend:
        plot.add_layout(plot.legend[0], "below")
        plot.legend[0].ncols = 5
    return plot


def _lines(
    run: Run, name: str, scale: float, **labels: str
) -> list[tuple[str, list[float], list[float]]]:
    """Return a line a worker, those with the highest values, and of those the points."""
    found = []
    for series in run.metrics.of(name):
        if all(series.labels.get(key) == value for key, value in labels.items()):
            history = series.history()
            step = max(1, -(-len(history) // _MOST_POINTS))
            times = [time / 1e6 for time, _ in history[::step]]
            values = [value / scale for _, value in history[::step]]
            found.append((series.labels.get(semconv.WORKER_NAME, ""), times, values))
    found.sort(key=lambda line: -max(line[2], default=0.0))
    return found[:_MOST_LINES]


def _memory(run: Run) -> Any:
    lines = _lines(run, semconv.WORKER_MEMORY_USAGE.name, 2**20)
    if not any(len(times) > 1 for _, times, _ in lines):
        return None
    plot = _figure(200, x_axis_type="datetime", tools=_TOOLS)
    _draw(plot, lines, NEUTRAL, "memory of the process", "0,0", "MiB")
    spilled = _lines(run, semconv.WORKER_MEMORY_SPILLED.name, 2**20)
    if any(any(values) for _, _, values in spilled):
        _draw(plot, spilled, hex_colour("yellow"), "spilled to disk", "0,0", "MiB")
    plot.yaxis.axis_label = "MiB, each worker"
    return _item(_timed(plot))


def _busy(run: Run) -> Any:
    lines = _lines(run, semconv.WORKER_CPU_UTILIZATION.name, 0.01)
    if not any(len(times) > 1 for _, times, _ in lines):
        return None
    plot = _figure(200, x_axis_type="datetime", tools=_TOOLS)
    _draw(plot, lines, hex_colour("green"), "CPU of each thread", "0", "%")
    plot.yaxis.axis_label = "% CPU, each worker"
    return _item(_timed(plot))


def _draw(plot: Any, lines: Any, colour: str, legend: str, digits: str, unit: str) -> None:
    for worker, times, values in lines:
        source = ColumnDataSource({"time": times, "value": values, "worker": [worker] * len(times)})
        line = plot.line(
            "time",
            "value",
            source=source,
            color=colour,
            alpha=0.75,
            line_width=1.5,
            muted_alpha=0.1,
            legend_label=legend,
        )
        said = [("worker", "@worker"), (legend, f"@value{{{digits}}} {unit}")]
        plot.add_tools(HoverTool(renderers=[line], tooltips=said, visible=False))
