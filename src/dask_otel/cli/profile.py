"""``dask-otel profile``: its arguments and exit codes. The profiles are in `dask_otel.report`."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Final

from dask_otel.cli import terminal
from dask_otel.cli.command import Command
from dask_otel.core.profiles.pprof import Profile, SpanStacks
from dask_otel.core.profiles.stacks import unpacked

#: Seconds for the answer beside those of the samples.
_MORE: Final = 30.0

COMMAND: Final = Command(
    help="show the functions that took the time of a span",
    description="""\
Show the functions that took the time of all spans, or of one span and those below it. The profiles
are in a folder into which the bridge wrote files (otel.files.path, with otel.profiles.enabled).

With --scheduler, show the functions that run on the event loop of a running scheduler, or with
--workers on those of its workers. For some seconds, a thread there takes 50 samples a second. This
needs no bridge, and changes nothing.
""",
    epilog="""\
exit codes: 0 the functions are shown, 1 there is no profile of that span, or the file can't be
written, 2 wrong arguments, 130 interrupted
""",
    arguments={
        "folder": {"nargs": "?", "metavar": "DIR", "help": "the folder, or a file of pprof in it"},
        "span": {"nargs": "?", "default": "", "metavar": "SPAN", "help": "a span's full name"},
        "--scheduler": {
            "metavar": "ADDRESS",
            "help": "address of a running scheduler, whose event loop is sampled now",
        },
        "--workers": {"action": "store_true", "help": "sample its workers' event loops instead"},
        "--seconds": {
            "type": terminal.number(0.1, 60.0, "a number of seconds from 0.1 to 60"),
            "default": 10.0,
            "metavar": "N",
            "help": "seconds of sampling (default: 10)",
        },
        "--speedscope": {
            "type": Path,
            "metavar": "FILE",
            "help": "write FILE, or - for standard output, for https://www.speedscope.app instead",
        },
    },
)


def run(arguments: argparse.Namespace) -> int:
    """Show the functions, or write the file; return the exit code."""
    from dask_otel.report import profiles

    place = arguments.folder or arguments.scheduler
    if bool(arguments.folder) == bool(arguments.scheduler):
        arguments.usage_error("give DIR, or --scheduler ADDRESS")
    if arguments.workers and not arguments.scheduler:
        arguments.usage_error("--workers needs --scheduler")
    with terminal.held_back("asyncio"):
        read = _read(place) if arguments.folder else asyncio.run(_asked(arguments))
    found = profiles.spans_of(read, arguments.span)
    if not found:
        names = sorted({span.name for span in profiles.spans_of(read)})
        if names:
            there = ", ".join(names[:20])
            raise terminal.Failed(f"no profile of {arguments.span} in {place}: it has {there}")
        needs = "; runs have one with otel.profiles.enabled: true" if arguments.folder else ""
        raise terminal.Failed(f"no profile in {place}{needs}")
    title = arguments.span or ("event loops" if arguments.scheduler else "all spans")
    if arguments.speedscope is not None:
        terminal.write(arguments.speedscope, json.dumps(profiles.speedscope(found, title)))
    else:
        lines = profiles.lines(title, found, is_loop=bool(arguments.scheduler))
        terminal.show("\n".join([*lines, *profiles.cautions(read)]))
    return 0


def _read(folder: str) -> list[Profile]:
    from dask_otel.report.profiles import profiles_of
    from dask_otel.report.telemetry.model import Skipped
    from dask_otel.report.telemetry.remote import copied

    skipped = Skipped()
    with copied([folder]) as local:
        read = profiles_of(local, skipped)
    for line in skipped.lines():
        terminal.say("profile", f"not read: {line}")
    return read


async def _asked(arguments: argparse.Namespace) -> list[Profile]:
    """Return the event loops of a running scheduler, or of its workers, as spans."""
    from dask_otel._wire import profile_loop
    from dask_otel.doctor.asking import NotExamined, answered, connected

    seconds = arguments.seconds
    async with connected(arguments.scheduler) as client:
        if arguments.workers:
            question = client.run(profile_loop, seconds=seconds, on_error="return")
        else:
            question = client.run_on_scheduler(profile_loop, seconds=seconds)
        answer = await answered(question, seconds + _MORE, "the event loop was not profiled")
    profile = Profile({})
    for name, blobs in (answer if arguments.workers else {"scheduler": answer}).items():
        if isinstance(blobs, tuple):
            span = SpanStacks("", "", "", name)
            for one in (one for blob in blobs for one in unpacked(blob, [""])):
                span.stacks[one.stack] += one.micros
            profile.spans.append(span)
            continue
        reason = getattr(blobs, "message", str(blobs))
        if not arguments.workers:
            raise NotExamined(reason)
        terminal.say("profile", f"{name}: {reason}")
    return [profile]
