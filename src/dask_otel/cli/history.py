"""``dask-otel history``: its arguments and exit codes. The history is in `dask_otel.report`."""

from __future__ import annotations

import argparse
import glob
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dask_otel.cli import report, terminal
from dask_otel.cli.command import Command
from dask_otel.core.graph import SUFFIX

if TYPE_CHECKING:
    from dask_otel.report.history.changes import Trend
    from dask_otel.report.history.past import PastRun
    from dask_otel.report.history.sessions import SessionFiles
    from dask_otel.report.money import Price


#: Most columns of a cell in the text.
_LONGEST: Final = 40

COMMAND: Final = Command(
    help="list all runs below some folders, and what changed",
    description="""\
List all runs below some folders that the bridge wrote files into (otel.files.path), the newest
last. A run is one root span that ended. A small summary of each scheduler's runs is written beside
its files, or into ~/.cache/dask-otel, so that the files are read only once.

For each name, it says when its runs became slower or faster, and whether the last one is
unusual. With --check, the exit code says whether the last run is a regression, and replays of
recorded graphs divide it into more work, slower functions, and another cluster.
""",
    epilog="""\
exit codes: 0 the runs are listed, 1 there are no runs, the page can't be written, or the last run
of the name is a regression (--check), 2 wrong arguments, 130 interrupted
""",
    arguments={
        "folders": {"nargs": "+", "metavar": "DIR", "help": "a folder, with all folders below it"},
        "--json": {"action": "store_true", "help": "write JSON to standard output instead"},
        "-o --output": {
            "type": Path,
            "metavar": "FILE",
            "help": "write a page with search and filter instead, to FILE, or - for standard "
            "output",
        },
        "--serve": {
            "nargs": "?",
            "const": 0,
            "type": terminal.number(0, 65535, "a port", int),
            "metavar": "PORT",
            "help": "show the page on this machine, and make a run's report when you open the run",
        },
        "--check": {
            "metavar": "NAME",
            "help": "list only the runs of this name; exit with 1 if the last one is a regression",
        },
        "--price": report.COMMAND.arguments["--price"],
        "--price-memory": report.COMMAND.arguments["--price-memory"],
        "--currency": report.COMMAND.arguments["--currency"],
    },
)


def run(arguments: argparse.Namespace) -> int:
    """List the runs; return the exit code."""
    from dask_otel.report import words
    from dask_otel.report.history.changes import trends
    from dask_otel.report.history.sessions import listing

    is_served = arguments.serve is not None
    if arguments.json + bool(arguments.output) + is_served > 1:
        arguments.usage_error("give only one of --json, -o and --serve")
    if is_served and arguments.check is not None:
        arguments.usage_error("--check can't be used with --serve")
    if (arguments.output or is_served) and find_spec("bokeh") is None:
        raise terminal.Failed(report.NO_BOKEH)
    price = report.price_of(arguments)
    if is_served:
        return _serve(arguments, price)
    listed, left_out = listing(arguments.folders, terminal.listed)
    if arguments.check is not None:
        listed = [one for one in listed if one[0].name == arguments.check]
    runs = [one for one, _ in listed]
    for line in left_out:
        terminal.say("history", line)
    if not runs:
        name = "" if arguments.check is None else f" of {arguments.check}"
        raise terminal.Failed(f"no run{name} below {', '.join(arguments.folders)}")
    found = trends(runs)
    failed = int(arguments.check is not None and found[0].regression)
    if failed:
        report.judged("history", found[0], partial(_replay, found[0], listed))
    if arguments.output:
        from dask_otel.report.page.html import history_page

        terminal.write(arguments.output, history_page(runs, found, left_out, price))
    elif arguments.json:
        costs = [
            {**asdict(one), "cost": price and price.of(one.thread_seconds, one.memory_time)}
            for one in runs
        ]
        content = {
            "version": 1,
            "left_out": left_out,
            "trends": [{**asdict(one), "lines": one.lines()} for one in found],
            "runs": costs,
        }
        terminal.show(json.dumps(content, indent=2))
    else:
        said = [f"{words.one_line(one.name)}: {line}" for one in found for line in one.lines()]
        terminal.show("\n".join([*_table([one.cells(price) for one in runs]), "", *said]))
    return failed


def _replay(
    trend: Trend,
    listed: Sequence[tuple[PastRun, SessionFiles]],
    progress: Callable[[int, int], object],
) -> Trend:
    """Add to the change that is a regression what replays of two runs say of it, if they can."""
    from dask_otel.report.cures import graphs_of, made_of
    from dask_otel.report.history.difference import in_words
    from dask_otel.whatif.running import Room

    # The other figure's last change can be an older one.
    slower = (one for one in trend.changes if one.verdict.startswith("slower"))
    change, graphs = max(slower, key=lambda one: one.since), []
    compared = [one for one in listed if one[0].result == "success"]
    earlier = [one for one in compared if one[0].start < change.since]
    for run, session in (earlier[-1], listed[-1]):
        logs = Path(session.folder).glob(f"{glob.escape(session.prefix)}*{SUFFIX}")
        graphs += [one for one in graphs_of(logs, b"") if one.span_id == run.span_id]
    if len(graphs) == 2:
        terms, why = made_of(graphs[0], graphs[1], progress, Room(limited=True))
        said = in_words(terms) or why
        change.beside.append(f"the last run before it and the last one, replayed: {said}")
    return trend


def _table(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """Return the lines of a table, without columns that are empty."""
    from dask_otel.report import words
    from dask_otel.report.history.past import HEADINGS, NUMBERS

    shown = [name for name in HEADINGS if any(row[name] for row in rows)]
    cells = [[words.cut(row[name], _LONGEST) for name in shown] for row in rows]
    return words.aligned([shown, *cells], NUMBERS)


def _serve(arguments: argparse.Namespace, price: Price | None) -> int:
    from dask_otel.cli.serve import Pages, serve

    try:
        server = Pages(arguments.serve, arguments.folders, price)
    except OSError as error:
        reason = f"can't listen on port {arguments.serve}: {error.strerror}"
        raise terminal.Failed(reason) from error
    return serve(server)
