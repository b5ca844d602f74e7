"""The page's sections as markup. Every function returns it; whatever is measured is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from dask_otel import semconv
from dask_otel.report import findings, idle, words
from dask_otel.report.advice import advice, outcome_counts
from dask_otel.report.meanings import PARTS, hex_colour
from dask_otel.report.money import Price
from dask_otel.report.page.markup import Markup, bar, safe, seconds, share, size, table
from dask_otel.report.page.payload import Timeline
from dask_otel.report.seconds import (
    ClusterTime,
    SpanTime,
    cluster_time,
    merged,
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


def _total(run: Run, names: Sequence[SpanTime]) -> tuple[dict[str, float], ClusterTime | None]:
    cluster = cluster_time(run)
    if cluster is not None:
        return cluster.parts(), cluster
    return merged("", names).parts(), None


def overview(run: Run, names: Sequence[SpanTime], price: Price | None) -> str:
    """Return the ten seconds: how long, where to, what failed."""
    by_part, cluster = _total(run, names)
    whole = sum(by_part.values())
    begin, end = run.start_ns, run.end_ns
    lasted = words.seconds((end - begin) / 1e9) if begin is not None and end is not None else "?"
    counts = outcome_counts(run)
    failed = int(counts.get("erred", 0))
    tiles = [("lasted", lasted, "")]
    if cluster is not None and cluster.capacity is not None:
        tiles.append(("thread-time", words.seconds(cluster.capacity), ""))
        if price is not None:
            tiles.append(("cost", price.text(cluster.capacity), ""))
    if whole:
        tiles.append(("computing", f"{by_part['Computing'] / whole:.0%}", ""))
        tiles.append(("idle", f"{by_part['Idle'] / whole:.0%}", ""))
    if "memory" in counts:
        tiles.append(("tasks done", f"{counts['memory']:,.0f}", ""))
    if counts:
        tiles.append(("tasks failed", f"{failed:,}", "bad" if failed else "good"))
    repeated = findings.retries(run)
    if repeated:
        tiles.append(("runs repeated", f"{sum(repeated.values()):,.0f}", "warning"))
    threads = run.metrics.total(semconv.CLUSTER_CAPACITY_TIME.name)
    workers = len(findings.workers(run))
    if workers:
        tiles.append(("workers", f"{workers:,}", ""))
    if threads and run.metrics.start_ns is not None and run.metrics.end_ns is not None:
        length = (run.metrics.end_ns - run.metrics.start_ns) / 1e9
        if length > 0:
            # That begins with the bridge, not with the first span: what "lasted" is less.
            tiles.append(
                (f"mean threads in {words.seconds(length)}", f"{threads / length:.1f}", "")
            )
    shown = "".join(
        f'<div class="tile"><b class="{style}">{safe(value)}</b><span>{safe(name)}</span></div>'
        for name, value, style in tiles
    )
    return f'{_verdict(by_part, failed)}<div class="tiles">{shown}</div>'


def _verdict(by_part: dict[str, float], failed: int) -> str:
    whole = sum(by_part.values())
    if not whole:
        said = "No thread-time is known: there are no metrics, and no seconds in the spans."
        return f'<p class="verdict">{said}</p>'
    largest = sorted(by_part, key=lambda title: -by_part[title])[:3]
    said = ", ".join(f"{by_part[one] / whole:.0%} {words.inside(one)}" for one in largest)
    ends = f' <b class="bad">{failed:,} tasks failed.</b>' if failed else ""
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


def where(run: Run, names: Sequence[SpanTime], of_spans: str, over_time: str) -> str:
    """Return where the thread-seconds went, with the sum that closes."""
    by_part, cluster = _total(run, names)
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
            " while it ran. An OTEL_METRIC_EXPORT_INTERVAL of less than its default, 60000 ms,"
            " gives more.</p>"
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
    said = "not known" if rest is None else f"{rest + 0.0:,.6f} s"
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
    names = sorted(
        (span for span in run.of_type("span") if span.number(semconv.SPAN_IDLE)),
        key=lambda span: -(span.number(semconv.SPAN_IDLE) or 0.0),
    )[:5]
    if why is None and not names:
        return ""
    found = (
        '<h2>Why threads were idle</h2><p class="about">Idle: there was work, and a thread free.'
    )
    found += " It is shared out among the spans that had work at the time.</p>"
    if why is not None and why.total > 0:
        rows = (
            ("before the first task started", why.before_first, "workers, imports or first data"),
            (
                "fewer tasks could run than there were threads",
                why.too_few_tasks,
                "smaller partitions, a smaller cluster; a long task at the end does it, too",
            ),
            (
                "tasks enough for all threads",
                why.enough_tasks,
                "they lay unevenly, waited for data, or for the scheduler",
            ),
        )
        found += table(
            ("idle while …", "#thread-time", "#share", "what it hints at"),
            (
                (name, words.seconds(value), f"{value / why.total:.0%}", hint)
                for name, value, hint in rows
                if value > 0
            ),
        )
        found += f'<p class="about">By {why.samples:,} samples, one an export.</p>'
    if names:
        found += table(
            ("idle most", "#idle", "#of its thread-time"),
            (
                (
                    span.full_name,
                    words.seconds(span.number(semconv.SPAN_IDLE) or 0.0),
                    share(span.number(semconv.SPAN_IDLE), span.number(semconv.SPAN_CAPACITY)),
                )
                for span in names
            ),
        )
    return found


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
        '<div class="tip" hidden></div>'
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
            seconds(task.number(semconv.TASK_QUEUE_TIME)),
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
