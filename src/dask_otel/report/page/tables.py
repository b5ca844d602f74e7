"""The page's long tables: spans, workers, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dask_otel import semconv
from dask_otel.report import findings, words
from dask_otel.report.money import Bill, Cost, Price, bill
from dask_otel.report.page.markup import Markup, bar, safe, share, size, table
from dask_otel.report.seconds import SpanTime, parts, span_activities
from dask_otel.report.telemetry.model import Run, Span, text

#: Spans that are listed each; if there are more, their names are.
_MOST_SPANS, _MOST_NAMES = 60, 200


def spans(run: Run, names: Sequence[SpanTime], price: Price | None) -> str:
    """Return the spans with their outcome and their time; by name where there are many."""
    found = run.of_type("span")
    if not found:
        return ""
    return _each(found, price) if len(found) <= _MOST_SPANS else _by_name(found, names, price)


def _by_name(found: Sequence[Span], names: Sequence[SpanTime], price: Price | None) -> str:
    head = ["span", "#runs", "#not a success", "#lasted, on average", "#at most"]
    head += ["#thread-time", "#idle"]
    if price is not None:
        head.append("#cost")
    head.append("where to")
    spans: dict[str, list[Span]] = {}
    for span in found:
        spans.setdefault(span.full_name, []).append(span)
    times = {entry.name: entry for entry in names}
    rows = []
    for name, same in list(spans.items())[:_MOST_NAMES]:
        entry = times.get(name) or SpanTime(name, name)
        lasted = [span.seconds for span in same]
        bad = sum(text(span.attributes.get(semconv.SPAN_RESULT)) != "success" for span in same)
        row: list[object] = [
            name,
            f"{len(same):,}",
            Markup(f'<span class="bad">{bad:,}</span>' if bad else "0"),
            words.seconds(sum(lasted) / len(lasted)),
            words.seconds(max(lasted)),
            words.known(entry.capacity),
            share(entry.idle, entry.capacity),
        ]
        if price is not None:
            row.append("" if entry.capacity is None else price.text(entry.capacity))
        row.append(Markup(bar(entry.parts(), small=True)))
        rows.append(row)
    left = len(spans) - _MOST_NAMES
    more = f'<p class="about">{left:,} more names are in the timeline.</p>' if left > 0 else ""
    about = "Spans of one name together. Thread-time, idle and colours are their own."
    return f'<h2>Spans</h2>{table(head, rows)}{more}<p class="about">{about}</p>'


def _each(spans: Sequence[Span], price: Price | None) -> str:
    head = ["span", "result", "#lasted", "#waited", "#tasks", "#failed", "#thread-time", "#idle"]
    if price is not None:
        head.append("#cost")
    head.append("where to")
    rows = []
    for span in spans:
        capacity = span.number(semconv.SPAN_CAPACITY)
        idle_seconds = span.number(semconv.SPAN_IDLE)
        own = span_activities(span)
        row: list[object] = [
            span.full_name,
            Markup(_result(span)),
            words.seconds(span.seconds),
            words.known(span.number(semconv.SPAN_QUEUE_TIME)),
            words.whole(span.number(semconv.TASK_COUNT)),
            words.whole(span.number(semconv.TASK_OUTCOME_COUNT.format("erred"))),
            words.known(capacity),
            share(idle_seconds, capacity),
        ]
        if price is not None:
            row.append("" if capacity is None else price.text(capacity))
        row.append(Markup(bar(parts({**own, "idle": idle_seconds or 0.0}), small=True)))
        rows.append(row)
    return (
        "<h2>Spans</h2>" + table(head, rows) + '<p class="about">Thread-time, idle and colours'
        " are each span’s own; tasks and failures include the spans below it.</p>"
    )


def _result(span: Span) -> str:
    style = {"success": "good", "failure": "bad", "error": "bad"}.get(span.result, "warning")
    return f'<span class="{style}">{safe(span.result)}</span>'


def workers(run: Run, memory: str, busy: str) -> str:
    """Return the workers: their largest figures, and how these went."""
    found = findings.workers(run)
    if not found:
        return ""
    rows = [
        (
            worker.name,
            words.whole(worker.threads),
            size(worker.memory),
            share(worker.memory, worker.limit),
            size(worker.spilled),
            f"{worker.tasks:,}",
            f"{worker.failed:,}",
        )
        for worker in found[:100]
    ]
    measured = ("#threads", "#memory, at most", "#of its limit", "#spilled, at most")
    head = ("worker", *measured, "#tasks shown here", "#of them failed")
    # A run that ended before its first export of metrics has no measure of any worker.
    told = [column for column in range(len(head)) if any(row[column] for row in rows)]
    listed = table(
        [head[column] for column in told], [[row[column] for column in told] for row in rows]
    )
    left = len(found) - 100
    more = f'<p class="about">And {left:,} more.</p>' if left > 0 else ""
    drawn = f"<h3>Memory</h3>{memory}" if memory else ""
    drawn += f"<h3>CPU</h3>{busy}" if busy else ""
    return f"<h2>Workers</h2>{drawn}{listed}{more}"


# --------------------------------------------------------------------------------- money


def money(run: Run, price: Price | None, tag: str) -> str:
    """Return what it cost, by root and tag."""
    if price is None:
        return ""
    found = bill(run, tag)
    if not found.roots and found.capacity is None:
        return "<h2>What it cost</h2><p>Not known: nothing tells of capacity.</p>"
    made = "<h2>What it cost</h2>"
    amount = f"{price.amount:g} {price.currency}".rstrip()
    made += f'<p class="about">At {safe(amount)} a thread-hour.</p>'
    made += table(
        ("root span", "#thread-time", "#cost", "#of it idle"),
        [*_costs(found.roots, price), *_rest(found, price)],
    )
    if found.tags:
        made += table(
            (tag, "#thread-time", "#cost", "#of it idle"), _costs(found.tags, price, f"no {tag}")
        )
    return made


def _costs(costs: Iterable[Cost], price: Price, nameless: str = "") -> Iterable[Sequence[object]]:
    for cost in costs:
        yield (
            cost.name or nameless,
            words.seconds(cost.capacity),
            price.text(cost.capacity),
            "" if cost.idle is None else price.text(cost.idle),
        )


def _rest(found: Bill, price: Price) -> Iterable[Sequence[object]]:
    rest = found.unassigned
    if rest is not None and found.capacity is not None:
        unused = f"of it unused {price.text(found.unused)}" if found.unused is not None else ""
        yield ("of no span", words.seconds(abs(rest)), price.text(rest), unused)
        whole = f"<b>{safe(price.text(found.capacity))}</b>"
        yield (Markup("<b>all</b>"), words.seconds(found.capacity), Markup(whole), "")
