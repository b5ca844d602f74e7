"""``dask-otel held``: its arguments and exit codes. The question is `dask_otel.held`."""

from __future__ import annotations

import argparse
from typing import Final

from dask_otel.cli import why
from dask_otel.cli.command import Command

COMMAND: Final = Command(
    help="list the results in memory, and their keepers",
    description="""\
List the results in the memory of a running cluster's workers by span and function, their keepers
(clients, tasks that still need them, published data sets, variables, queues, actors), and the next
step. The command changes nothing. The bridge must run on the scheduler.
""",
    epilog="""\
exit codes: 0 the answer is shown, 1 there is no answer, or no such span, 2 wrong arguments, 130
interrupted
""",
    arguments={
        "--scheduler": why.COMMAND.arguments["--scheduler"],
        "span": {
            "metavar": "SPAN",
            "nargs": "?",
            "help": "a span's id, or the full name of spans, such as train/load, for their results "
            "alone",
        },
        "--json": why.COMMAND.arguments["--json"],
    },
)


def run(arguments: argparse.Namespace) -> None:
    """Ask, and print the answer."""
    from dask_otel.client.held import held

    why.shown(arguments, lambda client: held(client, arguments.span, asynchronous=True))
