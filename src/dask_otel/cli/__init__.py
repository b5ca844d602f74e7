"""The command ``dask-otel``: arguments and dispatch only.

Each command imports its dependencies when it runs, so that ``--help`` and ``--version`` answer at
once and without optional packages.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from typing import Final

from dask_otel._version import installed
from dask_otel.cli import (
    assets,
    demo,
    doctor,
    held,
    history,
    profile,
    report,
    spool,
    terminal,
    whatif,
    why,
)
from dask_otel.cli.command import Command

#: The functions return the exit code, or nothing after success.
_COMMANDS: Final[dict[str, tuple[Command, Callable[[argparse.Namespace], int | None]]]] = {
    "demo": (demo.COMMAND, demo.run),
    "doctor": (doctor.COMMAND, doctor.run),
    "assets": (assets.COMMAND, assets.run),
    "report": (report.COMMAND, report.run),
    "history": (history.COMMAND, history.run),
    "profile": (profile.COMMAND, profile.run),
    "spool": (spool.COMMAND, spool.run),
    "why": (why.COMMAND, why.run),
    "held": (held.COMMAND, held.run),
    "whatif": (whatif.COMMAND, whatif.run),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dask-otel",
        description="OpenTelemetry for Dask: every span a trace, every fine performance metric"
        " a counter, over OTLP.",
    )
    parts = ("dask-otel", "distributed", "opentelemetry-sdk")
    versions = ", ".join(f"{name} {installed(name) or 'not installed'}" for name in parts)
    parser.add_argument("--version", action="version", version=versions)
    subparsers = parser.add_subparsers(title="commands", dest="command", required=True)
    for name, (command, run) in _COMMANDS.items():
        added = subparsers.add_parser(
            name,
            help=command.help,
            description=command.description,
            epilog=command.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run, usage_error=added.error)
        for names, options in command.arguments.items():
            added.add_argument(*names.split(), **options)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the process's exit code.

    Parameters
    ----------
    argv
        The arguments without the program's name; by default those of the process.

    Returns
    -------
    0 after success, 1 after a failed step (the reason is on standard error), 130 after
    Ctrl-C. Wrong arguments exit with 2, as in argparse.
    """
    # The process may have been started without them.
    sys.stderr = sys.stderr or io.StringIO()
    arguments = _parser().parse_args(argv)
    sys.stdout = sys.stdout or terminal.Closed()
    try:
        return int(arguments.run(arguments) or 0)
    except KeyboardInterrupt:
        terminal.say(arguments.command, "interrupted")
        return 130
    except (OSError, ValueError, RuntimeError) as error:
        # Of these errors, the message is enough.
        terminal.say(arguments.command, str(error))
        return 1
