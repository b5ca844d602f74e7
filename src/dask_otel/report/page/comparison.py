"""The page's table of two runs side by side."""

from __future__ import annotations

from html import escape

from dask_otel.report import words
from dask_otel.report.compare import FASTER, GONE, NEW, SAME, SLOWER, Comparison, Difference, Side
from dask_otel.report.page.markup import bar

_STYLES = {SLOWER: "worse", FASTER: "better", NEW: "warning", GONE: "warning", SAME: "dim"}
_ORDER = (SLOWER, FASTER, NEW, GONE, SAME)


def section(comparison: Comparison) -> str:
    """Return the comparison as markup."""
    verdicts = [one.verdict for one in comparison.names]
    said = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in _ORDER if kind in verdicts)
    rows = "".join(
        _row(one, total=one is comparison.whole) for one in (comparison.whole, *comparison.names)
    )
    return (
        f"<h2>Compared</h2><p>A: {escape(comparison.before)}<br>B: {escape(comparison.after)}</p>"
        f'<p class="verdict">Spans: {said}.</p><div class="scroll"><table><thead><tr><th>span</th>'
        '<th></th><th class="num">lasted in A</th><th class="num">in B</th>'
        '<th class="num">change</th><th class="num">thread-time in A</th><th class="num">in B</th>'
        "<th>by activity</th><th>A, then B</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
        '<p class="about">Spans of one name together: how long they lasted on average, and their'
        " thread-time in all. A change counts from 10 % and 50 ms on.</p>"
    )


def _row(one: Difference, *, total: bool) -> str:
    change = one.lasted
    longer = "" if change is None else _signed(change)
    parts = ", ".join(
        f"{_signed(seconds)} {words.inside(part)}" for part, seconds in one.changes()[:3]
    )
    bars = "".join(bar(side.parts, small=True) for side in (one.before, one.after) if side)
    name = "<b>all</b>" if total else escape(one.name)
    return (
        f'<tr><td class="name">{name}</td><td class="{_STYLES[one.verdict]}">{one.verdict}</td>'
        f'<td class="num">{_lasted(one.before)}</td><td class="num">{_lasted(one.after)}</td>'
        f'<td class="num {_STYLES[one.verdict]}">{longer}</td>'
        f'<td class="num">{_time(one.before)}</td><td class="num">{_time(one.after)}</td>'
        f'<td class="parts">{escape(parts)}</td><td>{bars}</td></tr>'
    )


def _signed(seconds: float) -> str:
    return ("+" if seconds >= 0 else "−") + words.seconds(abs(seconds))


def _lasted(side: Side | None) -> str:
    return "" if side is None or side.lasted is None else words.seconds(side.lasted)


def _time(side: Side | None) -> str:
    return "" if side is None or side.seconds is None else words.seconds(side.seconds)
