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
from math import comb
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["met", "missed", "peer", "info", "skipped"]

RESULTS = Path(__file__).parent / "results"


@dataclass
class Row:
    """One line of the table."""

    number: str
    what: str
    target: str
    figure: str
    verdict: Verdict
    #: Everything that was measured, for the JSON.
    data: dict[str, Any] = field(default_factory=dict)


def verdict(met: bool) -> Verdict:
    """Return the verdict of a figure with a target."""
    return "met" if met else "missed"


def balanced(without: Sequence[float], bridged: Sequence[float]) -> list[float]:
    """Return the ratios of blocks A B B A, in which a steady drift cancels out.

    Parameters
    ----------
    without, bridged
        Windows in the order of their pairs, which began with one and the other in turn.
    """
    blocks = range(0, len(without) - 1, 2)
    return [sum(bridged[i : i + 2]) / sum(without[i : i + 2]) for i in blocks]


def interval(values: Sequence[float], coverage: float = 0.95) -> tuple[float, float] | None:
    """Return an interval that contains the true median with at least this probability.

    By order statistics, as in the sign test: exact, whatever the distribution, which for CPU
    seconds on a shared machine has a long tail. None below six values, for which there is no
    such interval.
    """
    ordered, n = sorted(values), len(values)
    # How many values may be left out on each side.
    outside, left_out = 0.0, -1
    while (outside := outside + 2 * comb(n, left_out + 1) / 2**n) <= 1 - coverage:
        left_out += 1
    return None if left_out < 0 else (ordered[left_out], ordered[n - 1 - left_out])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of all values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def machine() -> dict[str, Any]:
    """Return what a reader must know of this machine to judge the figures."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    packages = ("distributed", "opentelemetry-sdk", "grpcio", "protobuf", "dask-otel")
    return {
        "cpu": next(x.partition(":")[2].strip() for x in info if "model name" in x),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in packages},
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table."""
    head = ("row", "what", "target", "figure", "verdict")
    lines = [
        # Texts of other people's errors may contain anything.
        tuple(" ".join(c.replace("|", r"\|").split()) for c in cells)
        for cells in ((r.number, r.what, r.target, r.figure, r.verdict) for r in rows)
    ]
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


def put(path: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """Put single rows into a file instead of those of their names; return its content.

    The facts of the machine stay those of the other rows: for counts, which depend on none of them.
    """
    content = read(path)
    new = {(row.number, row.what): asdict(row) for row in rows}
    content["rows"] = [new.pop((row["number"], row["what"]), row) for row in content["rows"]]
    assert not new, f"nowhere to put {list(new)}"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return content


def merged(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a file with those replaced that were measured anew."""
    new = {row.number for row in rows}
    kept = [Row(**row) for row in read(path)["rows"] if row["number"] not in new]
    return sorted([*kept, *rows], key=lambda row: int(row.number))
