"""Runs the event loop's slow calls in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dask_otel.pump.thread import Made, apart


async def in_thread(make: Callable[[], Made], name: str) -> Made:
    """Await a call in a daemon thread of its own.

    Not in the loop's executor: a call that never returns must not block the process's exit.
    """
    return await asyncio.wrap_future(apart(make, name))
