"""``dask-otel report``: its arguments and exit codes. The report is in `dask_otel.report`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from dask_otel.cli import terminal
from dask_otel.cli.command import Command

if TYPE_CHECKING:
    from dask_otel.report.document import Report
    from dask_otel.report.money import Price

T = TypeVar("T")


NO_BOKEH = "the page needs bokeh; try: pip install 'dask-otel[report]' (text and --json do not)"

#: Most columns of the text.
_WIDE = 160
#: The default tag for the sums of costs.
_TAG = "team"

COMMAND: Final = Command(
    help="show where the time of a run went, on one page",
    description="""\
Show where the time of one or several runs went. It reads files that the bridge (otel.files.path) or
the Collector's file exporter wrote, and traces that were saved from Jaeger or Tempo. Files may be
compressed; a directory stands for its files. It needs no server.
""",
    epilog="""\
exit codes: 0 the report is written, 1 it is not (the reason is on standard error), 2 wrong
arguments, 130 interrupted
""",
    arguments={
        "paths": {"nargs": "*", "metavar": "PATH", "help": "a file, or a directory of files"},
        "--compare": {
            "nargs": 2,
            "metavar": ("A", "B"),
            "help": "show the changes from A to B, function by function and span by span",
        },
        "--last": {
            "type": terminal.number(1, sys.maxsize, "a number of schedulers (1 or more)", int),
            "metavar": "N",
            "help": "use only the files of the last N schedulers; with --compare, of each side",
        },
        "-o --output": {
            "type": Path,
            "metavar": "FILE",
            "help": "write the page to FILE, or - for standard output (default: report.html)",
        },
        "--open": {"action": "store_true", "help": "open the page in a browser"},
        "--text": {"action": "store_true", "help": "write text to standard output instead"},
        "--all": {"action": "store_true", "help": "with --text: all figures, spans and failures"},
        "--json": {"action": "store_true", "help": "write JSON to standard output instead"},
        "--price": {
            "type": terminal.number(0.0, 1e9, "a price: a number, at least 0, without a unit"),
            "metavar": "AMOUNT",
            "help": "price per thread-hour",
        },
        "--price-memory": {
            "type": terminal.number(0.0, 1e9, "a price: a number, at least 0, without a unit"),
            "metavar": "AMOUNT",
            "help": "with --price: price per GiB-hour of the workers' memory",
        },
        "--currency": {"help": "currency shown after amounts"},
        "--tag": {
            "metavar": "KEY",
            "help": "sum costs by the spans' tags KEY:value (default: team)",
        },
        "--replay": {
            "action": argparse.BooleanOptionalAction,
            "help": "measure by replays of the recorded graph how much each cure saves, or with "
            "--compare the causes of the change, however long they take (default: only for small "
            "runs, for at most 20 s)",
        },
        "--redact": {
            "action": "store_true",
            "help": "leave out messages, tracebacks, code, keys and users' attributes",
        },
    },
)


def run(arguments: argparse.Namespace) -> None:
    """Write the report."""
    given, page = arguments, not (arguments.text or arguments.json)
    wrong = {
        "give PATH, or --compare A B": bool(given.paths) == bool(given.compare),
        "argument --json: not allowed with argument --text": given.text and given.json,
        "-o and --open are for the page, not for --text or --json": not page
        and (given.output or given.open),
        "--open needs a file, not -o -": arguments.open and arguments.output == terminal.STDOUT,
        "--all is for --text; the page and --json have everything": given.all and not given.text,
    }
    for why in [one for one, true in wrong.items() if true]:
        arguments.usage_error(why)
    if page and find_spec("bokeh") is None:
        raise terminal.Failed(NO_BOKEH)
    report = _read(arguments)
    for line in _without_effect(report, arguments):
        terminal.say("report", line)
    if page:
        _write_page(report, arguments)
    elif arguments.json:
        terminal.show(json.dumps(report.to_dict(), indent=2, allow_nan=False))
    else:
        terminal.show(_text(report, arguments))


def _without_effect(report: Report, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the options that have no effect, with the reason."""
    if arguments.price is not None and (arguments.tag is not None or arguments.price_memory):
        bills = [account.bill for account in report.accounts()]
        if arguments.tag is not None and not any(bill.tags for bill in bills if bill):
            yield f"no span that took thread-time has a tag {arguments.tag}:…"
        if arguments.price_memory and not any(bill.memory for bill in bills if bill):
            yield "--price-memory has no effect: the files have no memory of workers"


def price_of(arguments: argparse.Namespace) -> Price | None:
    """Return the price that was given; without one, say which options have no effect."""
    from dask_otel.report.money import Price

    options, amount = vars(arguments), arguments.price
    names = ("price_memory", "currency", "tag")
    if amount is not None:
        return Price(amount, arguments.currency or "", options.get("price_memory") or 0.0)
    if given := [f"--{n.replace('_', '-')}" for n in names if options.get(n) is not None]:
        verb = "has" if len(given) == 1 else "have"
        said = f"{' and '.join(given)} {verb} no effect without --price"
        terminal.say(arguments.command, said)
    return None


def _read(arguments: argparse.Namespace) -> Report:
    from dask_otel.report.document import read_report
    from dask_otel.report.telemetry.remote import copied

    limited = arguments.replay is None
    price = price_of(arguments)

    def read(*paths: str) -> Report:
        found = read_report(*stack.enter_context(copied(paths)))
        runs = found.runs[-(arguments.last or 0) :]
        found = replace(found, runs=runs, price=price, tag=arguments.tag or _TAG)
        if arguments.replay is not False and not arguments.compare:
            found = judged("report", found, partial(found.replayed, limited=limited))
        if not found.runs:
            reasons = (f"no Dask telemetry in {', '.join(paths)}", *found.skipped.lines())
            raise ValueError("; ".join(reasons))
        return found.redacted() if arguments.redact else found

    with ExitStack() as stack:
        if not arguments.compare:
            return read(*arguments.paths)
        before, after = map(read, arguments.compare)
        compared = partial(after.compared_with, before, (*arguments.compare,))
        if arguments.replay is False:
            return compared()
        return judged("report", compared(), partial(compared, replay=True, limited=limited))


def judged(command: str, before: T, replayed: Callable[..., T]) -> T:
    """Replay what was recorded; if that fails, return what was there, and say so."""
    try:
        return replayed(progress=terminal.replayed)
    except (OSError, ValueError, RuntimeError) as error:
        terminal.say(command, f"no replays: {error}")
        return before
    finally:
        terminal.progress("")


def _text(report: Report, arguments: argparse.Namespace) -> str:
    last = ["--last", str(arguments.last)] if arguments.last else []
    command = shlex.join(["dask-otel", "report", *arguments.paths, *last])
    return report.text(
        terminal.width(_WIDE),
        ascii_only=terminal.is_ascii(),
        everything=arguments.all,
        command="" if arguments.all else command,
    )


def _write_page(report: Report, arguments: argparse.Namespace) -> None:
    path = arguments.output or Path("report.html")
    terminal.write(path, report.html())
    for line in report.skipped.lines():
        terminal.say("report", f"not read: {line}")
    if arguments.open and not webbrowser.open(path.absolute().as_uri()):
        raise terminal.Failed(f"found no browser to open {path}")
