"""What workers and clients send, through Dask's own scheduler and the bridge's side of it.

A real scheduler with two workers that are not there: one sends what it should, and the other
anything. What Dask itself does not take is left to Dask.
"""

from __future__ import annotations

import asyncio
import traceback
from contextlib import suppress
from typing import Any, Final

from benchmarks.simulated import Observer, SimulatedCluster
from distributed.metrics import time

from dask_otel.core.context import CARRIER_KEY, DECISION_KEY, STATE_KEY, parse_traceparent
from dask_otel.core.life.blocks import TOPIC
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.traces.translate import translate
from fuzz.checks import T_NS, Exports, check, check_span
from fuzz.data import Data

#: A good caller's.
_CARRIER: Final = {"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"}


def _number(data: Data) -> Any:
    """Return a number as messages can hold it."""
    value = data.number()
    return value if isinstance(value, float) or -(2**63) <= value < 2**64 else 1.0


def _time(data: Data, now: float) -> float:
    return now if data.flag() else float(_number(data))


def _metrics(data: Data) -> dict[str, Any]:
    """Return a worker's report of itself; Dask needs some of it to be numbers."""
    digests = {
        (data.key(1), *data.many(lambda: data.key(1), 3)) if data.flag() else data.text(): _number(
            data
        )
        for _ in range(data.integer(0, 3))
    }
    found: dict[str, Any] = {
        "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
        "digests_total_since_heartbeat": {**digests, "latency": data.choice((0.001, "a", None))},
        "memory": data.choice((100, _number(data))),
        "spilled_bytes": {"memory": 0, "disk": data.choice((0, _number(data), data.plain(1)))},
        "task_counts": data.choice(({"executing": 1}, data.plain(2))),
        "cpu": data.choice((50.0, data.plain(1))),
        "event_loop_interval": data.choice((0.02, data.plain(1))),
    }
    for name in ("task_counts", "cpu", "event_loop_interval"):
        if data.integer(0, 5) == 5:
            del found[name]
    return found


def _message(data: Data, keys: list[Any], worker: str) -> tuple[str, Any]:
    """Return a topic and a message; any client can send them."""
    topic = data.choice((TOPIC, "stealing", "scheduler", data.text()))
    some = (*keys, worker, data.key(1), data.value(1))
    stolen = ("confirm", *(data.choice(some) for _ in range(data.integer(0, 5))))
    failed = {"action": data.choice(("update-graph", data.key(1))), "status": data.value(1)}
    blocks = {"client": data.key(1), "blocks": data.value(), "attributes": data.value()}
    return topic, data.choice((data.value(), stolen, failed, blocks))


def _finish(data: Data, cluster: SimulatedCluster, keys: list[Any]) -> None:
    """Let the workers report that tasks are done, at any time."""
    for key in keys:
        task = cluster.scheduler.tasks.get(key)
        if task is None or task.processing_on is None:
            continue
        now = time()
        start, stop = _time(data, now - 0.001), _time(data, now)
        said = data.choice((str(now), str(_number(data)), data.text()))
        # What Dask itself does not take of them is Dask's.
        with suppress(Exception):
            cluster.report_finished(key, start, stop, f"task-finished-{said}")


async def _run(data: Data) -> None:
    async with SimulatedCluster(2) as cluster:
        _drive(data, cluster)


def _drive(data: Data, cluster: SimulatedCluster) -> None:
    observer: Any = Observer(cluster)
    adapter = observer.adapter
    swallowed: list[str] = []
    observer.boundary.failed = lambda kind: swallowed.append(f"{kind}: {traceback.format_exc()}")
    scheduler = cluster.scheduler
    exports = Exports(MetricState(T_NS))
    bad, good = cluster.addresses

    def annotations() -> dict[str, Any]:
        found = {CARRIER_KEY: data.choice((None, _CARRIER, data.value(1)))}
        if data.flag():
            found |= {DECISION_KEY: data.value(1), STATE_KEY: data.value(1)}
        return found

    mine = cluster.submit_annotated(("good",), [{CARRIER_KEY: _CARRIER}, annotations()])
    tags = tuple(data.many(lambda: data.key(1), 3)) or ("bad",)
    theirs = cluster.submit_annotated(tags, [annotations() for _ in range(data.integer(1, 3))])
    for key in (*mine, *theirs):
        decision = (scheduler.tasks[key].annotations or {}).get(DECISION_KEY)
        # None: the worker computes it.
        known = decision is None or parse_traceparent(decision) is not None
        check(known, "each task gets a valid context or none", decision)
    spans = {key: scheduler.tasks[key].group.span_id for key in (*mine, *theirs)}
    metered = {("execute", spans[mine[0]], "inc", "thread-cpu", "seconds"): 1.5}
    for _ in range(2):
        for _ in range(data.integer(0, 3)):
            reported = {
                ("execute", spans[theirs[0]], *data.many(lambda: data.key(1), 4)): _number(data)
                for _ in range(data.integer(0, 3))
            }
            executing = {data.choice((*mine, *theirs, "x")): _number(data)}
            with suppress(Exception):
                scheduler.handlers["heartbeat_worker"](
                    address=bad,
                    resolve_address=False,
                    now=_time(data, time()),
                    metrics=_metrics(data),
                    executing=data.choice(({}, executing)),
                    extensions={"spans": reported},
                )
            adapter.log_event(*_message(data, [*mine, *theirs], good))
        cluster.heartbeat(good, metered)
        adapter.tick(time())
        exports.check(adapter.swap(exports.time_ns))
    _finish(data, cluster, theirs)
    cluster.finish(mine)
    cluster.heartbeat(good, {})
    with suppress(Exception):
        cluster.heartbeat(bad, {})
    adapter.close(time())
    finished = adapter.take_finished()
    done = [span for span in finished if span.identity.tags == ("good",)]
    check(len(done) == 1, "a good span ends once", done)
    check(done[0].counts.tasks == 2, "its tasks are counted", done[0].counts)
    for span in finished:
        for record in translate(span):
            check_span(record)
    adapter.detach()
    check(not swallowed, "nothing is raised", *swallowed)


def cluster(data: Data) -> None:
    """What clients and workers send, through a real scheduler, beside those who do it right."""
    asyncio.run(_run(data))
