"""The page's sections as markup. Every function returns it; whatever is measured is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from dask_otel import semconv
from dask_otel.report import findings, idle, words
from dask_otel.report.advice import advice, outcome_counts
from dask_otel.report.meanings import PARTS, hex_colour
from dask_otel.report.money import Price
from dask_otel.report.page.markup import Markup, bar, safe, share, size, table
from dask_otel.report.page.payload import Timeline
from dask_otel.report.seconds import (
    ClusterTime,
    cluster_time,
    run_parts,
)
from dask_otel.report.telemetry.model import Run, Skipped, text

_MOST_SPANS, _MOST_FAILURES = 200, 50
_ADVICE = {part.title: part.advice for part in PARTS}


def subtitle(runs: Sequence[Run], redacted: bool) -> str:
    """Return which versions, and whether something was left out on purpose."""
    said = []
    if len(runs) == 1:
        run = runs[0]
        version = text(run.resource.get(semconv.SERVICE_VERSION))
        said.append(f"distributed {version}" if version else "")
        said.append(f"dask-otel {run.bridge}" if run.bridge else "")
        said.append(run.instance)
    if redacted:
        said.append("redacted: no messages, tracebacks, code, keys, or attributes of users")
    return f'<div class="dim">{safe(" · ".join(filter(None, said)))}</div>'


def footer(runs: Sequence[Run], skipped: Skipped) -> str:
    """Return what was read, and what could not be."""
    spans = sum(len(run.spans) for run in runs)
    series = sum(run.metrics.count for run in runs)
    lines = [
        f"Made by dask-otel of {spans:,} spans and {series:,} series."
        " Nothing is loaded from elsewhere."
    ]
    if skipped.counts:
        lines.append("Not read: " + "; ".join(skipped.lines()) + ".")
    return "".join(f"<p>{safe(line)}</p>" for line in lines)


# ------------------------------------------------------------------------------ overview


def overview(run: Run, price: Price | None) -> str:
    """Return the ten seconds: how long, where to, what failed."""
    by_part = run_parts(run)
    whole = sum(by_part.values())
    capacity = run.metrics.total(semconv.CLUSTER_CAPACITY_TIME.name)
    counts = outcome_counts(run)
    done, failed = counts.get("memory"), int(counts.get("erred", 0))
    again, workers = sum(findings.retries(run).values()), len(findings.workers(run))
    mean = capacity / run.metrics.seconds if capacity and run.metrics.seconds else None
    # What has no value was not exported.
    tiles = [
        ("lasted", words.seconds(run.seconds), ""),
        ("thread-time", words.known(capacity), ""),
        ("cost", price.text(capacity) if price and capacity is not None else "", ""),
        ("computing", share(by_part["Computing"], whole), ""),
        ("idle", share(by_part["Idle"], whole), ""),
        (f"{words.noun(done or 0, 'task')} done", words.whole(done), ""),
        (
            f"{words.noun(failed, 'task')} failed",
            f"{failed:,}" if counts else "",
            "bad" if failed else "good",
        ),
        (f"{words.noun(again, 'run')} repeated", words.whole(again or None), "warning"),
        (words.noun(workers, "worker"), words.whole(workers or None), ""),
        ("mean threads", "" if mean is None else f"{mean:.1f}", ""),
    ]
    shown = "".join(
        f'<div class="tile"><b class="{style}">{safe(value)}</b><span>{safe(name)}</span></div>'
        for name, value, style in tiles
        if value
    )
    return f'{_verdict(by_part, failed)}<div class="tiles">{shown}</div>'


def _verdict(by_part: dict[str, float], failed: int) -> str:
    whole = sum(by_part.values())
    if not whole:
        said = "No thread-time is known: there are no metrics, and no seconds in the spans."
        return f'<p class="verdict">{said}</p>'
    largest = sorted(by_part, key=lambda title: -by_part[title])[:3]
    said = ", ".join(f"{by_part[one] / whole:.0%} {words.inside(one)}" for one in largest)
    ends = f' <b class="bad">{words.counted(failed, "task")} failed.</b>' if failed else ""
    return f'<p class="verdict">Of the threads’ time: {safe(said)}.{ends}</p>'


def _legend(by_part: dict[str, float]) -> str:
    whole = sum(by_part.values())
    entries = "".join(
        f'<li title="{safe(part.advice)}"><i style="background:{hex_colour(part.colour)}"></i>'
        f"<b>{by_part[part.title] / whole:.0%}</b> {safe(part.title)}"
        f' <span class="dim">{safe(words.seconds(by_part[part.title]))}</span></li>'
        for part in PARTS
        if by_part[part.title] > 0
    )
    return f'<ul class="legend">{entries}</ul>'


def advice_list(run: Run) -> str:
    """Return what to do next."""
    found = advice(run)
    if not found:
        inner = '<p class="good">Nothing is beyond the limit of an alert, and no task failed.</p>'
    else:
        inner = '<ul class="advice">' + "".join(
            f'<li class="{one.severity}"><b class="{one.severity}">{safe(one.title)}</b>'
            f"{safe(one.advice)}"
            + (
                f' <a href="{safe(one.url)}" rel="noopener noreferrer">Runbook</a>'
                if one.url
                else ""
            )
            + "</li>"
            for one in found
        )
        inner += "</ul>"
    return f"<h2>What to do next</h2>{inner}"


# ------------------------------------------------------------------------------- seconds


def where(run: Run, of_spans: str, over_time: str) -> str:
    """Return where the thread-seconds went, with the sum that closes."""
    by_part, cluster = run_parts(run), cluster_time(run)
    if not sum(by_part.values()):
        return ""
    about = (
        "Thread-seconds: a thread for a second is one."
        if cluster is not None
        else "The spans’ own seconds: the files have no metrics of the cluster, so what was unused"
        " or lost is not known."
    )
    found = f"<h2>Where the threads’ time went</h2>{bar(by_part)}{_legend(by_part)}"
    found += f'<p class="about">{safe(about)}</p>'
    if of_spans:
        found += f"<h3>By span</h3>{of_spans}"
    if over_time:
        found += (
            f'<h3>Over time</h3>{over_time}<p class="about">Activities are booked when a task ends:'
            " after a long one they stand above the line of the threads (at twice the threads the"
            " chart is cut), and before it below.</p>"
        )
    elif cluster is not None:
        found += (
            '<p class="about">How it went over time is not known: too few metrics were exported'
            " while it ran. OTEL_METRIC_EXPORT_INTERVAL says how often, in milliseconds.</p>"
        )
    return found + (_closed(cluster) if cluster is not None else "")


def _closed(cluster: ClusterTime) -> str:
    def figure(value: float | None) -> str:
        return "not exported" if value is None else f"{value:,.3f} s"

    activities = sorted(cluster.activities.items(), key=lambda item: -item[1])
    lines = [(name, figure(value), "") for name, value in activities]
    lines.append(("+ in flight", figure(cluster.in_flight), "not settled yet"))
    lines.append(("− capacity", figure(cluster.capacity), "threads of the cluster over time"))
    excess = "booked beyond the threads there were"
    lines.append(("− excess", figure(cluster.excess), excess))
    body = "".join(
        f'<tr><td>{safe(name)}</td><td class="num">{value}</td>'
        f'<td class="dim">{safe(note)}</td></tr>'
        for name, value, note in lines
    )
    rest = cluster.remainder
    said = "not known" if rest is None else words.exact(rest)
    return (
        "<details><summary>The sum, activity by activity: it closes"
        f" {'with a remainder of ' + said if rest is not None else 'as far as it was exported'}"
        '</summary><p class="about">activities + idle + unused + lost + in flight = capacity +'
        " excess. The remainder is computed from the totals of the files, and nothing is adjusted"
        f' to them.</p><table class="sum"><tbody>{body}<tr><td class="total">= remainder</td>'
        f'<td class="num total">{said}</td><td></td></tr></tbody></table></details>'
    )


def idle_reasons(run: Run) -> str:
    """Return why threads were idle."""
    why = idle.explain(run)
    if why is None or not why.total:
        return ""
    rows = table(
        ("idle …", "#thread-time", "#share", "what it hints at"),
        (
            (when, words.seconds(value), f"{value / why.total:.0%}", hint)
            for when, value, hint in why.reasons()
        ),
    )
    return (
        '<h2>Why threads were idle</h2><p class="about">Idle: there was work, and a thread free.'
        f" It is shared out among the spans that had work at the time.</p>{rows}"
        f'<p class="about">By {words.counted(why.samples, "sample")}, one an export.</p>'
    )


# -------------------------------------------------------------------------------- traces


def timeline(key: str, rows: Timeline) -> str:
    """Return the place of the timeline; the script fills it."""
    if not rows.rows:
        return ""
    folded = ""
    if rows.folded:
        folded = (
            f'<p class="warning">{rows.folded:,} groups and tasks have no row:'
            " the longest, and those that failed, do.</p>"
        )
    return (
        f'<h2>Timeline</h2>{folded}<div data-timeline="{key}"><div class="tools">'
        '<input type="search" placeholder="search names, keys, workers, messages"'
        ' aria-label="search">'
        '<label><input type="checkbox" class="groups" checked> groups</label>'
        '<label><input type="checkbox" class="tasks" checked> tasks</label>'
        '<label><input type="checkbox" class="failed"> failed only</label>'
        '<span><button type="button" class="in" title="zoom in">+</button> '
        '<button type="button" class="out" title="zoom out">−</button> '
        '<button type="button" class="all">all</button></span>'
        '<span><button type="button" class="open">open</button> '
        '<button type="button" class="close">close</button></span>'
        '<span class="dim count"></span></div>'
        '<div class="timeline"><canvas tabindex="0" role="img"'
        ' aria-label="timeline of spans, groups and tasks; arrow keys move"></canvas></div>'
        '<p class="more warning"></p><div class="tip" hidden></div>'
        '<p class="about">Click: attributes. Double click: zoom there. Ctrl and wheel zoom,'
        " dragging or Shift and wheel move; arrows, + and − do, too. Pale: the wait for the first"
        " task. The strip below a span’s bar: its own thread-time, in the colours above.</p>"
        '<div class="picked" hidden></div></div>'
    )


def failed(run: Run) -> str:
    """Return what failed, with tracebacks."""
    found = findings.failures(run)
    if not found:
        return ""
    entries = []
    for number, failure in enumerate(found[:_MOST_FAILURES]):
        what = ": ".join(filter(None, (failure.kind, failure.message))) or "failure"
        # Of some exceptions there is a repr alone, which begins with the type.
        if failure.kind and failure.message.startswith(f"{failure.kind.rpartition('.')[2]}("):
            what = failure.message
        times = f" <b>× {failure.count:,}</b>" if failure.count > 1 else ""
        about = " · ".join(
            f"{name} {value}"
            for name, value in (
                ("span", failure.span),
                ("key", failure.key),
                ("worker", failure.worker),
                ("runs", "repeated" if failure.repeated else ""),
            )
            if value
        )
        trace = f"<pre>{safe(failure.stacktrace)}</pre>" if failure.stacktrace else ""
        opened = " open" if number == 0 else ""
        entries.append(
            f'<details{opened}><summary><span class="bad">{safe(what)}</span>{times}</summary>'
            f'<p class="dim">{safe(about)}</p>{trace}</details>'
        )
    left = len(found) - _MOST_FAILURES
    more = f'<p class="about">And {left:,} more kinds.</p>' if left > 0 else ""
    return f"<h2>Failures</h2>{''.join(entries)}{more}"


def slow(run: Run) -> str:
    """Return the slowest tasks."""
    found = findings.slowest(run)
    if not found:
        return ""
    names = findings.span_names(run)
    rows = (
        (
            Markup(
                f"<code>{safe(text(task.attributes.get(semconv.TASK_KEY)) or task.name)}</code>"
            ),
            words.seconds(task.seconds),
            words.known(task.number(semconv.TASK_QUEUE_TIME)),
            text(task.attributes.get(semconv.WORKER_NAME)),
            size(task.number(semconv.TASK_OUTPUT_SIZE)),
            Markup('<span class="bad">failed</span>' if task.failed else ""),
            names.get(text(task.attributes.get(semconv.SPAN_ID)), ""),
        )
        for task in found
    )
    head = ("key", "#took", "#waited", "worker", "#result", "", "span")
    about = "Of the tasks that have a span: the slowest of each group, and those that failed."
    return f'<h2>Slowest tasks</h2>{table(head, rows)}<p class="about">{about}</p>'
