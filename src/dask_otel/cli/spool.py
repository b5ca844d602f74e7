"""``dask-otel spool``: lists and sends the content of a spool."""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dask_otel import semconv
from dask_otel.cli import terminal
from dask_otel.cli.command import Command
from dask_otel.core.endpoints.explaining import explain
from dask_otel.report import words

if TYPE_CHECKING:
    from dask_otel.pump.pump import Pump
    from dask_otel.spool.store import Store


#: In seconds: limit without a success; limit for closing.
_PATIENCE: Final = 60.0
_CLOSING: Final = 5.0

COMMAND: Final = Command(
    help="show or send the spans that a scheduler left on disk",
    description="""\
Show the spans that wait in a spool (otel.spool.path), by run of the scheduler and by name. This
sends and changes nothing, and works while a scheduler uses the spool.

With --send, the spans go to the endpoints that the standard variables name, such as
OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_TRACES_EXPORTER, as from a scheduler that starts here.
Delivered spans are removed from the file, and the empty file is removed, too. You can interrupt the
command and start it again. It refuses a spool that a scheduler uses: that scheduler sends the
spans.
""",
    epilog="""\
exit codes: 0 all is shown or sent, 1 some spans are left after --send, or the spool can't be used
(the reason is on standard error), 2 wrong arguments, 130 interrupted
""",
    arguments={
        "path": {"metavar": "PATH", "help": "the file that otel.spool.path names"},
        "--send": {"action": "store_true", "help": "send the spans that wait"},
        "--patience": {
            "type": terminal.number(0.0, 86400.0, "from 0 to 86400 seconds"),
            "default": _PATIENCE,
            "metavar": "SECONDS",
            "help": "with --send, give up after so many seconds without a success (default: "
            "%(default)g)",
        },
    },
)


def run(arguments: argparse.Namespace) -> int:
    """List or send the spool's content; return the exit code."""
    from dask_otel.cli.spool_view import listing
    from dask_otel.spool.files import place

    path = place(arguments.path)
    if arguments.send:
        return _send(path, arguments.patience)
    terminal.show("\n".join(listing(path)))
    return 0


def _send(path: Path, patience: float) -> int:
    """Run the bridge's export side without a scheduler until the spool is empty."""
    # Imported here, because `--help` does not need it.
    from dask_otel._otel.sdk.encode import reread
    from dask_otel._otel.sdk.outputs import build_for_spool
    from dask_otel.pump.limits import PumpLimits
    from dask_otel.pump.pump import MetricExport, Pump, RecordExport
    from dask_otel.pump.spooled import Spool
    from dask_otel.settings.reading import read_settings
    from dask_otel.spool.files import SpoolError
    from dask_otel.spool.store import Store

    sinks = build_for_spool(read_settings().environment)
    if not sinks:
        raise SpoolError(
            "OTEL_TRACES_EXPORTER names no exporter that can send spans, or OTEL_SDK_DISABLED is "
            "set; nothing was sent"
        )

    def opened() -> Store:
        store = Store.open(path, None, None, time.time_ns(), reread)
        # The first exporter gets the spans for an exporter that is not named here.
        store.adopt([sink.key for sink in sinks if sink.key])
        return store

    limits = PumpLimits(schedule_delay=0.0)
    spans = RecordExport(sinks, limits=limits, spool=Spool(str(path), 0, opened))
    pump = Pump(spans, MetricExport(), RecordExport())
    # Its log is meant for a scheduler; here, the final report is enough.
    with terminal.held_back("distributed.dask_otel"):
        pump.open_spool(threading.TIMEOUT_MAX)
        if problem := pump.condition()["spool"]["reason"]:
            pump.request_close(0.0)
            raise SpoolError(problem)
        pump.start()
        try:
            _wait(pump, patience)
        finally:
            pump.request_close(0.0)
            terminal.wait_until(lambda: pump.closed, _CLOSING)
            pump.release()
            code = _report(pump, words.one_line(str(path)))
    return code


def _wait(pump: Pump, patience: float) -> None:
    """Wait until the spool is empty, or nothing has been sent for `patience` seconds."""
    before, since = 0, 0.0
    try:
        while (spool := pump.condition()["spool"])["waiting"] and not spool["reason"]:
            left, now = spool["waiting"], time.monotonic()
            if left != before:
                before, since = left, now
            # Before the first answer, the failure could not be explained.
            elif now - since >= patience and any(one.reason for one in pump.destinations):
                break
            terminal.progress(f"{left:,} spans left")
            time.sleep(terminal.LOOK)
    finally:
        # Even after Ctrl-C: the next message begins on a line of its own.
        terminal.progress("")


def _report(pump: Pump, path: str) -> int:
    """Print the outcome for the spans; return the exit code."""
    condition = pump.condition()
    left, trouble = condition["spool"]["waiting"], condition["spool"]["reason"]
    counts = pump.counts()
    sent, lost = (
        int(sum(count for (metric, *_), count in counts.items() if metric == name))
        for name in (semconv.OTEL_EXPORTED.name, semconv.OTEL_DROPPED.name)
    )
    if not (sent or lost or left):
        terminal.tell(f"nothing waits in {path}")
        return 0
    # With several exporters, it is unknown which ones accepted them.
    to = f" to {pump.destinations[0].name}" if sent and len(pump.destinations) == 1 else ""
    terminal.tell(f"{words.counted(sent, 'span')} sent{to}; {left:,} left in {path}")
    if lost:
        terminal.say(
            "spool",
            f"{words.counted(lost, 'span')} could not be sent and {'is' if lost == 1 else 'are'} "
            "gone: refused by the server, or damaged",
        )
    if trouble:
        terminal.say("spool", trouble)
    for one in pump.destinations if left else ():
        if reason := one.reason:
            cause = None if one.endpoint is None else explain(one.endpoint, "traces", reason)
            terminal.say("spool", f"{one.name}: {reason}. {cause or ''}")
    return 1 if left or trouble else 0
