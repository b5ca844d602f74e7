"""A row of the table, and how rows are shown and kept."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from statistics import median, stdev
from typing import Any, Literal

Verdict = Literal["met", "missed", "peer", "info", "skipped"]

RESULTS = Path(__file__).parent / "results"

#: Two-sided 95 % quantiles of Student's t, by degrees of freedom.
_T = {1: 12.7, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
_T |= {10: 2.23, 12: 2.18, 15: 2.13, 20: 2.09, 30: 2.04}


@dataclass
class Row:
    """One line of the table."""

    number: str
    what: str
    target: str
    figure: str
    verdict: Verdict
    #: Everything that was measured, for the JSON and the plot.
    data: dict[str, Any] = field(default_factory=dict)


def verdict(met: bool) -> Verdict:
    """Return the verdict of a figure with a target."""
    return "met" if met else "missed"


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the 95 % interval of the mean around it."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    middle = median(values)
    freedom = max(k for k in _T if k <= len(values) - 1)
    half = _T[freedom] * stdev(values) / len(values) ** 0.5
    return middle, middle - half, middle + half


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of all values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def machine() -> dict[str, Any]:
    """Return what a reader must know of this machine to judge the figures."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [x.partition(":")[2] for x in info.read_text().splitlines() if "model name" in x]
        model = names[0].strip() if names else model
    packages = ("distributed", "opentelemetry-sdk", "grpcio", "protobuf", "dask-otel")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in packages},
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    head = ("row", "what", "target", "figure", "verdict")
    lines = [(r.number, r.what, r.target, r.figure, r.verdict) for r in rows]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]

    def text(line: Sequence[str]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([text(head), rule, *map(text, lines)])


def write(rows: Sequence[Row], path: Path, quick: bool) -> None:
    """Write rows and machine facts as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine(), "quick": quick, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def merged(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a file with those replaced that were measured anew."""
    new = {row.number for row in rows}
    kept = [Row(**row) for row in read(path)["rows"] if row["number"] not in new]
    return sorted([*kept, *rows], key=lambda row: row.number)
