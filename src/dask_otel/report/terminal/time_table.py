"""Where the time went, by span and activity, as a table with bars; of one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from dask_otel import semconv
from dask_otel.report import words as text
from dask_otel.report.meanings import colour_of
from dask_otel.report.telemetry.series import Metrics

IDLE = "idle"

#: Activities below this share of their span's time are summed up in one line.
SMALL = 0.01
#: Spans below this share of the time of all are summed up too.
SMALL_SPAN = 0.02
#: Below this share an activity is small where only the whole counts.
SMALL_OF_ALL = 0.03
#: From this width on there is room for all columns.
WIDE = 110
#: Below this one there is none for what the activities mean.
COMPACT = 78

#: Columns of the numbers, the bar and the meaning with what rich puts between them.
_NUMBERS = ("time", 9), ("share", 5), ("data", 8)
_BAR = 20
_RIGHT = 9 + 5 + 8 + _BAR + 4 * 2
_MEANING = 30 + 2
#: The same where the meaning takes the place of the data, and of the bar but for what is over.
_COMPACT_NUMBERS = ("time", 8), ("share", 5)
_COMPACT_BAR = 6
_COMPACT_RIGHT = 8 + 5 + _COMPACT_BAR + 29 + 4

#: Beginning of an activity's name, and what it means; the first that fits counts. From
#: Dask's documentation of the fine performance metrics.
_MEANINGS = (
    ("thread-cpu", "computing"),
    ("thread-noncpu", "waiting: I/O, GIL, GPU, core"),
    ("disk-", "disk"),
    ("memory-read", "inputs from memory"),
    ("gather-dep", "network"),
    ("get-data", "network"),
    ("p2p-", "p2p shuffle"),
    ("shuffle-", "p2p shuffle"),
    ("deserialize", "unpacking"),
    ("serialize", "packing"),
    ("compress", "packing"),
    ("decompress", "unpacking"),
    ("executor", "handing over to the thread"),
    ("failed", "of failed tasks"),
    ("cancelled", "of cancelled, repeated runs"),
    (IDLE, "free threads, yet work to do"),
    ("other", "between what is metered"),
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


def time_by_span(metrics: Metrics, order: Iterable[str] = ()) -> list[SpanTime]:
    """Return where the time went, one entry a Dask span with figures of its own.

    The counters of peer-to-peer shuffles are left out: Dask books their foreground part
    under ``execute`` too, and their background runs beside the tasks' threads.

    Parameters
    ----------
    metrics
        Of one run.
    order
        Names that come first, in this order; others follow in the order of arrival.
    """
    spans = {name: SpanTime(name) for name in order}

    def span(name: object) -> SpanTime:
        return spans.setdefault(str(name), SpanTime(str(name)))

    for series in metrics.of(semconv.SPAN_EXECUTE_TIME.name):
        entry = span(series.labels.get(semconv.SPAN_NAME))
        entry.activity(str(series.labels.get(semconv.ACTIVITY))).seconds += series.value
    for series in metrics.of(semconv.SPAN_EXECUTE_IO.name):
        entry = span(series.labels.get(semconv.SPAN_NAME))
        entry.activity(str(series.labels.get(semconv.ACTIVITY))).bytes += series.value
    for series in metrics.of(semconv.SPAN_IDLE_TIME.name):
        span(series.labels.get(semconv.SPAN_NAME)).activity(IDLE).seconds += series.value
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
    """Thread seconds by span and activity, with bars; a rich renderable.

    Parameters
    ----------
    spans
        One entry a span.
    late
        Spans whose first task began late, by full name, with the seconds: threads are idle then.
    brief
        Whether to show the sum of all spans alone.
    """

    spans: list[SpanTime]
    late: Mapping[str, float] = field(default_factory=dict)
    brief: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table in the width of the console."""
        look = _Look(options.max_width, text.glyphs(options.ascii_only), self.late)
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=look.padding,
            pad_edge=False,
            show_edge=False,
            header_style="dim",
        )
        table.add_column("span and activity", no_wrap=True, overflow="ellipsis")
        for title, columns in look.numbers:
            table.add_column(title, justify="right", no_wrap=True, min_width=columns)
        table.add_column("", no_wrap=True, min_width=look.bar)
        if look.meaning:
            table.add_column("meaning", no_wrap=True, overflow="ellipsis", style="dim")
        if self.brief and self.spans:
            look.add(table, _sum("all spans", self.spans), SMALL_OF_ALL)
        else:
            for block in _blocks(self.spans):
                look.add(table, block, SMALL)
        yield table


class _Look:
    """What the columns of a table are, by the room that there is."""

    def __init__(self, width: int, marks: text.Glyphs, late: Mapping[str, float]) -> None:
        self._marks = marks
        self._late = late
        compact = COMPACT <= width < WIDE
        self.data = not compact
        self.meaning = width >= COMPACT
        # Beside the column that rich puts between two.
        self.padding = (0, 0 if compact else 1, 0, 0)
        self.numbers = _COMPACT_NUMBERS if compact else _NUMBERS
        spare = max(0, min(_BAR - _COMPACT_BAR, width - 80)) if compact else 0
        self.bar = _COMPACT_BAR + spare if compact else _BAR
        right = _COMPACT_RIGHT + spare if compact else _RIGHT + (_MEANING if self.meaning else 0)
        self.room = max(20, width - right)

    def add(self, table: Table, block: SpanTime, least: float) -> None:
        """Add a span, or the sum of some, with its activities."""
        marks = self._marks
        name = text.cut_beginning(block.name, self.room, marks.ellipsis)
        table.add_row(Text(name, "bold"), Text(text.seconds(block.seconds), "bold"))
        shown = _activities(block, least)
        for index, (activity, figures) in enumerate(shown):
            colour, meaning = kind(activity)
            if activity == IDLE and (wait := self._late.get(block.name)):
                meaning = f"first task after {text.seconds(wait)}"
            share = figures.seconds / block.seconds
            cells: list[Text | str] = [
                Text("  " + text.cut(activity, self.room - 2, marks.ellipsis), colour),
                text.seconds(figures.seconds) if figures.seconds else "",
                f"{share:.0%}" if figures.seconds else "",
            ]
            data = text.size(figures.bytes) if figures.bytes else ""
            if self.data:
                cells.append(data)
            elif data:
                meaning = ", ".join(filter(None, (data, meaning)))
            cells.append(Text(text.bar(share, self.bar, marks), colour))
            if self.meaning:
                cells.append(meaning)
            table.add_row(*cells, end_section=index == len(shown) - 1)


def _activities(block: SpanTime, least: float) -> list[tuple[str, ActivityTime]]:
    """Return the activities, longest first, small ones in one, those with data only last."""
    longest = sorted(block.activities.items(), key=lambda item: -item[1].seconds)
    timed = [item for item in longest if item[1].seconds > 0]
    moved = [item for item in longest if not item[1].seconds and item[1].bytes]
    small = [item for item in timed if item[1].seconds < least * block.seconds]
    if len(small) > 1:
        # Without their data: bytes of different activities are often the same bytes.
        rest = ActivityTime(sum(figures.seconds for _, figures in small))
        timed = [*timed[: -len(small)], (f"{len(small)} small ones", rest)]
    return timed + moved


def kind(activity: str) -> tuple[str, str]:
    """Return the colour of an activity, that of the dashboards, and what it means."""
    found = (meaning for beginning, meaning in _MEANINGS if activity.startswith(beginning))
    return colour_of(activity), next(found, "")
