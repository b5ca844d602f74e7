"""A typed use of the public face: checked by mypy in lint, and never run."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal

from distributed import Client
from typing_extensions import assert_type

import dask_otel
from dask_otel import Held, SpanHandle, SpanMetrics, TraceContext, Why


def synchronous(client: Client) -> float:
    status = dask_otel.register(client, {"spans": {"linger": "5s"}})
    assert_type(status, Literal["started", "running", "off"])
    with dask_otel.span("train", attributes={"model": "b"}) as handle:
        assert_type(handle, SpanHandle)
    metrics = dask_otel.span_metrics(client, handle, timeout="2 minutes")
    assert_type(metrics, SpanMetrics)
    assert_type(dask_otel.trace_context(handle), TraceContext)
    assert_type(dask_otel.why(client, client.submit(sum, [1])), Why)
    assert_type(dask_otel.held(client), Held)
    assert_type(dask_otel.unregister(client), Literal["stopped", "absent"])
    return metrics.duration


async def asynchronous(client: Client, span_id: str) -> SpanMetrics:
    asked = dask_otel.span_metrics(client, span_id, asynchronous=True)
    assert_type(asked, Awaitable[SpanMetrics])
    where = await dask_otel.trace_context(span_id, client, asynchronous=True)
    assert_type(where, TraceContext)
    assert_type(await dask_otel.why(client, ("x", 0), asynchronous=True), Why)
    assert_type(await dask_otel.held(client, "x", asynchronous=True), Held)
    return await asked
