"""The replays of a run as a section of a page."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from markupsafe import Markup

from dask_otel.report.page.environment import ENVIRONMENT
from dask_otel.whatif.result import Replayed


def replays(
    headline: str,
    table: Sequence[Sequence[str]],
    curve: Sequence[Replayed],
    knee: int | None,
    notes: Sequence[str],
) -> Markup:
    """Return the replays of a run as a section of a page or a notebook.

    The `table` begins with its headings; the `curve` has its fewest threads first, and may have a
    `knee` at a number of threads.
    """
    logs = [log2(one.threads or 1) for one in curve]
    longest = max((one.seconds for one in curve), default=1.0)
    most = max((one.thread_hours for one in curve), default=1.0) or 1.0
    drawn = [
        (
            one,
            round(40 + 560 * (place - logs[0]) / ((logs[-1] - logs[0]) or 1.0), 1),
            round(175 - 145 * one.seconds / longest, 1),
            round(175 - 145 * one.thread_hours / most, 1),
        )
        for place, one in zip(logs, curve, strict=True)
    ]
    return Markup(
        ENVIRONMENT.get_template("whatif.html").render(
            headline=headline, table=table, curve=drawn, knee=knee, notes=notes
        )
    )
