"""What a dashboard must keep to so that it answers at a glance; each rule returns its faults."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .test_rules import ALERTS

Page = dict[str, Any]
Panel = dict[str, Any]

#: Pixels of a column of Grafana's grid on a screen of 1,440, of the gap between two panels, and of
#: a character of a title; a panel's margins, description and links take the rest.
COLUMN, GAP, CHARACTER, ICONS = 58, 8, 8, 100
#: Pixels of a character in a cell, of a cell's margins, and of a table's.
LETTER, CELL, TABLE = 8, 14, 16
#: A column without a width of its own is never narrower in Grafana, and the table scrolls.
NARROWEST = 150
#: What is shown in a column at least: its title, and these texts of ours.
SHOWN = {"Alert": [*ALERTS], "Severity": ["critical", "warning"], "Since": ["13 minutes ago"]}

#: The colour of each meaning: what a second of a thread was, on every page. Names that can stand
#: beside each other in a panel have shades of it.
COLOURS = {
    "green": {"thread-cpu", "get-output-cpu", "Computing", "memory", "succeeded"},
    "light-green": {"p2p-shard-partition-cpu", "p2p-get-output-cpu"},
    "blue": {"get-output-noncpu", "thread-noncpu", "Off the CPU"},
    "light-blue": {"p2p-shard-partition-noncpu", "p2p-get-output-noncpu"},
    "purple": {"network", "Moving data"},
    "light-purple": {"send"},
    "dark-purple": {"serialize"},
    "super-light-purple": {"deserialize"},
    "semi-dark-purple": {"offload"},
    "yellow": {"disk-read", "spilled"},
    "light-yellow": {"disk-write"},
    "dark-yellow": {"compress"},
    "semi-dark-yellow": {"decompress"},
    "orange": {"idle", "Idle"},
    "#808080": {"unused", "Unused", "rescheduled"},
    "red": {"failed", "Wasted", "erred", "error"},
    "light-red": {"cancelled", "recomputed"},
    "dark-red": {"lost", "worker_lost"},
    "#A08C6E": {"other", "Other"},
    "#C9BBA3": {"executor"},
    "#4E9A9A": {"waiting"},
    "#2E6E6E": {"queued"},
    "#8FB8A8": {"no-worker"},
    "#9AD5D5": {"processing", "processes"},
    "#D9F0F0": {"executing"},
}
COLOUR_OF = {name: colour for colour, names in COLOURS.items() for name in names}

#: What a run is counted by, and the root span itself without those inside of it.
RUNS = "dask_span_duration_seconds"
ITSELF = 'dask_span_name!="_OTHER"'


def panels(page: Page) -> list[Panel]:
    """Every panel of a page, those of closed rows included."""
    found = []
    for panel in page["panels"]:
        found += panel.get("panels", []) if panel["type"] == "row" else [panel]
    return found


def of_kind(page: Page, *kinds: str) -> Iterator[Panel]:
    return (panel for panel in panels(page) if panel["type"] in kinds)


def expressions(panel: Panel) -> list[str]:
    """In PromQL: what a trace store is asked is none of them."""
    return [target["expr"] for target in panel.get("targets", []) if "expr" in target]


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


def bars_begin_at_zero_in_one_colour(page: Page) -> list[str]:
    """Without them Grafana begins at the smallest, and is red from 80 on."""
    return [
        panel["title"]
        for panel in of_kind(page, "bargauge")
        if defaults(panel).get("min") != 0
        or defaults(panel).get("color", {}).get("mode") != "fixed"
        or len(steps(panel)) != 1
    ]


def thresholds_are_our_own(page: Page) -> list[str]:
    return [
        panel["title"]
        for panel in panels(page)
        if not steps(panel) or steps(panel)[0][0] is not None or (80, "red") in steps(panel)
    ]


def limits_of_rules(alert: str) -> set[float]:
    """The numbers in the expression of a rule, and for how many seconds it must hold."""
    rule = ALERTS[alert]
    found = {float(text) for text in re.findall(r"[<>]\s*([\d.e]+)", rule["expr"])}
    if 0 in found:
        found.add(1e-9)  # a step is what a colour begins with
    if re.fullmatch(r"\d+m", rule.get("for", "")):
        found.add(60.0 * int(rule["for"][:-1]))
    return found


def red_is_where_an_alert_fires(page: Page) -> list[str]:
    """A number with a runbook turns red at a limit of that runbook's alert, and nowhere else."""
    faults = []
    for panel in of_kind(page, "stat"):
        books = [
            link["title"].removeprefix("Runbook ")
            for link in panel["links"]
            if link["title"].startswith("Runbook")
        ]
        known = {value for alert in books for value in limits_of_rules(alert)}
        red = {value for value, colour in steps(panel) if colour == "red" and value is not None}
        faults += [f"{panel['title']}: {value}" for value in red if books and value not in known]
        said = {one for one in ALERTS if f"limit of {one}" in panel["description"]}
        if said - set(books) or (said and len(steps(panel)) < 2):
            faults.append(f"{panel['title']}: {said}")
    return faults


def meanings_have_their_colours(page: Page) -> list[str]:
    """Every known activity, by itself and as ``what: activity``, has one colour: the one."""
    faults = []
    for panel in of_kind(page, "timeseries", "bargauge"):
        legends = " ".join(target["legendFormat"] for target in panel["targets"])
        if not re.search(r"dask_activity|dask_task_(outcome|retry_reason|state)", legends):
            continue
        if "dask_worker_name" in legends:  # which has the colours of the palette
            faults += [panel["title"]] if list(_colours(panel, "w: executing")) else []
            continue
        for name, colour in COLOUR_OF.items():
            for shown in (name, f"etl: {name}"):
                given = [one for one in _colours(panel, shown) if one]
                if given != [colour]:
                    faults.append(f"{panel['title']}: {shown} is {given}")
    for panel in of_kind(page, "table"):
        for column in ("Activity", "What"):
            if column in _columns(panel):
                mapped = properties(panel, column).get("mappings", [])
                for name, colour in COLOUR_OF.items():
                    given = [
                        one["options"]["result"]["color"]
                        for one in mapped
                        if _matches(one["options"]["pattern"], name)
                    ]
                    if given != [colour]:
                        faults.append(f"{panel['title']}: {name} is {given}")
    return faults


def _matches(pattern: str, text: str) -> bool:
    return re.search(pattern.strip("/"), text) is not None


def _colours(panel: Panel, name: str) -> Iterator[str]:
    for override in panel["fieldConfig"]["overrides"]:
        matcher = override["matcher"]
        if matcher["id"] == "byRegexp" and _matches(matcher["options"], name):
            for one in override["properties"]:
                if one["id"] == "color":
                    yield one["value"]["fixedColor"]


def _columns(panel: Panel) -> list[str]:
    return [
        name
        for one in panel.get("transformations", [])
        if one["id"] == "organize"
        for name in one["options"]["renameByName"].values()
    ]


def says_what_it_means_where_nothing_is(page: Page) -> list[str]:
    faults = []
    for panel in panels(page):
        text = defaults(panel).get("noValue", "")
        if panel["type"] != "stat" and not re.fullmatch(r"No data: .{10,}, or .*\.", text):
            faults.append(f"{panel['title']}: {text!r}")
    return faults


def nothing_is_no_good_news(page: Page) -> list[str]:
    """A query that failed shows the same text as one without a result."""
    return [
        panel["title"]
        for panel in panels(page)
        if (text := defaults(panel).get("noValue", "")) != "no data"
        and not (text.startswith("No data: ") and text.endswith(", or the query failed."))
    ]


def axes_have_numbers(page: Page) -> list[str]:
    """With no decimals Grafana takes the ticks between whole numbers for nothing, and says so."""
    return [
        panel["title"]
        for panel in of_kind(page, "timeseries")
        if defaults(panel).get("decimals") == 0 and "noValue" in defaults(panel)
    ]


def cells_stand_for_themselves(page: Page) -> list[str]:
    """Else a cell without a value has the panel's sentence, and bars the table's largest number."""
    faults = []
    for panel in of_kind(page, "table"):
        for column in _columns(panel):
            given = properties(panel, column)
            bar = given.get("custom.cellOptions", {}).get("type") == "gauge"
            if not given.get("noValue") or len(given["noValue"]) > 3:
                faults.append(f"{panel['title']}: {column}: noValue")
            if bar and (given.get("fieldMinMax"), given.get("min")) != (True, 0):
                faults.append(f"{panel['title']}: {column}: its bar")
    return faults


def advice_fits(page: Page) -> list[str]:
    """A sentence of at most so many characters is seen as a whole."""
    found = [
        text
        for panel in panels(page)
        for one in expressions(panel)
        for text in re.findall(r'"advice", "([^"]*)"', one)
    ]
    return [text for text in found if len(text) > 72 or not text.endswith(".")]


def curves_have_colours(page: Page) -> list[str]:
    """Else they have those of the thresholds, and below the first none."""
    return [
        panel["title"]
        for panel in of_kind(page, "timeseries")
        if defaults(panel).get("color", {}).get("mode") != "palette-classic"
    ]


def is_described(page: Page) -> list[str]:
    return [
        panel["title"]
        for panel in panels(page)
        if len(panel["description"]) < 30 or not panel["description"].endswith(".")
    ]


def titles_fit(page: Page) -> list[str]:
    return [
        panel["title"]
        for panel in panels(page)
        if len(panel["title"]) * CHARACTER + ICONS > panel["gridPos"]["w"] * COLUMN - GAP
    ]


def columns_fit(page: Page) -> list[str]:
    """A column is as wide as its title and as our own texts in it; there is room for the others."""
    faults = []
    for panel in of_kind(page, "table"):
        rest, sharing = panel["gridPos"]["w"] * COLUMN - GAP - TABLE, 0
        for column in _columns(panel):
            given = properties(panel, column)
            if given.get("custom.hidden"):
                continue
            width = given.get("custom.width")
            sharing += width is None
            rest -= width or 0
            texts = [column, *SHOWN.get(column, [])]
            if column == "What":
                texts += re.findall(r'"what", "([^"]*)"', " ".join(expressions(panel)))
            if width is not None and max(map(len, texts)) * LETTER + CELL > width:
                faults.append(f"{panel['title']}: {column}: {max(texts, key=len)}")
        if sharing and rest / sharing < NARROWEST:
            faults.append(f"{panel['title']}: {rest} for {sharing} columns")
    return faults


def lines_are_full_and_of_one_height(page: Page) -> list[str]:
    """Else Grafana moves panels up, beside others that they have nothing to do with."""
    faults = []
    lists = [list(page["panels"])]
    lists += [one["panels"] for one in page["panels"] if one.get("panels")]
    for shown in lists:
        lines = defaultdict(list)
        for panel in shown:
            lines[panel["gridPos"]["y"]].append(panel["gridPos"])
        below = min(lines)
        for y, at in sorted(lines.items()):
            heights = {one["h"] for one in at}
            ends = [0, *(one["x"] + one["w"] for one in at)]
            if y != below or len(heights) != 1 or ends != [*(one["x"] for one in at), 24]:
                faults.append(f"line at {y}: {at}")
            below = y + max(heights)
    return faults


def legends_are_below_and_by_size(page: Page) -> list[str]:
    """Below, so that the axes of graphs above each other are aligned."""
    faults = []
    for panel in of_kind(page, "timeseries"):
        legend = panel["options"]["legend"]
        by = {"mean": "Mean", "lastNotNull": "Last *"}[legend["calcs"][0]]
        if (legend["placement"], legend.get("sortBy"), legend.get("sortDesc")) != (
            "bottom",
            by,
            True,
        ):
            faults.append(panel["title"])
    return faults


def stacks_have_units_and_fold_what_is_small(page: Page) -> list[str]:
    faults = []
    for panel in of_kind(page, "timeseries"):
        stack = defaults(panel)["custom"].get("stacking", {}).get("mode") == "normal"
        seconds = any(
            re.search(r"rate\(dask_\w+_time_seconds_total", one) for one in expressions(panel)
        )
        if seconds and defaults(panel)["unit"] not in ("suffix:threads", "percentunit"):
            faults.append(f"{panel['title']}: {defaults(panel)['unit']}")
        if defaults(panel)["unit"] == "suffix:threads" and defaults(panel).get("decimals") != 2:
            faults.append(f"{panel['title']}: decimals")
        legends = [target["legendFormat"] for target in panel["targets"]]
        many = stack and seconds and "{{dask_activity}}" in legends
        few = any('dask_activity=~"' in one for one in expressions(panel))  # three by name
        if many and not few and "other" not in legends:
            faults.append(f"{panel['title']}: nothing is folded")
    return faults


def shares_are_of_the_time_with_data(page: Page) -> list[str]:
    """A division by the whole range is wrong where data covers a part of it."""
    return [
        panel["title"]
        for panel in panels(page)
        if any("$__range_s" in one or "$__range_ms" in one for one in expressions(panel))
    ]


def one_axis_has_one_kind(page: Page) -> list[str]:
    """Rates for each second, and numbers of changes, have no common axis."""
    return [
        panel["title"]
        for panel in of_kind(page, "timeseries")
        if len({bool(re.search(r"\bchanges\(", one)) for one in expressions(panel)}) > 1
    ]


def nothing_is_not_a_number(page: Page) -> list[str]:
    """A quantile of no observations is NaN, and makes the mean of a legend NaN."""
    return [
        panel["title"]
        for panel in panels(page)
        if any("histogram_quantile" in x and not x.endswith(">= 0") for x in expressions(panel))
    ]


def runs_are_those_of_the_root(page: Page) -> list[str]:
    """Unless it is grouped by span, ends of spans inside are no runs."""
    return [
        panel["title"]
        for panel in panels(page)
        for one in expressions(panel)
        if RUNS in one and ITSELF not in one and "by (dask_span_name)" not in one
    ]


def runs_are_whole(page: Page) -> list[str]:
    """``increase`` of a count alone extrapolates: it is for quotients, of a sum by its count."""
    return [
        panel["title"]
        for panel in of_kind(page, "stat", "table", "bargauge")
        for one in expressions(panel)
        if re.search(rf"(?<!round\()increase\({RUNS}_count", one) and f"{RUNS}_sum" not in one
    ]


def alerts_are_marked(page: Page) -> list[str]:
    """By a line where one begins: a region would hide the colours that mean something."""
    marks = page.get("annotations", {}).get("list", [])
    shown = [one for one in marks if one["enable"] and "ALERTS{" in one.get("expr", "")]
    faults = [] if shown else ["no annotation of alerts"]
    for one in shown:
        now, _, before = one["expr"].partition(" unless ")
        if before != f"{now} offset 1m" or one["step"] != "60s":
            faults.append("a region")
        if 'severity!="info"' not in now:
            faults.append("alerts that are only worth a look")
        if ("root" in variables(page)) != ('dask_span_root_name=~"$root|"' in now):
            faults.append("alerts of other workflows")
    return faults


def a_panel_of_one_kind_has_one_base(page: Page) -> list[str]:
    """Where advice and numbers stand in one screen, a share is of all time in both."""
    faults = []
    for panel in of_kind(page, "table"):
        if "Advice" not in _columns(panel):
            continue
        hours, shares = (one for one in expressions(panel))
        over = (
            r" / scalar\(sum \(increase\(dask_cluster_time_seconds_total\{[^,}]*\}\[\$__range\]\)\)"
        )
        if hours.removesuffix(" / 3600") not in shares or not re.search(over, shares):
            faults.append("a share of something else")
        by = [one["displayName"] for one in panel["options"]["sortBy"] if one["desc"]]
        if by != ["Thread-hours"]:
            faults.append(f"sorted by {by}")
        _, topmost, greatest = hours.rpartition("topk(1")
        if not topmost or 'what", "Unused"' not in greatest:
            faults.append("no advice for the greatest loss")
    return faults


def series_have_colours_of_their_own(page: Page) -> list[str]:
    """Of the names that are known: no two of a panel look alike."""
    faults = []
    for panel in of_kind(page, "timeseries"):
        fixed = [x["legendFormat"] for x in panel["targets"] if "{{" not in x["legendFormat"]]
        shown = [name for name in fixed if list(_colours(panel, name))]
        for target in panel["targets"]:
            if target["legendFormat"] == "{{dask_task_state}}":
                shown += re.findall(r"[\w-]+", re.search(r'state=~"([^"]*)"', target["expr"])[1])
            if target["legendFormat"] == "{{dask_activity}}":
                # Stages of a shuffle share a shade; idle threads stand beside transfers as a line.
                known = metered_by_dask() & COLOUR_OF.keys() - {*fixed}
                shown += [name for name in known if not name.startswith(("p2p-", "idle"))]
        colours = defaultdict(set)
        for name in shown:
            for colour in _colours(panel, name):
                colours[colour].add(name)
        faults += [f"{panel['title']}: {names}" for names in colours.values() if len(names) > 1]
    return faults


def words_are_a_persons(page: Page) -> list[str]:
    """Dask calls a task that succeeded `memory`; and what is done is not left to do."""
    faults = []
    for panel in of_kind(page, "timeseries"):
        for target in panel["targets"]:
            expression, legend = target["expr"], target["legendFormat"]
            if (
                "task_outcome" in legend
                and '"succeeded", "dask_task_outcome", "mem' not in expression
            ):
                faults.append(panel["title"])
            if "to do" in panel["title"] and re.search(r"memory|erred|released", expression):
                faults.append(panel["title"])
            if "to do" in panel["title"] and "dask_task_state=~" not in expression:
                faults.append(panel["title"])
    return faults


def each_signal_is_seen(page: Page) -> list[str]:
    """Metrics that go on hide traces that do not: what the exporter does is asked by signal."""
    asked = r"dask_otel_(export_last_success|queue|spool)_"
    return [
        panel["title"]
        for panel in of_kind(page, "stat")
        for target in panel["targets"]
        if re.search(asked, target["expr"])
        and ("dask_otel_signal" not in target["expr"] or "signal}}" not in target["legendFormat"])
    ]


def few_runs_are_marked(page: Page) -> list[str]:
    """Where Dask books runs on an earlier one, something beside the number of runs says so."""
    faults = []
    for panel in of_kind(page, "stat", "table"):
        if panel["title"] != "Runs that ended" and "Runs" not in _columns(panel):
            continue
        y = panel["gridPos"]["y"]
        beside = [one for one in panels(page) if one["gridPos"]["y"] == y]
        if not any("dask_span_collided_total" in x for one in beside for x in expressions(one)):
            faults.append(panel["title"])
    return faults


def numbers_have_names(page: Page) -> list[str]:
    """Several in one panel have them only where it is wide; a lone bar, where it is told to."""
    faults = []
    for panel in of_kind(page, "stat"):
        names = [target["legendFormat"] for target in panel["targets"]]
        if len(names) > 1 and panel["gridPos"]["w"] < 3 * len(names):
            faults.append(panel["title"])
    for panel in of_kind(page, "bargauge"):
        if "${__field.labels." not in defaults(panel).get("displayName", ""):
            faults.append(panel["title"])
        if panel["options"].get("sizing") != "manual":
            faults.append(panel["title"])
    return faults


def bars_lead_to_span_and_traces(page: Page) -> list[str]:
    wanted = ["Open in Dask / Span", "Its traces in Tempo", "Its traces in Jaeger"]
    return [
        panel["title"]
        for panel in of_kind(page, "bargauge")
        if [link["title"] for link in defaults(panel).get("links", [])] != wanted
    ]


def links_to_jaeger_carry_the_root(page: Page) -> list[str]:
    faults = []
    for panel in panels(page):
        (url,) = [one["url"] for one in panel["links"] if one["title"] == "Traces in Jaeger"]
        carried = 'dask.span.root.name=\\"${root}\\"' in unquote(url)
        asked = [*expressions(panel), *(target.get("query", "") for target in panel["targets"])]
        if carried != any(re.search(r"\$\{?root", one) for one in asked):
            faults.append(panel["title"])
    return faults


def alerts_come_first(page: Page) -> list[str]:
    """On the overview: a list of what fires, in the first line."""
    first = [one for one in page["panels"] if one["gridPos"]["y"] == 0]
    listed = [one for one in first if any("ALERTS_FOR_STATE" in x for x in expressions(one))]
    return [] if [one["type"] for one in listed] == ["table"] else ["no list of alerts on top"]


# ---------------------------------------------------------------------- rules of all pages


def links_fit_their_target(pages: dict[str, Page]) -> list[str]:
    """A link passes only variables that its target has, and "All" only where that has one."""
    targets = {page["uid"]: page for page in pages.values()}
    faults = []
    for name, page in pages.items():
        own = variables(page)
        for title, url in _links(page):
            found = re.match(r"/d/([\w-]+)\?(.*)", url)
            if not found:
                continue
            there = variables(targets[found[1]])
            for variable in re.findall(r"\$\{(\w+):queryparam\}", found[2]):
                if variable not in own or variable not in there:
                    faults.append(f"{name}: {title}: {variable}")
                elif own[variable].get("includeAll") and not there[variable].get("includeAll"):
                    faults.append(f"{name}: {title}: All of {variable}")
            given = set(re.findall(r"var-(\w+)=", found[2]))
            faults += [f"{name}: {title}: {variable}" for variable in given - there.keys()]
        faults += [f"{name}: {link['title']}" for link in page["links"] if link.get("includeVars")]
    return faults


def _links(page: Page) -> Iterator[tuple[str, str]]:
    """Every link of a page, of its panels, their series and their cells."""
    for link in page["links"]:
        yield link["title"], link["url"]
    for panel in panels(page):
        found = [*panel["links"], *defaults(panel).get("links", [])]
        for override in panel["fieldConfig"]["overrides"]:
            for one in override["properties"]:
                found += one["value"] if one["id"] == "links" else []
        for link in found:
            yield f"{panel['title']}: {link['title']}", link["url"]


RULES: tuple[Callable[[Page], list[str]], ...] = (
    bars_begin_at_zero_in_one_colour,
    thresholds_are_our_own,
    red_is_where_an_alert_fires,
    meanings_have_their_colours,
    says_what_it_means_where_nothing_is,
    nothing_is_no_good_news,
    axes_have_numbers,
    columns_fit,
    a_panel_of_one_kind_has_one_base,
    series_have_colours_of_their_own,
    words_are_a_persons,
    each_signal_is_seen,
    few_runs_are_marked,
    numbers_have_names,
    cells_stand_for_themselves,
    advice_fits,
    curves_have_colours,
    is_described,
    titles_fit,
    lines_are_full_and_of_one_height,
    legends_are_below_and_by_size,
    stacks_have_units_and_fold_what_is_small,
    shares_are_of_the_time_with_data,
    one_axis_has_one_kind,
    nothing_is_not_a_number,
    runs_are_those_of_the_root,
    runs_are_whole,
    alerts_are_marked,
    bars_lead_to_span_and_traces,
    links_to_jaeger_carry_the_root,
)


def metered_by_dask() -> set[str]:
    """The activities that the installed Dask meters, from its source."""
    import distributed

    return {
        node.args[0].value
        for path in Path(distributed.__file__).parent.rglob("*.py")
        if "tests" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "context_meter.meter"
        and isinstance(node.args[0], ast.Constant)
    }
