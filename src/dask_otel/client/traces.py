"""In the client: the trace of a Dask span."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal, overload

from distributed import Client

from dask_otel._wire import TraceContext, decided_trace
from dask_otel.client.handles import SpanHandle
from dask_otel.core import identity


@overload
def trace_context(
    span_id: str, client: Client | None = None, *, asynchronous: Literal[True]
) -> Awaitable[TraceContext]: ...


@overload
def trace_context(
    span_id: str, client: Client | None = None, *, asynchronous: Literal[False] | None = None
) -> TraceContext: ...


def trace_context(
    span_id: str, client: Client | None = None, *, asynchronous: bool | None = None
) -> TraceContext | Awaitable[TraceContext]:
    """Return the ids of a Dask span's trace and span in a tracing backend.

    They are computed from Dask's ids, unless the scheduler has put the span into its caller's
    trace, or a later generation into a trace of its own. So this function asks the scheduler.

    Parameters
    ----------
    span_id
        The id from ``with span(...) as span_id``, of `dask_otel` or ``distributed``.
    client
        A connected client; by default, the current one. If there is none, or its scheduler has no
        bridge or does not know the span (yet), the answer is computed. The computation takes a
        plain string for the id of a root, unless the span's block is open here.
    asynchronous
        See `dask_otel.register`.

    Returns
    -------
    context
        A `TraceContext`. With an asynchronous client, an awaitable of it.

    Examples
    --------
    >>> with span("train") as span_id:
    ...     client.submit(sum, [1, 2]).result()
    3
    >>> dask_otel.trace_context(span_id).trace_id  # doctest: +ELLIPSIS
    '...'
    """
    if not isinstance(span_id, str):
        raise TypeError(f"a span's id is a string, not {type(span_id).__name__}")
    root_id = _root_of(span_id)
    if client is None:
        try:
            client = Client.current()
        except ValueError:
            return _ask(None, span_id, root_id) if asynchronous else _expected(span_id, root_id)
    answer: TraceContext = client.sync(_ask, client, span_id, root_id, asynchronous=asynchronous)
    return answer


async def _ask(client: Client | None, span_id: str, root_id: str) -> TraceContext:
    try:
        asked = client and await client.run_on_scheduler(decided_trace, span_id=str(span_id))
    except ImportError:
        # The scheduler has no dask-otel, so it adopts no trace.
        return _hashed(span_id, root_id)
    return asked if isinstance(asked, TraceContext) else _expected(span_id, root_id)


# Python's warning "… was never awaited" should name the function that the user called.
_ask.__qualname__ = "dask_otel.trace_context"


def _root_of(span_id: str) -> str:
    if isinstance(span_id, SpanHandle):
        return span_id.root_id
    import dask

    ids = dask.get_annotations().get("span", {}).get("ids", ())
    return str(ids[0] if span_id in ids else span_id)


def _hashed(span_id: str, root_id: str) -> TraceContext:
    """Return the span's context if no caller's trace is adopted."""
    trace, span = identity.trace_id(root_id), identity.span_id(span_id)
    return TraceContext(f"{trace:032x}", f"{span:016x}")


def _expected(span_id: str, root_id: str) -> TraceContext:
    """Return the span's context as this process predicts it."""
    if isinstance(span_id, SpanHandle):
        return TraceContext(span_id.trace_id, span_id.span_id)
    return _hashed(span_id, root_id)
