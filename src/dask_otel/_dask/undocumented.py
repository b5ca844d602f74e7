"""The parts of Dask that the bridge uses; `tools/scan.py` checks by types that none is missing.

A contract test checks everything in `UNDOCUMENTED` on a live cluster, with the oldest and the
newest supported release.
"""

from __future__ import annotations

from typing import Final

#: Attributes that Dask does not document as an interface, by the class that has them.
UNDOCUMENTED: Final[dict[str, tuple[str, ...]]] = {
    "Scheduler": (
        "UNKNOWN_TASK_DURATION",
        "WORKER_SATURATION",
        "_active_graph_updates",
        "_broker",
        "_instances",
        "_last_tick_counter",
        "_last_tick_cycle",
        "_task_prefix_count_global",
        "_tick_counter",
        "bandwidth",
        "clients",
        "connection_args",
        "extensions",
        "get_events",
        "handlers",
        "http_application",
        "http_server",
        "idle",
        "n_tasks",
        "periodic_callbacks",
        "queued",
        "resources",
        "running",
        "stream_handlers",
        "task_groups",
        "task_prefixes",
        "tasks",
        "total_nthreads",
        "total_nthreads_history",
        "transition_counter",
        "unrunnable",
        "worker_plugins",
        "workers",
    ),
    "Broker": ("truncate",),
    "Client": ("_heartbeat", "futures", "id", "loop", "scheduler", "status", "sync"),
    "ClientState": ("client_key", "last_seen"),
    "MemoryState": ("managed", "process", "spilled", "unmanaged_old", "unmanaged_recent"),
    "SpansSchedulerExtension": ("observe_tasks", "spans", "spans_search_by_name"),
    "Span": (
        "_code",
        "_cumulative_worker_metrics",
        "active_cpu_seconds",
        "cumulative_worker_metrics",
        "enqueued",
        "groups",
        "id",
        "metadata",
        "name",
        "parent",
        "start",
        "stop",
        "traverse_spans",
    ),
    "TaskGroup": (
        "_types",
        "all_durations",
        "dependencies",
        "duration",
        "name",
        "nbytes_total",
        "prefix",
        "span_id",
        "states",
    ),
    "TaskPrefix": ("duration_average", "max_exec_time", "name", "states"),
    "GraphNode": ("_dependencies",),
    "TaskState": (
        "actor",
        "annotations",
        "dependencies",
        "exception_blame",
        "exception_text",
        "get_nbytes",
        "group",
        "has_lost_dependencies",
        "run_spec",
        "host_restrictions",
        "key",
        "loose_restrictions",
        "nbytes",
        "prefix",
        "priority",
        "processing_on",
        "resource_restrictions",
        "run_id",
        "state",
        "suspicious",
        "type",
        "waiters",
        "waiting_on",
        "who_has",
        "who_wants",
        "worker_restrictions",
    ),
    "WorkerState": (
        "address",
        "executing",
        "has_what",
        "host",
        "last_seen",
        "long_running",
        "memory",
        "memory_limit",
        "metrics",
        "name",
        "nanny",
        "nbytes",
        "nthreads",
        "occupancy",
        "pid",
        "processing",
        "resources",
        "status",
        "time_delay",
    ),
    "Worker": (
        "_async_instructions",
        "active_keys",
        "active_threads",
        "execute",
        "executors",
        "handlers",
        "plugins",
        "state",
        "thread_id",
    ),
    "Worker.WorkerState": ("tasks",),
    "Worker.TaskState": ("annotations", "key", "prefix", "run_id", "span_id", "start_time"),
    "Nanny": ("preload", "preload_argv"),
    # Tornado's router with Dask's pages.
    "RoutingApplication": ("add_handlers", "default_router", "wildcard_router"),
}

#: Attributes of these classes that are used by name in a string, or of the class itself.
BY_NAME: Final = frozenset(
    {
        ("Scheduler", "_instances"),
        ("SpansSchedulerExtension", "observe_tasks"),
        ("SpansSchedulerExtension", "spans_search_by_name"),
        ("Worker", "execute"),
        ("RoutingApplication", "add_handlers"),
        ("RoutingApplication", "default_router"),
        ("RoutingApplication", "wildcard_router"),
    }
)

#: Handlers that we wrap, or that our messages call.
HANDLERS: Final[dict[str, tuple[str, ...]]] = {
    "Scheduler.handlers": ("heartbeat_worker",),
    "Scheduler.stream_handlers": ("long-running", "task-erred"),
    "Nanny.handlers": ("get_logs",),
    "Worker.handlers": ("actor_execute", "plugin-add", "plugin-remove"),
}

#: Attributes of the documented interfaces of Dask and Tornado, and those that every plugin needs
#: to find itself.
DOCUMENTED: Final[dict[str, tuple[str, ...]]] = {
    "Client": ("close", "run_on_scheduler"),
    "Scheduler": (
        "add_plugin",
        "address",
        "broadcast",
        "coerce_address",
        "id",
        "plugins",
        "remove_plugin",
        "status",
    ),
    "SchedulerPlugin": ("close", "name", "transition"),
    "Status": ("name",),
    "Worker": ("log_event", "loop", "plugin_add", "plugin_remove"),
    "HTTPHeaders": ("get",),
    "HTTPServerRequest": ("headers",),
    "IOLoop": ("add_callback", "call_later"),
    "PeriodicCallback": ("callback_time",),
}

#: Attributes of untyped values: reports of workers and clients, extensions, which Dask types as
#: `Any`, and the parts of Tornado's rules.
OF_ANYTHING: Final = frozenset(
    {
        "add_handlers",
        "callback_time",
        "default_router",
        "get",
        "get_logs",
        "io_loop",
        "matcher",
        "pattern",
        "port",
        "regex",
        "rstrip",
        "rules",
        "spans",
        "spans_search_by_name",
        "target",
        "target_kwargs",
        "values",
        "wildcard_router",
        "time",
    }
)
