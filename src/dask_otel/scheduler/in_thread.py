"""Runs the event loop's slow calls in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Made = TypeVar("Made")


async def in_thread(make: Callable[[], Made], name: str) -> Made:
    """Await a call in a daemon thread of its own.

    Not in the loop's executor: a call that never returns must not block the process's exit.
    """
    future: Future[Made] = Future()
    # From here on, cancelling the waiting task does not cancel the call.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as caught:
            # SystemExit would end the awaiting loop; a future does not accept StopIteration.
            plain = isinstance(caught, Exception) and not isinstance(caught, StopIteration)
            future.set_exception(caught if plain else RuntimeError(repr(caught)))

    Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)
