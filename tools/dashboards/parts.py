"""Panels, variables and pages in the style of these dashboards."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    loki,
    prometheus,
    stat,
    table,
    tempo,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BarGaugeNamePlacement,
    BarGaugeSizing,
    BigValueColorMode,
    BigValueGraphMode,
    GraphDrawStyle,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    GridPos,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.tempo import SearchTableType

from . import limits, links, meanings
from .queries import CLUSTER, ITSELF, ROOT, SPAN, renamed, selector

PROMETHEUS = DataSourceRef(type_val="prometheus", uid="${datasource}")
TEMPO = DataSourceRef(type_val="tempo", uid="${tempo}")
LOKI = DataSourceRef(type_val="loki", uid="${loki}")

TAG = "dask-otel"
WIDTH = 24

#: Steps of a threshold: from a value on, a colour. What is below the first has `Steps.below`.
Steps = list[tuple[float, str]]
Query = tuple[str, str]
#: A cell without a value.
NOTHING = "–"


# -------------------------------------------------------------------------------- variables


def _names(name: str, label: str, named: str, of: str, every: bool = True) -> Builder[Any]:
    variable = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(PROMETHEUS)
        .query(f"label_values({of}, {named})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if every:
        # `.*` and not a list of all: a series without the label is in it, too.
        variable.include_all(True).all_value(".*").multi(True)
        variable.current(VariableOption(selected=True, text="All", value="$__all"))
    return variable


_EXECUTED = "dask_span_execute_time_seconds_total"
DATASOURCES: list[Builder[Any]] = [
    dashboard.DatasourceVariable(name).label(label).type(kind)
    for name, label, kind in (
        ("datasource", "Metrics", "prometheus"),
        ("tempo", "Tempo", "tempo"),
        ("jaeger", "Jaeger", "jaeger"),
        ("loki", "Logs", "loki"),
    )
]


#: A page chooses by name. There is one root span: runs of different workflows have nothing in
#: common, and Jaeger has no "all".
VARIABLES: dict[str, Any] = {
    "cluster": _names("cluster", "Cluster", "dask_cluster_name", "dask_otel_running"),
    "root": _names(
        "root", "Root span", "dask_span_root_name", f"{_EXECUTED}{{{CLUSTER}}}", every=False
    ),
    "span": _names("span", "Span", "dask_span_name", f"{_EXECUTED}{{{ROOT}}}"),
    "prefix": _names("prefix", "Task prefix", "dask_task_prefix", f"{_EXECUTED}{{{SPAN}}}"),
    "before": (
        dashboard.CustomVariable("before")
        .label("Compare with")
        .description("How long before the shown time the other one is")
        .values("1h,6h,1d,7d,14d,28d")
        .current(VariableOption(selected=True, text="7d", value="7d"))
    ),
    "price": (
        dashboard.TextBoxVariable("price")
        .label("Price of a thread-hour")
        .description("In any currency. With 0 no money is shown.")
        .default_value("0")
        .current(VariableOption(selected=True, text="0", value="0"))
    ),
}


# ---------------------------------------------------------------------------------- colours


def _thresholds(below: str, steps: Steps) -> Builder[Any]:
    made = [Threshold(color=below), *(Threshold(value, colour) for value, colour in steps)]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(made)


def _colour_by_meaning(panel: Any) -> None:
    """Give the series of every meaning a shade of its colour, whatever the panel."""
    for pattern, shade in meanings.shades():
        colour = {"mode": "fixed", "fixedColor": shade}
        panel.override_by_regexp(pattern, [DynamicConfigValue("color", colour)])


def _cells_by_meaning() -> list[dict[str, Any]]:
    """Mappings that give the text of a cell the colour of its meaning."""
    return [
        {
            "type": "regex",
            "options": {"pattern": pattern, "result": {"color": shade, "index": index}},
        }
        for index, (pattern, shade) in enumerate(meanings.shades())
    ]


# ----------------------------------------------------------------------------------- panels


@dataclass(frozen=True)
class Panel:
    """A panel and its width; the line that it stands in gives it a height."""

    builder: Any
    width: int
    links: tuple[Builder[Any], ...]

    def mapped(self, value: float, text: str, colour: str) -> Panel:
        """The panel with a text in place of a number."""
        result = model.ValueMappingResult(text=text, color=colour, index=0)
        self.builder.mappings([_MISSING, model.ValueMap(options={f"{value:g}": result})])
        return self

    def stepped(self, of: str, below: str, steps: Steps) -> Panel:
        """The panel with steps of their own for the series whose names end so."""
        made = [{"color": colour, "value": value} for value, colour in [(None, below), *steps]]
        thresholds = {"mode": "absolute", "steps": made}
        self.builder.override_by_regexp(f"/{of}$/", [DynamicConfigValue("thresholds", thresholds)])
        return self

    def runbook(self, alert: str) -> Panel:
        """The panel with a link to the runbook of an alert."""
        all_links = (*self.links, links.link(f"Runbook {alert}", limits.runbook(alert)))
        return Panel(self.builder.links(list(all_links)), self.width, all_links)


def no_data(reason: str) -> str:
    """The text of a panel without a value: a query that failed shows it, too.

    So it never says by itself that all is well.
    """
    return f"No data: {reason}, or the query failed." if reason else "no data"


#: A number that is missing has no colour: else it has that of the lowest numbers, often a good one.
_MISSING = model.SpecialValueMap(
    options=model.DashboardSpecialValueMapOptions(
        match=model.SpecialValueMatch.NULL_AND_NAN,
        result=model.ValueMappingResult(text=no_data(""), color=meanings.TEXT, index=1),
    )
)

_LEGEND = re.compile(r"\{\{(\w+)\}\}")
_GROUPING = re.compile(r"by \(([^)]*)\)")


def _grouping(queries: Sequence[Query]) -> list[str]:
    """The labels that the series of a panel have, for its links."""
    labels = {label for _, legend in queries for label in _LEGEND.findall(legend)}
    grouped = " ".join(group for query, _ in queries for group in _GROUPING.findall(query))
    if labels and re.search(r"\bdask_span_root_name\b", grouped):
        labels.add("dask_span_root_name")
    known = ("dask_span_root_name", "dask_span_name", "dask_task_prefix")
    return [label for label in known if label in labels]


def _fill(
    panel: Any,
    title: str,
    read: str,
    queries: Sequence[Query],
    unit: str,
    empty: str,
    decimals: int | None,
    width: int,
    kind: Callable[[prometheus.Dataquery], Any] = prometheus.Dataquery.instant,
) -> Panel:
    """What all panels have; `kind` says how their queries are asked."""
    text = " ".join(expression for expression, _ in queries)
    traces = links.trace_links(text)
    panel.title(title).description(read).datasource(PROMETHEUS).unit(unit).no_value(no_data(empty))
    panel.links(traces).data_links(links.series_links(_grouping(queries)))
    if decimals is not None:
        panel.decimals(decimals)
    for ref, (expression, legend) in zip(ascii_uppercase, queries, strict=False):
        query = prometheus.Dataquery().ref_id(ref).datasource(PROMETHEUS).expr(expression)
        panel.with_target(kind(query.legend_format(legend or "__auto")))
    # Series that differ by their meaning, and not by their workers.
    if any(
        re.search("dask_activity|dask_task_", legend) and "dask_worker_name" not in legend
        for _, legend in queries
    ):
        _colour_by_meaning(panel)
    return Panel(panel, width, tuple(traces))


#: How far an axis goes at least, by its unit: else a curve of zeros has one to 10,000 %.
_ZERO = {"percentunit": 0.01, "short": 1, "suffix:threads": 0.01}


def graph(
    title: str,
    read: str,
    *queries: Query,
    unit: str = "short",
    width: int = 12,
    stacked: bool = False,
    meant: bool = False,
    exemplars: bool = False,
    decimals: int | None = 2,
    empty: str = "nothing in the shown time",
    lines: Steps | None = None,
    calcs: Sequence[str] = ("mean", "max"),
    outline: str = "",
) -> Panel:
    """Curves over time. `read` says how to read it; a query comes with the text of its legend.

    `meant`: the names of the series have meanings. `lines` are drawn at limits, and the series
    `outline` as a dashed line over a stack. The legend is sorted by size. Below a panel there is
    room for four names, or for one, so it is beside wide ones. It has one width, so that the time
    axes of panels are aligned.
    """

    panel = timeseries.Panel()
    filled = _fill(
        *(panel, title, read, queries, unit, empty, decimals, width),
        lambda query: query.range().exemplar(exemplars),
    )
    if unit in _ZERO:
        panel.axis_soft_max(_ZERO[unit])
    (
        panel.min(0)
        .fill_opacity(60 if stacked else 10)
        .tooltip(
            common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
        )
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.RIGHT if width > WIDTH / 2 else LegendPlacement.BOTTOM)
            .width(440)
            .show_legend(True)
            .calcs(list(calcs))
            .sort_by({"mean": "Mean", "lastNotNull": "Last *"}[calcs[0]])
            .sort_desc(True)
        )
        .color_scheme(dashboard.FieldColor().mode("palette-classic"))
        .thresholds(_thresholds("transparent", lines or []))
    )
    if lines:
        panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        )
    if meant:
        _colour_by_meaning(panel)
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if outline:
        panel.override_by_name(
            outline,
            [
                DynamicConfigValue("custom.stacking", {"mode": "none", "group": "B"}),
                DynamicConfigValue("custom.fillOpacity", 0),
                DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [6, 6]}),
                DynamicConfigValue("color", {"mode": "fixed", "fixedColor": meanings.TEXT}),
            ],
        )
    return filled


def bars(
    title: str,
    read: str,
    *queries: Query,
    unit: str = "s",
    width: int = 12,
    colour: str = meanings.NEUTRAL,
    empty: str = "nothing in the shown time",
) -> Panel:
    """One bar for each series, over the whole time range, from 0 on and in one colour."""
    panel = bargauge.Panel()
    filled = _fill(panel, title, read, queries, unit, empty, None, width)
    (
        panel.orientation(VizOrientation.HORIZONTAL)
        .display_mode(BarGaugeDisplayMode.BASIC)
        .name_placement(BarGaugeNamePlacement.LEFT)
        # A lone bar has no name else, and is as high as the panel.
        .display_name(_LEGEND.sub(r"${__field.labels.\1}", queries[0][1]))
        .sizing(BarGaugeSizing.MANUAL)
        .max_viz_height(32)
        .min(0)
        .thresholds(_thresholds(colour, []))
        .color_scheme(dashboard.FieldColor().mode("fixed").fixed_color(colour))
    )
    return filled


def number(
    title: str,
    read: str,
    *queries: Query,
    unit: str = "percentunit",
    width: int = 6,
    below: str = meanings.TEXT,
    steps: Steps | None = None,
    decimals: int | None = 1,
) -> Panel:
    """One number for each query, over the whole time range. `steps`: from where on which colour."""
    panel = stat.Panel()
    filled = _fill(panel, title, read, queries, unit, "", decimals, width)
    (
        panel.graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.VALUE)
        .color_scheme(dashboard.FieldColor().mode("thresholds"))
        .thresholds(_thresholds(below, steps or []))
        .mappings([_MISSING])
    )
    return filled


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, and an expression or, for a label, the label's name."""

    title: str
    expression: str = ""
    label: str = ""
    unit: str = ""
    decimals: int | None = None
    width: int | None = None
    steps: Steps | None = None
    #: A bar in the cell, in this colour.
    bar: str = ""
    #: Colour the cell's text by its meaning.
    meant: bool = False
    #: Break the cell's text into lines.
    wrapped: bool = False
    #: Not shown, but there for the links of other columns.
    hidden: bool = False
    link: dict[str, Any] | None = None

    def overrides(self) -> list[DynamicConfigValue]:
        steps = [(None, meanings.TEXT), *(self.steps or [])]
        limits_ = [{"color": colour, "value": value} for value, colour in steps]
        gauge = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
        cell, coloured = "custom.cellOptions", self.steps is not None
        made: list[tuple[object, str, object]] = [
            # Else a cell without a value shows what the panel says when it is empty.
            (True, "noValue", NOTHING),
            (self.hidden, "custom.hidden", True),
            (self.unit, "unit", self.unit),
            (self.decimals is not None, "decimals", self.decimals),
            (self.width is not None, "custom.width", self.width),
            (self.link, "links", [self.link]),
            (coloured, "thresholds", {"mode": "absolute", "steps": limits_}),
            (coloured, "color", {"mode": "thresholds"}),
            (coloured, cell, {"type": "color-text"}),
            (self.bar, "min", 0),
            # Of this column: else a bar ends at the largest number of the whole table.
            (self.bar, "fieldMinMax", True),
            (self.bar, "color", {"mode": "fixed", "fixedColor": self.bar}),
            (self.bar, cell, gauge),
            (self.wrapped, cell, {"type": "auto", "wrapText": True}),
            (self.meant, "mappings", _cells_by_meaning()),
            (self.meant, cell, {"type": "color-text"}),
        ]
        return [DynamicConfigValue(name, value) for wanted, name, value in made if wanted]


def rows(
    title: str, read: str, *columns: Column, sort: str, empty: str, width: int = WIDTH
) -> Panel:
    """A table: one row for each set of labels, its values from one query for each column."""
    values = [column for column in columns if column.expression]
    queries = [(column.expression, "") for column in values]
    panel = table.Panel()
    filled = _fill(
        *(panel, title, read, queries, "short", empty, None, width),
        lambda query: query.instant().format(PromQueryFormat.TABLE),
    )
    # Grafana calls the value of a lone query so, and numbers them only once there are several.
    refs = [f"Value #{ref}" for ref in ascii_uppercase] if len(values) > 1 else ["Value"]
    name = {column.title: ref for column, ref in zip(values, refs, strict=False)}
    name |= {column.title: column.label for column in columns if column.label}
    if len(values) > 1:
        panel.with_transformation(DataTransformerConfig("merge", options={}))
    panel.with_transformation(
        DataTransformerConfig(
            "organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": {name[one.title]: index for index, one in enumerate(columns)},
                "renameByName": {name[one.title]: one.title for one in columns},
            },
        )
    )
    panel.thresholds(_thresholds(meanings.TEXT, [])).show_header(True)
    if any(column.title == sort and column.hidden for column in columns):
        # The panel itself sorts by what it shows alone.
        order = {"fields": {}, "sort": [{"field": sort, "desc": True}]}
        panel.with_transformation(DataTransformerConfig("sortBy", options=order))
        sort = ""
    if sort:
        panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])
    for column in columns:
        panel.override_by_name(column.title, column.overrides())
    return filled


def bounded_runs(of: str, each: bool = False, width: int = WIDTH) -> Panel:
    """What bounded the runs that `of` selects: shares of their durations, or a run of `each`."""
    part = "dask_span_path_part"
    path = selector("dask_span_path_time_seconds_total", of)
    runs = selector("dask_span_duration_seconds_count", of, ITSELF)
    # Both grow at once, where a run ends. So a quotient does not depend on how long a point is.
    whole = runs if each else path
    shown = "The mean duration of a run" if each else "Shares of the durations of all runs"
    panel = graph(
        "What bounded the runs?",
        f"{shown}, where runs ended, cut by the thing that they waited for at each moment: the "
        "client, a worker, a free thread, data, the computing of tasks that follow one another. "
        "The parts of a run add up to its duration.",
        (
            renamed(
                f"sum by ({part}) (increase({path}[$__rate_interval]))"
                f" / on () group_left () (sum (increase({whole}[$__rate_interval])) > 0)",
                part,
                **meanings.PATH,
            ),
            f"{{{{{part}}}}}",
        ),
        unit="s" if each else "percentunit",
        decimals=2 if each else 1,
        width=width,
        stacked=True,
        meant=True,
        exemplars=each,
        empty="no run ended in the shown time",
    )
    panel.builder.draw_style(GraphDrawStyle.BARS)
    if not each:
        panel.builder.max(1)
    return panel.runbook("DaskTooFewThreads").runbook("DaskWorkersUneven")


def failed_runs(of: str = "", width: int = WIDTH) -> Panel:
    """A table of the latest runs that failed, of which only the trace store knows; `of` one root.

    Where it asks for attributes, Tempo answers with them as columns of the same names.
    """
    wanted = ("span.dask.span.root.name", "statusMessage", "span.error.type")
    panel = (
        table.Panel()
        .title("Which runs failed lately, and why?")
        .description(
            "The latest whole runs that ended with failure or error: the exception, and a link to "
            "the trace. It asks Tempo. With Jaeger: the link above, and the tag "
            "dask.span.result=failure."
        )
        .datasource(TEMPO)
        .no_value(no_data("no run failed, or there is no Tempo"))
        .with_target(
            tempo.TempoQuery()
            .ref_id("A")
            .datasource(TEMPO)
            .query_type("traceql")
            .query(f"{links.traces(*links.FAILED_RUN, of=of)} | select({', '.join(wanted)})")
            .filters([])
            .limit(20)
            .table_type(SearchTableType.SPANS)
        )
        .links(links.trace_links(of))
        .thresholds(_thresholds(meanings.TEXT, []))
        .show_header(True)
    )
    return Panel(panel, width, ())


#: The events of the cluster that are warnings or worse, in LogQL. Only text in backticks may have
#: the backslashes of a regular expression.
_EVENTS = (
    '{service_name=~".+"} | dask_cluster_name=~`${cluster:regex}` | event_name=~"dask[.].+" '
    '| event_name!~"dask[.]worker[.]log.*" | severity_number>=13'
)
#: Loki has a list as JSON.
_OF_ROOT = ' | dask_span_root_names=~`.*"${root:regex}".*`'
#: How its answer becomes a table.
_EVENTS_SHOWN: dict[str, Any] = {
    "extractFields": {"source": "labels"},
    "filterFieldsByName": {
        "include": {"names": ["Time", "severity_text", "dask_worker_name", "Line"]}
    },
    "organize": {
        "renameByName": {"severity_text": "Severity", "dask_worker_name": "Worker"},
    },
}


def happened(of: str = "") -> Panel:
    """A table of what happened on the cluster; `of` one root: to its work. It asks Loki."""
    query = loki.Dataquery().ref_id("A").datasource(LOKI).query_type("range").max_lines(100)
    panel = (
        table.Panel()
        .title("What happened?")
        .datasource(LOKI)
        .show_header(True)
        .description(
            "Events of the cluster that are warnings or worse, the latest first: why a worker was "
            "lost, and the last lines that it logged. It asks Loki; docs/logs.md explains how "
            "to send them there."
        )
        .no_value(no_data("nothing happened, or there is no Loki"))
        .with_target(query.expr(_EVENTS + (_OF_ROOT if of else "")))
        .override_by_name("Line", Column("Line", wrapped=True).overrides())
        .links(links.trace_links(of))
    )
    for id_, options in _EVENTS_SHOWN.items():
        panel.with_transformation(DataTransformerConfig(id_, options=options))
    return Panel(panel, WIDTH, ())


# ------------------------------------------------------------------------------------ pages


@dataclass(frozen=True)
class Line:
    """Panels beside each other, all of one height, over the whole width."""

    panels: tuple[Panel, ...]
    height: int


def line(*panels: Panel, height: int = 8) -> Line:
    assert sum(panel.width for panel in panels) == WIDTH
    return Line(panels, height)


@dataclass(frozen=True)
class Details:
    """A row that is closed until somebody wants to see it."""

    title: str
    lines: tuple[Line, ...]


#: The alerts of deploy/prometheus/rules that fire, as Prometheus itself records them.
FIRING = f'ALERTS{{alertstate="firing", alertname=~"Dask.*", {CLUSTER}}}'


class _FiringAlerts(Builder[model.AnnotationQuery], model.AnnotationQuery):
    """A thin line where an alert began to fire, on the graphs.

    Not for as long as it fires: a region hides the colours below it. Nor for what is only worth a
    look. A page of one root span shows its alerts, and those of the cluster.
    """

    def __init__(self, variables: Sequence[str]) -> None:
        own = ", dask_span_root_name=~`${root:regex}|`" if "root" in variables else ""
        firing = FIRING.replace("}", f', severity!="info"{own}}}')
        # In the first of the steps alone.
        expression = f"{firing} unless {firing} offset 1m"
        super().__init__(
            name="Alerts",
            datasource=PROMETHEUS,
            enable=True,
            icon_color=meanings.BAD,
            expr=expression,
            target={"expr": expression, "refId": "Alerts", "range": True, "interval": "60s"},
        )

    def build(self) -> model.AnnotationQuery:
        return self

    def to_json(self) -> dict[str, object]:
        """With the formats of the data source of Prometheus: the SDK has no fields for them."""
        return super().to_json() | {
            "step": "60s",
            "titleFormat": "{{alertname}}",
            "textFormat": "{{severity}} {{dask_cluster_name}} {{dask_span_root_name}}",
        }


#: A thin line where a worker was lost, or something else went wrong, on the graphs.
_MARKS = (
    dashboard.AnnotationQuery()
    .name("What happened")
    .datasource(LOKI)
    .enable(True)
    .icon_color(meanings.NEUTRAL)
    .expr(_EVENTS)
    .target(loki.Dataquery().ref_id("Events").query_type("range").max_lines(100).expr(_EVENTS))
)


def page(title: str, text: str, variables: list[str], parts: list[str | Line | Details]) -> Any:
    """A dashboard of rows (their titles) and lines of panels, with links to the others."""
    made = (
        dashboard.Dashboard(title)
        .uid(links.PAGES[title])
        .description(text)
        .tags([TAG])
        .time("now-6h", "now")
        .timezone("browser")
        .refresh("1m")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .annotation(_FiringAlerts(variables))
        .annotation(_MARKS)
    )
    for link in links.page_links(title):
        made.link(link)
    for variable in [*DATASOURCES, *(VARIABLES[name] for name in variables)]:
        made.with_variable(variable)
    ids = count(1)

    def placed(line_: Line, y: int) -> list[Any]:
        ends = accumulate(panel.width for panel in line_.panels)
        return [
            panel.builder.id(next(ids)).grid_pos(
                GridPos(h=line_.height, w=panel.width, x=end - panel.width, y=y)
            )
            for panel, end in zip(line_.panels, ends, strict=True)
        ]

    def row(title: str, y: int) -> Any:
        return dashboard.Row(title).id(next(ids)).grid_pos(GridPos(h=1, w=WIDTH, x=0, y=y))

    y = 0
    for part in parts:
        if isinstance(part, Line):
            for panel in placed(part, y):
                made.with_panel(panel)
            y += part.height
            continue
        closed, y = row(part if isinstance(part, str) else part.title, y), y + 1
        below = y
        for line_ in () if isinstance(part, str) else part.lines:
            for panel in placed(line_, below):
                closed.with_panel(panel)
            below += line_.height
        made.with_row(closed)
    return made
