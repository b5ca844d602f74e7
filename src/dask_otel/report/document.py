"""The report as an object: read once, shown as a page, a text, plain data, or in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from dask_otel.report.compare import Comparison, compare
from dask_otel.report.money import Price
from dask_otel.report.redaction import redacted
from dask_otel.report.telemetry.model import Run, Skipped
from dask_otel.report.telemetry.reading import Reader


class Report:
    """What telemetry files say of one run or several; `read_report` makes it.

    In a notebook it shows itself as the page that `html` returns.

    Attributes
    ----------
    runs
        By their start: one for each scheduler.
    skipped
        What could not be read.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        skipped: Skipped | None = None,
        *,
        price: Price | None = None,
        tag: str = "team",
    ) -> None:
        self.runs = list(runs)
        self.skipped = skipped or Skipped()
        self.price = price
        self.tag = tag
        self._redacted = False
        self._comparison: Comparison | None = None

    def redacted(self) -> Report:
        """Return the same without messages, tracebacks, code, keys and users' attributes."""
        report = Report(
            [redacted(run) for run in self.runs], self.skipped, price=self.price, tag=self.tag
        )
        report._redacted = True
        return report

    def compared_with(self, before: Report, titles: tuple[str, str] = ("A", "B")) -> Report:
        """Return this report with a comparison: what changed since `before`, of which `titles`
        say what the two are called.
        """
        report = Report(self.runs, self.skipped, price=self.price, tag=self.tag)
        report._redacted = self._redacted
        report._comparison = compare(before.runs, self.runs, titles)
        report.runs = [*before.runs, *self.runs]
        return report

    @property
    def comparison(self) -> Comparison | None:
        """What `compared_with` found."""
        return self._comparison

    def html(self) -> str:
        """Return one self-contained page, which loads nothing from anywhere.

        Raises
        ------
        ImportError
            Where bokeh is missing: it comes with ``dask-otel[report]``.
        """
        from dask_otel.report.page.comparison import section
        from dask_otel.report.page.html import page

        return page(
            self.runs,
            self.skipped,
            price=self.price,
            tag=self.tag,
            redacted=self._redacted,
            comparison=section(self._comparison) if self._comparison else "",
        )

    def text(self, width: int = 100, *, ascii_only: bool = False) -> str:
        """Return the report for a terminal, without colours."""
        from dask_otel.report import text

        if self._comparison is not None:
            found = text.comparison_lines(self._comparison, width, ascii_only)
        else:
            found = text.lines(
                self.runs,
                self.skipped,
                price=self.price,
                tag=self.tag,
                width=width,
                ascii_only=ascii_only,
            )
        return "\n".join(found)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, and return its path."""
        target = Path(path)
        target.write_text(self.html(), encoding="utf-8")
        return target

    def to_dict(self) -> dict[str, Any]:
        """Return what the page says as plain data, for scripts."""
        from dask_otel.report.summary import summary

        found = summary(self.runs, self.skipped, price=self.price, tag=self.tag)
        if self._comparison is not None:
            found["comparison"] = self._comparison.to_dict()
        return found

    def _repr_html_(self) -> str:
        # A frame of its own: scripts of the page have no way into the notebook.
        page = escape(self.html(), quote=True)
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts allow-popups" width="100%"'
            ' height="900" style="border:0"></iframe>'
        )


def read_report(*paths: str | Path, price: float | None = None, tag: str = "team") -> Report:
    """Read telemetry files into a report.

    Parameters
    ----------
    paths
        Files of OTLP/JSON (``otel.files.path``, the Collector's file exporter), traces saved from
        Jaeger or Tempo, compressed or not, and directories of such files.
    price
        Of a thread-hour, if the report is to speak of money.
    tag
        Of which ``<tag>:<value>`` tags of spans the cost is summed up.

    Raises
    ------
    FileNotFoundError
        Where there is nothing to read.
    """
    reader = Reader()
    reader.read(paths)
    return Report(
        reader.runs(),
        reader.skipped,
        price=None if price is None else Price(price),
        tag=tag,
    )
