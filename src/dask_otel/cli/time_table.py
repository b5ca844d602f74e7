"""Where the time went, by span and activity, as a table with bars; made from OTLP messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dask_otel import semconv
from dask_otel.cli.received import counter_totals
from dask_otel.report import words as text

#: The span's share of the cluster's idle time (telemetry contract, "Metrics").
SPAN_IDLE_TIME = "dask.span.idle.time"
IDLE = "idle"

#: Activities below this share of their span's time are summed up in one line.
SMALL = 0.01
#: Spans below this share of the time of all are summed up too.
SMALL_SPAN = 0.02
#: From this width on the table says what the activities mean.
WIDE = 110

#: Columns of the numbers, the bar and the meaning with what rich puts between them.
_NUMBERS = ("time", 9), ("share", 5), ("data", 8)
_BAR = 20
_RIGHT = 9 + 5 + 8 + _BAR + 4 * 2
_MEANING = 30 + 2

#: Beginning of an activity's name, colour, meaning; the first that fits counts. From
#: Dask's documentation of the fine performance metrics.
_KINDS = (
    ("thread-cpu", "green", "computing"),
    ("thread-noncpu", "yellow", "waiting: I/O, GIL, GPU, core"),
    ("disk-", "magenta", "disk"),
    ("memory-read", "white", "inputs that were in memory"),
    ("gather-dep", "blue", "network"),
    ("get-data", "blue", "network"),
    ("p2p-", "blue", "peer-to-peer shuffle"),
    ("shuffle-", "blue", "peer-to-peer shuffle"),
    ("deserialize", "cyan", "unpacking"),
    ("serialize", "cyan", "packing"),
    ("compress", "cyan", "packing"),
    ("decompress", "cyan", "unpacking"),
    ("executor", "bright_blue", "handing over to the thread"),
    ("failed", "red", "of failed tasks"),
    ("cancelled", "red", "of cancelled or rescheduled runs"),
    (IDLE, "bright_black", "free threads, yet work to do"),
    ("other", "bright_black", "between what is metered"),
)


@dataclass
class ActivityTime:
    """What one activity took in one span."""

    seconds: float = 0.0
    bytes: float = 0.0

    def add(self, other: ActivityTime) -> None:
        """Add another span's figures to these."""
        self.seconds += other.seconds
        self.bytes += other.bytes


@dataclass
class SpanTime:
    """Where one Dask span's thread time went."""

    name: str
    activities: dict[str, ActivityTime] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Thread seconds of all activities together."""
        return sum(activity.seconds for activity in self.activities.values())

    def activity(self, name: str) -> ActivityTime:
        """Return an activity's figures, made where they are missing."""
        return self.activities.setdefault(name, ActivityTime())


def time_by_span(
    requests: Sequence[ExportMetricsServiceRequest], order: Iterable[str] = ()
) -> list[SpanTime]:
    """Return where the time went, one entry a Dask span with figures of its own.

    The counters of peer-to-peer shuffles are left out: Dask books their foreground part
    under ``execute`` too, and their background runs beside the tasks' threads.

    Parameters
    ----------
    requests
        In the order of arrival.
    order
        Names that come first, in this order; others follow in the order of arrival.
    """
    spans = {name: SpanTime(name) for name in order}

    def span(name: object) -> SpanTime:
        return spans.setdefault(str(name), SpanTime(str(name)))

    for labels, total in counter_totals(requests, semconv.SPAN_EXECUTE_TIME.name):
        activity = span(labels.get(semconv.SPAN_NAME)).activity(str(labels.get(semconv.ACTIVITY)))
        activity.seconds += total
    for labels, total in counter_totals(requests, semconv.SPAN_EXECUTE_IO.name):
        activity = span(labels.get(semconv.SPAN_NAME)).activity(str(labels.get(semconv.ACTIVITY)))
        activity.bytes += total
    for labels, total in counter_totals(requests, SPAN_IDLE_TIME):
        span(labels.get(semconv.SPAN_NAME)).activity(IDLE).seconds += total
    return [entry for entry in spans.values() if entry.seconds > 0]


def _sum(name: str, spans: Iterable[SpanTime]) -> SpanTime:
    total = SpanTime(name)
    for span in spans:
        for activity, figures in span.activities.items():
            total.activity(activity).add(figures)
    return total


def _blocks(spans: list[SpanTime]) -> list[SpanTime]:
    """Return the sum, the spans, and the small ones in one."""
    if len(spans) < 2:
        return spans
    total = _sum("all spans", spans)
    small = [span for span in spans if span.seconds < SMALL_SPAN * total.seconds]
    if len(small) < 2:
        return [total, *spans]
    large = [span for span in spans if span not in small]
    return [total, *large, _sum(f"{len(small)} small spans", small)]


@dataclass(frozen=True)
class TimeTable:
    """Thread seconds by span and activity, with bars; a rich renderable."""

    spans: list[SpanTime]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table in the width of the console."""
        wide = options.max_width >= WIDE
        marks = text.glyphs(options.ascii_only)
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
            header_style="dim",
        )
        table.add_column("span and activity", no_wrap=True, overflow="ellipsis")
        for title, columns in _NUMBERS:
            table.add_column(title, justify="right", no_wrap=True, min_width=columns)
        table.add_column("", no_wrap=True, min_width=_BAR)
        if wide:
            table.add_column("meaning", no_wrap=True, style="dim")
        room = max(20, options.max_width - _RIGHT - (_MEANING if wide else 0))
        for block in _blocks(self.spans):
            _add_block(table, block, room, marks)
        yield table


def _add_block(table: Table, block: SpanTime, room: int, marks: text.Glyphs) -> None:
    name = text.cut_beginning(block.name, room, marks.ellipsis)
    table.add_row(Text(name, "bold"), Text(text.seconds(block.seconds), "bold"))
    shown = _activities(block)
    for index, (activity, figures) in enumerate(shown):
        colour, meaning = _kind(activity)
        share = figures.seconds / block.seconds
        cells: list[Text | str] = [
            Text("  " + text.cut(activity, room - 2, marks.ellipsis), colour),
            text.seconds(figures.seconds) if figures.seconds else "",
            f"{share:.0%}" if figures.seconds else "",
            text.size(figures.bytes) if figures.bytes else "",
            Text(text.bar(share, _BAR, marks), colour),
        ]
        if len(table.columns) > len(cells):
            cells.append(meaning)
        table.add_row(*cells, end_section=index == len(shown) - 1)


def _activities(block: SpanTime) -> list[tuple[str, ActivityTime]]:
    """Return the activities, longest first, small ones in one, those with data only last."""
    longest = sorted(block.activities.items(), key=lambda item: -item[1].seconds)
    timed = [item for item in longest if item[1].seconds > 0]
    moved = [item for item in longest if not item[1].seconds and item[1].bytes]
    small = [item for item in timed if item[1].seconds < SMALL * block.seconds]
    if len(small) > 1:
        # Without their data: bytes of different activities are often the same bytes.
        rest = ActivityTime(sum(figures.seconds for _, figures in small))
        timed = [*timed[: -len(small)], (f"{len(small)} small ones", rest)]
    return timed + moved


def _kind(activity: str) -> tuple[str, str]:
    for beginning, colour, meaning in _KINDS:
        if activity.startswith(beginning):
            return colour, meaning
    return "white", ""
