"""A question is answered in steps, and anything can happen between two of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from distributed import span, wait

import dask_otel
from dask_otel import _wire
from dask_otel._dask import holding
from dask_otel._dask.overview import overview
from tests.simulated.bridged import AS_USERS, Bridged
from tests.simulated.tasks import filled, nap

#: Something that one client asks for, or does, about a span.
Does: TypeAlias = Callable[[Bridged, str], Awaitable[Any]]


async def metrics(b: Bridged, fit: str) -> Any:
    return await _wire.settled_metrics(fit, 30.0, False, b.scheduler)


async def held(b: Bridged, fit: str) -> Any:
    return await _wire.held(fit, b.scheduler)


async def page(b: Bridged, fit: str) -> Any:
    return await overview(b.bridge.adapter, b.bridge.settled)


async def report(b: Bridged, fit: str) -> Any:
    found = await _wire.record("one", b.client.id, b.scheduler)
    assert isinstance(found, _wire.Recorded)
    settle = fit, 5.0, False
    answer = await _wire.read_record(found.number, found.number, 2**21, settle, b.scheduler)
    # The client's next question takes a while.
    await asyncio.sleep(2.0)
    await _wire.end_record("one", b.scheduler)
    return answer


async def restart(b: Bridged, fit: str) -> None:
    await b.scheduler.restart(timeout=5, wait_for_workers=False, stimulus_id="test")


async def lose_a_worker(b: Bridged, fit: str) -> None:
    await b.scheduler.remove_worker(next(iter(b.scheduler.workers)), stimulus_id="test")


async def forget(b: Bridged, fit: str) -> None:
    keys = [*b.scheduler.tasks]
    b.scheduler.client_releases_keys(keys, b.client.id, stimulus_id="test")


async def stop(b: Bridged, fit: str) -> None:
    await _wire.uninstall(b.scheduler)


async def replace(b: Bridged, fit: str) -> None:
    await _wire.uninstall(b.scheduler)
    assert await _wire.install({}, b.scheduler) == "started"


async def block(b: Bridged, fit: str) -> None:
    """Begin and end the report of another client."""
    await _wire.record("other", next(iter(b.scheduler.clients)), b.scheduler)
    await _wire.end_record("other", b.scheduler)


@pytest.mark.parametrize("does", [restart, lose_a_worker, forget, stop, replace, block])
@pytest.mark.parametrize(
    ("asks", "after"),
    [(metrics, 0.0), (metrics, 2.0), (held, 0.0), (page, 0.0), (report, 0.0), (report, 2.0)],
)
@pytest.mark.options(
    otel={"spans": {"linger": "5s"}, "environment": AS_USERS},
    unreconciled="it may end in between",
)
def test_the_answer_is_whole_or_a_refusal_and_nothing_is_left(
    b: Bridged,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    asks: Does,
    after: float,
    does: Does,
) -> None:
    monkeypatch.setattr(holding, "STEP", 1)
    with span("done") as done:
        kept = b.client.map(filled, [100] * 4, key="done")
        wait(kept)
    dask_otel.span_metrics(b.client, done)
    with span("fit") as fit:
        futures = b.client.map(nap, [1.0, 1.0, 3.0, 3.0, 3.0, 3.0], key="fit")
        futures.append(b.client.submit(nap, 1.0, *futures, key="last"))
        time.sleep(1.5)

    async def ask() -> Any:
        asking = asyncio.ensure_future(asks(b, fit))
        await asyncio.sleep(after)
        await does(b, fit)
        return await asking

    answer = b.cluster.do("scheduler", ask)
    match answer:
        case _wire.SpanMetrics():
            counts = answer.counts or {}
            ends = ("memory", "erred", "cancelled")
            assert counts["tasks"] == sum(counts[one] for one in ends)
            assert answer.result in ("success", "cancellation")
        case _wire.Held():
            assert answer.results <= answer.known
            assert answer.bytes == sum(one.bytes for one in answer.largest)
        case {"open": at_work, "ended": ended}:
            ids = [one["id"] for one in (*at_work, *ended)]
            assert len(ids) == len({*ids})
        case _wire.Recorded():
            assert answer.rows
        case _:
            assert does in (stop, replace)
            assert answer.kind in ("closed", "gone")
    # Longer than any wait.
    time.sleep(20.0)
    assert all("memory" not in repr(one) or one.closed.is_set() for one in b.threads)
    ours = [one for one in caplog.records if one.name.startswith("distributed.dask_otel")]
    assert [one.levelname for one in ours if one.levelname != "INFO"] == []
