"""Asynchronous tests without a plugin of pytest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any


def looped(test: Callable[..., Any]) -> Callable[..., None]:
    """Run an asynchronous test in a loop of its own."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
