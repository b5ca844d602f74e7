"""What a dashboard must keep to so that it answers at a glance; a rule returns the faulty panels.

What every panel of a kind has, `tools/dashboards/parts.py` gives it, and no rule repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any
from urllib.parse import unquote

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
    found = defaults(panel).get("thresholds", {}).get("steps", [])
    return [(step["value"], step["color"]) for step in found]


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


# ------------------------------------------------------------------------- rules of a page

Rule = Callable[[Page], Iterable[str]]
RULES: list[Rule] = []


def of_each(*kinds: str) -> Callable[[Callable[[Panel, Page], object]], Rule]:
    """Make a rule of what is wrong with a panel of these kinds; without any, of every panel."""

    def made(fault: Callable[[Panel, Page], object]) -> Rule:
        @wraps(fault)
        def rule(page: Page) -> list[str]:
            return [
                panel["title"]
                for panel in panels(page)
                if panel["type"] in (kinds or panel["type"]) and fault(panel, page)
            ]

        RULES.append(rule)
        return rule

    return made


def limits_of_rules(alert: str) -> set[float]:
    """The numbers in the expression of a rule, and for how many seconds it must hold."""
    rule = ALERTS[alert]
    found = {float(text) for text in re.findall(r"[<>]\s*([\d.e]+)", rule["expr"])}
    held = {60.0 * int(text) for text in re.findall(r"^(\d+)m$", rule.get("for", ""))}
    # A step is what a colour begins with: just above 0.
    return found | held | ({1e-9} if 0 in found else set())


@of_each("stat")
def red_is_where_an_alert_fires(panel: Panel, _: Page) -> object:
    """A number with a runbook turns red at a limit of that runbook's alert, and nowhere else."""
    titles = {link["title"].partition("Runbook ")[2] for link in panel["links"]} - {""}
    known = {value for alert in titles for value in limits_of_rules(alert)}
    red = {value for value, colour in steps(panel) if colour == "red" and value is not None}
    said = {one for one in ALERTS if f"limit of {one}" in panel["description"]}
    return (titles and red - known) or said - titles or (said and len(steps(panel)) < 2)


def _columns(panel: Panel) -> list[str]:
    return [
        name
        for one in panel.get("transformations", [])
        if one["id"] == "organize"
        for name in one["options"]["renameByName"].values()
    ]


@of_each("stat")
def nothing_looks_neither_good_nor_bad(panel: Panel, _: Page) -> object:
    """Without a mapping, Grafana gives a missing number the colour of the lowest ones."""
    special = [m["options"] for m in defaults(panel)["mappings"] if m["type"] == "special"]
    return [one["result"]["color"] for one in special if one["match"] == "null+nan"] != ["text"]


@of_each()
def is_described(panel: Panel, _: Page) -> object:
    return len(panel["description"]) < 30 or not panel["description"].endswith(".")


@of_each("timeseries")
def stacks_have_units_and_fold_what_is_small(panel: Panel, _: Page) -> object:
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


@of_each()
def shares_are_of_the_time_with_data(panel: Panel, _: Page) -> object:
    """A division by the whole range is wrong where data covers a part of it."""
    return re.search(r"\$__range_m?s", " ".join(expressions(panel)))


@of_each("timeseries")
def one_axis_has_one_kind(panel: Panel, _: Page) -> object:
    """Rates for each second, and numbers of changes, have no common axis."""
    return len({bool(re.search(r"\bchanges\(", one)) for one in expressions(panel)}) > 1


@of_each("timeseries")
def a_duration_is_that_of_a_run(panel: Panel, _: Page) -> object:
    """Seconds that grew in the time of a point are of no run: they are for quotients."""
    seconds = defaults(panel)["unit"] in ("s", "percentunit")
    grew = [x for x in expressions(panel) if re.search(r"increase\([^\[]*\[\$__rate_interval\]", x)]
    return seconds and [x for x in grew if " / " not in x and "histogram_quantile" not in x]


@of_each()
def nothing_is_not_a_number(panel: Panel, _: Page) -> object:
    """A quantile of no observations is NaN, and makes the mean of a legend NaN."""
    return any("histogram_quantile" in x and not x.endswith(">= 0") for x in expressions(panel))


@of_each()
def runs_are_those_of_the_root(panel: Panel, _: Page) -> object:
    """Unless it is grouped by span, ends of spans inside are no runs."""
    runs = [one for one in expressions(panel) if RUNS in one]
    return [one for one in runs if ITSELF not in one and "by (dask_span_name)" not in one]


@of_each("stat", "table", "bargauge")
def runs_are_whole(panel: Panel, _: Page) -> object:
    """``increase`` of a count alone extrapolates: it is for quotients, of a sum by its count."""
    alone = re.compile(rf"(?<!round\()increase\({RUNS}_count")
    return [one for one in expressions(panel) if alone.search(one) and f"{RUNS}_sum" not in one]


@of_each("table")
def a_panel_of_one_kind_has_one_base(panel: Panel, _: Page) -> object:
    """Where advice and numbers stand in one screen, a share is of all time in both."""
    if "Advice" not in _columns(panel):
        return False
    over = r" / scalar\(sum \(increase\(dask_cluster_time_seconds_total\{[^,}]*\}\[\$__range\]\)\)"
    hours, shares = expressions(panel)
    same = hours.removesuffix(" / 3600") in shares and re.search(over, shares)
    by = [one["displayName"] for one in panel["options"]["sortBy"] if one["desc"]]
    # There is advice for the greatest loss.
    greatest = 'what", "Unused"' in hours.rpartition("topk(1")[2] and "topk(1" in hours
    return not (same and by == ["Thread-hours"] and greatest)


@of_each("timeseries")
def words_are_a_persons(panel: Panel, _: Page) -> object:
    """Dask calls a task that succeeded `memory`; and what is done is not left to do."""
    outcomes = [one["expr"] for one in panel["targets"] if "task_outcome" in one["legendFormat"]]
    renamed = all('"succeeded", "dask_task_outcome", "mem' in one for one in outcomes)
    to_do = expressions(panel) if "to do" in panel["title"] else []
    done = re.compile(r"memory|erred|released")
    return not renamed or [one for one in to_do if "state=~" not in one or done.search(one)]


@of_each("stat")
def each_signal_is_seen(panel: Panel, _: Page) -> object:
    """Metrics that go on hide traces that do not: what the exporter does is asked by signal."""
    return any(
        "dask_otel_signal" not in target["expr"] or "signal}}" not in target["legendFormat"]
        for target in panel["targets"]
        if re.search(r"dask_otel_(export_last_success|queue|spool)_", target["expr"])
    )


@of_each("stat", "table")
def few_runs_are_marked(panel: Panel, page: Page) -> object:
    """Where Dask books runs on an earlier one, something beside the number of runs says so."""
    line = [one for one in panels(page) if one["gridPos"]["y"] == panel["gridPos"]["y"]]
    runs = panel["title"] == "Runs that ended" or "Runs" in _columns(panel)
    beside = " ".join(x for one in line for x in expressions(one))
    return runs and "dask_span_collided_total" not in beside


@of_each("bargauge")
def bars_lead_to_span_and_traces(panel: Panel, _: Page) -> object:
    titles = [link["title"] for link in defaults(panel).get("links", [])]
    return titles != ["Open in Dask / Span", "Its traces in Tempo", "Its traces in Jaeger"]


@of_each()
def links_to_jaeger_carry_the_root(panel: Panel, _: Page) -> object:
    (url,) = [one["url"] for one in panel["links"] if one["title"] == "Traces in Jaeger"]
    carried = 'dask.span.root.name=\\"${root}\\"' in unquote(url)
    asked = [*expressions(panel), *(target.get("query", "") for target in panel["targets"])]
    return carried != any(re.search(r"\$\{?root", one) for one in asked)


def alerts_come_first(page: Page) -> list[str]:
    """On the overview: a list of what fires, in the first line."""
    lists = [one for one in panels(page) if any("ALERTS_FOR_STATE" in x for x in expressions(one))]
    at = [(one["type"], one["gridPos"]["y"]) for one in lists]
    return [] if at == [("table", 0)] or page["uid"] != "dask-otel-overview" else [f"at {at}"]


RULES.append(alerts_come_first)

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
