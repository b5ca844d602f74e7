"""What ``dask-otel top`` shows of one answer, or of two: a rich renderable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dask_otel._wire import Present, PresentSpan, PresentWorker
from dask_otel.report import words as text
from dask_otel.report.meanings import colour_of
from dask_otel.report.terminal.time_table import kind

#: Activities that are shown, the longest first.
_MOST_ACTIVITIES: Final = 9
#: Columns of a bar.
_BAR: Final = 16
#: Lines that are no spans: title, headings, blank ones, and the lines of what was left out.
_OTHER_LINES: Final = 12

#: What is no activity of Dask's: colour and meaning.
_OURS: Final = {
    "unused": (colour_of("unused"), "free threads, nothing to do"),
    "lost": (colour_of("lost"), "with workers that died or left"),
    "in flight": (colour_of("executing"), "runs, not reported yet"),
}


@dataclass(frozen=True)
class View:
    """What goes on.

    Parameters
    ----------
    address
        Of the scheduler.
    now
        Its last answer.
    before
        An earlier one: where the seconds between the two went is shown. None for all seconds since
        the bridge started.
    height
        Lines of the terminal; None for as many as it takes.
    """

    address: str
    now: Present
    before: Present | None
    height: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the title and the three parts."""
        marks = text.glyphs(options.ascii_only)
        activities = _longest(_activities(self.now, self.before))
        workers = list(self.now.workers)
        spans = list(_tree(self.now.spans))
        if self.height is not None:
            workers = workers[: max(2, self.height // 4)]
            room = self.height - _OTHER_LINES - len(activities) - len(workers)
            spans = spans[: max(3, room)]
        yield self._title(marks)
        yield Text()
        yield from self._spans(spans, options.max_width, marks)
        yield Text()
        yield from self._seconds(activities, marks)
        yield Text()
        yield from self._workers(workers, options.max_width, marks)

    def _title(self, marks: text.Glyphs) -> Text:
        now = self.now
        free = min(now.free, now.threads)
        busy = now.threads - free
        clock = time.strftime("%H:%M:%S", time.localtime(now.time))
        count = len(now.workers) + now.more_workers
        parts = [
            text.cut(self.address, 40, marks.ellipsis),
            text.counted(count, "worker"),
            f"{text.counted(now.threads, 'thread')}: {busy} busy, {free} free",
            clock,
        ]
        return Text("  ".join(parts), "bold", no_wrap=True, overflow="ellipsis")

    def _spans(
        self, shown: list[tuple[int, PresentSpan]], width: int, marks: text.Glyphs
    ) -> Iterator[Table | Text]:
        left_out = len(self.now.spans) - len(shown) + self.now.more_spans
        if not shown:
            yield Text("no open span", "dim")
        else:
            table = _table(width)
            table.add_column("open span", ratio=1, no_wrap=True, overflow="ellipsis")
            for title, columns in (("done", 13), ("", _BAR), ("age", 8), ("busy", 8), ("idle", 8)):
                table.add_column(title, justify="right" if title else "left", min_width=columns)
            for depth, span in shown:
                table.add_row(*_span_cells(span, depth, marks))
            yield table
        if left_out:
            yield Text(f"and {text.counted(left_out, 'more open span')}", "dim italic")

    def _seconds(
        self, activities: list[tuple[str, float]], marks: text.Glyphs
    ) -> Iterator[Table | Text]:
        before = self.before
        passed = self.now.time - (self.now.since if before is None else before.time)
        since = " since the bridge started" if before is None else ""
        last = "" if before is None else "last "
        heading = f"where the threads' time of the {last}{text.seconds(passed)}{since} went"
        yield Text(heading if activities else f"{heading}: nowhere yet", "dim")
        if not activities:
            return
        total = sum(seconds for _, seconds in _activities(self.now, before))
        table = _table(None)
        table.show_header = False
        table.add_column(no_wrap=True, min_width=18, max_width=26, overflow="ellipsis")
        table.add_column(justify="right", no_wrap=True, min_width=8)
        table.add_column(justify="right", no_wrap=True, min_width=4)
        table.add_column(no_wrap=True, min_width=_BAR)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, seconds in activities:
            colour, meaning = _OURS.get(name) or kind(name)
            table.add_row(
                Text(text.cut(name, 100, marks.ellipsis), colour),
                text.seconds(seconds),
                f"{seconds / total:.0%}",
                Text(text.bar(seconds / total, _BAR, marks), colour),
                Text(meaning, "dim"),
            )
        yield table

    def _workers(
        self, shown: list[PresentWorker], width: int, marks: text.Glyphs
    ) -> Iterator[Table | Text]:
        left_out = len(self.now.workers) - len(shown) + self.now.more_workers
        if not shown and not left_out:
            yield Text("no workers", "dim")
            return
        table = _table(width)
        table.add_column("worker", ratio=1, no_wrap=True, overflow="ellipsis")
        for title in ("runs", "tasks", "memory", "cpu", "seen"):
            table.add_column(title, justify="right", min_width=6, no_wrap=True)
        for worker in shown:
            table.add_row(*_worker_cells(worker, marks))
        yield table
        if left_out:
            yield Text(f"and {text.counted(left_out, 'more worker')}", "dim italic")


def _table(width: int | None) -> Table:
    return Table(
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="dim",
        expand=width is not None,
        width=width,
    )


def _tree(spans: tuple[PresentSpan, ...]) -> Iterator[tuple[int, PresentSpan]]:
    """Yield spans with their depth, each below the one above it."""
    known = {span.id for span in spans}
    below: dict[str | None, list[PresentSpan]] = {}
    for span in spans:
        below.setdefault(span.parent if span.parent in known else None, []).append(span)
    waiting = [(0, span) for span in reversed(below.get(None, []))]
    while waiting:
        depth, span = waiting.pop()
        yield depth, span
        waiting += [(depth + 1, one) for one in reversed(below.get(span.id, []))]


def _span_cells(span: PresentSpan, depth: int, marks: text.Glyphs) -> list[Text | str]:
    style = "" if span.phase == "open" else "dim"
    name = "  " * min(depth, 10) + text.cut(span.name, 200, marks.ellipsis)
    cells: list[Text | str] = [Text(name, style)]
    if span.tasks is None:
        cells += [f"{span.unfinished:,} left", ""]
    elif span.tasks:
        done = max(0, span.tasks - span.unfinished)
        colour = "red" if span.failed else "green" if span.phase == "open" else "bright_black"
        failed = f" {marks.failed}{span.failed:,}" if span.failed else ""
        cells += [
            Text.assemble(f"{done:,}/{span.tasks:,}", (failed, "red")),
            Text(text.bar(done / span.tasks, _BAR, marks), colour),
        ]
    else:
        cells += ["", ""]
    # Nothing, where no task is its own.
    own = (text.seconds(span.busy), text.seconds(span.idle)) if span.tasks != 0 else ("", "")
    return [*cells, text.seconds(span.age), *own]


def _worker_cells(worker: PresentWorker, marks: text.Glyphs) -> list[Text | str]:
    memory = "" if worker.memory is None else text.size(worker.memory)
    if worker.memory is not None and worker.memory_limit:
        memory += f" {worker.memory / worker.memory_limit:.0%}"
    return [
        Text(text.cut(worker.name, 60, marks.ellipsis)),
        f"{worker.executing}/{worker.threads}",
        f"{worker.processing:,}",
        memory,
        "" if worker.cpu is None else f"{worker.cpu:.0%}",
        Text(text.seconds(worker.seen), "red" if worker.seen > 10 else ""),
    ]


def _longest(activities: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the first ones, and the sum of the others: no second is left out."""
    if len(activities) <= _MOST_ACTIVITIES:
        return activities
    rest = activities[_MOST_ACTIVITIES - 1 :]
    total = sum(seconds for _, seconds in rest)
    return [*activities[: _MOST_ACTIVITIES - 1], (f"{len(rest)} small ones", total)]


def _activities(now: Present, before: Present | None) -> list[tuple[str, float]]:
    """Return where the seconds between two answers went, longest first.

    What is in flight is what remains of the capacity: it runs, and has not been reported.
    """
    seconds = dict(now.seconds) | {"idle": now.idle, "unused": now.unused, "lost": now.lost}
    capacity = now.capacity + now.excess
    if before is not None:
        earlier = dict(before.seconds) | {
            "idle": before.idle,
            "unused": before.unused,
            "lost": before.lost,
        }
        # A bridge that was put on again begins at 0.
        seconds = {name: value - earlier.get(name, 0.0) for name, value in seconds.items()}
        capacity -= before.capacity + before.excess
    seconds["in flight"] = capacity - sum(seconds.values())
    found = [(name, value) for name, value in seconds.items() if value > 0.0005]
    return sorted(found, key=lambda item: -item[1])
