"""Runs the rows, prints the table, writes JSON and the page of the documentation."""

from __future__ import annotations

import argparse
import logging
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import cpu, history, live, memory, page, pauses, results, throughput
from benchmarks.results import Row

ROWS: dict[str, Callable[[bool], list[Row]]] = {
    "1": cpu.run,
    "2": history.run,
    "3": pauses.run,
    "4": memory.run,
    "5": throughput.run,
    "6": live.run_freshness,
    "7": live.run_scrape,
    "8": live.run_start,
}


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--row", action="append", choices=ROWS, help="only this row (repeatable)")
    parser.add_argument("--quick", action="store_true", help="small and rough: minutes, not tens")
    parser.add_argument("--output", type=Path, help="JSON file; rows not measured stay as they are")
    parser.add_argument(
        "--page", action="store_true", help="rewrite docs/benchmarks.md and its plot"
    )
    options = parser.parse_args()
    logging.disable(logging.INFO)
    rows: list[Row] = []
    for number in options.row or ROWS:
        print(f"row {number} ...", flush=True)
        began = time.monotonic()
        try:
            rows += ROWS[number](options.quick)
        except Exception as error:
            traceback.print_exc()
            rows.append(Row(number, "could not be measured", "", repr(error), "skipped"))
        print(f"row {number}: {time.monotonic() - began:.0f} s", flush=True)
    print(results.table(rows))
    output = options.output or results.RESULTS / "latest.json"
    if options.row and output.exists():
        rows = results.merged(output, rows)
    results.write(rows, output, options.quick)
    if options.page:
        page.write(results.read(output))


if __name__ == "__main__":
    main()
