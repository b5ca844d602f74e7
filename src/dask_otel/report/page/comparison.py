"""The page's tables of two runs side by side."""

from __future__ import annotations

from html import escape

from dask_otel.report import words
from dask_otel.report.compare import Comparison, Difference
from dask_otel.report.page.markup import Markup, bar, table

_FUNCTIONS = ("function", "#tasks in A", "#in B", "#a task in A", "#in B", "#change of a run")
_SPANS = ("span", "#lasted in A", "#in B", "#thread-time in A", "#in B", "by activity", "A, then B")
_MOST = 60


def section(comparison: Comparison) -> str:
    """Return the comparison as markup."""
    functions = comparison.functions[:_MOST]
    listed = table(_FUNCTIONS, ((one.name, *one.cells()) for one in functions))
    rows = table(_SPANS, (_row(one) for one in (comparison.whole, *comparison.names)))
    return (
        f"<h2>Compared</h2><p>A: {escape(comparison.before)}<br>B: {escape(comparison.after)}</p>"
        f"<h3>Functions</h3>{listed}"
        '<p class="about">The largest change first. A task: all thread-time of the function, by'
        " its tasks. A run: by how much all its tasks together took longer in B.</p>"
        f"<h3>Spans</h3>{rows}"
        '<p class="about">Spans of one name together: how long one lasted from start to end, and'
        " the thread-time of a run, each on average. How long it lasted depends on what else the"
        " machine did; thread-time does so less.</p>"
    )


def _row(one: Difference) -> list[object]:
    changes = one.changes()[:3]
    parts = ", ".join(f"{words.signed(seconds)} {words.inside(part)}" for part, seconds in changes)
    bars = "".join(bar(side.parts, small=True) for side in (one.before, one.after) if side)
    return [one.name, *one.cells(), parts, Markup(bars)]
