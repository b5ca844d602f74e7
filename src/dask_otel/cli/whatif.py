"""``dask-otel whatif``: its arguments and exit codes. The replays are `dask_otel.what_if`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dask_otel.cli import report, terminal
from dask_otel.cli.command import Command
from dask_otel.whatif.experiments import CAUSES, each

#: Most columns of the text.
_WIDE: Final = 120


def _pair(first: type, mark: str, second: type, allowed: str) -> Callable[[str], tuple[Any, Any]]:
    """Return the type of an argument of two values with a mark between them."""

    def read(text: str) -> tuple[Any, Any]:
        one, other = text.rsplit(mark, 1)
        return first(one), second(other)

    return terminal.parsed(read, allowed)


def _bandwidth(text: str) -> float:
    from dask.utils import parse_bytes

    return float(parse_bytes(text.removesuffix("/s")))


_MANY: Final = {"action": "append", "default": []}
COMMAND: Final = Command(
    help="say how long a run would have taken with other workers, or without its faults",
    description="""\
Say how long a recorded run would have taken with other workers, or without its faults, and what it
would have cost. The command replays the run on Dask's own scheduler in simulated time; it needs no
cluster. It reads the files that the bridge wrote (otel.files.path), with the graph of each root
span (otel.spans.graph, on by default).

Each option is an experiment of its own. Without any, half to four times as many workers are tried,
the longest task in two pieces, and the run without its faults. The unchanged run is always replayed
first: the difference to its recorded duration is the error of each answer.
""",
    epilog="""\
exit codes: 0 the results are shown, 1 there is no answer (the reason is on standard error), 2 wrong
arguments, 130 interrupted
""",
    arguments={
        "path": {"metavar": "PATH", "help": "a folder or a file that the bridge wrote"},
        "span": {
            "nargs": "?",
            "metavar": "SPAN",
            "help": "the full name or the id of a root span (default: the last one)",
        },
        "--threads": {
            **_MANY,
            "type": _pair(int, "x", int, "WORKERSxTHREADS, such as 4x8"),
            "metavar": "WORKERSxTHREADS",
            "help": "try so many workers, with so many threads each, such as 4x8; may be repeated",
        },
        "--bandwidth": {
            "type": terminal.parsed(_bandwidth, "a number of bytes a second, such as 10GB/s"),
            "metavar": "BYTES/s",
            "help": "try another speed of transfers between workers, such as 10GB/s",
        },
        "--without": {
            **_MANY,
            "choices": CAUSES,
            "metavar": "CAUSE",
            "help": f"leave out what may have cost time: {', '.join(CAUSES)}; may be repeated",
        },
        "--faster": {
            **_MANY,
            "type": _pair(str, "=", float, "PREFIX=FACTOR, such as fit=2"),
            "metavar": "PREFIX=FACTOR",
            "help": "let tasks of PREFIX take 1/FACTOR of their time, such as fit=2; may be "
            "repeated",
        },
        "--split": {
            **_MANY,
            "type": _pair(str, "=", int, "PREFIX=PIECES or longest=PIECES, such as longest=4"),
            "metavar": "PREFIX=PIECES",
            "help": "split each task of PREFIX, or only the longest task, into PIECES that can run "
            "side by side, such as longest=4; may be repeated",
        },
        "--json": {"action": "store_true", "help": "write JSON to standard output instead"},
        "-o --output": {
            "type": Path,
            "metavar": "FILE",
            "help": "write the report of the run, with the result, as a page to FILE, or - for "
            "standard output, instead",
        },
        "--price": report.COMMAND.arguments["--price"],
        "--currency": report.COMMAND.arguments["--currency"],
    },
)


def run(arguments: argparse.Namespace) -> int:
    """Replay the run, and print the result; return the exit code."""
    from dask_otel.report.document import read_report
    from dask_otel.report.replaying import tried
    from dask_otel.report.telemetry.remote import copied

    if arguments.json and arguments.output:
        arguments.usage_error("argument --json: not allowed with argument -o")
    if arguments.output and find_spec("bokeh") is None:
        raise terminal.Failed(report.NO_BOKEH)
    try:
        options = (arguments.bandwidth, arguments.without, arguments.faster, arguments.split)
        experiments = [*each(arguments.threads, *options)]
    except ValueError as error:
        arguments.usage_error(str(error))
    try:
        with copied([arguments.path]) as local:
            found = replace(read_report(*local), price=report.price_of(arguments))
            shown = tried(found, arguments.span, experiments, terminal.replayed)
    finally:
        terminal.progress("")
    if arguments.json:
        terminal.show(json.dumps(shown.to_dict(), indent=2, allow_nan=False))
    if shown.result.refused:
        raise terminal.Failed(shown.headline())
    if arguments.output:
        terminal.write(arguments.output, replace(found, what_ifs=[shown]).html())
    elif not arguments.json:
        terminal.show(shown.text(terminal.width(_WIDE), ascii_only=terminal.is_ascii()))
    return 0
