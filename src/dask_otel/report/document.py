"""The report as an object, for a page, text, plain data, or a notebook."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, Final

from dask_otel import semconv
from dask_otel.report.account import Account, Measured, account
from dask_otel.report.cures import graphs_of, judged, separated
from dask_otel.report.history.difference import Comparison, compare
from dask_otel.report.money import Price
from dask_otel.report.profiles import attach, profiles_of
from dask_otel.report.redaction import redacted
from dask_otel.report.telemetry.model import Block, Session, Skipped, subtree, tree_of
from dask_otel.report.telemetry.reader import Reader
from dask_otel.report.whatif import WhatIfReport

#: The signals of rows in memory, and what a row that has no room any more is called.
_SIGNALS: Final = {
    "traces": "trace that is",
    "metrics": "part of the metrics that is",
    "logs": "part of the logs that is",
}


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """A report of one or several runs from telemetry files, made by `read_report`.

    It is printed as text; in a notebook it displays the page that `html` returns.

    Attributes
    ----------
    runs
        In the order of their start: one for each scheduler.
    skipped
        Counts of unreadable input.
    price, tag
        See `read_report`.
    comparison
        The result of `compared_with`.
    is_redacted
        Whether it is a result of `redacted`.
    paths
        What it was read from.
    graph_logs
        Those of the runs, if it was not read from files: the content of such a file.
    what_ifs
        Replays of root spans: results of `what_if`, or of a report with ``replay=True``.
    measured
        By the instance of a run: what the cures of its diagnoses saved in replays.
    """

    runs: Sequence[Session]
    skipped: Skipped = field(default_factory=Skipped)
    price: Price | None = field(default=None, kw_only=True)
    tag: str = field(default="team", kw_only=True)
    comparison: Comparison | None = field(default=None, kw_only=True)
    is_redacted: bool = field(default=False, kw_only=True)
    paths: Sequence[str | Path] = field(default=(), kw_only=True)
    graph_logs: bytes = field(default=b"", kw_only=True)
    what_ifs: Sequence[WhatIfReport] = field(default=(), kw_only=True)
    measured: Mapping[str, Measured] = field(default_factory=dict, kw_only=True)

    def redacted(self) -> Report:
        """Return this report without messages, tracebacks, code, keys and users' attributes."""
        runs = [redacted(session) for session in self.runs]
        comparison = self.comparison and replace(
            self.comparison, names=[replace(one, code=[]) for one in self.comparison.names], code={}
        )
        return replace(self, runs=runs, comparison=comparison, is_redacted=True)

    def compared_with(
        self,
        before: Report,
        titles: tuple[str, str] = ("A", "B"),
        *,
        replay: bool = False,
        progress: Callable[[int, int], object] = lambda *_: None,
        limited: bool = False,
    ) -> Report:
        """Return this report with its changes since `before`.

        Parameters
        ----------
        before
            The other report.
        titles
            The names of the two reports.
        replay
            Whether slower functions, another cluster and other work are separated, by replays of
            the recorded graphs, if both reports have them.
        progress, limited
            See `replayed`, which has its errors, too.
        """
        comparison = compare(before.runs, self.runs, titles)
        if replay:
            sides = [(one.runs, graphs_of(one.paths, one.graph_logs)) for one in (before, self)]
            comparison = separated(comparison, sides, progress, limited=limited)
        return replace(self, runs=[*before.runs, *self.runs], comparison=comparison)

    def accounts(self) -> list[Account]:
        """Return the account of each run."""
        about = self.price, self.tag
        return [account(one, *about, self.measured.get(one.instance)) for one in self.runs]

    def replayed(
        self, progress: Callable[[int, int], object] = lambda *_: None, *, limited: bool = False
    ) -> Report:
        """Measure what the cures of the diagnoses save, by replays of the recorded graphs.

        Without graphs, it is the report as it was.

        Parameters
        ----------
        progress
            Is called with the finished part of the work of a root span, and all of it.
        limited
            Whether large runs are left out, and the replays end after some seconds.

        Raises
        ------
        OSError, ValueError, dask_otel.whatif.running.ReplayError
            If a graph can't be read, or its replay dies or takes too long.
        """
        graphs = {one.span_id: one for one in graphs_of(self.paths, self.graph_logs)}
        accounts = self.accounts() if graphs else ()
        what_ifs, measured = judged(accounts, graphs, progress, limited=limited)
        return replace(self, what_ifs=what_ifs, measured=measured)

    def html(self) -> str:
        """Return a self-contained page, which loads nothing.

        Raises
        ------
        ImportError
            If bokeh is missing; ``dask-otel[report]`` installs it.
        """
        from dask_otel.report.page.html import page

        return page(
            self.accounts(),
            self.skipped,
            redacted=self.is_redacted,
            comparison=self.comparison,
            what_ifs={one.span_id: one.html() for one in self.what_ifs if not one.result.refused},
        )

    def text(
        self,
        width: int = 100,
        *,
        ascii_only: bool = False,
        everything: bool = False,
        command: str = "",
    ) -> str:
        """Return the report for a terminal, without colours.

        It ends after the spans, except if it shows `everything`. `command` reads these files.
        """
        from dask_otel.report import text, words

        sheet = text.Sheet(width, everything, command)
        if self.comparison is None:
            lines = text.plain(text.report_lines(self.accounts(), self.skipped, sheet))
        else:
            lines = map(words.one_line, text.comparison_lines(self.comparison, width))
        adapted = words.in_ascii if ascii_only else str
        return "\n".join(adapted(line).rstrip() for line in lines)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, and return its path."""
        target = Path(path)
        target.write_text(self.html(), encoding="utf-8")
        return target

    def to_dict(self) -> dict[str, Any]:
        """Return the page's facts as plain data, for scripts."""
        from dask_otel.report.summary import summary

        more = {
            "what_if": [one.to_dict() for one in self.what_ifs],
            "comparison": self.comparison and self.comparison.to_dict(),
        }
        found = summary(self.accounts(), self.skipped)
        return found | {name: value for name, value in more.items() if value}

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        # In a frame, so that the page's scripts cannot reach the notebook.
        page = escape(self.html(), quote=True)
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts allow-popups" width="100%"'
            ' height="900" style="border:0"></iframe>'
        )


def report_of(
    rows: Sequence[tuple[str, bytes]], lost: Mapping[str, int], block: Block | None = None
) -> Report:
    """Make a report, or one about a block, of rows in memory; see `dask_otel._wire.Recorded`.

    It is slow for many rows: call it in a thread.
    """
    reader = Reader()
    for signal, data in rows:
        if signal in _SIGNALS:
            reader.read_lines(gzip.decompress(data))
    for signal, count in lost.items():
        what = _SIGNALS.get(signal, signal)
        reader.skipped.add(f"{what} no longer in memory (otel.report.memory)", count=count)
    runs = reader.sessions()
    if lost.get("metrics"):
        for run in runs:
            run.metrics.drop_sums()
    logs = b"".join(data for signal, data in rows if signal == "graph")
    if block is not None:
        block = replace(block, lost="traces" in lost)
        runs = [_within(run, block) for run in runs]
    return Report(runs, reader.skipped, graph_logs=logs)


def _within(session: Session, block: Block) -> Session:
    """Return a run with a block: its spans are a tree of their own, and marked if there are others.

    A run without the block's span has no work of it.
    """
    capacity = session.metrics.of(semconv.CLUSTER_CAPACITY_TIME.name)
    # Of levels, the rows say when the recording began.
    session.metrics.start_ns = min(
        (point.start_ns for one in capacity for point in one.points),
        default=session.metrics.start_ns,
    )
    found = [one for one in session.of_type("span") if one.text(semconv.SPAN_ID) == block.span_id]
    name = found[0].full_name if found else block.name
    own = subtree(found, tree_of(session.spans)[1])
    for span in own:
        span.attributes[semconv.SPAN_ROOT_ID] = block.span_id
        span.attributes[semconv.SPAN_ROOT_NAME] = name
        if len(own) < len(session.spans) and span.type == "span":
            span.mark = " (this block)"
    return replace(
        session, block=replace(block, name=name), own=frozenset(span.key for span in own)
    )


def read_report(
    *paths: str | Path,
    price: float | None = None,
    tag: str = "team",
    replay: bool = False,
    price_memory: float = 0.0,
) -> Report:
    """Read telemetry files into a report.

    Parameters
    ----------
    paths
        Files of OTLP/JSON (``otel.files.path``, the Collector's file exporter), traces saved from
        Jaeger or Tempo, compressed or not, and directories of such files.
    price
        Price of a thread-hour. Without it, the report has no costs.
    tag
        The costs of spans with a tag ``<tag>:<value>`` are summed by value.
    replay
        Whether what the diagnoses' cures save is measured by replays of the recorded graphs,
        however long that takes.
    price_memory
        Price of a GiB-hour of the workers' memory, beside `price`.

    Raises
    ------
    FileNotFoundError
        If there is nothing to read.
    ValueError, dask_otel.whatif.running.ReplayError
        If a graph can't be read, or its replay dies.
    """
    reader = Reader()
    reader.read(paths)
    cost = None if price is None else Price(price, memory=price_memory)
    runs = reader.sessions()
    attach(profiles_of(paths, reader.skipped), runs)
    report = Report(runs, reader.skipped, price=cost, tag=tag, paths=paths)
    return report.replayed() if replay else report
