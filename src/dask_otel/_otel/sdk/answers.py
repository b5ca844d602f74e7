"""What exporters say: their log messages, and the answers that they got.

``export()`` returns yes or no. Why it failed, and whether "yes" is true, is only here. The
answers themselves are read where they come in: `dask_otel._otel.sdk.watching`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from opentelemetry import context as otel_context

from dask_otel.core.masking import Mask, secrets_of

#: Whose messages are held back in our threads.
_LOGGERS: Final = ("opentelemetry", "urllib3", "grpc")
#: Characters of what others say, in our messages.
_LONGEST: Final = 300
#: Control characters that a text may have.
_FEW: Final = 4
#: Errors repeat the address that was asked, with the password in it.
_MASK: Final = Mask()


def mask_of_environment() -> Mask:
    """Return what leaves out the secrets of this process's ``OTEL_*`` variables."""
    return Mask(secrets_of({k: v for k, v in os.environ.items() if k.startswith("OTEL_")}))


def plain(text: str, mask: Mask = _MASK) -> str:
    """Return what others say as one short line, without control characters and passwords."""
    line = mask(" ".join(text[: 4 * _LONGEST].split()))
    if sum(not c.isprintable() for c in line) > _FEW:
        # Another protocol, such as gRPC's where HTTP is expected.
        line = line[: next(n for n, c in enumerate(line) if not c.isprintable())] + "(no text)"
    line = "".join([c if c.isprintable() else "\ufffd" for c in line])
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def innermost(error: BaseException) -> BaseException:
    """Return the error that is behind all others."""
    for _ in range(10):
        behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if behind is None:
            break
        error = behind
    return error


def words_of(error: BaseException) -> str:
    """Return the type of an error, and type and words of what is behind it.

    The outermost one often names objects and repeats the URL; the innermost one says what is
    wrong: that a name does not resolve, that nobody listens, that a certificate is not trusted.
    """
    inner = innermost(error)
    name, root = type(error).__name__, type(inner).__name__
    if "header" in name.lower():
        # Its words have the value of a header, which may be secret.
        return name
    words = f"{root}: {inner}".rstrip(": ")
    return plain(words if name == root else f"{name} ({words})")


class Answers:
    """What came of the requests of one export. Used by one thread.

    Parameters
    ----------
    mask
        What must not be told of what a server says: it may repeat what it was sent.
    """

    def __init__(self, mask: Mask = _MASK) -> None:
        self.mask = mask
        #: Set by another thread at the end: where nobody is, one try is enough.
        self.hurry = False
        self.forget()

    def forget(self) -> None:
        """Begin a new export."""
        #: Why the last request was not taken; empty if it was, or there was none.
        self.problem = ""
        #: Whether the server says that it is because of what was in it.
        self.blames = False
        #: Whether the last request found nobody: connection refused, a name that does not resolve,
        #: TLS that one side does not want, connections that break one after the other.
        self.absent = False
        #: Seconds for which the server wants no other request; 0 if it said nothing of it.
        self.pause = 0.0
        #: Items that the server did not take, although it took the request.
        self.lost = 0
        #: What the server said about requests that it took.
        self.said = ""

    def taken(self, lost: int = 0, said: str = "") -> None:
        """Take note of a request that was taken, perhaps in part."""
        self.problem, self.blames, self.absent, self.pause = "", False, False, 0.0
        self.lost += max(0, lost)
        if lost > 0 or said:
            self.said = plain(said, self.mask) or "no reason given"

    def refused(
        self,
        problem: str,
        *,
        blames: bool = False,
        late: bool = False,
        absent: bool = False,
        pause: float = 0.0,
    ) -> None:
        """Take note of a request that was not taken.

        One that took too long (`late`) is mostly the last one of several; the first said more.
        """
        if not (late and self.problem):
            self.problem = plain(problem, self.mask)
        self.blames = blames
        self.absent = absent
        self.pause = pause


@contextmanager
def uninstrumented() -> Iterator[None]:
    """Keep instrumented HTTP and gRPC clients from tracing what this thread sends."""
    values = otel_context.set_value("suppress_instrumentation", True)
    values = otel_context.set_value("suppress_http_instrumentation", True, values)
    token = otel_context.attach(values)
    try:
        yield
    finally:
        otel_context.detach(token)


class ExporterLogs(logging.Filter):
    """Keeps the exporters' messages of our threads out of the log, and remembers the last one.

    Exporters log an error for each failed request; the pump tells a person once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[int, logging.LogRecord | None] = {}
        self._loggers: list[logging.Logger] = []
        self._lock = threading.Lock()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Count this thread as ours. The filter is in place while there is such a thread."""
        ident = threading.get_ident()
        with self._lock:
            self._last[ident] = None
            if len(self._last) == 1:
                self._install()
        try:
            with uninstrumented():
                yield
        finally:
            with self._lock:
                del self._last[ident]
                if not self._last:
                    self._remove()

    def _install(self) -> None:
        # A logger's filters see what is logged with it, not with those below it.
        for name, found in list(logging.root.manager.loggerDict.items()):
            if name.split(".")[0] in _LOGGERS and isinstance(found, logging.Logger):
                # First: some exporters have a filter of their own that hides what comes
                # twice, and it is still the last message.
                found.filters.insert(0, self)
                self._loggers.append(found)

    def _remove(self) -> None:
        for found in self._loggers:
            found.removeFilter(self)
        self._loggers.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        """Hold back the records of our threads."""
        if record.thread not in self._last:
            return True
        if record.levelno >= logging.WARNING:
            self._last[record.thread] = record
        return False

    def forget(self) -> None:
        """Begin a new export in this thread."""
        if threading.get_ident() in self._last:
            self._last[threading.get_ident()] = None

    def last(self) -> str:
        """Return the last message that was held back in this thread's export."""
        record = self._last.get(threading.get_ident())
        return "" if record is None else record.getMessage()[:500]


class WatchedExporter:
    """An exporter of which one knows why it failed, and whether its "yes" is true.

    Used by one thread.
    """

    def __init__(self, exporter: Any, answers: Answers | None, logs: ExporterLogs) -> None:
        self.shutdown = exporter.shutdown
        self._export = exporter.export
        #: An exporter that nobody can watch gets no answers.
        self.answers = answers or Answers()
        self._logs = logs
        self._ok = False
        self._problem = ""

    def export(self, data: Any, success: object, **options: Any) -> bool:
        """Export; False if it failed. Raises what is no error of the network."""
        self._ok, self._problem = False, ""
        self._logs.forget()
        self.answers.forget()
        try:
            self._ok = self._export(data, **options) is success and not self.answers.problem
        except OSError as error:
            # So do older exporters over HTTP.
            self._problem = plain(words_of(error), self.answers.mask)
        return self._ok

    @property
    def rejected(self) -> bool:
        """Whether the last export was refused because of what was in it."""
        return not self._ok and self.answers.blames

    @property
    def lost(self) -> int:
        """Items of the last export that the server did not take, although it took the others."""
        return self.answers.lost if self._ok else 0

    @property
    def said(self) -> str:
        """What the server said about an export that it took."""
        return self.answers.said if self._ok else ""

    def surroundings(self) -> AbstractContextManager[None]:
        """Hold the exporter's messages back in this thread."""
        return self._logs.ours()

    def last_error(self) -> str:
        """Return why the last export failed: the server's answer, or else the last message."""
        if self.answers.problem or self._problem:
            return self.answers.problem or self._problem
        return plain(self._logs.last(), self.answers.mask)
