"""What the bridge relies on and Dask does not document."""

from __future__ import annotations

from typing import Final

#: Attributes that Dask does not document, by the class that has them.
UNDOCUMENTED: Final = {
    "Scheduler": (
        "_active_graph_updates",
        "_last_tick_cycle",
        "_tick_interval_observed",
        "clients",
        "extensions",
        "http_application",
        "task_groups",
        "task_prefixes",
        "tasks",
        "total_nthreads",
        "total_nthreads_history",
        "transition_counter",
        "worker_plugins",
        "workers",
    ),
    "ClientState": ("last_seen",),
    "SpansSchedulerExtension": ("heartbeat", "observe_tasks", "spans"),
    "Span": (
        "_code",
        "_cumulative_worker_metrics",
        "enqueued",
        "groups",
        "id",
        "metadata",
        "name",
        "parent",
        "traverse_spans",
    ),
    "TaskGroup": ("_types", "all_durations", "name", "nbytes_total", "prefix", "span_id", "states"),
    "TaskState": (
        "actor",
        "annotations",
        "exception_blame",
        "exception_text",
        "group",
        "has_lost_dependencies",
        "processing_on",
        "state",
        "waiters",
        "who_wants",
    ),
    "WorkerState": (
        "address",
        "executing",
        "last_seen",
        "memory",
        "memory_limit",
        "metrics",
        "name",
        "nthreads",
        "occupancy",
        "processing",
        "time_delay",
    ),
    "Worker": ("execute", "executors", "handlers", "plugins", "state"),
    "Worker.TaskState": ("annotations", "key", "span_id"),
    "Nanny": ("preload", "preload_argv"),
}

#: Attributes that are a part of Dask's documented interface, or of Tornado's.
DOCUMENTED: Final[dict[str, tuple[str, ...]]] = {}

#: What is read of values that have no type, such as what workers report.
OF_ANYTHING: Final = frozenset[str]()
