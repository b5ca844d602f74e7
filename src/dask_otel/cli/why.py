"""``dask-otel why``: its arguments and exit codes. The question is `dask_otel.why`."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, TypeVar

from dask_otel.cli import terminal
from dask_otel.cli.command import Command

if TYPE_CHECKING:
    from distributed import Client

    from dask_otel._wire import Held, Why

    T = TypeVar("T", Why, Held)

COMMAND: Final = Command(
    help="say why a task or a span is not done yet",
    description="""\
Say why a task or a span of a running cluster is not done yet, and what to do next: what it waits
for, which restrictions no worker meets, or what its worker does instead. The command changes
nothing. The bridge must run on the scheduler.
""",
    epilog="""\
exit codes: 0 the reasons are shown, 1 there is no answer, or no such task or span, 2 wrong
arguments, 130 interrupted
""",
    arguments={
        "--scheduler": {
            "required": True,
            "metavar": "ADDRESS",
            "help": "address of the running scheduler, such as tcp://host:8786",
        },
        "subject": {
            "metavar": "KEY|SPAN",
            "help": "a task's key, or a span's id or full name, such as train/load",
        },
        "--json": {"action": "store_true", "help": "print everything as JSON"},
    },
)


def run(arguments: argparse.Namespace) -> int:
    """Ask, and print the answer; return the exit code."""
    from dask_otel.client.why import why

    found = shown(arguments, lambda client: why(client, arguments.subject, asynchronous=True))
    return int(found.reasons[0].kind == "unknown")


def shown(arguments: argparse.Namespace, question: Callable[[Client], Awaitable[T]]) -> T:
    """Ask the scheduler in the arguments, and print and return the answer."""
    from dask_otel.doctor.asking import NotExamined

    try:
        with terminal.held_back("asyncio"):
            answer = asyncio.run(_ask(arguments.scheduler, question))
    except NotExamined as error:
        if isinstance(error.__cause__, (LookupError, RuntimeError)):
            # What the bridge refuses is a sentence of its own.
            raise terminal.Failed(str(error.__cause__)) from error
        raise
    terminal.show(json.dumps(asdict(answer), indent=2) if arguments.json else repr(answer))
    return answer


async def _ask(address: str, question: Callable[[Client], Awaitable[T]]) -> T:
    from dask_otel.doctor.asking import answered, connected

    async with connected(address) as client:
        return await answered(question(client), 30.0, "the scheduler has no answer")
