"""Links to the traces, to other dashboards and to the runbooks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import DashboardLinkType

SOURCES = ("datasource", "tempo", "jaeger", "loki")
#: The dashboards, in the order of their links: the title, and the address.
PAGES = {
    "Dask / Overview": "dask-otel-overview",
    "Dask / Span": "dask-otel-span",
    "Dask / Cluster and workers": "dask-otel-workers",
    "Dask / Exporter health": "dask-otel-exporter",
}

_VARIABLE = re.compile(r"(\$\{[^}]+\})")


def _explore(datasource: str, kind: str, query: dict[str, Any]) -> str:
    """The URL of a query in Explore, with Grafana's variables left for Grafana to fill in."""
    query = {"refId": "A", "datasource": {"type": kind, "uid": datasource}, **query}
    pane = {
        "datasource": datasource,
        "queries": [query],
        "range": {"from": "${__from}", "to": "${__to}"},
    }
    text = json.dumps({"dask": pane}, separators=(",", ":"))
    return "/explore?schemaVersion=1&panes=" + "".join(
        part if part.startswith("${") else quote(part, safe="") for part in _VARIABLE.split(text)
    )


#: A whole run that failed: the first generation of a root alone is of this kind.
FAILED_RUN = ("kind = server", 'span.dask.span.type = "span"', "status = error")


def traces(*conditions: str, of: str = "") -> str:
    """A query in TraceQL, of what the variables of a page choose (see `trace_links`)."""
    chosen = ['resource.dask.cluster.name =~ "${cluster:pipe}"']
    if "${root" in of:
        chosen.append('span.dask.span.root.name = "${root}"')
    if "$span" in of:
        chosen.append('span.dask.span.name =~ "${span:pipe}"')
    return _spans([*chosen, *conditions])


def _spans(conditions: Sequence[str]) -> str:
    return f"{{ {' && '.join(conditions)} }}"


def _tempo(query: str) -> str:
    return _explore("${tempo}", "tempo", {"queryType": "traceql", "query": query, "limit": 50})


def _jaeger(tags: str) -> str:
    search = {"queryType": "search", "service": "dask-scheduler", "tags": tags, "limit": 50}
    return _explore("${jaeger}", "jaeger", search)


def link(title: str, url: str) -> Builder[Any]:
    return (
        dashboard.DashboardLink(title)
        .type(DashboardLinkType.LINK)
        .url(url)
        .target_blank(True)
        .icon("external link")
        .tooltip("")
    )


def address(title: str, **fixed: str) -> str:
    """The address of a dashboard with the variables that all have, and others that are given."""
    passed = [f"${{{name}:queryparam}}" for name in (*SOURCES, "cluster")]
    passed += [f"var-{name}={value}" for name, value in fixed.items()]
    return f"/d/{PAGES[title]}?{'&'.join(passed)}"


def page_links(here: str) -> list[Builder[Any]]:
    """Links to the other dashboards, each with the variables that it has."""
    return [
        dashboard.DashboardLink(title)
        .type(DashboardLinkType.LINK)
        .url(address(title))
        .keep_time(True)
        .icon("dashboard")
        .tooltip("")
        for title in PAGES
        if title != here
    ]


def trace_links(matchers: str) -> list[Builder[Any]]:
    """Links of a panel to the traces of what its variables choose.

    Jaeger compares and has no patterns, so it gets only what is one value: the root.
    """
    tags = "dask.span.type=span"
    if "${root" in matchers:
        tags += ' dask.span.root.name="${root}"'
    found = _tempo(traces(of=matchers))
    return [link("Traces in Tempo", found), link("Traces in Jaeger", _jaeger(tags))]


#: The variable of the dashboard Span for each label that it can be opened with.
_OF_SPAN = {
    "dask_span_root_name": "root",
    "dask_span_name": "span",
    "dask_task_prefix": "prefix",
}


def opened(values: dict[str, str]) -> str:
    """The address of the dashboard Span for values of labels, in Grafana's words."""
    fixed = {_OF_SPAN[label]: value for label, value in values.items()}
    return address("Dask / Span", **fixed) + "&${__url_time_range}"


def series_links(labels: list[str]) -> list[Builder[Any]]:
    """Links of a series with these labels: to the dashboard Span, and to its traces."""
    values = {label: f"${{__field.labels.{label}:percentencode}}" for label in labels}
    if "dask_span_root_name" not in values:
        return []
    key, value = "dask.span.root.name", values["dask_span_root_name"]
    if "dask_span_name" in values:
        key, value = "dask.span.name", values["dask_span_name"]
    return [
        link("Open in Dask / Span", opened(values)),
        link("Its traces in Tempo", _tempo(_spans([f'span.{key} = "{value}"']))),
        link("Its traces in Jaeger", _jaeger(f'{key}="{value}"')),
    ]


def cell_link(title: str, column_label: str) -> dict[str, Any]:
    """A link of a table's cell, which holds the value of a label, to the dashboard Span."""
    values = {column_label: "${__value.raw:percentencode}"}
    if column_label == "dask_span_name":  # another page than that of its root has it nowhere
        values = {"dask_span_root_name": "${root:percentencode}", **values}
    return {"title": title, "url": opened(values), "targetBlank": True}
