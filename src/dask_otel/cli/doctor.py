"""``dask-otel doctor``: its arguments and exit codes. The work is in `dask_otel.doctor`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Final

from dask_otel.cli import terminal

_DESCRIPTION: Final = """\
Find out what is wrong between a Dask scheduler and the endpoints that its telemetry goes to.
A test span and a test counter are sent to each configured endpoint, and what comes back is
said in words, with what to do about it. Secrets are masked.
"""

_EPILOG: Final = """\
Without --scheduler, this machine's own configuration is examined, as a scheduler that starts
here would have it. With it, the test runs on the scheduler, to its own endpoints alone.

exit codes: 0 all is well (notes are no problems), 1 something is wrong, 2 wrong arguments,
3 the scheduler could not be examined, 130 interrupted
"""

_BACKENDS: Final = {"jaeger": "span", "tempo": "span", "prometheus": "counter"}
#: Option: its default, and the event that it waits for.
_WAITS: Final = {
    "--timeout": (15.0, "the endpoints' answers"),
    "--patience": (30.0, "the telemetry that is read back"),
}
#: Most columns of the page, and its columns without a terminal.
_WIDE, _PAGE = 100, 80


def add_command(commands: Any) -> None:
    """Add ``doctor`` to the subcommands of an argument parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="find out why telemetry does not arrive",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="of a running scheduler, such as tcp://host:8786"
    )
    for backend, sent in _BACKENDS.items():
        text = f"read the test {sent} back from {backend.capitalize()}"
        parser.add_argument(f"--{backend}", metavar="URL", help=text)
    for option, (seconds, awaited) in _WAITS.items():
        text = f"the longest wait for {awaited} (default: %(default)g)"
        parser.add_argument(option, type=_seconds, default=seconds, metavar="SECONDS", help=text)
    parser.add_argument(
        "--all", action="store_true", help="list settings with their default values, too"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    value = terminal.number(text)
    if not 0.0 < value <= 3600.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not more than 0 and at most 3600 seconds")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Run the examination; return the exit code."""
    from dask_otel.doctor import asking
    from dask_otel.doctor.backends import read_back
    from dask_otel.doctor.finding import NOT_EXAMINED, exit_code
    from dask_otel.doctor.findings import all_findings
    from dask_otel.doctor.page import as_json, as_text

    # gRPC writes handshake errors to the terminal.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    places = {name: address for name in _BACKENDS if (address := getattr(arguments, name))}
    try:
        if arguments.scheduler:
            with terminal.silence("asyncio"):
                facts = asking.facts_of_scheduler(arguments.scheduler, arguments.timeout)
        else:
            facts = asking.facts_of_this_process(arguments.timeout)
        findings = all_findings(facts)
        probe = (facts["process"] or {}).get("probe")
        if places and probe and probe["results"]:
            findings += read_back(places, probe, arguments.patience)
    except asking.NotExamined as error:
        terminal.say("doctor", str(error))
        return NOT_EXAMINED
    except KeyboardInterrupt:
        return terminal.interrupted("doctor")
    is_terminal = sys.stdout.isatty()
    text = (
        as_json(facts, findings)
        if arguments.json
        else as_text(
            facts,
            findings,
            terminal.width(_WIDE, _PAGE) if is_terminal else _PAGE,
            colours=is_terminal and not os.environ.get("NO_COLOR"),
            everything=arguments.all,
        )
    )
    terminal.show(text.removesuffix("\n"))
    return exit_code(findings)
