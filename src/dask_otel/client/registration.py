"""In the client: start the bridge on a running cluster, without access to its command line."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Mapping
from traceback import extract_stack
from typing import Any, Literal, TypeAlias, overload

from distributed import Client

from dask_otel._wire import SpanMetrics, install, settled_metrics, uninstall, unused
from dask_otel.client.asking import answer, ask, pending

#: The result of a registration.
Registered: TypeAlias = Literal["started", "running", "off"]
Unregistered: TypeAlias = Literal["stopped", "absent"]


@overload
def register(
    client: Client, config: Mapping[str, Any] | None = None, *, asynchronous: Literal[True]
) -> Awaitable[Registered]: ...


@overload
def register(
    client: Client,
    config: Mapping[str, Any] | None = None,
    *,
    asynchronous: Literal[False] | None = None,
) -> Registered: ...


def register(
    client: Client, config: Mapping[str, Any] | None = None, *, asynchronous: bool | None = None
) -> Registered | Awaitable[Registered]:
    """Start a bridge on the scheduler of a running cluster, and wait for its exporters.

    A second call is harmless: a scheduler has one bridge, which keeps its configuration. Work that
    finished earlier is not exported; spans with unfinished work are exported from here on.

    Parameters
    ----------
    client
        A connected client. ``dask-otel`` must be installed on the scheduler as well.
    config
        Configuration for this bridge, which overrides the scheduler's ``otel`` section, such as
        ``{"spans": {"linger": "5s"}, "environment": {"OTEL_EXPORTER_OTLP_ENDPOINT": ...}}``.
    asynchronous
        Whether to return an awaitable; by default, as the client does. With an asynchronous
        client, pass ``True`` for the right static type.

    Returns
    -------
    status
        ``"started"``, ``"running"`` or ``"off"`` (the scheduler's log says why). With an
        asynchronous client, an awaitable of the status.

    Raises
    ------
    ConfigurationError
        If the configuration is not valid; nothing has been sent then.
    RuntimeError
        If the scheduler has no ``dask-otel``, or the client was closed.

    Warns
    -----
    UserWarning
        If a bridge already runs and does not use all of `config`; the warning names the keys.
    """
    from dask_otel.settings.reading import read_settings

    read_settings(config)
    caller = extract_stack(limit=2)[0]
    status: Registered = client.sync(
        _install,
        client,
        dict(config or {}),
        # The warning comes from the event loop, whose stack does not have the caller.
        (caller.filename, caller.lineno or 0),
        asynchronous=asynchronous,
    )
    return status


async def _install(client: Client, config: dict[str, Any], line: tuple[str, int]) -> str:
    status: str = await ask(client, install, config=config)
    if status == "running" and config and (keys := await ask(client, unused, config=config)):
        warnings.warn_explicit(
            f"dask-otel already runs on this scheduler, and does not use {', '.join(keys)} of this "
            "registration. To change its configuration, call dask_otel.unregister(client) first.",
            UserWarning,
            *line,
        )
    return status


@overload
def unregister(client: Client, *, asynchronous: Literal[True]) -> Awaitable[Unregistered]: ...


@overload
def unregister(client: Client, *, asynchronous: Literal[False] | None = None) -> Unregistered: ...


def unregister(
    client: Client, *, asynchronous: bool | None = None
) -> Unregistered | Awaitable[Unregistered]:
    """Stop the bridge of a running cluster after a last export.

    Spans with unfinished work are exported in their present state, with result ``unknown``. A
    bridge that is registered later on the same scheduler continues from there: the remaining work
    becomes the spans' next generation, with a link.

    Parameters
    ----------
    client
        A connected client.
    asynchronous
        See `register`.

    Returns
    -------
    status
        ``"stopped"`` or ``"absent"``. With an asynchronous client, an awaitable of it.
    """
    status: Unregistered = answer(client, "unregister", uninstall, asynchronous)
    return status


@overload
def span_metrics(
    client: Client, span_id: str, timeout: float | str = "60s", *, asynchronous: Literal[True]
) -> Awaitable[SpanMetrics]: ...


@overload
def span_metrics(
    client: Client,
    span_id: str,
    timeout: float | str = "60s",
    *,
    asynchronous: Literal[False] | None = None,
) -> SpanMetrics: ...


def span_metrics(
    client: Client,
    span_id: str,
    timeout: float | str = "60s",
    *,
    asynchronous: bool | None = None,
) -> SpanMetrics | Awaitable[SpanMetrics]:
    """Return the metrics of a span as soon as they are complete.

    Workers report metrics with their heartbeats, so the last metrics come after the last result.
    The call waits, on the scheduler, until the span and those below it have settled: their work is
    done, and every worker that took part has reported since. It does not rely on a guessed delay.

    Parameters
    ----------
    client
        A connected client. The bridge must run on its scheduler.
    span_id
        The id from ``with distributed.span(...) as span_id``. Call this after the block, when the
        results have arrived; the later the call, the shorter its wait.
    timeout
        The longest wait: seconds, or text such as ``"2 minutes"``.
    asynchronous
        See `register`.

    Returns
    -------
    metrics
        A `SpanMetrics`. With an asynchronous client, an awaitable of it.

    Raises
    ------
    LookupError
        If the scheduler knows no such span.
    TimeoutError
        If the span has not settled in time; the message names what is missing.
    RuntimeError
        If no bridge runs on the scheduler, or one of an older version, which cannot answer.
    ValueError
        If the timeout is neither.

    Examples
    --------
    >>> with span("train") as span_id:
    ...     client.submit(sum, [1, 2]).result()
    3
    >>> metrics = dask_otel.span_metrics(client, span_id)
    >>> metrics.result, metrics.duration, metrics.idle_time  # doctest: +ELLIPSIS
    ('success', ..., ...)
    >>> metrics.tree["execute", "sum", "thread-cpu", "seconds"] < 1
    True
    """
    from dask.utils import parse_timedelta

    if not isinstance(span_id, str):
        raise TypeError(f"a span's id is a string, not {type(span_id).__name__}")
    try:
        seconds = float(parse_timedelta(timeout))
    except (LookupError, TypeError, ValueError):
        raise ValueError(
            f"a timeout is seconds, 0 or more, or text such as '2 minutes', not {timeout!r}"
        ) from None
    found: SpanMetrics = answer(
        client, "span_metrics", settled_metrics, asynchronous,
        span_id=span_id, timeout=seconds, submitted=pending(client),
    )  # fmt: skip
    return found


# Python's warning "… was never awaited" should name the function that the user called.
_install.__qualname__ = "dask_otel.register"
