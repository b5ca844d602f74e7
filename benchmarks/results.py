"""A row of the table, and how rows are shown and kept."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from math import comb
from pathlib import Path
from time import process_time
from timeit import repeat
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


def least(call: Callable[[], object], calls: int, runs: int) -> float:
    """Return the CPU time of a call in µs, the least of many runs."""
    return min(repeat(call, number=calls, repeat=runs, timer=process_time)) / calls * 1e6


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


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def shown(rows: Iterable[Row]) -> str:
    """Return the rows as a table."""
    cells = [(one.number, one.what, one.target, one.figure, one.verdict) for one in rows]
    # Texts of other people's errors may contain anything.
    plain = [[" ".join(cell.replace("|", r"\|").split()) for cell in line] for line in cells]
    return table(("row", "what", "target", "figure", "verdict"), plain)


def write(rows: Sequence[Row], path: Path, quick: bool) -> None:
    """Write rows as JSON, and the facts of this machine."""
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
    return sorted([*kept, *rows], key=lambda row: int(row.number))
