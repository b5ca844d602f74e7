"""The bridge's own data in a real Prometheus, against what Dask says of the same work."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed import __version__ as distributed_version

from dask_otel import semconv
from dask_otel.core import identity
from tests.cluster import processes
from tests.waiting import eventually

from . import prometheus_names
from .bridge_run import CONTEXTS, Run, new_run, observe, scheduler
from .clients import spans_of_file
from .servers import Running

pytestmark = [pytest.mark.backend, pytest.mark.cluster]

#: Metrics that only exist once something went wrong or was too much.
EXCEPTIONAL = {
    "dask.otel.dropped",
    "dask.otel.folded",
    "dask.otel.sanitized",
    "dask.otel.internal.errors",
    "dask.span.collided",
    "dask.task.lost",
}
#: Metrics of workers with a GPU, which these have not: see `tests/simulated/test_gpu.py`.
GPU = {"dask.worker.rmm.usage", "dask.worker.rmm.size", "dask.worker.cudf.spilled"} | {
    name for name in semconv.METRICS if name.startswith("hw.gpu.")
}
#: Metrics of a spool, which these schedulers do not have.
SPOOL = {"dask.otel.spool.size", "dask.otel.spool.usage", "dask.otel.spool.limit"}
#: Metrics that exist once a worker's report came late, as on a busy machine: rare, but no fault.
TIMING = {"dask.otel.late", "dask.otel.unsettled"}
RESOURCE_LABELS = {
    "job", "instance", "dask_cluster_name", "service_namespace", "service_version",
    "deployment_environment_name", "k8s_namespace_name",
}  # fmt: skip
#: Spans by the name that `work` gives them.
SPAN_NAMES = {
    "nightly/load", "nightly/compute", "nightly/meter", "nightly/spill", "nightly/shuffle",
    "nightly/again", "nightly", "broken", "default",
}  # fmt: skip


def test_every_metric_is_there_by_its_name_with_its_labels(bridge_run: Run) -> None:
    everything = bridge_run.prometheus.query(
        bridge_run.selector("", __name__="~").replace('="~"', '=~"dask_.+"'), bridge_run.at
    )
    found: dict[str, set[str]] = {}
    for series in everything:
        if series.labels.get("dask_otel_reason") == "unsupported":
            # These endpoints take no log records.
            continue
        found.setdefault(series.name, set()).update(series.labels.keys() - RESOURCE_LABELS)
    expected = {
        name: prometheus_names.labels(metric) - (set() if name.endswith("_bucket") else {"le"})
        for metric in semconv.METRICS.values()
        if metric.name not in EXCEPTIONAL | SPOOL | GPU
        for name in prometheus_names.names(metric)
        if metric.name not in TIMING or name in found
    }
    assert found == expected


def test_fine_metrics_are_dasks_own(bridge_run: Run) -> None:
    """Each was compared in `observe`: these are among them."""
    assert {key[1] for key in bridge_run.values} == {"execute", "p2p"}
    activities = {key[3] for key in bridge_run.values}
    assert activities >= {"thread-cpu", "thread-noncpu", "disk-read", "memory-read", "failed"}


def test_transfer_and_spilling_outside_of_tasks_are_dasks_own(bridge_run: Run) -> None:
    found = {}
    for context, (name, labels) in CONTEXTS.items():
        for unit, suffix in prometheus_names.SUFFIXES.items():
            for one in bridge_run.query(f"{name}_{suffix}_total", **labels):
                found[context, one.labels["dask_activity"], unit] = one.value
    assert (found, {key[0] for key in found}) == (bridge_run.cluster_values, set(CONTEXTS))


def test_every_span_is_counted_once_with_its_result(bridge_run: Run) -> None:
    bounds = bridge_run.query("dask_span_duration_seconds_bucket", dask_span_name="broken")
    expected = [*semconv.DURATION_BOUNDS, float("inf")]
    assert sorted(float(one.labels["le"]) for one in bounds) == expected
    ended = bridge_run.query("dask_span_duration_seconds_count")
    assert {one.labels["dask_span_name"] for one in ended} == SPAN_NAMES
    (broken,) = bridge_run.query("dask_span_duration_seconds_count", dask_span_name="broken")
    assert broken.labels["dask_span_result"] == "failure"


def test_the_cluster_is_described(bridge_run: Run) -> None:
    wanted = {
        "dask_cluster_worker_count": {2},
        "dask_cluster_thread_count": {4},
        "dask_otel_running": {1},
        # Spans and log records have a queue each.
        "dask_otel_queue_capacity": {2048},
    }
    assert {name: {one.value for one in bridge_run.query(name)} for name in wanted} == wanted


def check_resource(run: Run, **more: str) -> None:
    """The resource attributes that Prometheus promotes to labels, and those in `target_info`."""
    (running,) = run.query("dask_otel_running")
    assert running.labels == {
        "dask_cluster_name": run.name,
        "service_namespace": "research",
        "service_version": distributed_version,
        "k8s_namespace_name": "dask",
        "job": "research/dask-scheduler",
        "instance": run.instance,
        **more,
    }
    (target,) = run.query("target_info")
    # Those that Prometheus does not promote.
    assert (target.labels["team"], target.labels["k8s_pod_name"]) == ("blue", "scheduler-0")


def test_the_resource_is_promoted_or_in_target_info(bridge_run: Run) -> None:
    check_resource(bridge_run)


def test_exemplars_lead_to_exported_spans(bridge_run: Run, sink: Running) -> None:
    exported = {
        (f"{one.trace_id:032x}", f"{one.span_id:016x}") for one in spans_of_file(sink.files[0])
    }
    trace_id = f"{identity.trace_id(bridge_run.ids['nightly']):032x}"
    expected = {(trace_id, f"{identity.span_id(bridge_run.ids['compute']):016x}")}
    for name in ("dask_span_execute_time_seconds_total", "dask_span_duration_seconds_bucket"):
        selector = bridge_run.selector(name, dask_span_name="nightly/compute")
        between = (bridge_run.started, bridge_run.at + 60)
        assert bridge_run.prometheus.exemplars(selector, *between) == expected <= exported, name


def test_increase_sees_the_first_value(bridge_run: Run) -> None:
    name = "dask_span_execute_time_seconds_total"
    increase = f"increase({bridge_run.selector(name)}[10m])"
    found = {
        (one.labels["dask_span_name"], "execute", one.labels["dask_task_prefix"],
         one.labels["dask_activity"], "seconds"): one.value
        for one in bridge_run.prometheus.query(increase, bridge_run.at)
    }  # fmt: skip
    truth = {k: v for k, v in bridge_run.values.items() if k[1] == "execute" and k[4] == "seconds"}
    # The range ends at the last sample and each series starts at 0: nothing to extrapolate.
    assert found == pytest.approx(truth)


def test_a_clean_end_is_told(bridge_run: Run) -> None:
    def last() -> float:
        own = bridge_run.selector("dask_otel_running", instance=bridge_run.instance)
        return bridge_run.prometheus.value(f"last_over_time({own}[10m])")

    eventually(lambda: last() == 0, what="the last export says that the bridge ended")


def test_increase_is_right_across_a_scheduler_restart(
    bridge_run: Run, collector: Running, tmp_path: Path
) -> None:
    """The next scheduler of the cluster sends through the Collector, by gRPC."""
    first, second = bridge_run, new_run(bridge_run.prometheus, bridge_run.name)
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc}
    with processes.cluster(tmp_path) as dask, scheduler(dask, second.name, environment):
        observe(second, dask.address, tmp_path)
    runs, client, name = (first, second), second.prometheus, second.name
    assert first.instance != second.instance
    # What only the Collector knows.
    check_resource(second, deployment_environment_name="staging")

    metric = "dask_span_execute_time_seconds_total"
    truth = sum(
        value for run in runs for key, value in run.values.items()
        if key[1] == "execute" and key[4] == "seconds"
    )  # fmt: skip
    by_cluster = f"sum(increase({metric}{{dask_cluster_name='{name}'}}[10m]))"
    # Up to the last export of the second scheduler. The first one's series have ended before: up
    # to half an interval of theirs is extrapolated.
    assert truth * (1 - 1e-9) <= client.value(by_cluster, second.at) <= truth * 1.1
    # On the way, too: what Prometheus extrapolates for a series of two samples is half of it.
    (steps,) = client.query_range(by_cluster, first.started, second.at, 1.0)
    assert all(0 <= value <= truth * 1.5 for _, value in steps.points)
    # With what each scheduler had at its end there is nothing to extrapolate.
    last = f"sum(last_over_time({metric}{{dask_cluster_name='{name}'}}[10m]))"
    assert client.value(last, second.at) == pytest.approx(truth)
    finished = f"sum(increase(dask_task_finished_total{{dask_cluster_name='{name}'}}[10m]))"
    assert client.value(finished, second.at) >= 2 * 20
