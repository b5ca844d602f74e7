"""The cluster and its workers: capacity, memory, network, event loops."""

from __future__ import annotations

from typing import Any

from .parts import CLUSTER, cluster, graph, page


def by_worker(metric: str) -> tuple[str, str]:
    return f"sum by (dask_worker_name) ({metric}{{{CLUSTER}}})", "{{dask_worker_name}}"


def rate(metric: str, by: str, matchers: str = CLUSTER) -> str:
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[$__rate_interval]))"


def total(metric: str) -> str:
    return f"sum({metric}{{{CLUSTER}}})"


def build() -> Any:
    return page(
        "Dask / Cluster and workers",
        "dask-otel-workers",
        "What the cluster has, and how its workers are",
        [cluster()],
        [
            "Capacity and work",
            *_capacity(),
            "Workers",
            *_workers(),
            "Disk, network, event loops",
            *_transport(),
        ],
    )


def _capacity() -> list[Any]:
    return [
        graph(
            "How large is the cluster?",
            "Workers and threads, as the scheduler counts them.",
            (total("dask_cluster_worker_count"), "workers"),
            (total("dask_cluster_thread_count"), "threads"),
        ),
        graph(
            "What is there to do?",
            "Tasks that the scheduler knows, by state. Many waiting or queued: the cluster is the "
            "limit. Many processing and idle threads: the workers are, or the network.",
            (
                f"sum by (dask_task_state) (dask_cluster_task_count{{{CLUSTER}}})",
                "{{dask_task_state}}",
            ),
            stacked=True,
        ),
        graph(
            "How many threads are idle, unused or lost?",
            "idle: there is work and none of it can run. unused: there is none. lost: the worker "
            "died before it reported.",
            (
                rate(
                    "dask_cluster_time_seconds_total",
                    "dask_activity",
                    f'{CLUSTER}, dask_activity=~"idle|unused|lost"',
                ),
                "{{dask_activity}}",
            ),
        ),
        graph(
            "How much is not yet settled, or beyond capacity?",
            "Seconds of tasks that run or have not been reported (in flight), and seconds booked "
            "for each second beyond the threads there were (excess: seceded tasks, overlap).",
            (total("dask_cluster_inflight_time_seconds"), "in flight"),
            (
                f"sum(rate(dask_cluster_excess_time_seconds_total{{{CLUSTER}}}[$__rate_interval]))",
                "excess",
            ),
            unit="s",
        ),
    ]


def _workers() -> list[Any]:
    return [
        graph(
            "How full is each worker's memory?",
            "Memory of the worker's process over its limit. Dask spills from 60 %, pauses at 80 % "
            "and restarts at 95 %, unless configured otherwise.",
            (
                f"sum by (dask_worker_name) (dask_worker_memory_usage_bytes{{{CLUSTER}}}) / "
                f"(sum by (dask_worker_name) (dask_worker_memory_limit_bytes{{{CLUSTER}}}) > 0)",
                "{{dask_worker_name}}",
            ),
            unit="percentunit",
        ),
        graph(
            "What is in it?",
            "Dask's data in memory (managed), on disk (spilled), and all memory of the processes. "
            "Much more than managed: leaks, or memory that the allocator keeps.",
            (total("dask_worker_memory_usage_bytes"), "process"),
            (total("dask_worker_memory_managed_bytes"), "managed"),
            (total("dask_worker_memory_spilled_bytes"), "spilled"),
            unit="bytes",
        ),
        graph(
            "Do the threads use the CPU?",
            "CPU of each worker's process per thread. Low and busy: I/O or the GIL.",
            by_worker("dask_worker_cpu_utilization_ratio"),
            unit="percentunit",
        ),
        graph(
            "Is the work spread evenly?",
            "Seconds of work that the scheduler expects for each worker.",
            by_worker("dask_worker_occupancy_seconds"),
            unit="s",
        ),
        graph(
            "Which tasks are on the workers?",
            "processing: assigned; executing: running now.",
            (
                f"sum by (dask_worker_name, dask_task_state) (dask_worker_task_count{{{CLUSTER}}})",
                "{{dask_worker_name}}: {{dask_task_state}}",
            ),
        ),
        graph(
            "How many threads has each worker?",
            "Workers with different numbers of threads share work by their threads.",
            by_worker("dask_worker_thread_count"),
        ),
        graph(
            "When did the scheduler last hear of each worker?",
            "Heartbeats come every 0.5 s to some seconds, depending on the size of the cluster. A "
            "rising line is a worker that hangs or is gone.",
            (
                f"max by (dask_worker_name) (dask_worker_last_seen_age_seconds{{{CLUSTER}}})",
                "{{dask_worker_name}}",
            ),
            unit="s",
        ),
        graph(
            "Do workers come and go?",
            "Runs of tasks that had to be repeated, by reason, and changes of the number of "
            "workers within an hour.",
            (
                rate("dask_task_retried_total", "dask_task_retry_reason"),
                "{{dask_task_retry_reason}}",
            ),
            (f"sum(changes(dask_cluster_worker_count{{{CLUSTER}}}[1h]))", "changes of workers"),
        ),
    ]


def _transport() -> list[Any]:
    return [
        graph(
            "How much goes over the network?",
            "Bytes that workers receive and send. Compare with what the network can do.",
            (
                rate("dask_cluster_transfer_io_bytes_total", "network_io_direction"),
                "{{network_io_direction}}",
            ),
            unit="Bps",
        ),
        graph(
            "What does sending cost?",
            "Seconds for each second, by direction and activity. It runs beside the tasks.",
            (
                rate(
                    "dask_cluster_transfer_time_seconds_total",
                    "network_io_direction, dask_activity",
                ),
                "{{network_io_direction}}: {{dask_activity}}",
            ),
        ),
        graph(
            "How much is on disk?",
            "Dask's data that does not fit into memory.",
            (total("dask_cluster_spill_size_bytes"), "on disk"),
            unit="bytes",
        ),
        graph(
            "What does the memory monitor spill?",
            "Seconds for each second that workers spill beside their tasks. What tasks wait for "
            "themselves is in the dashboard Overview.",
            (rate("dask_cluster_spill_time_seconds_total", "dask_activity"), "{{dask_activity}}"),
        ),
        graph(
            "Are event loops blocked?",
            "Share of the time for which the loop was late: of the scheduler, and of all workers "
            "together (so it can pass 1).",
            (
                rate("dask_event_loop_blocked_time_seconds_total", "dask_process_role"),
                "{{dask_process_role}}",
            ),
            width=24,
        ),
    ]
