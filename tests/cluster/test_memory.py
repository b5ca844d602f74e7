"""Results in the memory of real processes: who holds them, what keeps them, what they take."""

from __future__ import annotations

import os

import pytest
from dask.sizeof import sizeof
from distributed import span, wait

import dask_otel
from dask_otel import semconv
from tests.cluster.conftest import Start
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

SIZE = 20_000_000
STATE = semconv.MEMORY_STATE


def test_a_function_that_holds_the_memory_and_a_forgotten_persist(start: Start) -> None:
    with start(processes=True, memory_limit="4GB") as b:
        with span("train"):
            kept = b.client.map(os.urandom, [SIZE] * 3, key=[("load", n) for n in range(3)])
            last = b.client.submit(len, kept[0], key="count-1")
            wait([last, *kept])
        received = b.exported()
        size = sizeof(bytes(SIZE))
        found = received.named("train").attributes
        assert found[semconv.SPAN_MEMORY_PREFIX] == "load"
        assert found[semconv.SPAN_MEMORY_PREFIX_SIZE] == 3 * size
        assert found[semconv.SPAN_MEMORY_PEAK] == 3 * size + sizeof(last.result())

        def states() -> dict[str, float]:
            values = received.last(semconv.CLUSTER_MEMORY_USAGE.name)
            return {str(dict(labels)[STATE]): value for labels, value in values.items()}

        def processes() -> float:
            return float(sum(received.last(semconv.WORKER_MEMORY_USAGE.name).values()))

        held = 3 * size + sizeof(last.result())
        assert states()["held"] == held
        eventually(lambda: processes() > held + states()["replica"], what="heartbeats of both")
        answer = dask_otel.held(b.client, "train")
        first = answer.largest[0]
        assert (first.span, first.prefix, first.bytes) == ("train", "load", 3 * size)
        assert [(one.kind, one.name) for one in first.keepers] == [("client", b.client.id)]
        del kept, last
        eventually(lambda: not dask_otel.held(b.client).results, what="nothing is kept")
        eventually(lambda: states()["held"] == 0.0, what="an export without results")
