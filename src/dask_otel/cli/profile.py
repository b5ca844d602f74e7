"""``dask-otel profile``: its arguments and exit codes. The profiles are in `dask_otel.report`."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dask_otel.cli import terminal

if TYPE_CHECKING:
    from dask_otel.core.profiles.pprof import Profile, SpanStacks

HELP: Final = "show which functions took the time of a span"
DESCRIPTION: Final = """\
Show which functions took the time of all spans, or of one span and those below it, from profiles in
a folder that the bridge wrote files into (otel.files.path, with otel.profiles.enabled).

With --scheduler, show what the event loop of a running scheduler does, or those of its workers: for
some seconds, a thread there takes 50 samples a second. This needs no bridge, and changes nothing.
"""
EPILOG: Final = """\
exit codes: 0 the functions are shown, 1 there is no profile of that span, or the file can't be
written, 2 wrong arguments, 130 interrupted
"""

#: Seconds for the answer beside those of the samples.
_MORE: Final = 30.0
#: Functions in the list, and columns of a place.
_MOST, _WIDE = 25, 90

#: Names of each argument, and its options for `argparse`.
ARGUMENTS: Final[dict[str, Any]] = {
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
        "help": "for how long (default: 10)",
    },
    "--speedscope": {
        "type": Path,
        "metavar": "FILE",
        "help": "write FILE for https://www.speedscope.app instead",
    },
}


def run(arguments: argparse.Namespace) -> int:
    """Show the functions, or write the file; return the exit code."""
    from dask_otel.doctor.asking import NotExamined
    from dask_otel.report import profiles

    if bool(arguments.folder) == bool(arguments.scheduler):
        arguments.usage_error("give DIR, or --scheduler ADDRESS")
    if arguments.workers and not arguments.scheduler:
        arguments.usage_error("--workers needs --scheduler")
    try:
        if arguments.scheduler:
            with terminal.held_back("asyncio"):
                read = asyncio.run(_asked(arguments))
        else:
            read = _read(arguments.folder)
    except (OSError, NotExamined) as error:
        return terminal.fail("profile", str(error))
    found = profiles.spans_of(read, arguments.span)
    if not found:
        place = arguments.folder or arguments.scheduler
        names = sorted({span.name for span in profiles.spans_of(read)})
        there = f"it has {', '.join(names[:20])}" if names else "it has no profile"
        what = f"of {arguments.span} " if arguments.span else ""
        return terminal.fail("profile", f"nothing {what}in {place}: {there}")
    title = arguments.span or ("event loops" if arguments.scheduler else "all spans")
    if arguments.speedscope is not None:
        text = json.dumps(profiles.speedscope(found, title))
        return terminal.write("profile", arguments.speedscope, text)
    terminal.show("\n".join([*_lines(title, found), *profiles.cautions(read)]))
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
    from dask_otel._wire import Refusal, profile_loop
    from dask_otel.core.profiles.pprof import Profile, SpanStacks
    from dask_otel.core.profiles.stacks import unpacked
    from dask_otel.doctor.asking import NotExamined, answered, connected

    seconds = arguments.seconds
    async with connected(arguments.scheduler) as client:
        if arguments.workers:
            question = client.run(profile_loop, seconds=seconds, on_error="return")
        else:
            question = client.run_on_scheduler(profile_loop, seconds=seconds)
        answer = await answered(question, seconds + _MORE, "the event loop was not profiled")
    found: dict[str, Any] = answer if arguments.workers else {"scheduler": answer}
    spans = []
    for name, blobs in found.items():
        if not isinstance(blobs, tuple):
            reason = blobs.message if isinstance(blobs, Refusal) else str(blobs)
            if not arguments.workers:
                raise NotExamined(reason)
            terminal.say("profile", f"{name}: {reason}")
            continue
        span = SpanStacks("", "", "", name)
        for stack in (one for blob in blobs for one in unpacked(blob, [""])):
            span.tree.add(stack.path, stack.line, stack.samples, stack.micros)
        spans.append(span)
    return [Profile({}, spans=spans)]


def _lines(title: str, found: Sequence[SpanStacks]) -> Iterator[str]:
    from dask_otel.core.profiles.stacks import Frame
    from dask_otel.report import profiles, words

    whole = profiles.seconds_of(found)
    nodes = [one.tree.callees.get(Frame("idle")) for one in found]
    idle = sum(node.total().micros for node in nodes if node is not None)
    busy = f", busy for {1 - idle / 1e6 / whole:.0%} of it" if idle and whole else ""
    yield f"{title}: {words.seconds(whole)} of threads, sampled{busy}"
    listed = profiles.functions(found)
    rows = [
        [words.seconds(one.own / 1e6), f"{one.own / 1e6 / whole:.0%}" if whole else "",
         words.seconds(one.whole / 1e6), words.cut(one.place, _WIDE)]
        for one in listed[:_MOST]
    ]  # fmt: skip
    head = ["own", "share", "with callees", "function and its widest line"]
    yield from words.aligned([head, *rows], {"own", "share", "with callees"})
    if len(listed) > _MOST:
        yield f"and {len(listed) - _MOST:,} more"
