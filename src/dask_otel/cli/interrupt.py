"""Repeats a lost Ctrl-C, and leaves Dask's traceback of one out.

Python ends a command by an exception that is raised at the main thread's current position. In a
callback of the garbage collector or of a weak reference (each import has one), or in a ``__del__``,
it ends only that callback: Python prints "Exception ignored", and the command continues
(https://docs.python.org/3/library/sys.html#sys.unraisablehook).

``distributed.utils.sync`` cancels its coroutine at a Ctrl-C, even if the event loop has not started
it yet. Then Tornado logs a ``NameError``: ``cannot access free variable 'future'``.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

#: Seconds until it is repeated: the callback has ended by then.
_AGAIN: Final = 0.05


@contextmanager
def ctrl_c_is_not_lost() -> Iterator[None]:
    """Repeat a ``KeyboardInterrupt`` that Python had to ignore. For the main thread."""
    before = sys.unraisablehook
    again: threading.Timer | None = None

    def hook(unraisable: Any) -> None:
        nonlocal again
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
        elif again is None or not again.is_alive():
            again = threading.Timer(_AGAIN, _interrupt, args=(threading.get_ident(),))
            again.daemon = True
            again.start()

    sys.unraisablehook = hook
    tornado = logging.getLogger("tornado.application")
    tornado.addFilter(_is_no_early_cancel)
    try:
        yield
    finally:
        tornado.removeFilter(_is_no_early_cancel)
        sys.unraisablehook = before
        if again is not None:
            again.cancel()


def _is_no_early_cancel(record: logging.LogRecord) -> bool:
    return "sync.<locals>.cancel" not in record.getMessage()


def _interrupt(thread: int) -> None:
    if sys.platform == "win32":
        import _thread

        _thread.interrupt_main()
    else:
        # This also interrupts a blocking call.
        signal.pthread_kill(thread, signal.SIGINT)
