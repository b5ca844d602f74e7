"""Sends log records of a worker's process to the scheduler.

A handler on the root logger would not do: it would miss Dask's loggers, which do not propagate,
silence ``logging.lastResort``, and disable ``logging.basicConfig`` of the user's. So this wraps the
call of the handlers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from threading import Lock, local
from time import monotonic
from traceback import format_exception
from typing import Final

from distributed.worker import Worker

from dask_otel._dask.wrapping import Wrappers
from dask_otel._otel.api.current import current_ids
from dask_otel.core.events.lines import TOPIC, LineBatch, line
from dask_otel.core.text import Sanitizer, plain_text
from dask_otel.worker.logs import running

#: Records of our own and of OpenTelemetry, which would go round in a circle.
_OWN: Final = ("distributed.dask_otel", "dask_otel", "opentelemetry")
#: Below WARNING, these log each message that a worker sends, ours too.
_TRANSPORT: Final = ("distributed.core", "distributed.comm", "distributed.batched", "asyncio")


class Forwarding:
    """Forwards the records of this process while any worker wants them.

    The first of several workers in a process sends the records of all.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        #: The workers that want them.
        self.workers: list[Worker] = []
        self._level = logging.CRITICAL
        self._batch = LineBatch()
        self._wrappers = Wrappers()
        #: A forked process has no connection to the scheduler.
        self._process = 0
        #: The level of the root logger before ours, and ours.
        self._root: tuple[int, int] | None = None
        #: Whether this thread is in here: what it logs then is left out.
        self._inside = local()

    def add(self, worker: Worker, level: int) -> None:
        """Begin to forward records from a level on."""
        self.workers.append(worker)
        if len(self.workers) > 1:
            return
        self._level, self._process = level, os.getpid()
        root = logging.getLogger()
        if not root.handlers and root.level > level:
            # Nobody has configured logging, so nobody else sees the difference.
            self._root = root.level, level
            root.setLevel(level)
        self._wrappers.method(logging.Logger, "callHandlers", self._watching)

    def remove(self, worker: Worker) -> None:
        """Send the rest; the last worker restores logging."""
        if worker is self.workers[0]:
            # Its event loop may end before a planned message.
            self._guarded(self._send)
        self.workers.remove(worker)
        if self.workers:
            return
        self._wrappers.remove()
        before, self._root = self._root, None
        if before is not None and logging.getLogger().level == before[1]:
            logging.getLogger().setLevel(before[0])

    def _watching(self, call: Callable[..., None]) -> Callable[..., None]:
        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            self._guarded(self._forward, record)
            call(logger, record)

        return call_handlers

    def _guarded(self, call: Callable[..., None], *args: object) -> None:
        """Call a function of ours; ignore what it logs."""
        if getattr(self._inside, "now", False):
            return
        self._inside.now = True
        try:
            call(*args)
        except Exception:
            # The code that logs must not see our errors.
            pass
        finally:
            self._inside.now = False

    def _forward(self, record: logging.LogRecord) -> None:
        written, urgent = b"", False
        try:
            # Dask's clients handle records of other processes, which were forwarded there.
            foreign = (record.process or os.getpid()) != self._process
            name = str(record.name)
            urgent = record.levelno >= logging.WARNING
            quiet = record.levelno < self._level or foreign
            if quiet or name.startswith(_OWN if urgent else _OWN + _TRANSPORT):
                return
            with self._lock:
                if self._batch.leave_out(urgent):
                    return
            written = _line(record, name)
        except Exception:
            # A record made by hand: any field can be any object. The batch counts it.
            pass
        with self._lock:
            wait = self._batch.add(written, urgent, monotonic())
        if wait == 0:
            self._send(False)
        elif wait is not None:
            loop = self.workers[0].loop
            loop.add_callback(loop.call_later, wait, partial(self._guarded, self._send))

    def _send(self, planned: bool = True) -> None:
        """Send the batch; any thread may call it."""
        with self._lock:
            message = self._batch.take(monotonic(), planned)
        if message is not None and self.workers:
            self.workers[0].log_event(TOPIC, message)


def _line(record: logging.LogRecord, name: str) -> bytes:
    task, error, sanitizer = running.get(), None, Sanitizer()
    try:
        text = record.getMessage()
    except Exception:
        text = f"{plain_text(record.msg, sanitizer)} {plain_text(record.args, sanitizer)}"
    match record.exc_info:
        case (kind, BaseException() as exception, trace):
            error = (
                f"{kind.__module__}.{kind.__qualname__}",
                plain_text(exception, sanitizer),
                "".join(format_exception(kind, exception, trace)),
            )
    ids = current_ids()
    key = None if task is None else str(task.key)
    return line(record.created, record.levelno, name, text, key, ids, error)


forwarding: Final = Forwarding()
