"""Slow calls of the event loop's, in a thread that holds up nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TypeVar, cast

Made = TypeVar("Made")


async def in_thread(make: Callable[[], Made], name: str) -> Made:
    """Await a call in a daemon thread of its own.

    Not in the loop's executor: a call that never returns must not hold up the process at its
    end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Made] = loop.create_future()

    def deliver(result: Made | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("Made", result))

    def run() -> None:
        result, error = None, None
        try:
            result = make()
        except BaseException as caught:
            # SystemExit would end the loop that awaits this; a future takes no StopIteration.
            plain = isinstance(caught, Exception) and not isinstance(caught, StopIteration)
            error = caught if plain else RuntimeError(repr(caught))
        with suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(deliver, result, error)

    Thread(target=run, name=name, daemon=True).start()
    return await future
