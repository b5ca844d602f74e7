"""The page of the documentation: the table, the machine, and a plot drawn by hand as SVG."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from benchmarks.results import Row, table

DOCS = Path(__file__).parent.parent / "docs"

_HEAD = """# What the bridge costs

Measured by `make bench` (`python -m benchmarks`; `--quick` for a rough look, `--row 3` for one
row). Ratios come from one run, with and without the bridge in turn; CPU is that of the
scheduler's process. This page is written by `python -m benchmarks --page` from
`benchmarks/results/latest.json`.

A row says *missed* where the figure is worse than its target; *peer* rows are there to compare.
An A/B row is *met* unless its whole interval lies above the target: a wide interval decides
nothing. Of the loop latencies in row 3 the best window of each arm counts, and of the replays in
row 1 the best of five. Rows marked as quick had one or two pairs, and the first published results
come from a machine that was busy with other things: take them as rough.

"""


def write(content: dict[str, Any]) -> None:
    """Write docs/benchmarks.md and docs/images/benchmarks.svg."""
    rows = [Row(**row) for row in content["rows"]]
    machine = content["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    facts = (
        f"\n\n{machine['cpu']}, {machine['cores']} cores; {machine['system']}; Python "
        f"{machine['python']}; {versions}. {machine['time']}, load "
        f"{machine['load'][0]:.1f} at the end.{' Quick mode.' if content['quick'] else ''}\n"
    )
    picture = _latency_plot(rows)
    text = _HEAD + table(rows) + facts
    if picture:
        (DOCS / "images").mkdir(exist_ok=True)
        (DOCS / "images" / "benchmarks.svg").write_text(picture, encoding="utf-8")
        text += "\n![Latency of the scheduler's event loop](images/benchmarks.svg)\n"
    (DOCS / "benchmarks.md").write_text(text, encoding="utf-8")


def _latency_plot(rows: list[Row]) -> str:
    """Draw how late the event loop is, without a bridge, with it, and with the naive peer."""
    windows = next((r.data for r in rows if r.number == "3" and "bridge" in r.data), None)
    if windows is None:
        return ""
    bars = [
        (kind, name, min(float(w[name]) for w in windows[kind]))
        for kind in ("none", "bridge", "naive")
        for name in ("p99", "p99.9", "max")
    ]
    top = max(value for _, _, value in bars)
    colours = {"none": "#888888", "bridge": "#2a78c2", "naive": "#c2562a"}
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="720" height="300" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="720" height="300" fill="white"/>',
        '<text x="20" y="24" font-size="15">Latency of the scheduler\'s event loop, ms</text>',
    ]
    for i, (kind, name, value) in enumerate(bars):
        y = 42 + 28 * i
        width = max(1.0, 440 * value / top)
        lines += [
            f'<text x="150" y="{y + 15}" text-anchor="end">{escape(kind)} {escape(name)}</text>',
            f'<rect x="160" y="{y}" width="{width:.1f}" height="20" fill="{colours[kind]}"/>',
            f'<text x="{166 + width:.1f}" y="{y + 15}">{value:.2f}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])
