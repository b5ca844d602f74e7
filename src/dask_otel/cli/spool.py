"""``dask-otel spool``: what waits in a spool, and sending it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from dask_otel.cli import terminal
from dask_otel.report import words

if TYPE_CHECKING:
    from dask_otel.cli.spool_sending import Sent

_DESCRIPTION: Final = """\
Look at a spool (otel.spool.path), or send what waits in it. It keeps spans that no endpoint has
taken when their scheduler ended.
"""

_SEND: Final = """\
Send the spans that wait in a spool to the endpoints that the standard variables name
(OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_EXPORTER, …), as a scheduler that starts here would.
What has arrived is removed from the file, and the file when it is empty. It can be interrupted and
begun again. A spool that a scheduler has is refused: that scheduler sends what is in it.
"""

_SHOW: Final = """\
Show what is in a spool: the runs that have left something, how many spans wait, and their names.
Nothing is sent or changed; a scheduler may have it meanwhile.
"""

_EPILOG: Final = """\
exit codes: 0 nothing is left to be sent, 1 something is, or the spool can't be used (the reason is
on standard error), 2 wrong arguments, 130 interrupted
"""

#: Seconds without a success after which sending ends.
_PATIENCE: Final = 60.0
_WIDE: Final = 120


def add_command(commands: Any) -> None:
    """Add ``spool`` to the subcommands of an argument parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "spool",
        help="send the spans that a scheduler has left on the disk, or show them",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(title="commands", dest="part", required=True)
    send = parts.add_parser(
        "send",
        help="send what waits",
        description=_SEND,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    send.add_argument(
        "--patience",
        type=_seconds,
        default=_PATIENCE,
        metavar="SECONDS",
        help="give up when nothing has got through for so long (default: %(default)g)",
    )
    send.set_defaults(run=run_send)
    show = parts.add_parser(
        "show",
        help="show what waits",
        description=_SHOW,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    show.set_defaults(run=run_show)
    for part in (send, show):
        part.add_argument("path", metavar="PATH", help="the file that otel.spool.path names")


def _seconds(text: str) -> float:
    value = terminal.number(text)
    if not 0.0 <= value <= 86400.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 0 to 86400 seconds")
    return value


def run_send(arguments: argparse.Namespace) -> int:
    """Send what waits; return the exit code."""
    from dask_otel.cli.spool_sending import Sending
    from dask_otel.settings.problems import ConfigurationError
    from dask_otel.spool.store import SpoolError

    sending = Sending(arguments.path, arguments.patience, sys.stderr)
    try:
        sent = sending.run()
    except (SpoolError, ConfigurationError, OSError) as error:
        if sending.sent.count:
            # The disk failed when some had arrived.
            _say(sending.sent)
        return terminal.fail("spool", str(error))
    except KeyboardInterrupt:
        _say(sending.sent)
        return terminal.interrupted("spool")
    _say(sent)
    return 1 if sent.left else 0


def _say(sent: Sent) -> None:
    if not (sent.count or sent.lost or sent.left):
        terminal.show(f"nothing waits in {sent.path}")
        return
    places = f" to {', '.join(sent.places)}" if sent.places else ""
    terminal.show(
        f"{words.counted(sent.count, 'span')} sent{places}; {sent.left:,} left in {sent.path}"
    )
    if sent.lost:
        terminal.say(
            "spool",
            f"{words.counted(sent.lost, 'span')} could not be sent and {_are(sent.lost)} gone: "
            "refused by the server, or damaged",
        )
    for line in sent.problems:
        terminal.say("spool", line)


def run_show(arguments: argparse.Namespace) -> int:
    """Show what is there; return the exit code."""
    from dask_otel._otel.sdk.encode import span_name
    from dask_otel.cli.spool_view import as_text
    from dask_otel.spool.files import place
    from dask_otel.spool.reading import summarize
    from dask_otel.spool.store import SpoolError

    try:
        found = summarize(place(arguments.path), span_name)
    except (SpoolError, OSError) as error:
        return terminal.fail("spool", str(error))
    terminal.show(as_text(found, terminal.width(_WIDE)))
    return 0


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
