"""``dask-otel doctor``: its arguments and exit codes. The work is in `dask_otel.doctor`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import redirect_stdout
from typing import Final

from dask_otel.cli import terminal
from dask_otel.cli.command import Command

_BACKENDS: Final = {"jaeger": "span", "tempo": "span", "prometheus": "counter"}
_SECONDS: Final = {
    "type": terminal.number(sys.float_info.min, 3600.0, "more than 0 and at most 3600 seconds"),
    "metavar": "SECONDS",
}
_WAIT: Final = "the longest wait for {} (default: %(default)g)"
COMMAND: Final = Command(
    help="find out why telemetry does not arrive",
    description="""\
Find out what is wrong between a Dask scheduler and the endpoints that its telemetry goes to.
It sends a test span, counter and log record to each configured endpoint, and reports each answer
in plain words, with the next step. It masks secrets.
""",
    epilog="""\
Without --scheduler, it examines this machine's configuration, as a scheduler that starts here would
read it. With --scheduler, the scheduler sends the test, to its own endpoints only.

exit codes: 0 all is well (notes do not count), 1 something is wrong, 2 wrong arguments,
3 the scheduler could not be examined, 130 interrupted
""",
    arguments={
        "--scheduler": {
            "metavar": "ADDRESS",
            "help": "address of a running scheduler, such as tcp://host:8786",
        },
        **{
            f"--{backend}": {
                "metavar": "URL",
                "help": f"read the test {sent} back from {backend.capitalize()}",
            }
            for backend, sent in _BACKENDS.items()
        },
        "--timeout": {**_SECONDS, "default": 15.0, "help": _WAIT.format("the endpoints' answers")},
        "--patience": {
            **_SECONDS,
            "default": 30.0,
            "help": _WAIT.format("the test telemetry to reach a backend"),
        },
        "--all": {"action": "store_true", "help": "list settings with their default values, too"},
        "--json": {"action": "store_true", "help": "print everything as JSON"},
    },
)
#: Most columns of the page, and its columns without a terminal.
_WIDE, _PAGE = 100, 80


def run(arguments: argparse.Namespace) -> int:
    """Run the examination; return the exit code."""
    from dask_otel.doctor import asking
    from dask_otel.doctor.backends import read_back
    from dask_otel.doctor.finding import NOT_EXAMINED, exit_code
    from dask_otel.doctor.findings import all_findings
    from dask_otel.doctor.page import as_json, as_text

    # gRPC writes handshake errors to the terminal.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    places = {name: one for name in _BACKENDS if (one := getattr(arguments, name)) is not None}
    try:
        if arguments.scheduler is not None:
            with terminal.held_back("asyncio"):
                question = asking.facts_of_scheduler(arguments.scheduler, arguments.timeout)
                facts = asyncio.run(question)
        else:
            # What an exporter prints, such as `console`, is not the command's result.
            with redirect_stdout(sys.stderr):
                facts = asking.facts_of_this_process(arguments.timeout)
        findings = all_findings(facts)
        probe = (facts["process"] or {}).get("probe")
        if places and probe and probe["results"]:
            findings += read_back(places, probe, arguments.patience)
    except asking.NotExamined as error:
        terminal.say("doctor", str(error))
        return NOT_EXAMINED
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
