"""The thread that reads the samples of workers, and writes a file for each root span.

A file is replaced as a whole while its span is open, soon after samples have come, so that a kill
of the scheduler loses little more than what the workers have not sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from dask_otel import semconv
from dask_otel._log import logger
from dask_otel.core.profiles.pprof import SUFFIX, encoded
from dask_otel.core.profiles.store import Batch, CutOff, Ended, Profiles, RootProfile
from dask_otel.core.records import SpanIdentity
from dask_otel.core.trace import Trace
from dask_otel.pump.breath import Breath
from dask_otel.pump.inbox import Inbox
from dask_otel.pump.tally import Tally
from dask_otel.pump.thread import PumpThread
from dask_otel.spool.files import replace

#: Least seconds between two writes of open roots, and how many times as long as the last one took.
INTERVAL: Final = 1.0
_PAUSE: Final = 50.0
#: Most bytes that wait for the thread.
_MOST_WAITING: Final = 16 * 2**20


class ProfileFiles(PumpThread):
    """Reads samples, and writes the profiles of sampled roots into a folder.

    Parameters
    ----------
    folder, run
        The folder, and the beginning of the files' names.
    most
        Limit of the bytes of this run's files; the oldest are removed.
    store
        Reads and merges the samples.
    samples
        Whether a trace is sampled.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        most: int,
        store: Profiles,
        samples: Callable[[Trace], bool],
    ) -> None:
        super().__init__("dask-otel-profiles", "profiles", Tally(), threading.Event())
        self._folder, self._run_name, self._most = folder, run, most
        self._store, self._samples = store, samples
        #: Held by threads that read what waits; the event loop never takes it.
        self._lock = threading.Lock()
        #: Held to count what is lost once: several threads give up on a hanging one.
        self._counting = threading.Lock()
        self._inbox = Inbox(_MOST_WAITING)
        #: When the open roots are written next.
        self._due = time.monotonic() + INTERVAL
        #: Of the files, the oldest first.
        self._sizes: dict[Path, int] = {}
        self._breathe = Breath()

    def __repr__(self) -> str:
        return f"<ProfileFiles in {self._folder}, {len(self._inbox)} messages waiting>"

    def counted_by(self, tally: Tally) -> None:
        """Count losses and errors there."""
        self._tally = tally

    def offer(self, item: Batch | CutOff | Ended) -> bool:
        """Queue an item without waiting; False for a batch without room. For the event loop."""
        if isinstance(item, Batch):
            return self._inbox.offer(item)
        self._inbox.put_light(item)
        if isinstance(item, Ended):
            self.wake.set()
        return True

    def of(self, span: SpanIdentity) -> tuple[str, float] | None:
        """Return the file of a span that was sampled, and its seconds; None without one."""
        with self._lock:
            self._drain()
            found = self._store.seconds(span)
        if found is None or not self._samples(found[0].trace_id):
            return None
        return self._name(found[0]), found[1]

    # ------------------------------------------------------------------------- the thread

    def work(self) -> float:
        """Read the queue, and write the files that are due."""
        began = time.monotonic()
        everything = began >= self._due
        self._write_all(everything)
        if everything:
            now = time.monotonic()
            self._due = now + max(INTERVAL, _PAUSE * (now - began))
        return INTERVAL

    def finish(self) -> None:
        """Read and write the rest."""
        self._write_all(everything=True)

    def release(self) -> None:
        """Count what could not be written."""
        self.abandon()

    def abandon(self) -> None:
        """Count what was not written as lost."""
        waiting = iter(self._inbox.take, None)
        lost = sum(one.samples + one.left_out for one in waiting if isinstance(one, Batch))
        with self._counting:
            for root in [*self._store.roots.values()]:
                lost, root.unwritten = lost + root.unwritten, 0
        self._drop("shutdown", lost)

    def _drain(self) -> None:
        while (item := self._inbox.take()) is not None:
            for _ in self._store.take(item, time.time()):
                self._breathe()
        while self._store.dropped:
            self._drop(*self._store.dropped.popitem())

    def _write_all(self, everything: bool) -> None:
        """Read the queue, and write what has changed: all roots, or those that have ended."""
        with self._lock:
            self._drain()
            self._store.forget(time.time())
        for root in [*self._store.roots.values()]:
            if root.changed and (everything or root.ended is not None):
                self._write(root)

    def _write(self, root: RootProfile) -> None:
        if not self._samples(root.root.trace_id):
            root.changed, root.unwritten = False, 0
            return
        with self._lock:
            data, written = encoded(root.profile, self._breathe), root.unwritten
            root.changed = False
        path = self._folder / self._name(root.root)
        try:
            replace(path, data)
        except OSError as error:
            root.changed = True
            if "files" not in self._logged:
                self._logged.add("files")
                logger.warning(
                    "dask-otel can't write profiles into %s: %s. It tries again; check "
                    "otel.files.path. This is logged once.",
                    self._folder,
                    error,
                )
            return
        with self._lock:
            root.unwritten = max(0, root.unwritten - written)
        self._sizes.pop(path, None)
        self._sizes[path] = len(data)
        while sum(self._sizes.values()) > self._most and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            del self._sizes[oldest]
            with suppress(OSError):
                oldest.unlink()

    def _name(self, root: SpanIdentity) -> str:
        return f"{self._run_name}-{root.span_id:016x}{SUFFIX}"

    def _drop(self, reason: str, samples: int) -> None:
        self._tally.add(semconv.OTEL_DROPPED.name, "profiles", reason, count=samples)
