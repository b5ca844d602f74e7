"""The cluster and its workers: capacity, memory, network, event loops."""

from __future__ import annotations

from typing import Any

from .limits import limit
from .meanings import BAD
from .parts import Details, Line, graph, line, page
from .queries import CLUSTER, folded, rates, selector

#: From which share of its limit on Dask spills, pauses and restarts a worker, as it is configured
#: by default (distributed.worker.memory).
MEMORY = [(0.6, "yellow"), (0.8, "orange"), (0.95, BAD)]
#: States of tasks with work left to do.
TO_DO = 'dask_task_state=~"waiting|no-worker|queued|processing"'


def by_worker(metric: str, how: str = "sum") -> tuple[str, str]:
    """Of all workers of one name: several clusters can have one. Shares have no sum."""
    return f"{how} by (dask_worker_name) ({metric}{{{CLUSTER}}})", "{{dask_worker_name}}"


def total(metric: str) -> str:
    return f"sum({metric}{{{CLUSTER}}})"


_CAPACITY = line(
    graph(
        "How large is the cluster?",
        "Workers and threads, as the scheduler counts them.",
        (total("dask_cluster_worker_count"), "workers"),
        (total("dask_cluster_thread_count"), "threads"),
        width=8,
        decimals=None,
    ),
    graph(
        "What is there to do?",
        "Tasks that are not done, by state. Many waiting or queued: the cluster is the "
        "limit. Many processing and idle threads: the workers are, or the network.",
        (
            f"sum by (dask_task_state) (dask_cluster_task_count{{{CLUSTER}, {TO_DO}}})",
            "{{dask_task_state}}",
        ),
        width=8,
        stacked=True,
        decimals=None,
    ),
    graph(
        "Are threads idle, unused or lost?",
        "idle: there is work and none of it can run. unused: there is none. lost: the worker "
        "died, or was closed, before it reported.",
        (
            rates(
                selector(
                    "dask_cluster_time_seconds_total",
                    CLUSTER,
                    'dask_activity=~"idle|unused|lost"',
                ),
                "dask_activity",
            ),
            "{{dask_activity}}",
        ),
        unit="suffix:threads",
        width=8,
        stacked=True,
    ),
    height=9,
)


_CHURN = line(
    graph(
        "How often does the number of workers change?",
        "Changes within the hour before, as the alert DaskWorkerChurn counts them in half of "
        "one. Changes alone are no fault: they are normal for adaptive clusters.",
        (
            f"sum by (dask_cluster_name) (changes(dask_cluster_worker_count{{{CLUSTER}}}[1h]))",
            "{{dask_cluster_name}}",
        ),
        decimals=None,
        empty="no cluster in the shown time",
    ).runbook("DaskWorkerChurn"),
    graph(
        "Which tasks were repeated, and why?",
        "Runs for each second: repeated because of lost workers (worker_lost, recomputed), "
        "and errors with retries left. rescheduled is no error: the task asked for it.",
        (
            rates(selector("dask_task_retried_total", CLUSTER), "dask_task_retry_reason"),
            "{{dask_task_retry_reason}}",
        ),
        unit="ops",
        empty="no task was repeated in the shown time",
    ),
    height=9,
)


_MEMORY: list[Line] = [
    line(
        graph(
            "How full is each worker's memory?",
            "Memory of the worker's process over its limit. Dask spills from 60 %, pauses at "
            "80 % and restarts at 95 %, unless configured otherwise: the three lines.",
            (
                f"sum by (dask_worker_name) (dask_worker_memory_usage_bytes{{{CLUSTER}}}) / "
                "(sum by (dask_worker_name) "
                f"(dask_worker_memory_limit_bytes{{{CLUSTER}}}) > 0)",
                "{{dask_worker_name}}",
            ),
            unit="percentunit",
            decimals=1,
            lines=MEMORY,
            empty="no worker has a limit of its memory",
        ),
        graph(
            "What is in it?",
            "Dask's data in memory (managed), on disk (spilled), and all memory of the "
            "processes. Much more than managed: leaks, or memory that the allocator keeps.",
            (total("dask_worker_memory_usage_bytes"), "processes"),
            (total("dask_worker_memory_managed_bytes"), "managed"),
            (total("dask_worker_memory_spilled_bytes"), "spilled"),
            unit="bytes",
            meant=True,
        ),
        height=9,
    ),
    line(
        graph(
            "Whose is it?",
            "Memory of the processes and spilled data: results of spans (held), data without a "
            "span (scattered), copies of both (replica), and the rest of the processes. The "
            "dashboards Overview and Span have the results by function.",
            (
                f"sum by (dask_memory_state) (dask_cluster_memory_usage_bytes{{{CLUSTER}}})",
                "{{dask_memory_state}}",
            ),
            (total("dask_cluster_memory_spilled_bytes"), "(on disk)"),
            unit="bytes",
            stacked=True,
            outline="(on disk)",
            width=24,
        ),
        height=9,
    ),
    line(
        graph(
            "How much is on disk?",
            "Dask's data that does not fit into memory.",
            (total("dask_cluster_spill_size_bytes"), "on disk"),
            unit="bytes",
            meant=True,
        ),
        graph(
            "What does the memory monitor spill?",
            "Seconds for each second that workers spill beside their tasks. The dashboard "
            "Overview has the spilling that tasks wait for.",
            *folded("dask_cluster_spill_time_seconds_total", CLUSTER),
            unit="suffix:threads",
            stacked=True,
            empty="the memory monitor has spilled nothing in the shown time",
        ),
        height=9,
    ),
]


def _transport() -> list[Line]:
    alert = "DaskEventLoopBlocked"
    blocked = "dask_event_loop_blocked_time_seconds_total"
    worker = selector(blocked, CLUSTER, 'dask_process_role="worker"')
    scheduler = selector(blocked, CLUSTER, 'dask_process_role="scheduler"')
    return [
        line(
            graph(
                "How much goes over the network?",
                "Bytes that workers receive and send. Compare them with the network's limit.",
                (
                    rates(
                        selector("dask_cluster_transfer_io_bytes_total", CLUSTER),
                        "network_io_direction",
                    ),
                    "{{network_io_direction}}",
                ),
                unit="Bps",
                width=8,
            ),
            graph(
                "What does moving data cost?",
                "Seconds for each second of sending and receiving, by activity. It runs beside the "
                "tasks.",
                *folded("dask_cluster_transfer_time_seconds_total", CLUSTER),
                unit="suffix:threads",
                width=8,
                stacked=True,
                empty="workers have exchanged nothing in the shown time",
            ),
            graph(
                "Are event loops blocked?",
                "Share of the time for which the loop was late: of the scheduler, and of a worker "
                "on average. Above the line, the limit of the alert, heartbeats and transfers "
                "wait.",
                (f"sum(rate({scheduler}[$__rate_interval]))", "scheduler"),
                (
                    f"sum(rate({worker}[$__rate_interval]))"
                    f" / (sum(dask_cluster_worker_count{{{CLUSTER}}}) > 0)",
                    "a worker on average",
                ),
                unit="percentunit",
                decimals=1,
                width=8,
                lines=[(limit(alert), BAD)],
            ).runbook(alert),
            height=9,
        ),
    ]


_GPUS = (
    line(
        graph(
            "Are the GPUs busy?",
            "Share of the time in which the first GPU of each worker ran anything.",
            by_worker("hw_gpu_utilization_ratio", "max"),
            unit="percentunit",
            decimals=1,
            width=8,
            empty="no worker reports a GPU",
        ),
        graph(
            "How full are the GPUs?",
            "Used memory of the whole GPU over its size. Workers that share a GPU have a line "
            "each.",
            (
                f"sum by (dask_worker_name) (hw_gpu_memory_usage_bytes{{{CLUSTER}}}) / "
                f"(sum by (dask_worker_name) (hw_gpu_memory_limit_bytes{{{CLUSTER}}}) > 0)",
                "{{dask_worker_name}}",
            ),
            unit="percentunit",
            decimals=1,
            width=8,
            empty="no worker reports a GPU",
        ),
        graph(
            "What is in the GPUs' memory?",
            "Of all workers: what RMM has allocated and reserved for them, and what cuDF has moved "
            "to the host. Allocated near reserved, and more on the host: the GPUs are too small.",
            (total("dask_worker_rmm_usage_bytes"), "allocated"),
            (total("dask_worker_rmm_size_bytes"), "reserved"),
            (total("dask_worker_cudf_spilled_bytes"), "moved to the host"),
            unit="bytes",
            width=8,
            empty="no worker reports RMM or cuDF",
        ),
        height=9,
    ),
)


_DETAILS = (
    line(
        graph(
            "Do the threads use the CPU?",
            "CPU of each worker's process per thread. Low and busy: I/O, sleep or the GIL.",
            by_worker("dask_worker_cpu_utilization_ratio", "max"),
            unit="percentunit",
            decimals=1,
        ),
        graph(
            "Is the work spread evenly?",
            "Seconds of work that the scheduler expects for each worker.",
            by_worker("dask_worker_occupancy_seconds"),
            unit="s",
        ),
        height=9,
    ),
    line(
        graph(
            "Which tasks are on the workers?",
            "processing: assigned; executing: running now.",
            (
                f"sum by (dask_worker_name, dask_task_state) (dask_worker_task_count{{{CLUSTER}}})",
                "{{dask_worker_name}}: {{dask_task_state}}",
            ),
            decimals=None,
        ),
        graph(
            "How many threads has each worker?",
            "Workers with different numbers of threads share work by their threads.",
            by_worker("dask_worker_thread_count"),
            decimals=None,
        ),
        height=9,
    ),
    line(
        graph(
            "When was each worker last heard of?",
            "Heartbeats come every 0.5 s to some seconds, depending on the size of the "
            "cluster. A rising line is a worker that hangs or is gone.",
            (
                f"max by (dask_worker_name) (dask_worker_last_seen_age_seconds{{{CLUSTER}}})",
                "{{dask_worker_name}}",
            ),
            unit="s",
        ),
        graph(
            "What is not yet settled?",
            "Thread-time of tasks that run or have not been reported: in flight.",
            (total("dask_cluster_inflight_time_seconds"), "in flight"),
            unit="s",
            width=6,
        ),
        graph(
            "What was beyond capacity?",
            "Seconds booked for each second beyond the threads there were: seceded tasks, "
            "overlap, users' own metering.",
            (
                f"sum(rate(dask_cluster_excess_time_seconds_total{{{CLUSTER}}}[$__rate_interval]))",
                "excess",
            ),
            unit="suffix:threads",
            width=6,
        ),
        height=9,
    ),
)


PAGE: Any = page(
    "Dask / Cluster and workers",
    "What the cluster has, and how its workers are",
    ["cluster"],
    [
        "Is there enough to do, and enough to do it with?",
        _CAPACITY,
        "Do workers come and go?",
        _CHURN,
        "Memory and disk",
        *_MEMORY,
        "Network and event loops",
        *_transport(),
        Details("GPUs, where workers report them", _GPUS),
        Details("Worker by worker, and time in flight or in excess", _DETAILS),
    ],
)
