"""Draw a trace as Jaeger's page shows it: a picture for the docs, of what Jaeger gives back.

Jaeger as it is built from its Go module has no web pages, so this reads its query API:

    python examples/one_trace.py     # with OTEL_EXPORTER_OTLP_ENDPOINT; it prints the trace's id
    python tools/draw_trace.py http://localhost:16686 TRACE_ID docs/images/one-trace.svg
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, NAMES, ROW, TOP = 960, 400, 24, 40
#: One for each service, in the order in which they begin.
COLOURS = ("#1f77b4", "#d95f02", "#2a9d5c", "#7b5ea7", "#a05a2c")


@dataclass
class Node:
    """A span with its children, in the order of their start; times in microseconds."""

    service: str
    name: str
    start: int
    duration: int
    parent: str
    children: list[Node] = field(default_factory=list)


def read(jaeger: str, trace_id: str) -> list[Node]:
    """Return the roots of a trace that Jaeger has, in the order of their start."""
    with urllib.request.urlopen(f"{jaeger}/api/traces/{trace_id}", timeout=30) as response:
        (trace,) = json.load(response)["data"]
    nodes = {
        span["spanID"]: Node(
            trace["processes"][span["processID"]]["serviceName"],
            span["operationName"],
            span["startTime"],
            span["duration"],
            next((r["spanID"] for r in span["references"] if r["refType"] == "CHILD_OF"), ""),
        )
        for span in trace["spans"]
    }
    roots = []
    for node in sorted(nodes.values(), key=lambda node: (node.start, node.name)):
        above = nodes.get(node.parent)
        (roots if above is None else above.children).append(node)
    return roots


def _walk(nodes: list[Node], depth: int = 0) -> Iterator[tuple[int, Node]]:
    for node in nodes:
        yield depth, node
        yield from _walk(node.children, depth + 1)


def _milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1000:.3g} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.3g} s"


def draw(roots: list[Node]) -> str:
    """Return the picture, as SVG: a line for each span, with its bar on the trace's time."""
    rows = list(_walk(roots))
    begin = min(node.start for _, node in rows)
    length = max(max(node.start + node.duration for _, node in rows) - begin, 1)
    colours = dict(zip(dict.fromkeys(node.service for _, node in rows), COLOURS * 9, strict=False))
    scale = (WIDTH - NAMES - 90) / length
    height = TOP + ROW * len(rows) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-weight="bold" fill="#222">{len(rows)} spans, '
        f"{len(colours)} services, {_milliseconds(length)}</text>",
    ]
    for part in range(5):
        x = NAMES + scale * length * part / 4
        lines.append(
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 8}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="24" fill="#666" font-size="11">'
            f"{_milliseconds(length * part / 4)}</text>"
        )
    for number, (depth, node) in enumerate(rows):
        y, colour = TOP + ROW * number, colours[node.service]
        left, x = 12 + 18 * depth, NAMES + scale * (node.start - begin)
        width = max(scale * node.duration, 2)
        lines.append(
            f'<rect x="{left}" y="{y + 3}" width="4" height="15" fill="{colour}"/>'
            f'<text x="{left + 10}" y="{y + 15}" fill="#222">{escape(node.service)} '
            f'<tspan fill="#666">{escape(node.name)}</tspan></text>'
            f'<rect x="{x:.1f}" y="{y + 5}" width="{width:.1f}" height="11" rx="2" '
            f'fill="{colour}"/>'
            f'<text x="{x + width + 6:.1f}" y="{y + 15}" fill="#666" font-size="11">'
            f"{_milliseconds(node.duration)}</text>"
        )
    return "\n".join([*lines, "</svg>\n"])


def main() -> int:
    """Draw the trace that is asked for."""
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    jaeger, trace_id, path = sys.argv[1:]
    Path(path).write_text(draw(read(jaeger.rstrip("/"), trace_id)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
