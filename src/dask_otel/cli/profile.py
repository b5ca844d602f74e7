"""``dask-otel profile``: its arguments and exit codes. The profiles are in `dask_otel.report`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from dask_otel.cli import terminal

HELP: Final = "show which functions took the time of a span"
DESCRIPTION: Final = """\
Show which functions took the time of all spans, or of one span and those below it, from profiles in
a folder that the bridge wrote files into (otel.files.path, with otel.profiles.enabled).
"""
EPILOG: Final = """\
exit codes: 0 the functions are shown, 1 there is no profile of that span, or the file can't be
written, 2 wrong arguments, 130 interrupted
"""

#: Functions in the list, and columns of a place.
_MOST, _WIDE = 25, 90

#: Names of each argument, and its options for `argparse`.
ARGUMENTS: Final[dict[str, Any]] = {
    "folder": {"metavar": "DIR", "help": "the folder, or a file of pprof in it"},
    "span": {"nargs": "?", "default": "", "metavar": "SPAN", "help": "a span's full name"},
    "--speedscope": {
        "type": Path,
        "metavar": "FILE",
        "help": "write FILE for https://www.speedscope.app instead",
    },
}


def run(arguments: argparse.Namespace) -> int:
    """Show the functions, or write the file; return the exit code."""
    from dask_otel.report import profiles, words
    from dask_otel.report.telemetry.model import Skipped
    from dask_otel.report.telemetry.remote import copied

    skipped = Skipped()
    try:
        with copied([arguments.folder]) as local:
            read = profiles.profiles_of(local, skipped)
    except OSError as error:
        return terminal.fail("profile", str(error))
    for line in skipped.lines():
        terminal.say("profile", f"not read: {line}")
    found = profiles.spans_of(read, arguments.span)
    if not found:
        names = sorted({span.name for span in profiles.spans_of(read)})
        there = f"it has {', '.join(names[:20])}" if names else "it has no profile"
        what = f"of {arguments.span} " if arguments.span else ""
        return terminal.fail("profile", f"nothing {what}in {arguments.folder}: {there}")
    title = arguments.span or "all spans"
    if arguments.speedscope is not None:
        text = json.dumps(profiles.speedscope(found, title))
        return terminal.write("profile", arguments.speedscope, text)
    whole = profiles.seconds_of(found)
    listed = profiles.functions(found)
    rows = [
        [words.seconds(one.own / 1e6), f"{one.own / 1e6 / whole:.0%}" if whole else "",
         words.seconds(one.whole / 1e6), words.cut(one.place, _WIDE)]
        for one in listed[:_MOST]
    ]  # fmt: skip
    head = ["own", "share", "with callees", "function and its widest line"]
    numbers = {"own", "share", "with callees"}
    terminal.show(
        "\n".join(
            [
                f"{title}: {words.seconds(whole)} of threads, sampled",
                *words.aligned([head, *rows], numbers),
                *([f"and {len(listed) - _MOST:,} more"] if len(listed) > _MOST else []),
                *profiles.cautions(read),
            ]
        )
    )
    return 0
