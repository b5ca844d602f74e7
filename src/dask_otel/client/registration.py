"""From the client: put the bridge on a running cluster, with no access to its command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dask_otel._wire import Refusal, SpanMetrics

if TYPE_CHECKING:
    from distributed import Client
    from distributed.scheduler import Scheduler


def register(client: Client, config: Mapping[str, Any] | None = None) -> Any:
    """Start a bridge on the scheduler of a running cluster.

    Calling it again is harmless: a scheduler has one bridge, and keeps the configuration
    with which that was started (its log says so if another one is asked for). Work that
    finished before is not exported; spans with unfinished work are, from here on.

    Parameters
    ----------
    client
        A connected client. ``dask-otel`` must be installed on the scheduler as well.
    config
        Configuration for this bridge, laid over the scheduler's ``otel`` section, such as
        ``{"spans": {"linger": "5s"}, "environment": {"OTEL_EXPORTER_OTLP_ENDPOINT": ...}}``.

    Returns
    -------
    status
        ``"started"``, ``"running"`` or ``"off"`` (the scheduler's log says why). With an
        asynchronous client, an awaitable of it.

    Raises
    ------
    ConfigurationError
        If the configuration is not valid, before anything is sent.
    """
    from dask_otel.settings.keys import Settings

    Settings.from_config(config)
    return client.run_on_scheduler(_install, config=dict(config or {}))


def unregister(client: Client) -> Any:
    """Stop the bridge of a running cluster; what it has is exported first.

    Spans with unfinished work are exported as far as they are known, with result ``unknown``. A
    bridge that is registered later on the same scheduler goes on where this one stopped: what is
    still to be done becomes their next generation, with a link.

    Returns
    -------
    status
        ``"stopped"`` or ``"absent"``. With an asynchronous client, an awaitable of it.
    """
    return client.run_on_scheduler(_uninstall)


def span_metrics(client: Client, span_id: str, timeout: float | str = "60s") -> Any:
    """Return the metrics of a span, as soon as all of them are in.

    Workers report with their heartbeats, so the last metrics come after the last result. This
    waits, on the scheduler, until the span and those below it have settled: their work is done,
    and every worker that took part has reported since. No delay is guessed.

    Parameters
    ----------
    client
        A connected client. The bridge must run on its scheduler.
    span_id
        What ``with distributed.span(...) as span_id`` gives. Ask after the block, and after the
        results are there; the longer ago, the quicker the answer.
    timeout
        The longest wait: seconds, or text such as ``"2 minutes"``.

    Returns
    -------
    metrics
        A `SpanMetrics`. With an asynchronous client, an awaitable of it.

    Raises
    ------
    LookupError
        If the scheduler knows no such span.
    TimeoutError
        If the span has not settled in time; the message says what is missing.
    RuntimeError
        If no bridge runs on the scheduler.

    Examples
    --------
    >>> with span("train") as span_id:  # doctest: +SKIP
    ...     model.fit(data)
    >>> metrics = dask_otel.span_metrics(client, span_id)  # doctest: +SKIP
    >>> metrics.result, metrics.duration, metrics.idle_time  # doctest: +SKIP
    ('success', 12.3, 4.5)
    >>> metrics.tree["execute", "fit", "thread-cpu", "seconds"]  # doctest: +SKIP
    7.8
    """
    from dask.utils import parse_timedelta

    if not isinstance(span_id, str):
        raise TypeError(f"a span's id is a string, not {type(span_id).__name__}")
    seconds = float(parse_timedelta(timeout))
    return client.sync(_ask, client, span_id, seconds)


async def _ask(client: Client, span_id: str, timeout: float) -> SpanMetrics:
    # A graph may still be on its way: this question overtakes it.
    submitted = any(state.status == "pending" for state in list(client.futures.values()))
    answer = await client.run_on_scheduler(
        _span_metrics, span_id=span_id, timeout=timeout, submitted=submitted
    )
    if isinstance(answer, Refusal):
        raise answer.error()
    assert isinstance(answer, SpanMetrics)
    return answer


async def _span_metrics(
    span_id: str, timeout: float, submitted: bool, dask_scheduler: Scheduler
) -> SpanMetrics | Refusal:
    from dask_otel.scheduler.plugin import plugin_of

    plugin = plugin_of(dask_scheduler)
    if plugin is None or plugin.bridge is None:
        return Refusal(
            "no bridge",
            "dask-otel does not run on this scheduler: call dask_otel.register(client), or start "
            "the scheduler with --preload dask_otel.preload",
        )
    return await plugin.bridge.settled.answer(span_id, timeout, submitted)


async def _install(config: Mapping[str, Any], dask_scheduler: Scheduler) -> str:
    # A coroutine function, for these run on the scheduler's event loop.
    from dask_otel.scheduler.plugin import install, make_way

    await make_way(dask_scheduler)
    return install(dask_scheduler, config)


async def _uninstall(dask_scheduler: Scheduler) -> str:
    from dask_otel.scheduler.plugin import uninstall

    return await uninstall(dask_scheduler)
