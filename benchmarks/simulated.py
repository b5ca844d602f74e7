"""A real scheduler with simulated workers: Dask's own objects and code, without processes.

The driver calls what the workers' messages would call (``heartbeat_worker``,
``handle_task_finished``), and the scheduler does all of its work for them.

It is no cluster of the laboratory, whose workers are real: here the instructions, memory and pauses
of the scheduler's process alone are measured, with up to a thousand workers, in real time.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import dask
from dask._task_spec import Task, TaskRef
from distributed import Scheduler
from distributed.comm import get_address_host
from distributed.core import Status
from distributed.metrics import time
from distributed.scheduler import WorkerState

CONFIG = {
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-ttl": None,
    # Simulated workers take any number of tasks.
    "distributed.scheduler.worker-saturation": float("inf"),
}

#: Returns which earlier tasks a task needs, by their numbers in the submission.
Needs: TypeAlias = Callable[[int], Iterable[int]]

ACTIVITIES = ("thread-cpu", "thread-noncpu", "deserialize", "serialize", "executor")


def _without_spans(data: dict[tuple[Hashable, ...], float]) -> dict[tuple[Hashable, ...], float]:
    """Return the sums over all spans, as a worker sends them in its metrics."""
    sums: dict[tuple[Hashable, ...], float] = {}
    for (context, _, *rest), value in data.items():
        key = (context, *rest)
        sums[key] = sums.get(key, 0) + value
    return sums


class _Stream:
    """Where messages to a simulated worker end."""

    def send(self, *messages: Any) -> None:
        """Take messages."""


class SimulatedCluster:
    """A scheduler that believes that it has workers; use it as an asynchronous context manager."""

    def __init__(self, workers: int) -> None:
        self.addresses = [f"tcp://10.{i >> 8}.{i & 255}.1:1234" for i in range(workers)]
        self._numbers = itertools.count()
        self.scheduler: Any = None

    async def __aenter__(self) -> SimulatedCluster:
        with dask.config.set(CONFIG):
            self.scheduler = await Scheduler(
                host="127.0.0.1", port=0, dashboard=False, dashboard_address="127.0.0.1:0"
            )
        for address in self.addresses:
            self.join(address)
        return self

    async def __aexit__(self, *error: object) -> None:
        for address in self.addresses:
            del self.scheduler.stream_comms[address]
        self.scheduler.workers.clear()
        await self.scheduler.close()

    def join(self, address: str) -> None:
        """Let a worker join."""
        scheduler = self.scheduler
        scheduler.workers[address] = ws = WorkerState(
            address=address, status=Status.running, pid=0, nthreads=2, memory_limit=0,
            name=address, local_directory="", services={}, versions={}, nanny="", extra={},
            server_id=address, scheduler=scheduler,
        )  # fmt: skip
        host = get_address_host(address)
        scheduler.host_info[host] = {"addresses": {address}, "nthreads": ws.nthreads}
        scheduler.running.add(ws)
        scheduler.aliases[address] = address
        scheduler.total_nthreads += ws.nthreads
        scheduler.total_nthreads_history.append((time(), scheduler.total_nthreads))
        scheduler.stream_comms[address] = _Stream()
        self.heartbeat(address, {})
        scheduler.check_idle_saturated(ws)

    def heartbeat(self, address: str, data: dict[tuple[Hashable, ...], float]) -> None:
        """Let a worker report; `data` as the spans extension of a worker sends it."""
        self.receive(self.report(address, data))

    def report(self, address: str, data: dict[tuple[Hashable, ...], float]) -> dict[str, Any]:
        """Return the message of a heartbeat."""
        metrics = {
            "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
            "digests_total_since_heartbeat": {
                ("get-data", activity, "seconds"): 0.01 for activity in ACTIVITIES
            }
            | {("gather-dep", "network", "seconds"): 0.01, "latency": 0.001}
            | _without_spans(data),
            "memory": 100_000_000,
            "spilled_bytes": {"memory": 0, "disk": 0},
            "task_counts": {"executing": 1},
            "cpu": 50.0,
        }
        return {"address": address, "metrics": metrics, "extensions": {"spans": data}}

    def receive(self, report: dict[str, Any]) -> None:
        """Let the scheduler receive the message of a heartbeat."""
        # By the handler, as the message would: the bridge observes it there.
        self.scheduler.handlers["heartbeat_worker"](
            **report, resolve_address=False, now=time() - 0.001, executing={}
        )

    def submit(
        self,
        name: tuple[str, ...],
        tasks: int = 1,
        annotations: Mapping[str, Any] = MappingProxyType({}),
        only_on: set[str] | None = None,
        needs: Needs | None = None,
    ) -> list[Any]:
        """Submit tasks in a new span; return their keys.

        `annotations` are those of each, beside its span, `only_on` restricts them to these workers,
        and `needs` tells which tasks one needs.
        """
        scheduler = self.scheduler
        span = {"name": name, "ids": tuple(str(uuid.uuid4()) for _ in name)}
        token = f"{next(self._numbers):032x}"
        keys: list[Any] = [(f"inc-{token}", i) for i in range(tasks)]
        made = []
        for i, key in enumerate(keys):
            before = [keys[number] for number in needs(i)] if needs else ()
            spec = Task(key, int, *map(TaskRef, before))
            ts = scheduler.new_task(key, spec, "released")
            ts.priority = (0, i)
            ts.annotations = {"span": span, **annotations}
            ts.worker_restrictions = only_on
            for one in before:
                ts.add_dependency(scheduler.tasks[one])
            made.append(ts)
        scheduler.extensions["spans"].observe_tasks(made, (), {})
        priority = {ts.key: ts.priority for ts in made}
        for plugin in [*scheduler.plugins.values()]:
            plugin.update_graph(
                scheduler, client="client", keys=keys, tasks=keys, annotations={},
                priority=priority, dependencies={}, stimulus_id="update-graph",
            )  # fmt: skip
        scheduler.transitions(dict.fromkeys(keys, "waiting"), stimulus_id=f"update-graph-{time()}")
        return keys

    def finish(self, keys: Iterable[Hashable], seconds: float = 0.001) -> None:
        """Let the workers report that tasks are done, after so many seconds of computing."""
        now = time()
        for key in keys:
            ts = self.scheduler.tasks[key]
            self.scheduler.handle_task_finished(
                key=key,
                worker=ts.processing_on.address,
                stimulus_id=f"task-finished-{now}",
                run_id=ts.run_id,
                metadata={},
                nbytes=28,
                type=b"",
                typename="int",
                thread=1,
                startstops=[{"action": "compute", "start": now - seconds, "stop": now}],
            )

    def forget_spans(self) -> None:
        """Drop Dask's own memory of all spans, which a scheduler never does."""
        extension = self.scheduler.extensions["spans"]
        for table in ("spans", "root_spans", "spans_search_by_name", "spans_search_by_tag"):
            getattr(extension, table).clear()

    def metered(self, keys: Iterable[Hashable], size: int) -> dict[tuple[Hashable, ...], float]:
        """Return a heartbeat's metrics of the spans of these tasks, with so many keys."""
        spans = list(dict.fromkeys(self.scheduler.tasks[key].group.span_id for key in keys))
        kinds = itertools.product(spans, ACTIVITIES, ("seconds", "count"))
        each = 2 * len(spans) * len(ACTIVITIES)
        chosen = itertools.islice(enumerate(itertools.cycle(kinds)), size)
        return {
            ("execute", span, f"inc{i // each}", activity, unit): 0.01
            for i, (span, activity, unit) in chosen
        }
