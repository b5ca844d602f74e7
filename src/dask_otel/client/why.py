"""In the client: ask why a task or a span is not done yet."""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Hashable
from contextlib import suppress
from typing import Final, Literal, overload

from distributed import Client, Future

from dask_otel import _wire
from dask_otel._wire import Why
from dask_otel.client.asking import answer

#: Most characters of a key or a name.
_LONGEST: Final = 10_000


@overload
def why(
    client: Client, key_or_span: Hashable | Future, *, asynchronous: Literal[True]
) -> Awaitable[Why]: ...


@overload
def why(
    client: Client, key_or_span: Hashable | Future, *, asynchronous: Literal[False] | None = None
) -> Why: ...


def why(
    client: Client, key_or_span: Hashable | Future, *, asynchronous: bool | None = None
) -> Why | Awaitable[Why]:
    """Say why a task or a span is not done yet, and what to do next.

    This is one question to the scheduler, which changes nothing there, and visits some hundreds of
    tasks at most. For a task that waits, the answer goes on to the tasks that hold it up: how far
    they are, on which worker, and what this worker does. The scheduler's knowledge of a worker is
    as old as the worker's last heartbeat.

    Parameters
    ----------
    client
        A connected client. The bridge must run on its scheduler.
    key_or_span
        A future, a task's key (or its text, as in a log), or the id or full name of a span, such
        as ``"train/load"``.
    asynchronous
        See `register`.

    Returns
    -------
    why
        A `Why`; `print` it. With an asynchronous client, an awaitable of it. For an unknown key,
        the answer has the kind ``unknown``.

    Raises
    ------
    ValueError
        If it is neither a key nor a name: a key is text, a number or a tuple of these, of at most
        10,000 characters. Nothing is sent then.
    RuntimeError
        If no bridge runs on the scheduler, or one of an older version, which cannot answer.

    Examples
    --------
    >>> future = client.submit(sum, [1, 2])
    >>> future.result()
    3
    >>> dask_otel.why(client, future).reasons[0].kind
    'done'
    """
    asked = getattr(key_or_span, "key", key_or_span)
    if not _is_key(asked) or len(str(asked)) > _LONGEST:
        raise ValueError(
            f"this {type(asked).__name__} is neither a key nor a span: a key is text, a number or "
            f"a tuple of these, and dask_otel.why reads at most {_LONGEST:,} characters. Give it a "
            "future, future.key, or the id or full name of a span."
        )
    keys: list[Hashable] = [str(asked) if isinstance(asked, str) else asked]
    if isinstance(asked, str) and (asked.startswith(("(", "b'", 'b"')) or asked.isdecimal()):
        with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            # The key that has this text.
            keys += {ast.literal_eval(asked)}
    found: Why = answer(client, "why", _wire.why, asynchronous, asked=tuple(keys))
    return found


def _is_key(value: object, levels: int = 100) -> bool:
    """Return whether Dask accepts a value as a key; tuples are not nested more deeply."""
    return isinstance(value, (str, bytes, int, float)) or (
        isinstance(value, tuple) and levels > 0 and all(_is_key(one, levels - 1) for one in value)
    )
