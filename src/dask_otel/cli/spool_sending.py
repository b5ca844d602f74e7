"""Sends what waits in a spool, with the bridge's own exporters and its own way to try again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from dask_otel import semconv
from dask_otel._version import __version__
from dask_otel.cli import terminal
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.endpoints.explaining import explain
from dask_otel.core.records import Row
from dask_otel.pump.breath import Breath
from dask_otel.pump.health import Health, Tally
from dask_otel.pump.outlet import Outlet
from dask_otel.pump.sinks import PumpLimits
from dask_otel.spool.files import place
from dask_otel.spool.store import SpoolError, Store

if TYPE_CHECKING:
    from dask_otel._otel.sdk.sink import ExporterSpanSink

#: Rows that are taken from the file at a time.
_AT_ONCE: Final = 512
#: Seconds between two looks whether it is time for another try.
_LOOK: Final = 0.1
#: Seconds between two words about how far it is.
_WORD: Final = 0.2


@dataclass(slots=True)
class Sent:
    """What came of it."""

    path: Path
    #: Spans that have arrived, that never will, and that still wait.
    count: int = 0
    lost: int = 0
    left: int = 0
    #: Where they went.
    places: list[str] = field(default_factory=list)
    #: For a person: why some are left.
    problems: list[str] = field(default_factory=list)


class Sending:
    """One call of the command.

    Parameters
    ----------
    path
        As it was given.
    patience
        Seconds without a success after which it ends.
    terminal
        Shown how far it is, where it is a terminal.
    """

    def __init__(self, path: str, patience: float, terminal: TextIO) -> None:
        self.sent = Sent(place(path))
        self._patience = patience
        self._terminal = terminal if terminal.isatty() else None
        self._word_at = 0.0

    def run(self) -> Sent:
        """Send; return what came of it.

        Raises
        ------
        SpoolError, ConfigurationError, OSError
            If nothing could be tried.
        """
        sent = self.sent
        # Slow to import.
        from dask_otel._otel.sdk.encode import reread

        store = Store.open(sent.path, None, None, time.time_ns(), reread, Breath())
        try:
            sent.left = store.count()
            if sent.left:
                with ExitStack() as stack:
                    self._send(store, stack)
        finally:
            sent.left = store.count()
            store.close(clean=True)
            self._say("")
        return sent

    def _send(self, store: Store, stack: ExitStack) -> None:
        # Not at the top: `--help` and an empty spool need none of it.
        from dask_otel._otel.sdk.outputs import build_for_spool
        from dask_otel.settings.reading import read_settings

        sinks = build_for_spool(read_settings().environment, __version__)
        if not sinks:
            raise SpoolError(
                "OTEL_TRACES_EXPORTER names no exporter that spans could be sent with, or "
                "OTEL_SDK_DISABLED is set; nothing was sent"
            )
        # What it says of failures is for a scheduler's log; here, the last word is enough.
        stack.enter_context(terminal.silence("distributed.dask_otel"))
        for sink in sinks:
            stack.callback(sink.close)
        keys = {sink.key for sink in sinks}
        for index, sink in enumerate(sinks):
            own = [sink.key] if sink.key else []
            # What was meant for an exporter that is not named here goes with the first one.
            others = [key for key in store.sinks() if key not in keys] if index == 0 else []
            one = _Way(store, sink, self._patience, self._progress)
            try:
                for key in [*own, *others]:
                    one.send(key)
            finally:
                self._take_note(one)

    def _take_note(self, one: _Way) -> None:
        sent = self.sent
        sent.lost += one.lost
        if one.count:
            sent.places.append(one.name)
        if one.reason:
            sent.problems.append(f"{one.name}: {one.reason}")

    def _progress(self, count: int) -> None:
        """Take note of spans that have arrived."""
        self.sent.count += count
        self._say(f"{self.sent.count:,} spans sent")

    def _say(self, words: str) -> None:
        now = time.monotonic()
        if self._terminal is None or (words and now < self._word_at):
            return
        self._word_at = now + _WORD
        self._terminal.write(f"\r\x1b[K{words}")
        self._terminal.flush()


class _Way:
    """The way to one exporter."""

    def __init__(
        self,
        store: Store,
        sink: ExporterSpanSink,
        patience: float,
        progress: Callable[[int], None],
    ) -> None:
        self.name = sink.name
        self.count = 0
        self.lost = 0
        #: Why it ended before all was sent; empty if it did not.
        self.reason = ""
        self._store = store
        self._patience = patience
        self._progress = progress
        self._tally = Tally()
        self._health = Health(sink.name)
        self._outlet = Outlet(
            sink, PumpLimits().batch_size, self._tally, self._health, time.monotonic, self._gone
        )
        #: Numbers of rows that have left the queue.
        self._settled: list[int] = []
        self._seen: dict[Any, int] = {}

    def _gone(self, rows: Sequence[Row]) -> None:
        self._settled += [row.number for row in rows]

    def send(self, key: str) -> None:
        """Send what waits under a key, unless this way has ended."""
        after = 0
        queue = self._outlet.queue
        progress_at = time.monotonic()
        while not self.reason:
            if len(queue) < _AT_ONCE // 2 and (rows := self._store.waiting(key, after, _AT_ONCE)):
                after = rows[-1].number
                queue.extend(rows)
            if not queue:
                break
            again = self._outlet.pump()
            if self._settled:
                self._settle()
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at >= self._patience:
                self.reason = self._explained()
            elif not again:
                retry_at = self._outlet.policy.retry_at
                time.sleep(min(_LOOK, max(0.0, retry_at - time.monotonic())))
        # Rows that can't be read are removed by the next write.
        self._settle()

    def _settle(self) -> None:
        """Remove from the file what has left the queue."""
        self._count()
        self.lost += self._store.write(settled=self._settled, alive_ns=0).unreadable
        self._settled.clear()

    def _count(self) -> None:
        """Take note of what has arrived, and of what never will."""
        sent = 0
        for (name, *_), count in self._tally.since(self._seen).items():
            if name == semconv.OTEL_EXPORTED.name:
                sent += int(count)
            elif name == semconv.OTEL_DROPPED.name:
                self.lost += int(count)
        self.count += sent
        self._progress(sent)

    def _explained(self) -> str:
        reason = str(self._health.condition()["reason"] or "no reason given")
        endpoint = Endpoint.named(self.name)
        trouble = None if endpoint is None else explain(endpoint, "traces", reason)
        return f"{reason}. {trouble}" if trouble else reason
