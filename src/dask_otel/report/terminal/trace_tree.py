"""The trace as a tree, as a person sees it in Jaeger or Tempo."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from rich.tree import Tree

from dask_otel import semconv
from dask_otel.report import words as text
from dask_otel.report.telemetry.model import Plain, Span, number

#: Task groups shown under one span; a note tells of the rest.
MAX_GROUPS = 4
#: Tasks shown below one group, or span; a note tells of the rest.
MAX_TASKS = 2
#: From this width on there is room for all columns; below it the timeline goes first.
WIDE = 100
#: Columns of a timeline that says something.
_SHORTEST, _LONGEST = 12, 32
#: Columns right of the name without the timeline: wide, and compact.
_RIGHT, _COMPACT = 10 + 9 + 8 + 2 + 12, 9 + 7 + 3
#: What the name keeps of a compact line.
_NAME = 37

#: A wait for the first task that is worth a word: of the span's own time, and in seconds.
_LATE_SHARE, _LATE = 0.25, 0.1

#: The key of a collection's task: a name with a hash, and which part of the data it is.
_PARTITION = re.compile(r"\('[^']*', ([\d, ]+)\)")

_GUIDE = 4  # columns that rich's tree takes for one level


@dataclass
class SpanNode:
    """A span with its children in the order of their start."""

    span: Span
    children: list[SpanNode] = field(default_factory=list)

    @property
    def attributes(self) -> dict[str, Plain]:
        """Those of the span."""
        return self.span.attributes

    @property
    def is_group(self) -> bool:
        """Whether this is one task group of a Dask span."""
        return self.attributes.get(semconv.SPAN_TYPE) == "group"

    @property
    def is_task(self) -> bool:
        """Whether this is one run of a task."""
        return self.attributes.get(semconv.SPAN_TYPE) == "task"

    @property
    def duration(self) -> float:
        """Seconds from start to end."""
        return self.span.seconds


def build_trees(spans: Iterable[Span]) -> list[SpanNode]:
    """Return the roots of all traces in the order of their start.

    A span whose parent is not among them counts as a root: nothing is left out.
    """
    nodes = {(span.trace_id, span.span_id): SpanNode(span) for span in spans}
    roots: list[SpanNode] = []
    for node in sorted(nodes.values(), key=lambda node: node.span.start_ns):
        parent = nodes.get((node.span.trace_id, node.span.parent_id))
        (parent.children if parent is not None else roots).append(node)
    return roots


def span_names(roots: Iterable[SpanNode]) -> list[str]:
    """Return the full names of the Dask spans (``dask.span.name``) in the tree's order."""
    names: dict[str, None] = {}
    for node in _walk(roots):
        name = node.attributes.get(semconv.SPAN_NAME)
        if isinstance(name, str) and not node.is_group:
            names[name] = None
    return list(names)


def late_starts(roots: Iterable[SpanNode]) -> dict[str, float]:
    """Return the Dask spans whose first task began late, by full name, with the seconds.

    Those are mostly the first ones of fresh workers, which import what the tasks need. A name
    that several spans have is left out.
    """
    waits: dict[str, list[float]] = {}
    for node in _walk(roots):
        wait = number(node.attributes.get(semconv.SPAN_QUEUE_TIME))
        name = node.attributes.get(semconv.SPAN_NAME)
        if wait is not None and isinstance(name, str) and not (node.is_group or node.is_task):
            late = wait >= max(_LATE, _LATE_SHARE * node.duration)
            waits.setdefault(name, []).append(wait if late else 0.0)
    return {name: found[0] for name, found in waits.items() if len(found) == 1 and found[0]}


def _walk(nodes: Iterable[SpanNode]) -> Iterator[SpanNode]:
    for node in nodes:
        yield node
        yield from _walk(node.children)


@dataclass(frozen=True)
class TraceTree:
    """All traces as trees with durations, queue time, tasks and result; a rich renderable.

    Parameters
    ----------
    roots
        One a trace.
    brief
        Whether to show the longest group of each span alone, and no tasks.
    """

    roots: list[SpanNode]
    brief: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one tree a trace, in the width of the console."""
        for index, root in enumerate(self.roots):
            if index:
                yield Text()
            trace = _OneTrace(root, options.max_width, options.ascii_only, self.brief)
            yield from trace.render()


class _OneTrace:
    def __init__(self, root: SpanNode, width: int, ascii_only: bool, brief: bool) -> None:
        self.root = root
        self.width = width
        self.brief = brief
        self.marks = text.glyphs(ascii_only)
        self.wide = width >= WIDE
        room = width - 76 if self.wide else width - _COMPACT - 2 - _NAME
        self.timeline = min(_LONGEST, room) if room >= _SHORTEST else 0
        self.begin = root.span.start_ns
        end = max(node.span.end_ns for node in _walk([root]))
        self.length = max(1, end - self.begin)

    def render(self) -> Iterator[Text | Tree]:
        trace_id = self.root.span.trace_id
        yield Text.assemble(("Trace ", "bold"), (trace_id, "cyan"))
        headings = ("duration", "queue", "tasks", "result")
        yield self._row("span", 0, headings, Text("timeline", "dim"), "dim")
        tree = Tree(self._label(self.root, 0), guide_style="dim")
        self._add_children(tree, self.root, 1)
        yield tree

    def _add_children(self, tree: Tree, node: SpanNode, depth: int) -> None:
        # Those of a task are its span's, too.
        for line in () if node.is_task else _failures(node):
            shown = text.cut(line, self.width - depth * _GUIDE - 2, self.marks.ellipsis)
            tree.add(Text(f"{self.marks.failed} {shown}", style="red"))
        groups = [child for child in node.children if child.is_group]
        tasks = [child for child in node.children if child.is_task]
        if node.is_group and number(node.attributes.get(semconv.TASK_COUNT)) == 1:
            # It says what its group says.
            tasks = [task for task in tasks if _failed(task)]
        most = 1 if self.brief else MAX_GROUPS
        shown_groups = sorted(groups, key=lambda child: -child.duration)[:most]
        shown_tasks = sorted(tasks, key=lambda child: (not _failed(child), -child.duration))
        shown_tasks = [] if self.brief else shown_tasks[:MAX_TASKS]
        for child in node.children:
            if child.is_group and child not in shown_groups:
                continue
            if child.is_task and child not in shown_tasks:
                continue
            branch = tree.add(self._label(child, depth))
            self._add_children(branch, child, depth + 1)
        if self.brief:
            return
        if left_out := len(groups) - len(shown_groups):
            tree.add(Text(text.counted(left_out, "shorter task group"), style="dim italic"))
        if left_out := len(tasks) - len(shown_tasks):
            said = f"{text.counted(left_out, 'more task')} with a span"
            tree.add(Text(said, style="dim italic"))

    def _label(self, node: SpanNode, depth: int) -> Text:
        attributes = node.attributes
        waited = semconv.TASK_QUEUE_TIME if node.is_task else semconv.SPAN_QUEUE_TIME
        queue = number(attributes.get(waited))
        tasks = number(attributes.get(semconv.TASK_COUNT))
        values = (
            text.seconds(node.duration),
            "" if queue is None else text.seconds(queue),
            "" if tasks is None else f"{tasks:,.0f}",
            _result(node),
        )
        name = node.span.name
        if node.is_task:
            name = _task_name(attributes, name)
        generation = number(attributes.get(semconv.SPAN_GENERATION)) or 1
        if generation > 1:
            name += f" (continued, {generation:.0f})"
        if not self.wide and values[-1] in _SAID:
            name += f" ({values[-1]})"
        style = "dim" if node.is_group or node.is_task else "bold" if depth == 0 else ""
        return self._row(name, depth, values, self._track(node), style)

    def _row(
        self, name: str, depth: int, values: tuple[str, str, str, str], track: Text, style: str
    ) -> Text:
        """Return one line: the name takes what the columns leave."""
        duration, queue, tasks, result = values
        right = (_RIGHT if self.wide else _COMPACT) + (self.timeline + 2 if self.timeline else 0)
        room = self.width - depth * _GUIDE - right
        row = Text(no_wrap=True, overflow="crop")
        row.append(_fit(name, room, self.marks.ellipsis), style)
        row.append(f"{duration:>{10 if self.wide else 9}}", style)
        if self.timeline:
            row.append("  ")
            row.append_text(track)
            row.append(" " * (self.timeline - track.cell_len))
        if self.wide:
            row.append(f"{queue:>9}", style)
            row.append(f"{tasks:>8}  ", style)
            row.append(f"{result:<12}", _result_style(result, style))
        else:
            row.append(f"{tasks:>7} ", style)
            row.append(self._mark(result), _result_style(result, style))
        row.rstrip()
        return row

    def _mark(self, result: str) -> str:
        """Return a result in two columns; what a mark does not say is in the name."""
        if result in ("", "result"):
            return ""
        return self.marks.done if result == "success" else self.marks.failed

    def _track(self, node: SpanNode) -> Text:
        """Return where in the trace the span lies, as a backend's waterfall shows it."""
        if not self.timeline:
            return Text()
        offset = (node.span.start_ns - self.begin) / self.length
        share = node.duration * 1e9 / self.length
        width = min(self.timeline, max(1, round(share * self.timeline)))
        start = min(max(0, round(offset * self.timeline)), self.timeline - width)
        dots = self.marks.track
        colour = "blue" if node.is_group else "cyan" if node.is_task else "green"
        colour = "red" if _failed(node) else colour
        return Text.assemble(
            (dots * start, "dim"),
            (self.marks.bar * width, colour),
            (dots * (self.timeline - start - width), "dim"),
        )


#: Results that a mark alone does not tell apart.
_SAID = ("cancellation", "incomplete", "unknown")


def _task_name(attributes: dict[str, Plain], otherwise: str) -> str:
    """Return which task it is, as all of a group have one name; without a collection's hash."""
    key = str(attributes.get(semconv.TASK_KEY, otherwise))
    found = _PARTITION.fullmatch(key)
    return f"{attributes.get(semconv.TASK_PREFIX, '')} ({found[1]})" if found else key


def _fit(name: str, room: int, ellipsis: str) -> str:
    name = text.cut(name, 10_000, ellipsis)
    if cell_len(name) > room:
        name = set_cell_size(name, max(0, room - len(ellipsis))) + ellipsis
    return set_cell_size(name, max(0, room))


def _failed(node: SpanNode) -> bool:
    return node.span.failed


def _result(node: SpanNode) -> str:
    if node.span.unfinished or node.attributes.get(semconv.SPAN_COMPLETE) is False:
        return "incomplete"
    result = node.attributes.get(semconv.SPAN_RESULT)
    if isinstance(result, str):
        return result
    return "failure" if _failed(node) else ""


def _result_style(result: str, otherwise: str) -> str:
    styles = {
        "success": "green",
        "failure": "bold red",
        "error": "bold red",
        "incomplete": "bold red",
        "cancellation": "yellow",
    }
    return styles.get(result, otherwise)


def _failures(node: SpanNode) -> Iterator[str]:
    """Yield the first failure of a span's own tasks and how many more there were."""
    events = list(node.span.exceptions())
    for event in events[:1]:
        attributes = event.attributes
        kind = str(attributes.get(semconv.EXCEPTION_TYPE, ""))
        # On one line, whatever it says.
        message = " ".join(str(attributes.get(semconv.EXCEPTION_MESSAGE, "")).split())
        # Of some exceptions there is a repr alone, which begins with the type.
        if message.startswith(f"{kind}("):
            kind = ""
        line = ": ".join(part for part in (kind, message) if part)
        more = len(events) - 1
        yield line + (f" (and {more} more)" if more else "")
