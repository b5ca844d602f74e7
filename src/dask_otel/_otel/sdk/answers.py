"""What exporters say: their log messages, and the answers of HTTP servers.

``export()`` returns yes or no. Why it failed, and whether "yes" is true, is only here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context

if TYPE_CHECKING:
    import requests

#: Whose messages are held back in our threads.
_LOGGERS: Final = ("opentelemetry", "urllib3", "grpc")
_INVALID: Final = 400


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

    @property
    def rejected(self) -> bool:
        """Whether the last message is about a request that the server calls invalid.

        The exporters keep the status to themselves; it is an argument of their message, as a
        gRPC status code or an HTTP status.
        """
        record = self._last.get(threading.get_ident())
        args: Any = record.args if record is not None and isinstance(record.args, tuple) else ()
        return any(
            getattr(arg, "name", None) == "INVALID_ARGUMENT"
            or (type(arg) is int and arg == _INVALID)
            for arg in args
        )


class WatchedExporter:
    """An exporter of which one knows why it failed, and whether its "yes" is true.

    Used by one thread.
    """

    def __init__(self, exporter: Any, answers: HttpAnswers | None, logs: ExporterLogs) -> None:
        self.shutdown = exporter.shutdown
        #: Whether the last export was refused as invalid.
        self.rejected = False
        self._export = exporter.export
        self._answers = answers
        self._logs = logs
        self._problem = ""

    def export(self, data: Any, success: object, **options: Any) -> bool:
        """Export; False if it failed. Raises what is no error of the network."""
        self._begin()
        try:
            ok = self._export(data, **options) is success
        except OSError as error:
            # So do older exporters over HTTP.
            self._problem = str(error) or repr(error)
            return False
        if self._answers is not None:
            self._problem = self._answers.problem
            self.rejected = self._answers.rejected
            ok = ok and not self._problem
        self.rejected = not ok and (self.rejected or self._logs.rejected)
        return ok

    def _begin(self) -> None:
        self.rejected, self._problem = False, ""
        self._logs.forget()
        if self._answers is not None:
            self._answers.forget()

    def surroundings(self) -> AbstractContextManager[None]:
        """Hold the exporter's messages back in this thread."""
        return self._logs.ours()

    def last_error(self) -> str:
        """Return the last message, or what was found wrong with the answer."""
        return self._logs.last() or self._problem[:500]


class HttpAnswers:
    """Sees the answers of one HTTP exporter, which takes a redirect for a success.

    Used by one thread.
    """

    def __init__(self) -> None:
        self._status: int | None = None
        self._posted = True
        self._location = ""

    def session(self) -> requests.Session:
        """Return a session to give to the exporter."""
        # Not at the top: gRPC does without it.
        import requests

        session = requests.Session()
        session.hooks["response"].append(self._look)
        return session

    def _look(self, response: requests.Response, *_: object, **__: object) -> None:
        self._status = response.status_code
        self._posted = response.request.method == "POST"
        if response.is_redirect:
            self._location = response.headers.get("location", "")

    def forget(self) -> None:
        """Begin a new export."""
        self._status, self._posted, self._location = None, True, ""

    @property
    def rejected(self) -> bool:
        """Whether the request was refused as invalid."""
        return self._status == _INVALID

    @property
    def problem(self) -> str:
        """Say why a "success" is none: the data was not taken where it was sent."""
        if self._status is None or (200 <= self._status < 300 and self._posted):
            return ""
        if self._location:
            return f"the endpoint redirects to {self._location}, which is not followed"
        return f"HTTP status {self._status}"
