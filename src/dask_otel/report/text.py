"""The report as text: what to read in a terminal, or to mail as it is."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec

from dask_otel import semconv
from dask_otel.report import findings, idle, words
from dask_otel.report.advice import advice, outcome_counts
from dask_otel.report.compare import Comparison
from dask_otel.report.money import Price, bill
from dask_otel.report.seconds import cluster_time, run_parts
from dask_otel.report.telemetry.model import Run, Skipped, text

_BAR = 24
_MOST = 12


def lines(
    runs: Sequence[Run],
    skipped: Skipped,
    *,
    price: Price | None = None,
    tag: str = "team",
    width: int = 100,
    ascii_only: bool = False,
) -> Iterator[str]:
    """Yield the report, line by line, none longer than `width` but for keys and messages."""
    marks = words.glyphs(ascii_only)
    for run in runs:
        yield from map(words.one_line, _run(run, price, tag, width, marks))
        yield ""
    if skipped.counts:
        yield "Not read: " + "; ".join(skipped.lines()) + "."


def _run(run: Run, price: Price | None, tag: str, width: int, marks: words.Glyphs) -> Iterator[str]:
    yield run.title
    counts = outcome_counts(run)
    if counts:
        yield "Tasks: " + ", ".join(f"{count:,.0f} {outcome}" for outcome, count in counts.items())
    yield from _headed("Where the threads' time went", _where(run, marks))
    yield from _headed("What to do next", _advice(run, width))
    trees = list(_trees(run, width, ascii_only=marks is words.ASCII))
    yield from _headed("Spans", trees or _spans(run, width, marks))
    yield from _headed("Failures", _failures(run, width, marks))
    yield from _headed("Slowest tasks", _slow(run, width, marks))
    yield from _headed("Why threads were idle", _idle(run))
    if price is not None:
        yield from _headed("What it cost", _money(run, price, tag, width, marks))


def _headed(head: str, body: Iterable[str]) -> Iterator[str]:
    found = list(body)
    if found:
        yield ""
        yield head
        yield from found


def _where(run: Run, marks: words.Glyphs) -> Iterator[str]:
    cluster = cluster_time(run)
    by_part = run_parts(run)
    whole = sum(by_part.values())
    if not whole:
        return
    for part, seconds in by_part.items():
        if seconds > 0:
            share = seconds / whole
            drawn = words.bar(share, _BAR, marks)
            yield f"  {part:<12} {words.seconds(seconds):>10} {share:>5.0%}  {drawn}"
    if cluster and cluster.remainder is not None:
        yield f"  all of it {cluster.used:,.3f} s + in flight {cluster.in_flight:,.3f} s"
        yield f"  - capacity {cluster.capacity:,.3f} s - excess {cluster.excess:,.3f} s"
        yield f"  = remainder {words.exact(cluster.remainder)}"


def _advice(run: Run, width: int) -> Iterator[str]:
    found = advice(run)
    if not found:
        yield "  Nothing is beyond the limit of an alert, and no task failed."
    for one in found:
        yield from _indented(f"[{one.severity}] {one.title}", width, "  ")
        yield from _indented(one.advice, width, "      ")


def _indented(sentence: str, width: int, indent: str) -> Iterator[str]:
    for line in words.wrapped(sentence, width - len(indent)):
        yield indent + line


def _trees(run: Run, width: int, *, ascii_only: bool) -> Iterator[str]:
    """Yield the traces as the demo shows them, and their time; nothing where rich is missing."""
    if find_spec("rich") is None:
        return
    from rich.console import Console, RenderableType
    from rich.text import Text

    from dask_otel.report.terminal.time_table import TimeTable, time_by_span
    from dask_otel.report.terminal.trace_tree import (
        TraceTree,
        build_trees,
        late_starts,
        span_names,
    )

    roots = build_trees(run.spans)
    shown: list[RenderableType] = [TraceTree(roots[:_MOST])] if roots else []
    if len(roots) > _MOST:
        shown.append(Text(f"and {len(roots) - _MOST:,} more traces"))
    times = time_by_span(run.metrics, order=span_names(roots))
    if times:
        shown += [Text(), TimeTable(times, late_starts(roots))]
    encoding = "ascii" if ascii_only else "utf-8"
    file = io.TextIOWrapper(io.BytesIO(), encoding, errors="replace")
    console = Console(file=file, width=width, highlight=False, color_system=None)
    for one in shown:
        console.print(one)
    file.flush()
    file.seek(0)
    yield from (line.rstrip() for line in file.read().splitlines())


def _spans(run: Run, width: int, marks: words.Glyphs) -> Iterator[str]:
    found = run.of_type("span")
    room, erred = max(16, width - 62), semconv.TASK_OUTCOME_COUNT.format("erred")
    if found:
        head = f"{'lasted':>10}{'waited':>9}{'tasks':>8}{'failed':>8}{'idle':>6}  result"
        yield f"  {'':<{room}}{head}"
    for span in found[:60]:
        name = words.cut_beginning(span.full_name, room, marks.ellipsis)
        capacity, unused = span.number(semconv.SPAN_CAPACITY), span.number(semconv.SPAN_IDLE)
        idle_share = f"{unused / capacity:.0%}" if capacity and unused is not None else ""
        yield (
            f"  {name:<{room}}{words.seconds(span.seconds):>10}"
            f"{words.known(span.number(semconv.SPAN_QUEUE_TIME)):>9}"
            f"{words.whole(span.number(semconv.TASK_COUNT)):>8}"
            f"{words.whole(span.number(erred)):>8}{idle_share:>6}"
            f"  {span.result}"
        )
    if len(found) > 60:
        yield f"  and {len(found) - 60:,} more"


def _failures(run: Run, width: int, marks: words.Glyphs) -> Iterator[str]:
    for failure in findings.failures(run)[:_MOST]:
        what = " ".join(": ".join(filter(None, (failure.kind, failure.message))).split())
        times = f" x {failure.count}" if failure.count > 1 else ""
        times += ", repeated" if failure.repeated else ""
        yield "  " + words.cut(what, max(20, width - 20), marks.ellipsis) + times
        where = words.cut(f"{failure.span}, {failure.key}", width - 6, marks.ellipsis)
        yield f"      {where}"
        for line in failure.stacktrace.splitlines()[-12:]:
            yield "      | " + words.cut(line, 500, marks.ellipsis)


def _slow(run: Run, width: int, marks: words.Glyphs) -> Iterator[str]:
    for task in findings.slowest(run, _MOST):
        key = text(task.attributes.get(semconv.TASK_KEY)) or task.name
        worker = text(task.attributes.get(semconv.WORKER_NAME))
        failed = "  failed" if task.failed else ""
        shown = words.cut(key, max(20, width - 40), marks.ellipsis)
        where = f"  on {words.cut(worker, 40, marks.ellipsis)}" if worker else ""
        yield f"  {words.seconds(task.seconds):>9}  {shown}{where}{failed}"


def _idle(run: Run) -> Iterator[str]:
    why = idle.explain(run)
    if why is not None:
        for when, seconds, _ in why.reasons():
            yield f"  {words.seconds(seconds):>9} {seconds / why.total:>5.0%}  {when}"


def _money(run: Run, price: Price, tag: str, width: int, marks: words.Glyphs) -> Iterator[str]:
    found = bill(run, tag)
    room = max(16, width - 44)
    for cost in found.roots:
        name = words.cut(cost.name, room, marks.ellipsis)
        idle_part = "" if cost.idle is None else f"  {price.text(cost.idle)} of it idle"
        yield f"  {name:<{room}} {price.text(cost.capacity):>14}{idle_part}"
    if found.capacity is not None and found.unassigned is not None:
        yield f"  {'of no span':<{room}} {price.text(found.unassigned):>14}"
        yield f"  {'all':<{room}} {price.text(found.capacity):>14}"
    for cost in found.tags:
        name = words.cut(f"{tag}: {cost.name or 'none'}", room, marks.ellipsis)
        yield f"  {name:<{room}} {price.text(cost.capacity):>14}"


def comparison_lines(
    found: Comparison, width: int = 100, ascii_only: bool = False
) -> Iterator[str]:
    """Yield two runs side by side."""
    yield from map(words.one_line, _compared(found, width, words.glyphs(ascii_only)))


def _compared(found: Comparison, width: int, marks: words.Glyphs) -> Iterator[str]:
    yield f"A: {found.before}"
    yield f"B: {found.after}"
    room = max(16, width - 54)

    def row(name: str, cells: Sequence[str]) -> str:
        first, *others = (f"{cell:>11}" for cell in cells)
        return (
            f"{words.cut_beginning(name, room - 1, marks.ellipsis):<{room}}{first[1:]}"
            + "".join(others)
        )

    yield ""
    yield row("function", ("tasks A", "B", "a task A", "B", "change"))
    yield from (row(one.name, one.cells()) for one in found.functions[:60])
    yield ""
    yield row("span", ("lasted A", "B", "threads A", "B"))
    for one in (found.whole, *found.names):
        yield row(one.name, one.cells())
        said = [f"{words.signed(seconds)} {words.inside(part)}" for part, seconds in one.changes()]
        if said:
            yield "    " + ", ".join(said[:4])
