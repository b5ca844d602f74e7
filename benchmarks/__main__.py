"""Runs the rows, prints the table, writes JSON and the page of the documentation."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import (
    account,
    blocks,
    changes,
    context,
    instructions,
    live,
    logs,
    memory,
    page,
    path,
    pauses,
    results,
    sampling,
    scale,
    spool,
    throughput,
)
from benchmarks.results import Row

#: What measures a row, in parts: one that fails does not lose the others. New rows (task spans,
#: made in workers) go on from 10, each with a module of its own and a line here.
ROWS: dict[str, list[Callable[[bool], list[Row]]]] = {
    "1": [instructions.run],
    "3": [pauses.run],
    "4": [memory.run],
    "5": [throughput.run],
    "8": [live.run_start],
    "9": [context.run_counted, context.run],
    "10": [spool.run_counted, spool.run],
    "11": [account.run],
    "12": [changes.run],
    "13": [logs.run],
    "14": [scale.run],
    "15": [path.run],
    "16": [path.run_graphs],
    "17": [partial(path.run, row="17")],
    "18": [sampling.run],
    "19": [blocks.run],
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--row", action="append", choices=ROWS, help="only this row (repeatable)")
    parser.add_argument("--quick", action="store_true", help="small and rough: minutes, not tens")
    parser.add_argument("--output", type=Path, help="JSON file; rows not measured stay as they are")
    parser.add_argument("--page", action="store_true", help="rewrite docs/benchmarks.md")
    parser.add_argument(
        "--check",
        action="store_true",
        help="only count instructions, and fail if they grew against the published results",
    )
    return parser.parse_args()


def _measured(number: str, part: Callable[[bool], list[Row]], quick: bool) -> list[Row]:
    try:
        return part(quick)
    except Exception as error:
        traceback.print_exc()
        where = part.func if isinstance(part, partial) else part
        reason = str(error).strip().splitlines()[-1:] or [repr(error)]
        return [Row(number, f"could not be measured: {where.__module__}", "", *reason, "skipped")]


def _check() -> int:
    """Return 1 if there is a regression, 2 if that is unknown."""
    published = [Row(**row) for row in results.read(results.RESULTS / "latest.json")["rows"]]
    try:
        wrong = instructions.check(published)
    except RuntimeError as error:
        print(f"can't be compared: {error}")
        return 2
    print(wrong or "no regression")
    return 1 if wrong else 0


def main() -> None:
    """Measure the rows that were asked for."""
    options = _arguments()
    logging.disable(logging.INFO)
    if options.check:
        sys.exit(_check())
    rows = []
    for number in options.row or ROWS:
        print(f"row {number} ...", flush=True)
        began = time.monotonic()
        for part in ROWS[number]:
            rows += _measured(number, part, options.quick)
        print(f"row {number}: {time.monotonic() - began:.0f} s", flush=True)
    print(results.shown(rows))
    output = options.output or results.RESULTS / "latest.json"
    if options.row and output.exists():
        rows = results.merged(output, rows)
    results.write(rows, output, options.quick)
    if options.page:
        page.write(results.read(output))


if __name__ == "__main__":
    main()
