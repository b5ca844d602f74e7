"""In the client: ask for the results in memory and their keepers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal, overload

from distributed import Client

from dask_otel import _wire
from dask_otel._wire import Held
from dask_otel.client.asking import answer


@overload
def held(
    client: Client, span: str | None = None, *, asynchronous: Literal[True]
) -> Awaitable[Held]: ...


@overload
def held(
    client: Client, span: str | None = None, *, asynchronous: Literal[False] | None = None
) -> Held: ...


def held(
    client: Client, span: str | None = None, *, asynchronous: bool | None = None
) -> Held | Awaitable[Held]:
    """List the results in the memory of the workers, their keepers, and the next step.

    This is one question to the scheduler, which changes nothing there. It looks at 100,000 results
    at most, those of the fullest workers first, in short steps between which the scheduler goes on;
    the answer says how many there are. Sizes are as Dask measures them, and include results that
    are spilled to disk.

    Parameters
    ----------
    client
        A connected client. The bridge must run on its scheduler.
    span
        The id of a span, or the full name of one or several, such as ``"train/load"``, for their
        results alone, with those of the spans below them.
    asynchronous
        See `register`.

    Returns
    -------
    held
        A `Held`; `print` it. With an asynchronous client, an awaitable of it.

    Raises
    ------
    LookupError
        If the scheduler knows no such span.
    RuntimeError
        If no bridge runs on the scheduler, or one of an older version, which cannot answer.

    Examples
    --------
    >>> future = client.submit(sum, [1, 2])
    >>> future.result()
    3
    >>> dask_otel.held(client).largest[0].prefix
    'sum'
    """
    asked = None if span is None else str(span)
    found: Held = answer(client, "held", _wire.held, asynchronous, asked=asked)
    return found
