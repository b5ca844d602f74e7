"""Panels, variables and links in the style of these dashboards."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

PROMETHEUS = DataSourceRef(type_val="prometheus", uid="${datasource}")

#: Label matchers of the variables.
CLUSTER = 'dask_cluster_name=~"$cluster"'
ROOT = f'{CLUSTER}, dask_span_root_name=~"$root"'
SPAN = f'{ROOT}, dask_span_name=~"$span"'
PREFIX = f'{SPAN}, dask_task_prefix=~"$prefix"'

TAG = "dask-otel"
WIDTH = 24


# -------------------------------------------------------------------------------- variables


def _datasource(name: str, kind: str, label: str) -> Builder[Any]:
    return dashboard.DatasourceVariable(name).label(label).type(kind)


def _names(name: str, label: str, of: str, matchers: str, every: bool = True) -> Builder[Any]:
    selector = f"{of}{{{matchers}}}" if matchers else of
    variable = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(PROMETHEUS)
        .query(f"label_values({selector}, {_LABELS[name]})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if every:
        # `.*` and not a list of all: a series without the label is in it, too.
        variable.include_all(True).all_value(".*").multi(True)
        variable.current(VariableOption(selected=True, text="All", value="$__all"))
    return variable


_LABELS = {
    "cluster": "dask_cluster_name",
    "root": "dask_span_root_name",
    "span": "dask_span_name",
    "prefix": "dask_task_prefix",
}


def datasources() -> list[Builder[Any]]:
    return [
        _datasource("datasource", "prometheus", "Metrics"),
        _datasource("tempo", "tempo", "Tempo"),
        _datasource("jaeger", "jaeger", "Jaeger"),
    ]


def cluster() -> Builder[Any]:
    return _names("cluster", "Cluster", "dask_otel_running", "")


def root(every: bool = True) -> Builder[Any]:
    return _names("root", "Root span", "dask_span_execute_time_seconds_total", CLUSTER, every)


def span() -> Builder[Any]:
    return _names("span", "Span", "dask_span_execute_time_seconds_total", ROOT)


def prefix() -> Builder[Any]:
    return _names("prefix", "Task prefix", "dask_span_execute_time_seconds_total", SPAN)


def compared_with() -> Builder[Any]:
    return (
        dashboard.CustomVariable("before")
        .label("Compare with")
        .description("How long before the shown time the other one is")
        .values("1h,6h,1d,7d,14d,28d")
        .current(VariableOption(selected=True, text="7d", value="7d"))
    )


# ------------------------------------------------------------------------------------ links


def _explore(datasource: str, kind: str, query: dict[str, Any]) -> str:
    """The URL of a query in Explore, with Grafana's variables left for Grafana to fill in."""
    query = {"refId": "A", "datasource": {"type": kind, "uid": datasource}, **query}
    pane = {
        "datasource": datasource,
        "queries": [query],
        "range": {"from": "${__from}", "to": "${__to}"},
    }
    text = json.dumps({"dask": pane}, separators=(",", ":"))
    parts = re.split(r"(\$\{[^}]+\})", text)
    return "/explore?schemaVersion=1&panes=" + "".join(
        part if part.startswith("${") else quote(part, safe="") for part in parts
    )


def _tempo(conditions: list[str]) -> str:
    query = f"{{ {' && '.join(conditions)} }}"
    return _explore("${tempo}", "tempo", {"queryType": "traceql", "query": query, "limit": 50})


def _jaeger(tags: str) -> str:
    search = {"queryType": "search", "service": "dask-scheduler", "tags": tags, "limit": 50}
    return _explore("${jaeger}", "jaeger", search)


def _link(title: str, url: str) -> Builder[Any]:
    return (
        dashboard.DashboardLink(title)
        .type(DashboardLinkType.LINK)
        .url(url)
        .target_blank(True)
        .icon("external link")
        .tooltip("")
    )


def panel_links(matchers: str) -> list[Builder[Any]]:
    """Links of a panel to the traces of what its variables choose."""
    conditions = ['resource.dask.cluster.name =~ "${cluster:pipe}"']
    if "$root" in matchers:
        conditions.append('span.dask.span.root.name =~ "${root:pipe}"')
    if "$span" in matchers:
        conditions.append('span.dask.span.name =~ "${span:pipe}"')
    return [
        _link("Traces in Tempo", _tempo(conditions)),
        _link("Traces in Jaeger", _jaeger("dask.span.type=span")),
    ]


def series_links(label: str) -> list[Builder[Any]]:
    """Links of a series to the traces of the span in its label."""
    key = label.replace("_", ".")
    value = f"${{__field.labels.{label}}}"
    return [
        _link("Its traces in Tempo", _tempo([f'span.{key} = "{value}"'])),
        _link("Its traces in Jaeger", _jaeger(f'{key}="{value}"')),
    ]


# ----------------------------------------------------------------------------------- panels


def _query(ref: str, expression: str, legend: str, instant: bool) -> prometheus.Dataquery:
    query = (
        prometheus.Dataquery()
        .ref_id(ref)
        .datasource(PROMETHEUS)
        .expr(expression)
        .legend_format(legend or "__auto")
    )
    return query.instant() if instant else query.range().exemplar(True)


def _fill(
    panel: Any, title: str, read: str, queries: list[tuple[str, str]], unit: str, instant: bool
) -> Any:
    text = " ".join(expression for expression, _ in queries)
    label = "dask_span_name" if "by (dask_span_name)" in text else "dask_span_root_name"
    links = series_links(label) if f"by ({label}" in text else []
    panel.title(title).description(read).datasource(PROMETHEUS).unit(unit).height(8)
    panel.links(panel_links(text)).data_links(links)
    for number, (expression, legend) in enumerate(queries):
        panel.with_target(_query(chr(ord("A") + number), expression, legend, instant))
    return panel


def graph(
    title: str,
    read: str,
    *queries: tuple[str, str],
    unit: str = "short",
    width: int = 12,
    stacked: bool = False,
) -> Any:
    """Curves over time. `read` says how to read it; a query comes with the text of its legend."""
    panel = _fill(timeseries.Panel(), title, read, list(queries), unit, instant=False)
    panel.span(width).min(0).fill_opacity(60 if stacked else 10)
    panel.tooltip(
        common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    )
    panel.legend(
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.TABLE)
        .placement(LegendPlacement.RIGHT)
        .show_legend(True)
        .calcs(["mean", "max"])
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    return panel


def bars(title: str, read: str, *queries: tuple[str, str], unit: str = "s", width: int = 12) -> Any:
    """One bar for each series, over the whole time range."""
    panel = _fill(bargauge.Panel(), title, read, list(queries), unit, instant=True)
    panel.orientation(VizOrientation.HORIZONTAL).display_mode(BarGaugeDisplayMode.BASIC)
    return panel.span(width)


def number(
    title: str, read: str, *queries: tuple[str, str], unit: str = "percentunit", width: int = 6
) -> Any:
    """One number for each query, over the whole time range."""
    panel = _fill(stat.Panel(), title, read, list(queries), unit, instant=True)
    panel.graph_mode(BigValueGraphMode.NONE).color_mode(BigValueColorMode.NONE)
    return panel.span(width).height(5)


def smaller(first: str, second: str) -> str:
    """The smaller one of two single values."""
    return f"(({first}) < ({second})) or ({second})"


def share(part: str, of: str) -> str:
    """A ratio of two sums over the time range; nothing where there is nothing to divide by."""
    return f"sum(increase({part}[$__range])) / (sum(increase({of}[$__range])) > 0)"


def page(title: str, uid: str, text: str, variables: list[Any], parts: list[Any]) -> Any:
    """A dashboard of rows (their titles) and panels, with links to the other dashboards."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags([TAG])
        .time("now-6h", "now")
        .timezone("browser")
        .refresh("1m")
        .readonly()
        .link(
            dashboard.DashboardLink("Dask")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
            .as_dropdown(False)
            .icon("dashboard")
            .tooltip("")
        )
    )
    for variable in [*datasources(), *variables]:
        made.with_variable(variable)
    for number_, part in enumerate(parts, start=1):
        if isinstance(part, str):
            made.with_row(dashboard.Row(part).id(number_))
        else:
            made.with_panel(part.id(number_))
    return made
