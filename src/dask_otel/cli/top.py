"""``dask-otel top``: what goes on at a scheduler, in a terminal. What is shown is in `top_view`.

It asks the bridge one question a second at most, whose answer is bounded, as a client.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from dask_otel.cli import terminal
from dask_otel.cli.problems import TopError

if TYPE_CHECKING:
    from distributed import Client

    from dask_otel._wire import Present

#: Seconds between two questions, at least.
LEAST_INTERVAL: Final = 1.0
#: Seconds of which it says where they went.
WINDOW: Final = 60.0
#: Seconds to wait for the scheduler's first answer.
_PATIENCE: Final = "5s"
_DEFAULT_ADDRESS: Final = "tcp://127.0.0.1:8786"

_DESCRIPTION: Final = """\
Show what goes on at a scheduler with the bridge: open spans with their progress, threads busy and
free, where the last minute's thread-seconds went, workers. Ctrl-C ends it.
"""

_EPILOG: Final = """\
The scheduler is asked once a second at most, and answers with so many spans and workers at most.
Where the output is no terminal, it is printed once.

exit codes: 0 also after Ctrl-C, 1 if there is no scheduler or no bridge, or it is gone,
2 wrong arguments
"""


def add_command(commands: Any) -> None:
    """Add ``top`` to the subcommands of an argument parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "top",
        help="watch a scheduler: open spans, threads, workers",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "address",
        nargs="?",
        metavar="ADDR",
        help="of the scheduler, such as tcp://host:8786 (default: Dask's scheduler-address, else"
        f" {_DEFAULT_ADDRESS})",
    )
    parser.add_argument("--once", action="store_true", help="print it once")
    parser.add_argument(
        "--interval",
        type=_interval,
        default=LEAST_INTERVAL,
        metavar="SECONDS",
        help="between two questions (default and least: 1)",
    )
    parser.add_argument(
        "--spans", type=_count, default=30, metavar="N", help="at most (default: 30, up to 200)"
    )
    parser.add_argument(
        "--workers", type=_count, default=10, metavar="N", help="at most (default: 10, up to 200)"
    )
    parser.set_defaults(run=run)


def _interval(text: str) -> float:
    seconds = terminal.number(text)
    if not LEAST_INTERVAL <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not at least {LEAST_INTERVAL:g} second")
    return seconds


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 200:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 200")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Watch until Ctrl-C; return the exit code."""
    if find_spec("rich") is None:
        return terminal.fail("top", "it needs rich; try: pip install 'dask-otel[top]'")
    try:
        _watch(arguments)
    except TopError as error:
        return terminal.fail("top", str(error))
    except KeyboardInterrupt:
        return 0
    return 0


def _watch(arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.live import Live

    from dask_otel.cli.top_view import View

    console = Console(highlight=False)
    address = arguments.address or _configured()
    with terminal.silence("distributed", "asyncio"), ExitStack() as stack:
        client = stack.enter_context(_connected(address))
        first = _ask(client, address, arguments)
        if arguments.once or not console.is_terminal:
            console.print(View(address, first, None))
            return
        asked: deque[Present] = deque([first])
        live = stack.enter_context(
            Live(View(address, first, None), console=console, screen=True, auto_refresh=False)
        )
        while True:
            time.sleep(arguments.interval)
            asked.append(_ask(client, address, arguments))
            while len(asked) > 2 and asked[-1].time - asked[1].time >= WINDOW:
                asked.popleft()
            live.update(View(address, asked[-1], asked[0], console.height), refresh=True)


def _configured() -> str:
    import dask.config

    return str(dask.config.get("scheduler-address", None) or _DEFAULT_ADDRESS)


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    from distributed import Client
    from distributed.comm import resolve_address

    try:
        # A client that can't read its address does not end well.
        if resolve_address(address).startswith("inproc:"):
            raise ValueError("such a scheduler can be reached from its own process alone")
        client = Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError, ImportError) as error:
        words = str(error) or type(error).__name__
        raise TopError(
            f"no Dask scheduler answers at {address}: {words}. Give its address, as it is in the "
            "scheduler's log (Scheduler at: tcp://…)."
        ) from error
    try:
        yield client
    finally:
        with suppress(OSError, TimeoutError, asyncio.TimeoutError):
            client.close(timeout=2)


def _ask(client: Client, address: str, arguments: argparse.Namespace) -> Present:
    from dask_otel._wire import Refusal, present

    try:
        answer: Present | Refusal = client.run_on_scheduler(
            present, spans=arguments.spans, workers=arguments.workers
        )
    except (ImportError, AttributeError) as error:
        raise TopError(
            f"the scheduler at {address} does not know the question ({error}): dask-otel is not "
            "installed there, or is of an older version. Install this one there, and start it "
            "with --preload dask_otel."
        ) from error
    except (OSError, TimeoutError, asyncio.TimeoutError) as error:  # two classes on Python 3.10
        raise TopError(
            f"the scheduler at {address} does not answer any more: {error or type(error).__name__}"
        ) from error
    if isinstance(answer, Refusal):
        raise TopError(f"{address}: {answer.message}")
    return answer
