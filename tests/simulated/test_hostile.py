"""What a worker and a client send that no worker and no client of Dask would, on real Dask.

What Dask itself does not take is Dask's. A span beside it is exported with its tasks and seconds.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import dask
import pytest
from distributed import span, wait
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_otel.core.context import CARRIER_KEY, DECISION_KEY, STATE_KEY
from dask_otel.core.life.blocks import TOPIC
from dask_otel.lab.cluster import Cluster
from tests.simulated.observed import Simulated
from tests.unit.garbage import hashables, numbers, texts, values

#: A good caller's.
CARRIER = {"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"}
#: Numbers that a message can hold.
SENT = numbers.filter(lambda n: isinstance(n, float) or -(2**63) <= n < 2**64)
METRICS = st.fixed_dictionaries(
    {
        "bandwidth": st.just({"total": 1e8, "workers": {}, "types": {}}),
        "digests_total_since_heartbeat": st.dictionaries(
            texts | st.lists(hashables, min_size=1, max_size=4).map(tuple), SENT, max_size=3
        ).map(lambda digests: {"latency": 0.001, **digests}),
        "memory": SENT,
        "spilled_bytes": st.just({"memory": 0, "disk": 7}) | values,
    },
    optional={
        "task_counts": st.just({"executing": 1}) | values,
        "cpu": st.just(50.0) | values,
        "event_loop_interval": st.just(0.02) | values,
    },
)
SPANS = st.dictionaries(st.lists(hashables, max_size=4).map(tuple), SENT, max_size=3)
BEATS = st.lists(st.tuples(st.none() | SENT, METRICS, SPANS, SENT), max_size=3)
EVENTS = st.tuples(
    st.sampled_from([TOPIC, "stealing", "scheduler"]) | texts,
    st.lists(values, max_size=5).map(lambda more: ("confirm", *more))
    | st.fixed_dictionaries({"action": st.just("update-graph"), "status": values})
    | st.fixed_dictionaries({"client": hashables, "blocks": values, "attributes": values})
    | values,
)
ENDS = st.tuples(st.none() | SENT, st.none() | SENT, texts | SENT.map(str))
ANNOTATIONS = st.fixed_dictionaries(
    {CARRIER_KEY: st.none() | st.just(CARRIER) | values},
    optional={DECISION_KEY: values, STATE_KEY: values},
)


class Beside(Simulated):
    """A cluster with a worker whose numbers neither Dask nor the truth has."""

    async def _finish(self, cluster: Cluster) -> None:
        del self.client
        self._watching.cancel()
        await self.at_rest()
        self.check()
        await self.observer.close()


# Each is a cluster.
@settings(max_examples=6)
@given(
    st.lists(hashables, min_size=1, max_size=3),
    ANNOTATIONS,
    BEATS,
    st.lists(EVENTS, max_size=2),
    ENDS,
)
def test_who_does_it_right_loses_nothing(
    tags: list[Any], annotations: dict[str, Any], beats: Any, events: Any, ends: Any
) -> None:
    o = Beside()

    def program() -> None:
        with span("good"), dask.annotate(**{CARRIER_KEY: CARRIER}):
            good = o.client.map(time.sleep, [1.4, 1.5], workers="w0", key="good")
        ids = [str(number) for number in range(len(tags))]
        with dask.annotate(span={"name": tuple(tags), "ids": tuple(ids)}, **annotations):
            other = o.client.submit(time.sleep, 1.0, workers="w1", key="other-1")
        time.sleep(0.5)
        bad, task = o.cluster.workers["w1"].address, o.scheduler.tasks[other.key]
        for when, metrics, reported, runs in beats:
            of_span = {("execute", task.group.span_id, *key): n for key, n in reported.items()}
            # What Dask does not take of it is Dask's.
            with suppress(Exception):
                o.scheduler.handlers["heartbeat_worker"](
                    address=bad, resolve_address=False, metrics=metrics,
                    now=time.time() if when is None else when,
                    executing={other.key: runs}, extensions={"spans": of_span},
                )  # fmt: skip
        for topic, message in events:
            o.adapter.log_event(topic, message)
        start, stop, said = (time.time() if one is None else one for one in ends)
        with suppress(Exception):
            o.scheduler.handle_task_finished(
                key=other.key, worker=bad, stimulus_id=f"task-finished-{said}", run_id=task.run_id,
                metadata={}, nbytes=28, type=b"", typename="int", thread=1,
                startstops=[{"action": "compute", "start": start, "stop": stop}],
            )  # fmt: skip
        wait(good)
        other.cancel()

    o.run(program)
    good = o.named("good")
    assert good.counts.tasks == 2
    # Asleep; what Dask does beside it takes no simulated time.
    assert sum(good.activities.values()) == pytest.approx(2.9)
