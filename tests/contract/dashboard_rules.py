"""What a dashboard must keep to so that it answers at a glance.

What every panel of a kind has, `tools/dashboards/parts.py` gives it, and no rule repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from .queries import ALERTS

Page = dict[str, Any]
Panel = dict[str, Any]

#: What a run is counted by, and the root span itself without those inside of it.
RUNS = "dask_span_duration_seconds"
ITSELF = 'dask_span_name!="_OTHER"'


def panels(page: Page) -> list[Panel]:
    """Every panel of a page, those of closed rows included."""
    found = []
    for panel in page["panels"]:
        found += panel.get("panels", []) if panel["type"] == "row" else [panel]
    return found


def expressions(panel: Panel) -> list[str]:
    """In PromQL: what a store of traces or logs is asked is none of them."""
    return [
        target["expr"]
        for target in panel.get("targets", [])
        if target["datasource"]["type"] == "prometheus"
    ]


def defaults(panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = panel["fieldConfig"]["defaults"]
    return found


def steps(panel: Panel) -> list[tuple[float | None, str]]:
    """Of the whole panel, and of each of its series that has its own."""
    own = [properties(panel, f"/{one['legendFormat']}$/") for one in panel["targets"]]
    every = [defaults(panel).get("thresholds", {})] + [one.get("thresholds", {}) for one in own]
    return [(step["value"], step["color"]) for one in every for step in one.get("steps", [])]


def properties(panel: Panel, column: str) -> dict[str, Any]:
    """What a table's override sets for a column."""
    return {
        one["id"]: one.get("value")
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == column
        for one in override["properties"]
    }


def variables(page: Page) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in page["templating"]["list"]}


def colour_of(panel: Panel, name: str) -> str:
    """The colour that a panel gives to a series of this name; empty if it has none."""
    found = ""
    for override in panel["fieldConfig"]["overrides"]:
        pattern = override["matcher"]["options"]
        if override["matcher"]["id"] == "byRegexp" and re.search(pattern.strip("/"), name):
            colours = [x["value"] for x in override["properties"] if x["id"] == "color"]
            found = colours[-1]["fixedColor"] if colours else found
    return found


# ------------------------------------------------------------------------- rules of a panel

#: Patterns of what no expression may be, and the kinds of panels that this is about; none are all.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    # A division by the whole range is wrong where data covers a part of it.
    r"\$__range_m?s": (),
    # A quantile of no observations is NaN, and makes the mean of a legend NaN.
    r"^(?=.*histogram_quantile)(?!.*>= 0$)": (),
    # Unless it is grouped by span, ends of spans inside are no runs.
    rf"^(?=.*{RUNS})(?!.*{ITSELF}|.*by \(dask_span_name\))": (),
    # `increase` of a count alone extrapolates: it is for quotients, of a sum by its count.
    rf"^(?=.*(?<!round\()increase\({RUNS}_count)(?!.*{RUNS}_sum)": ("stat", "table", "bargauge"),
}
Fault = Callable[[Panel], object]
#: What else is wrong with a panel, and the kinds of panels that it is about.
RULES: dict[Fault, tuple[str, ...]] = {}


def of_each(*kinds: str) -> Callable[[Fault], Fault]:
    """Add a rule for panels of these kinds."""

    def add(fault: Fault) -> Fault:
        RULES[fault] = kinds
        return fault

    return add


def limits_of_rules(alert: str) -> set[float]:
    """The numbers in the expression of a rule, and for how many seconds it must hold."""
    rule = ALERTS[alert]
    found = {float(text) for text in re.findall(r"[<>]\s*([\d.e]+)", rule["expr"])}
    held = {60.0 * int(text) for text in re.findall(r"^(\d+)m$", rule.get("for", ""))}
    # A step is what a colour begins with: just above 0.
    return found | held | ({1e-9} if 0 in found else set())


@of_each("stat")
def red_is_where_an_alert_fires(panel: Panel) -> object:
    """A number with a runbook turns red at a limit of that runbook's alert, and nowhere else."""
    titles = {link["title"].partition("Runbook ")[2] for link in panel["links"]} - {""}
    known = {value for alert in titles for value in limits_of_rules(alert)}
    red = {value for value, colour in steps(panel) if colour == "red" and value is not None}
    said = {one for one in ALERTS if f"limit of {one}" in panel["description"]}
    return (titles and red - known) or said - titles or (said and len(steps(panel)) < 2)


@of_each("stat")
def nothing_looks_neither_good_nor_bad(panel: Panel) -> object:
    """Without a mapping, Grafana gives a missing number the colour of the lowest ones."""
    special = [m["options"] for m in defaults(panel)["mappings"] if m["type"] == "special"]
    return [one["result"]["color"] for one in special if one["match"] == "null+nan"] != ["text"]


@of_each("timeseries")
def stacks_have_units_and_fold_what_is_small(panel: Panel) -> object:
    asked, unit = " ".join(expressions(panel)), defaults(panel)["unit"]
    legends = [target["legendFormat"] for target in panel["targets"]]
    stack = defaults(panel)["custom"].get("stacking", {}).get("mode") == "normal"
    seconds = re.search(r"rate\(dask_\w+_time_seconds_total", asked) is not None
    return (
        (seconds and unit not in ("suffix:threads", "percentunit"))
        or (unit == "suffix:threads" and defaults(panel).get("decimals") != 2)
        # Three by name are few.
        or (
            (stack and seconds and "{{dask_activity}}" in legends)
            and ('dask_activity=~"' not in asked and "other" not in legends)
        )
    )


@of_each("timeseries")
def a_duration_is_that_of_a_run(panel: Panel) -> object:
    """Seconds that grew in the time of a point are of no run: they are for quotients."""
    seconds = defaults(panel)["unit"] in ("s", "percentunit")
    grew = [x for x in expressions(panel) if re.search(r"increase\([^\[]*\[\$__rate_interval\]", x)]
    return seconds and [x for x in grew if " / " not in x and "histogram_quantile" not in x]


@of_each("stat")
def each_signal_is_seen(panel: Panel) -> object:
    """Metrics that go on hide traces that do not: what the exporter does is asked by signal."""
    return any(
        "dask_otel_signal" not in target["expr"] or "signal}}" not in target["legendFormat"]
        for target in panel["targets"]
        if re.search(r"dask_otel_(export_last_success|queue|spool)_", target["expr"])
    )


#: A window of 1,280 px beside the docked menu leaves 40 px to each of the 24 columns. A panel's
#: margins and icons take 48 px, and a character of its title 7.2 px on average.
COLUMN, AROUND, CHARACTER = 40, 48, 7.2


@of_each("stat", "table", "bargauge", "timeseries")
def a_title_fits_its_width(panel: Panel) -> object:
    """Else Grafana cuts it."""
    return len(panel["title"]) * CHARACTER > panel["gridPos"]["w"] * COLUMN - AROUND


# ---------------------------------------------------------------------- rules of all pages


def links_fit_their_target(pages: dict[str, Page]) -> Iterator[str]:
    """A link passes only variables that its target has, and "All" only where that has one."""
    targets = {page["uid"]: variables(page) for page in pages.values()}
    for name, page in pages.items():
        own = variables(page)
        for title, url in links(page):
            if found := re.match(r"/d/([\w-]+)\?(.*)", url):
                there = targets[found[1]]
                passed = {*re.findall(r"\$\{(\w+):queryparam\}", found[2])}
                unknown = (passed - (own.keys() & there.keys())) | (
                    {*re.findall(r"var-(\w+)=", found[2])} - there.keys()
                )
                yield from (f"{name}: {title}: {one}" for one in unknown)
                every = [one for one in passed - unknown if own[one].get("includeAll")]
                yield from (
                    f"{name}: {title}: All of {one}"
                    for one in every
                    if not there[one].get("includeAll")
                )
        yield from (f"{name}: {one['title']}" for one in page["links"] if one.get("includeVars"))


def links(page: Page) -> Iterator[tuple[str, str]]:
    """Every link of a page, of its panels, their series and their cells."""
    yield from ((link["title"], link["url"]) for link in page["links"])
    for panel in panels(page):
        found = [*panel["links"], *defaults(panel).get("links", [])]
        for override in panel["fieldConfig"]["overrides"]:
            found += [
                x for one in override["properties"] if one["id"] == "links" for x in one["value"]
            ]
        yield from ((f"{panel['title']}: {link['title']}", link["url"]) for link in found)
