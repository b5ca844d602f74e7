"""The report as text, for ``dask-otel report --text`` and the demo."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from dask_otel import semconv
from dask_otel.report import findings, memory, money, words
from dask_otel.report.account import Account
from dask_otel.report.history.difference import NOTHING, Comparison
from dask_otel.report.meanings import (
    DIAGNOSES,
    MEANINGS,
    PART_TITLES,
    PATH,
    meaning_of,
    shares,
)
from dask_otel.report.seconds import IDLE, SpanTime, largest, merged
from dask_otel.report.telemetry.model import Skipped, Span, tree_of
from dask_otel.report.units import table

#: A line, or its pieces with their rich styles, which only the demo shows; `plain` makes them safe
#: for a terminal.
Line: TypeAlias = str | list[tuple[str, str]]


class Sheet(NamedTuple):
    """The format: columns, all sections or the first ones, and the commands that show more."""

    width: int = 100
    everything: bool = False
    command: str = ""
    #: The command that replays the run.
    replay: str = ""


#: Most traces, failures, slow tasks and spans with activities; columns of a bar.
_MOST, _BAR = 12, 24
#: Most traces, and most spans below one, of the short form. The most groups and tasks of the other.
_FEW, _BELOW = 3, 8
_SHOWN: Final = {"group": 4, "task": 2}
#: Most functions of a comparison.
_MOST_FUNCTIONS: Final = 60

#: The smallest width for all columns of a tree, and for the table of meanings.
_WIDE, _MEANINGS = 100, 78
#: Fewest and most columns of a timeline, and columns of the name on a narrow line.
_SHORTEST, _LONGEST, _NAME = 12, 32, 37
#: Fewest columns of a name for a further level of the tree.
_LEAST: Final = 12
#: The key of a collection's task: a name with a hash, and the indices of its chunk.
_PARTITION: Final = re.compile(r"\('[^']*', ([\d, ]+)\)")
_STYLES: Final = {
    "bad": "bold red",
    "good": "bold green",
    "success": "green",
    "failure": "bold red",
    "error": "bold red",
    "incomplete": "bold red",
    "still open": "bold red",
    "cancellation": "magenta",
}

#: Below this share, activities of a span are summed up as small ones.
_SMALL: Final = 0.01


def plain(lines: Iterable[Line]) -> Iterator[str]:
    """Return lines without styles and terminal control characters."""
    joined = ("".join(piece for piece, _ in pieces(line)) for line in lines)
    return (words.one_line(line).rstrip() for line in joined)


def pieces(line: Line) -> list[tuple[str, str]]:
    """Return the pieces of a line with their styles."""
    return [(line, "")] if isinstance(line, str) else line


def report_lines(accounts: Iterable[Account], skipped: Skipped, sheet: Sheet) -> Iterator[Line]:
    """Yield the report's lines; only messages and long words exceed the sheet's width."""
    for account in accounts:
        yield from run_lines(account, sheet)
        yield ""
        sheet = sheet._replace(command="")
    if skipped.counts:
        yield f"Not read: {'; '.join(skipped.lines())}."


def run_lines(account: Account, sheet: Sheet) -> Iterator[Line]:
    """Yield the lines of one run: its headline, its other diagnoses, and its sections."""
    yield [(account.session.title, "bold")]
    figures = ", ".join(f"{value} {name}" for value, name, _ in account.figures())
    yield from _indented(figures, sheet, "")
    yield ""
    yield from _headline(account, sheet)
    for title, (is_short, section) in _SECTIONS.items():
        if (sheet.everything or is_short) and (body := [*section(account, sheet)]):
            yield from ("", [(title, "bold")], *body)


def _headline(account: Account, sheet: Sheet) -> Iterator[Line]:
    first = account.diagnoses[0]
    style = _STYLES.get(account.severity(first), "bold")
    yield from ([(line, style)] for line in words.wrapped(first.title, sheet.width))
    yield from _indented(first.evidence, sheet, "  ")
    yield from _indented(f"{first.next} {first.saving}".rstrip(), sheet, "  ")
    yield from _indented(account.threads_in_words(), sheet, "  ")


def _others(account: Account, sheet: Sheet) -> Iterator[Line]:
    for one in account.diagnoses[1:]:
        title = f"{one.title} (measured by replay)" if one.experiment else one.title
        first, *more = words.wrapped(title, sheet.width - 12)
        style = _STYLES.get(account.severity(one), "")
        saved = words.seconds(one.seconds) if one.seconds or one.experiment else ""
        yield [(f"  {saved:>8}  ", ""), (first, style)]
        yield from ([(f"{'':12}{line}", style)] for line in more)
        if sheet.everything:
            yield from _indented(one.evidence, sheet, " " * 14)
            saving = one.saving if one.experiment else ""
            yield from _indented(f"{one.next} {saving}".rstrip(), sheet, " " * 14)


def _next(account: Account, sheet: Sheet) -> Iterator[Line]:
    more = [f"{sheet.command} {how}" for how in ("--open", "--text --all") if sheet.command]
    found = (*more, sheet.replay, DIAGNOSES + account.diagnoses[0].kind)
    return (f"  {line}" for line in found if line)


def _where(account: Account, _: Sheet) -> Iterator[Line]:
    yield from _parts(account.parts, PART_TITLES)
    cluster = account.cluster
    if cluster and cluster.remainder is not None:
        yield from (
            f"  all of it {cluster.used:,.3f} s + in flight {cluster.in_flight:,.3f} s",
            f"  - capacity {cluster.capacity:,.3f} s - excess {cluster.excess:,.3f} s",
            f"  = remainder {words.exact(cluster.remainder)}",
        )


def _parts(found: Mapping[str, float], titles: Mapping[str, str]) -> Iterator[Line]:
    for title, seconds, share in shares(found, titles):
        numbers = f"{title:<14} {words.seconds(seconds):>8} {share:>5.0%}"
        yield f"  {numbers}  {words.bar(share, _BAR)}"


def _path(account: Account, sheet: Sheet) -> Iterator[Line]:
    if (found := account.path) is None:
        return
    yield from _parts(found.whole.parts, PATH)
    for name, prefix, count, seconds in found.functions(5):
        what = f"{words.counted(count, 'task')} of {prefix} in {name}"
        yield f"  {words.seconds(seconds):>9}  {words.cut(what, max(20, sheet.width - 13))}"


def _happened(account: Account, sheet: Sheet) -> Iterator[Line]:
    logs = account.session.warnings()
    for log in logs[:_MOST]:
        after = words.seconds(max(0, log.time_ns - (account.session.start_ns or 0)) / 1e9)
        first, *more = log.description.splitlines() or [""]
        yield from _indented(f"{after} {log.level} {first}", sheet, "  ")
        yield from _quoted("|", more)
    if len(logs) > _MOST:
        yield [(f"  and {len(logs) - _MOST:,} more", "dim italic")]


def _indented(sentence: str, sheet: Sheet, indent: str) -> Iterator[Line]:
    wrapped = words.wrapped(sentence, sheet.width - len(indent))
    return (indent + line for line in wrapped if sentence)


def _quoted(mark: str, lines: Iterable[str]) -> Iterator[Line]:
    """Return lines that others wrote."""
    return (f"      {mark} {words.cut(line, 500)}" for line in lines)


# -------------------------------------------------------------------------------- traces


def _trees(account: Account, sheet: Sheet) -> Iterator[Line]:
    roots, below = tree_of(account.session.spans)
    most = _MOST if sheet.everything else _FEW
    for root in roots[:most]:
        same = (span for span in account.session.spans if span.trace_id == root.trace_id)
        yield from _Trace(root, below, max(span.end_ns for span in same), sheet).lines()
    if len(roots) > most:
        yield [(f"and {words.counted(len(roots) - most, 'more trace')}", "dim italic")]


class _Trace:
    """One trace as a tree: each span with its duration, position in time, tasks and result."""

    def __init__(
        self, root: Span, below: dict[tuple[str, str], list[Span]], end_ns: int, sheet: Sheet
    ) -> None:
        self._root, self._below, self._sheet = root, below, sheet
        self._wide = sheet.width >= _WIDE
        # The columns of the timeline, and all those behind the name.
        room = sheet.width - (76 if self._wide else _NAME + 21)
        self._timeline = min(_LONGEST, room) if room >= _SHORTEST else 0
        self._right = (41 if self._wide else 19) + (self._timeline and self._timeline + 2)
        # In the short form, only spans directly below the root have lines.
        self._deepest = sheet.width - self._right - _LEAST if sheet.everything else 0
        self._most = {"span": len(below), **_SHOWN} if sheet.everything else {"span": _BELOW}
        self._length = max(1, end_ns - root.start_ns)

    def lines(self) -> Iterator[Line]:
        if self._sheet.everything:
            yield f"Trace {self._root.trace_id}"
        headings = ("duration", "queue", "tasks", "result")
        track = [(f"  {'timeline':<{self._timeline}}", "dim")] if self._timeline else []
        yield self._row("", "span", headings, track, "dim")
        yield self._of(self._root, "", "bold")
        yield from self._branches(self._root, "")

    def _branches(self, above: Span, guide: str) -> Iterator[Line]:
        found = list(self._under(above))
        for number, span in enumerate(found, 1):
            last = number == len(found)
            own = guide + ("└── " if last else "├── ")
            if isinstance(span, Span):
                yield self._of(span, own, "")
                if len(own) < self._deepest:
                    yield from self._branches(span, guide + ("    " if last else "│   "))
            else:
                note, style = span
                room = self._sheet.width - len(own)
                yield [(own, "dim"), (words.cut(note, room), style)]

    def _under(self, above: Span) -> Iterator[Span | tuple[str, str]]:
        """Yield a span's first failure, its listed children, and the number of the others."""
        # A task's failure is also its span's.
        events = [] if above.type == "task" else above.events
        exceptions = [event for event in events if event.name == semconv.EVENT_EXCEPTION]
        for event in exceptions[:1]:
            more = f" (and {len(exceptions) - 1} more)" if len(exceptions) > 1 else ""
            yield f"✗ {findings.message_of(event)}{more}", "red"
        children = self._below.get(above.key, [])
        if above.type == "group" and above.number(semconv.TASK_COUNT) == 1:
            # A single task only repeats its group.
            children = [child for child in children if child.failed]
        hidden: set[tuple[str, str]] = set()
        notes: list[tuple[str, str]] = []
        for kind, what in (("span", "span"), ("group", "task group"), ("task", "task span")):
            same = [child for child in children if child.type == kind]
            most = self._most.get(kind, 0)
            rest = sorted(same, key=lambda one: (not one.failed, -one.seconds))[most:]
            hidden |= {one.key for one in rest}
            if rest and most:
                notes.append((words.counted(len(rest), f"more {what}"), "dim italic"))
        yield from (child for child in children if child.key not in hidden)
        yield from notes

    def _of(self, span: Span, guide: str, style: str) -> Line:
        queue = semconv.TASK_QUEUE_TIME if span.type == "task" else semconv.SPAN_QUEUE_TIME
        result = span.result.rpartition(", ")[2] or ("failure" if span.failed else "")
        values = (
            words.known(span.lasted),
            words.known(span.number(queue)),
            words.whole(span.number(semconv.TASK_COUNT)),
            result,
        )
        name = span.label
        if span.type == "task":
            # Its own name, as its group's is shared; without a collection's hash.
            name = span.text(semconv.TASK_KEY) or span.name
            if found := _PARTITION.fullmatch(name):
                name = f"{span.text(semconv.TASK_PREFIX)} ({found[1]})"
        if not self._wide and result not in ("", "success", "failure", "error"):
            name += f" ({result})"
        return self._row(guide, name, values, self._track(span), style)

    def _row(
        self, guide: str, name: str, values: tuple[str, str, str, str], track: Line, style: str
    ) -> Line:
        """Return one line; the name gets the remaining width."""
        duration, queue, tasks, result = values
        room = self._sheet.width - len(guide) - self._right
        line = [
            (guide, "dim"),
            (words.fit(name, room), style),
            (f"{duration:>{10 if self._wide else 9}}", style),
            *track,
        ]
        if self._wide:
            return [*line, (f"{queue:>9}{tasks:>8}  ", style), (result, _STYLES.get(result, style))]
        mark = {"success": "✓", "": "", "result": ""}.get(result, "✗")
        return [*line, (f"{tasks:>7} ", style), (mark, _STYLES.get(result, style))]

    def _track(self, span: Span) -> Line:
        """Return a bar for the span's position in the trace."""
        if not self._timeline:
            return []
        share = span.seconds * 1e9 / self._length
        width = min(self._timeline, max(1, round(share * self._timeline)))
        offset = round((span.start_ns - self._root.start_ns) / self._length * self._timeline)
        start = min(max(0, offset), self._timeline - width)
        return [
            ("  " + "·" * start, "dim"),
            ("█" * width, "red" if span.failed else "green"),
            ("·" * (self._timeline - start - width), "dim"),
        ]


# ---------------------------------------------------------------------------- activities


def _activities(account: Account, sheet: Sheet) -> Iterator[Line]:
    blocks = largest(account.spans, _MOST)
    if not blocks:
        return
    if len(blocks) > 1:
        blocks.insert(0, merged("all spans", account.spans))
    bar = 6 + max(0, min(14, sheet.width - 80))
    room = max(20, sheet.width - bar - 49)
    heading = f"{'span and activity':<{room}}{'time':>9} share  {'':<{bar}} "
    yield heading + ("meaning" if sheet.width >= _MEANINGS else "data")
    for block in blocks:
        name = words.cut_beginning(block.name, room)
        yield from ("", f"{words.fit(name, room)}{words.seconds(block.seconds):>9}")
        for activity, seconds, size in _of_block(block):
            share = seconds / block.seconds
            numbers = f"{words.seconds(seconds):>9} {share:>5.0%}" if seconds else " " * 15
            notes = [words.size(size) if size else ""]
            if sheet.width >= _MEANINGS and seconds and not activity.endswith(" small ones"):
                notes.append(MEANINGS[meaning_of(activity)].about)
            line = f"{words.fit(f'  {activity}', room)}{numbers}  {words.bar(share, bar):<{bar}} "
            yield line + ", ".join(filter(None, notes))


def _of_block(block: SpanTime) -> list[tuple[str, float, float]]:
    """Return activities, seconds and bytes: longest first, small ones as one, only bytes last."""
    seconds = {**block.activities, IDLE: block.idle or 0.0}
    names = sorted({*seconds, *block.bytes}, key=lambda name: (-seconds.get(name, 0.0), name))
    rows = [(name, seconds.get(name, 0.0), block.bytes.get(name, 0.0)) for name in names]
    timed = [row for row in rows if row[1] > 0]
    small = [row for row in timed if row[1] < _SMALL * block.seconds]
    if len(small) > 1:
        # Without bytes: different activities often count the same bytes.
        rest = (f"{len(small)} small ones", sum(row[1] for row in small), 0.0)
        timed = [*timed[: -len(small)], rest]
    return timed + [row for row in rows if row[1] <= 0 < row[2]]


# -------------------------------------------------------------------------- what follows


def _failures(account: Account, sheet: Sheet) -> Iterator[Line]:
    for failure in account.failures[:_MOST]:
        times = f" x {failure.count}" if failure.count > 1 else ""
        times += ", repeated" if failure.repeated else ""
        yield f"  {words.cut(failure.what, max(20, sheet.width - 20))}{times}"
        yield f"      {words.cut(f'{failure.span}, {failure.key}', sheet.width - 6)}"
        yield from _quoted("|", failure.stacktrace.splitlines()[-12:])
        yield from _quoted("log:", (one for text in failure.log[-4:] for one in text.splitlines()))


def _slow(account: Account, sheet: Sheet) -> Iterator[Line]:
    for task in account.slowest[:_MOST]:
        worker = task.text(semconv.WORKER_NAME)
        key = task.text(semconv.TASK_KEY) or task.name
        shown = words.cut(key, max(20, sheet.width - 40))
        where = f"  on {words.cut(worker, 40)}" if worker else ""
        where += "  failed" if task.failed else ""
        yield f"  {words.seconds(task.seconds):>9}  {shown}{where}"


def _money(account: Account, sheet: Sheet) -> Iterator[Line]:
    if account.price and account.bill:
        yield from _table(money.table(account.bill, account.price, account.tag), sheet)


def _memory(account: Account, sheet: Sheet) -> Iterator[Line]:
    found = account.memory
    for line in (*(root.in_words() for root in found.roots[:_MOST]), found.in_words()):
        yield from _indented(line, sheet, "  ")
    for rows in (memory.table(found) if found else [], memory.workers_table(account.workers)):
        if len(rows) > 1:
            yield from ("", *_table(rows[: _MOST + 1], sheet))


def _table(rows: list[list[str]], sheet: Sheet) -> Iterator[Line]:
    """Yield the lines of a table that has rows; headings of numbers begin with a ``#``."""
    numbers = {name[1:] for name in rows[0] if name.startswith("#")}
    rows = [[name.removeprefix("#") for name in rows[0]], *rows[1:]]
    lines = words.aligned(rows, numbers, sheet.width - 2) if len(rows) > 1 else ()
    yield from (f"  {line}" for line in lines)


#: By their titles, whether the short form has them, and their lines.
_SECTIONS: Final[dict[str, tuple[bool, Callable[[Account, Sheet], Iterator[Line]]]]] = {
    "Other causes, and what their cures can save": (True, _others),
    "Where to look next": (True, _next),
    "Where the duration went": (False, _path),
    "Where the threads' time went": (False, _where),
    "Spans": (True, _trees),
    "Failures": (False, _failures),
    "What happened": (False, _happened),
    "By span and activity": (False, _activities),
    "Slowest tasks": (False, _slow),
    "Memory": (False, _memory),
    "Units of work": (True, lambda one, sheet: _table(table(one.work, one.price), sheet)),
    "What it cost": (True, _money),
}


def comparison_lines(found: Comparison, width: int) -> Iterator[str]:
    """Yield a comparison of two reports."""
    room = max(16, width - 70)

    def row(name: str, cells: Sequence[str]) -> str:
        shown = words.fit(words.cut_beginning(name, room - 1), room)
        return shown + "".join(f"{cell:>11}" for cell in cells).removeprefix(" ")

    yield f"A: {found.before}"
    yield f"B: {found.after}"
    if not found.names:
        yield NOTHING
    for one in found.names:
        first, *lines = one.lines()
        yield from ("", f"{one.name}: {first}")
        yield from (line for text in lines for line in words.wrapped(text, width))
        if one.functions:
            yield row("function", ("tasks A", "B", "a task A", "B", "change"))
        for function in one.functions[:_MOST_FUNCTIONS]:
            yield f"{row(function.name, function.cells())}  {function.verdict}"
            if spread := function.spread():
                yield f"    a task took {spread}"
        yield row("span", ("lasted A", "B", "threads A", "B"))
        for step in one.steps:
            yield row(step.name, step.cells())
            changes = {"": step.changes_in_words(), "path: ": step.path_in_words()}
            yield from (f"    {what}{said}" for what, said in changes.items() if said)
