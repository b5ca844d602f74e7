"""A real cluster whose bridge sends to real servers, and what Dask itself says of the same work."""

from __future__ import annotations

import math
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
from distributed import Client, span

from dask_otel.core.context import CARRIER_KEY
from tests.cluster import processes
from tests.cluster.tasks import double, fail
from tests.cluster.truth import described_spans, own_values, text_keys
from tests.waiting import eventually

from .clients import PrometheusClient
from .prometheus_names import fine_metrics

#: Seconds between two exports.
INTERVAL = 1.0
#: Everything above 30 MB of a worker goes to disk, whether the worker's own bookkeeping or its
#: memory monitor sees it first.
SPILLING = {
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "0.03",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "0.05",
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",
}


class Run(SimpleNamespace):
    """What one cluster did, and where its telemetry went; see `new_run`."""

    def selector(self, name: str, **labels: str) -> str:
        """A selector of this cluster's series of a metric."""
        wanted = {"dask_cluster_name": self.name, **labels}
        matchers = ", ".join(f'{key}="{value}"' for key, value in wanted.items())
        return f"{name}{{{matchers}}}"

    def fine_metrics(self) -> dict[tuple[Any, ...], float]:
        """The fine metrics in Prometheus, with the keys of `values`."""
        own = f', instance="{self.instance}"' if self.instance else ""
        every = self.prometheus.query(
            f'{{__name__=~"dask_span_.+_total", dask_cluster_name="{self.name}"{own}}}',
            self.at or None,
        )
        return fine_metrics({(one.name, *one.labels.items()): one.value for one in every})

    def query(self, name: str, **labels: str) -> list[Any]:
        """The scheduler's series of a metric at `at`; the cluster's, now, before it is known."""
        own = {"instance": self.instance} if self.instance else {}
        return self.prometheus.query(self.selector(name, **own, **labels), self.at or None)

    def await_export(self) -> None:
        """Wait for the next export, which has all values: its time is the one to ask at."""
        selector = self.selector("dask_otel_running", instance=self.instance)
        seen = self.prometheus.value(f"timestamp({selector})")

        def later() -> float | None:
            now = self.prometheus.value(f"timestamp({selector})")
            return now if now > seen else None

        self.at = eventually(later, what="another export")


#: Dask's contexts that belong to no span, as Prometheus has them.
CONTEXTS = {
    "gather-dep": ("dask_cluster_transfer", {"network_io_direction": "receive"}),
    "get-data": ("dask_cluster_transfer", {"network_io_direction": "transmit"}),
    "memory-monitor": ("dask_cluster_spill", {}),
}


def cluster_values(dask_scheduler: Any) -> dict[tuple[str, ...], float]:
    """Dask's fine metrics of `CONTEXTS`. Runs on the scheduler."""
    return {
        key: value
        for key, value in dask_scheduler.cumulative_worker_metrics.items()
        if isinstance(key, tuple) and key[0] in ("gather-dep", "get-data", "memory-monitor")
    }


def spin(x: int) -> int:
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        x += 1
    return x


def meter(x: int) -> int:
    from distributed.metrics import context_meter

    context_meter.digest_metric("rows", 7, "records")
    return x


def block(_: int) -> bytes:
    return b"x" * 8_000_000


def fail_once(folder: str) -> str:
    """Fail in the first call and not in the second."""
    marker = Path(folder) / uuid.uuid5(uuid.NAMESPACE_OID, "fail_once").hex
    if not marker.exists():
        marker.touch()
        raise OSError("not yet")
    return "now"


def work(client: Client, folder: Path) -> dict[str, str]:
    """Run spans of every kind; return the ids of some."""
    ids = {}
    with span("nightly") as ids["nightly"]:
        with span("load") as ids["load"]:
            loaded = client.map(double, range(20))
            client.gather(loaded)
        with span("compute") as ids["compute"]:
            client.gather(client.map(spin, range(4)))
        with span("meter") as ids["meter"]:
            client.gather(client.map(meter, range(4)))
        with span("spill") as ids["spill"]:
            blocks = client.map(block, range(16), pure=False)
            client.gather(client.map(len, blocks))
        with span("shuffle") as ids["shuffle"]:
            assert _shuffle(client) == 1000
        with span("again") as ids["again"]:
            client.submit(fail_once, str(folder), retries=2).result()
    with span("broken") as ids["broken"]:
        assert isinstance(client.submit(fail, 1).exception(), KeyError)
    # Dask's default span, for which a caller is a link.
    with dask.annotate(**{CARRIER_KEY: {"traceparent": f"00-{1:032x}-{1:016x}-01"}}):
        assert client.submit(abs, -5).result() == 5
    return ids


def _shuffle(client: Client) -> int:
    import dask.config
    import dask.dataframe as dd
    import pandas as pd

    data = pd.DataFrame({"a": range(1000), "b": range(1000)})
    with dask.config.set({"dataframe.shuffle.method": "p2p"}), warnings.catch_warnings():
        # Dataframes warn of any annotation; that of the span is not lost, compute() sends it.
        warnings.filterwarnings("ignore", "Dask annotations")
        return len(client.compute(dd.from_pandas(data, npartitions=4).shuffle("a")).result())


@contextmanager
def scheduler(
    dask: processes.Cluster, name: str, environment: Mapping[str, str]
) -> Iterator[processes.Process]:
    """A scheduler with the bridge and two workers; the scheduler ends as an operator ends it."""
    process = dask.start_scheduler(
        "--preload",
        "dask_otel.preload",
        env={
            "OTEL_METRIC_EXPORT_INTERVAL": str(int(INTERVAL * 1000)),
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "DASK_OTEL__SPANS__LINGER": "300ms",
            "DASK_OTEL__CLUSTER_NAME": name,
            "OTEL_RESOURCE_ATTRIBUTES": "service.namespace=research,team=blue,"
            "k8s.namespace.name=dask,k8s.pod.name=scheduler-0",
            **environment,
        },
    )
    for worker in "ab":
        dask.start_worker(worker, "--memory-limit", "1GB", env=SPILLING)
    yield process
    assert process.terminate() == 0


def new_run(prometheus: PrometheusClient, name: str = "") -> Run:
    """A run that is about to begin; by default on a cluster of its own."""
    return Run(
        prometheus=prometheus,
        name=name or f"cluster-{uuid.uuid4().hex[:12]}",
        # Ids of Dask spans by a short name, as the client got them.
        ids={},
        # See `own_values` (names as text) and `described_spans`.
        values={},
        spans={},
        # ``Scheduler.cumulative_worker_metrics`` of the contexts that belong to no span.
        cluster_values={},
        instance="",
        # Time of a sample that has all of this: queries at it need no extrapolation.
        at=0.0,
        started=time.time(),
    )


def observe(run: Run, address: str, folder: Path) -> None:
    """Run `work` on a running cluster; fill `run` once Prometheus has all of it."""
    with Client(address) as client:
        client.wait_for_workers(2)
        run.ids = work(client, folder)
        run.instance = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.id)

        def settled() -> bool:
            truth = text_keys(client.run_on_scheduler(own_values))
            run.spans = client.run_on_scheduler(described_spans)
            found = run.fine_metrics()
            assert found.keys() == truth.keys(), found.keys() ^ truth.keys()
            # The same floats, added in another order.
            different = {
                key: (found[key], value)
                for key, value in truth.items()
                if not math.isclose(found[key], value, rel_tol=1e-12)
            }
            assert not different, different
            run.values = truth
            ended = sum(one.value for one in run.query("dask_span_duration_seconds_count"))
            assert ended == len(run.spans)
            return True

        eventually(settled, what="Prometheus has everything")
        run.cluster_values = client.run_on_scheduler(cluster_values)
        run.await_export()
