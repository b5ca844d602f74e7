"""Every span, attribute and metric name that the bridge exports, with unit and instrument.

This is the telemetry contract in code. Dashboards, alerts and users' queries rely on it: a
change here is breaking and goes into the changelog. Naming follows OpenTelemetry's rules
(https://opentelemetry.io/docs/specs/semconv/general/naming/): dots are namespaces,
snake_case inside a part, no unit and no ``total`` in a name, ``time`` for a monotone sum
whose sum over attribute values has a limit, ``duration`` for a histogram, ``io`` for bytes.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

Instrument: TypeAlias = Literal["counter", "updowncounter", "gauge", "histogram"]

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.38.0"
SCOPE_NAME: Final = "dask_otel"

# ------------------------------------------------------------------------------ resource

SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
SERVICE_VERSION: Final = "service.version"
CLUSTER_NAME: Final = "dask.cluster.name"
RUNTIME_VERSION: Final = "process.runtime.version"

# ------------------------------------------------------------------------ span attributes

SPAN_TYPE: Final = "dask.span.type"
SPAN_ID: Final = "dask.span.id"
SPAN_ROOT_ID: Final = "dask.span.root.id"
SPAN_NAME: Final = "dask.span.name"
SPAN_TAGS: Final = "dask.span.tags"
SPAN_ROOT_NAME: Final = "dask.span.root.name"
SPAN_RESULT: Final = "dask.span.result"
SPAN_COMPLETE: Final = "dask.span.complete"
SPAN_GENERATION: Final = "dask.span.generation"
SPAN_QUEUE_TIME: Final = "dask.span.queue.time"
SPAN_DASK_ACTIVE_CPU_TIME: Final = "dask.span.dask.active_cpu.time"
SPAN_DASK_IDLE_TIME: Final = "dask.span.dask.idle.time"
SPAN_ACTIVITY_TIME: Final = "dask.span.activity.time"  # followed by .<activity>
SPAN_CAPACITY: Final = "dask.span.capacity.time"
SPAN_IDLE: Final = "dask.span.idle.time"
SPAN_ELSEWHERE: Final = "dask.span.elsewhere.time"
SPAN_SECEDED: Final = "dask.span.seceded.time"
SPAN_PATH_PART_TIME: Final = "dask.span.path.{}.time"
SPAN_PATH_TASKS: Final = "dask.span.path.tasks"
SPAN_PATH_SUBMITTED: Final = "dask.span.path.submitted.tasks"
SPAN_PATH_BOUND_CHAIN: Final = "dask.span.path.bound.chain.time"
SPAN_PATH_BOUND_THREADS: Final = "dask.span.path.bound.threads.time"
SPAN_OUTPUT_SIZE: Final = "dask.span.output.size"
SPAN_MEMORY_PEAK: Final = "dask.span.memory.peak"
SPAN_MEMORY_SPENT: Final = "dask.span.memory.time"
SPAN_MEMORY_PREFIX: Final = "dask.span.memory.largest.prefix"
SPAN_MEMORY_PREFIX_SIZE: Final = "dask.span.memory.largest.size"
SPAN_MEMORY_AT_PEAK: Final = "dask.span.memory.at_peak"  # followed by .<prefix>
SPAN_WORKER_PEAK: Final = "dask.span.worker_memory.peak"
SPAN_WORKER_PEAK_NAME: Final = "dask.span.worker_memory.worker.name"
SPAN_WORKER_PEAK_TIME: Final = "dask.span.worker_memory.worker.time"
SPAN_HEARTBEATS: Final = "dask.span.worker_memory.heartbeat.count"
SPAN_WORKER_TASKS: Final = "dask.span.worker_tasks.peak"
SPAN_PROFILE: Final = "dask.span.profile"
SPAN_PROFILE_TIME: Final = "dask.span.profile.time"
SPAN_PROFILE_COVERAGE: Final = "dask.span.profile.coverage"
SPAN_COLLISION: Final = "dask.span.collision"
SPAN_REQUESTED_NAME: Final = "dask.span.requested.name"
SPAN_LATE: Final = "dask.span.late"
SPAN_DROPPED_COUNT: Final = "dask.span.dropped.count"
SPAN_DROPPED_EVENT_COUNT: Final = "dask.span.dropped_event.count"
SPAN_DROPPED_TASK_COUNT: Final = "dask.span.dropped_task.count"
TASK_COUNT: Final = "dask.task.count"
TASK_OUTCOME_COUNT: Final = "dask.task.{}.count"
TASK_GROUP_COUNT: Final = "dask.task_group.count"
WORKER_COUNT: Final = "dask.worker.count"
THREAD_COUNT: Final = "dask.thread.count"
COLLECTION_TYPES: Final = "dask.collection.types"
CODE_FILE_PATH: Final = "code.file.path"
CODE_LINE_NUMBER: Final = "code.line.number"
CODE_FUNCTION_NAME: Final = "code.function.name"
ERROR_TYPE: Final = "error.type"

TASK_GROUP_NAME: Final = "dask.task_group.name"
TASK_GROUP_DURATION: Final = "dask.task_group.duration"  # followed by .<action>
TASK_GROUP_TYPES: Final = "dask.task_group.types"
TASK_GROUP_RESTRICTION: Final = "dask.task_group.restriction"
TASK_GROUP_SLOW_WORKERS: Final = "dask.task_group.slow_worker.names"
TASK_GROUP_SLOW_SHARE: Final = "dask.task_group.slow_worker.share"
TASK_GROUP_SLOW_TIME: Final = "dask.task_group.slow_worker.time"
TASK_GROUP_OTHERS_TIME: Final = "dask.task_group.slow_worker.others.time"
TASK_PREFIX: Final = "dask.task.prefix"
TASK_KEY: Final = "dask.task.key"
TASK_ATTEMPT: Final = "dask.task.attempt"
TASK_QUEUE_TIME: Final = "dask.task.queue.time"
TASK_ON_PATH: Final = "dask.task.on_path"
TASK_PATH_PART_TIME: Final = "dask.task.path.{}.time"
TASK_OUTPUT_SIZE: Final = "dask.task.output.size"
TASK_OUTPUT_TYPE: Final = "dask.task.output.type"
WORKER_NAME: Final = "dask.worker.name"

# --------------------------------------------------------------------------- span events

EVENT_START: Final = "dask.span.start"
EVENT_EXCEPTION: Final = "exception"
EVENT_TASK_RETRIED: Final = "dask.task.retried"
EVENT_TASK_TRANSFER: Final = "dask.task.transfer"
EVENT_TASK_DISK_READ: Final = "dask.task.disk_read"
EVENT_TASK_COMPUTE: Final = "dask.task.compute"
TASK_PART_TIME: Final = "dask.task.part.time"
TASK_RETRY_REASON: Final = "dask.task.retry.reason"  # also a label
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

# ------------------------------------------------------- attributes of spans, with their types

#: Fields of `TaskCounts` that become ``dask.task.<field>.count``.
OUTCOMES: Final = ("memory", "erred", "cancelled", "retried", "lost", "recomputed", "rescheduled")

#: The parts of a span's path, in the order of time between one task's end and the next; a task has
#: all but the last.
PATH_PARTS: Final = (
    "client",
    "scheduler",
    "no_worker",
    "no_thread",
    "uneven",
    "repeated",
    "transfer",
    "starting",
    "compute",
    "inner",
    "report",
    "other_span",
)

_STRING, _BOOL, _INT, _DOUBLE, _STRINGS = "string", "bool", "int", "double", "string[]"
_COUNTS = {
    TASK_COUNT: _INT,
    **{TASK_OUTCOME_COUNT.format(outcome): _INT for outcome in OUTCOMES},
}
#: On every span: its type and its Dask span id.
_OWNER = dict.fromkeys((SPAN_TYPE, SPAN_ID, SPAN_ROOT_ID, SPAN_ROOT_NAME), _STRING)

#: All attributes with their types, by ``dask.span.type``. Parts in angle brackets vary.
SPAN_ATTRIBUTES: Final[dict[str, dict[str, str]]] = {
    "span": {
        **_OWNER,
        SPAN_NAME: _STRING,
        SPAN_TAGS: _STRINGS,
        SPAN_RESULT: _STRING,
        SPAN_COMPLETE: _BOOL,
        SPAN_GENERATION: _INT,
        SPAN_QUEUE_TIME: _DOUBLE,
        SPAN_CAPACITY: _DOUBLE,
        SPAN_IDLE: _DOUBLE,
        SPAN_ELSEWHERE: _DOUBLE,
        SPAN_SECEDED: _DOUBLE,
        SPAN_DASK_ACTIVE_CPU_TIME: _DOUBLE,
        SPAN_DASK_IDLE_TIME: _DOUBLE,
        f"{SPAN_ACTIVITY_TIME}.<activity>": _DOUBLE,
        **{SPAN_PATH_PART_TIME.format(part): _DOUBLE for part in PATH_PARTS},
        SPAN_PATH_TASKS: _INT,
        SPAN_PATH_SUBMITTED: _INT,
        SPAN_PATH_BOUND_CHAIN: _DOUBLE,
        SPAN_PATH_BOUND_THREADS: _DOUBLE,
        SPAN_OUTPUT_SIZE: _INT,
        SPAN_MEMORY_PEAK: _INT,
        SPAN_MEMORY_SPENT: _DOUBLE,
        SPAN_MEMORY_PREFIX: _STRING,
        SPAN_MEMORY_PREFIX_SIZE: _INT,
        f"{SPAN_MEMORY_AT_PEAK}.<prefix>": _DOUBLE,
        SPAN_WORKER_PEAK: _DOUBLE,
        SPAN_WORKER_PEAK_NAME: _STRING,
        SPAN_WORKER_PEAK_TIME: _DOUBLE,
        SPAN_HEARTBEATS: _INT,
        SPAN_WORKER_TASKS: _INT,
        **_COUNTS,
        TASK_GROUP_COUNT: _INT,
        WORKER_COUNT: _INT,
        THREAD_COUNT: _INT,
        COLLECTION_TYPES: _STRINGS,
        SPAN_PROFILE: _STRING,
        SPAN_PROFILE_TIME: _DOUBLE,
        SPAN_PROFILE_COVERAGE: _DOUBLE,
        SPAN_COLLISION: _BOOL,
        SPAN_REQUESTED_NAME: _STRING,
        SPAN_LATE: _BOOL,
        SPAN_DROPPED_COUNT: _INT,
        SPAN_DROPPED_EVENT_COUNT: _INT,
        SPAN_DROPPED_TASK_COUNT: _INT,
        CODE_FILE_PATH: _STRING,
        CODE_LINE_NUMBER: _INT,
        CODE_FUNCTION_NAME: _STRING,
        ERROR_TYPE: _STRING,
    },
    "group": {
        **_OWNER,
        TASK_GROUP_NAME: _STRING,
        TASK_PREFIX: _STRING,
        **_COUNTS,
        SPAN_OUTPUT_SIZE: _INT,
        SPAN_MEMORY_PEAK: _INT,
        SPAN_MEMORY_SPENT: _DOUBLE,
        TASK_GROUP_TYPES: _STRINGS,
        TASK_GROUP_RESTRICTION: _STRING,
        TASK_GROUP_SLOW_WORKERS: _STRINGS,
        TASK_GROUP_SLOW_SHARE: _DOUBLE,
        TASK_GROUP_SLOW_TIME: _DOUBLE,
        TASK_GROUP_OTHERS_TIME: _DOUBLE,
        f"{TASK_GROUP_DURATION}.<action>": _DOUBLE,
    },
    "task": {
        **_OWNER,
        TASK_KEY: _STRING,
        TASK_PREFIX: _STRING,
        TASK_GROUP_NAME: _STRING,
        WORKER_NAME: _STRING,
        TASK_ATTEMPT: _INT,
        TASK_QUEUE_TIME: _DOUBLE,
        TASK_ON_PATH: _BOOL,
        **{TASK_PATH_PART_TIME.format(part): _DOUBLE for part in PATH_PARTS[:-1]},
        TASK_OUTPUT_SIZE: _INT,
        TASK_OUTPUT_TYPE: _STRING,
        ERROR_TYPE: _STRING,
    },
    "marker": {**_OWNER, SPAN_NAME: _STRING},
    "progress": {**_OWNER, SPAN_NAME: _STRING, **_COUNTS},
}

#: All attributes with their types, by the event's name.
EVENT_ATTRIBUTES: Final[dict[str, dict[str, str]]] = {
    EVENT_START: {},
    EVENT_EXCEPTION: {
        EXCEPTION_TYPE: _STRING,
        EXCEPTION_MESSAGE: _STRING,
        EXCEPTION_STACKTRACE: _STRING,
        TASK_KEY: _STRING,
        TASK_PREFIX: _STRING,
        WORKER_NAME: _STRING,
    },
    EVENT_TASK_RETRIED: {
        TASK_KEY: _STRING,
        TASK_RETRY_REASON: _STRING,
        TASK_PREFIX: _STRING,
        EXCEPTION_TYPE: _STRING,
        EXCEPTION_MESSAGE: _STRING,
    },
    EVENT_TASK_TRANSFER: {TASK_PART_TIME: _DOUBLE},
    EVENT_TASK_DISK_READ: {TASK_PART_TIME: _DOUBLE},
    EVENT_TASK_COMPUTE: {TASK_PART_TIME: _DOUBLE},
}

# -------------------------------------------------------------------------------- labels

ACTIVITY: Final = "dask.activity"
PATH_PART: Final = "dask.span.path.part"
P2P_STAGE: Final = "dask.p2p.stage"
MEMORY_STATE: Final = "dask.memory.state"
UNIT: Final = "dask.unit"
TASK_OUTCOME: Final = "dask.task.outcome"
TASK_STATE: Final = "dask.task.state"
PROCESS_ROLE: Final = "dask.process.role"
IO_DIRECTION: Final = "network.io.direction"
OTEL_SIGNAL: Final = "dask.otel.signal"
OTEL_REASON: Final = "dask.otel.reason"
OTEL_KIND: Final = "dask.otel.kind"

#: The span label of a metric: one name for two keys that come from the same Dask span.
SPAN: Final = "span"
SPAN_KEYS: Final = (SPAN_NAME, SPAN_ROOT_NAME)

#: Namespace of the labels from users' ``key:value`` tags.
TAG: Final = "dask.tag"

FOLDED: Final = "_OTHER"
EMPTY: Final = "_EMPTY"

# ------------------------------------------------------------- log records: severities

DEBUG, INFO, WARN, ERROR, FATAL = 5, 9, 13, 17, 21
SEVERITIES: Final = {DEBUG: "DEBUG", INFO: "INFO", WARN: "WARN", ERROR: "ERROR", FATAL: "FATAL"}
EVENT_NAME: Final = "event.name"
#: The name by which redaction is asked about the text of a log record.
LOG_BODY: Final = "body"

# ------------------------------------------------------------------------------- metrics


class Metric(NamedTuple):
    """The definition of one metric."""

    name: str
    instrument: Instrument
    unit: str
    #: Keys in the order of the values; `SPAN` stands for two.
    labels: tuple[str, ...]
    description: str
    #: Whether its values are integers. A key never has two types.
    integer: bool = False


_S, _BY, _OPS, _TASK = "s", "By", "{operation}", "{task}"

_EXECUTE = (SPAN, TASK_PREFIX, ACTIVITY)
_P2P = (SPAN, P2P_STAGE, ACTIVITY)
_TRANSFER = (IO_DIRECTION, ACTIVITY)
_WORKER = (WORKER_NAME,)
_SIGNAL = (OTEL_SIGNAL,)

SPAN_EXECUTE_TIME: Final = Metric(
    "dask.span.execute.time", "counter", _S, _EXECUTE, "Seconds that tasks spent, by activity"
)
SPAN_EXECUTE_IO: Final = Metric(
    "dask.span.execute.io", "counter", _BY, _EXECUTE, "Bytes that tasks moved, by activity", True
)
SPAN_EXECUTE_OPERATIONS: Final = Metric(
    "dask.span.execute.operations",
    "counter",
    _OPS,
    _EXECUTE,
    "Operations of tasks, by activity",
    True,
)
SPAN_P2P_TIME: Final = Metric(
    "dask.span.p2p.time", "counter", _S, _P2P, "Seconds that peer-to-peer shuffles spent"
)
SPAN_P2P_IO: Final = Metric(
    "dask.span.p2p.io", "counter", _BY, _P2P, "Bytes that peer-to-peer shuffles moved", True
)
SPAN_P2P_OPERATIONS: Final = Metric(
    "dask.span.p2p.operations",
    "counter",
    _OPS,
    _P2P,
    "Operations of peer-to-peer shuffles",
    True,
)
SPAN_CUSTOM: Final = Metric(
    "dask.span.custom",
    "counter",
    "1",
    (SPAN, TASK_PREFIX, ACTIVITY, UNIT),
    "Metrics of any other unit or context; sum only within one dask.unit",
)
SPAN_CAPACITY_TIME: Final = Metric(
    "dask.span.capacity.time",
    "counter",
    _S,
    (SPAN,),
    "The span's reported execute seconds plus its share of the cluster's idle seconds",
)
SPAN_IDLE_TIME: Final = Metric(
    "dask.span.idle.time", "counter", _S, (SPAN,), "The span's share of the cluster's idle seconds"
)
SPAN_PATH_TIME: Final = Metric(
    "dask.span.path.time",
    "counter",
    _S,
    (SPAN, PATH_PART),
    "The duration of root spans, by what bounded it",
)
SPAN_ACTIVE: Final = Metric(
    "dask.span.active",
    "updowncounter",
    "{span}",
    (SPAN,),
    "Dask spans with unfinished work",
    True,
)
SPAN_MEMORY_USAGE: Final = Metric(
    "dask.span.memory.usage",
    "updowncounter",
    _BY,
    (SPAN, TASK_PREFIX),
    "Size of the results that are in the workers' memory or spilled, each once",
    True,
)
SPAN_MEMORY_TIME: Final = Metric(
    "dask.span.memory.time",
    "counter",
    "By.s",
    (SPAN, TASK_PREFIX),
    "Integral of the size of the results that are in the workers' memory or spilled",
)
SPAN_DURATION: Final = Metric(
    "dask.span.duration",
    "histogram",
    _S,
    (SPAN, SPAN_RESULT),
    "From enqueued to the end of the last task or of the block, one point per Dask span",
)
SPAN_COLLIDED: Final = Metric(
    "dask.span.collided",
    "counter",
    "{submission}",
    (SPAN,),
    "Submissions for this span that Dask booked on another one",
    True,
)
SPAN_QUEUE_DURATION: Final = Metric(
    "dask.span.queue.duration",
    "histogram",
    _S,
    (SPAN, SPAN_RESULT),
    "From enqueued to the start of the first task of the tree, one point per Dask span",
)
TASK_FINISHED: Final = Metric(
    "dask.task.finished",
    "counter",
    _TASK,
    (SPAN, TASK_PREFIX, TASK_OUTCOME),
    "Task runs that ended, by outcome",
    True,
)
TASK_RETRIED: Final = Metric(
    "dask.task.retried",
    "counter",
    _TASK,
    (SPAN, TASK_PREFIX, TASK_RETRY_REASON),
    "Task runs that were repeated, by reason",
    True,
)
TASK_LOST: Final = Metric(
    "dask.task.lost",
    "counter",
    _TASK,
    (SPAN, TASK_PREFIX),
    "Task runs that were lost with their worker",
    True,
)
TASK_DURATION: Final = Metric(
    "dask.task.duration", "histogram", _S, (TASK_PREFIX,), "Compute time of task runs"
)
CLUSTER_CAPACITY_TIME: Final = Metric(
    "dask.cluster.capacity.time", "counter", _S, (), "Integral of the threads of the cluster"
)
CLUSTER_TIME: Final = Metric(
    "dask.cluster.time",
    "counter",
    _S,
    (ACTIVITY,),
    "Thread-seconds of the cluster: every reported activity, and idle, unused and lost",
)
CLUSTER_INFLIGHT_TIME: Final = Metric(
    "dask.cluster.inflight.time",
    "updowncounter",
    _S,
    (),
    "Thread-seconds not yet settled: running, ended but unreported, or assigned",
)
CLUSTER_EXCESS_TIME: Final = Metric(
    "dask.cluster.excess.time",
    "counter",
    _S,
    (),
    "Seconds reported in excess of the capacity",
)
CLUSTER_TRANSFER_TIME: Final = Metric(
    "dask.cluster.transfer.time", "counter", _S, _TRANSFER, "Seconds of network transfer"
)
CLUSTER_TRANSFER_IO: Final = Metric(
    "dask.cluster.transfer.io", "counter", _BY, _TRANSFER, "Bytes of network transfer", True
)
CLUSTER_TRANSFER_OPERATIONS: Final = Metric(
    "dask.cluster.transfer.operations",
    "counter",
    _OPS,
    _TRANSFER,
    "Operations of network transfer",
    True,
)
CLUSTER_SPILL_TIME: Final = Metric(
    "dask.cluster.spill.time", "counter", _S, (ACTIVITY,), "Seconds of spilling outside of tasks"
)
CLUSTER_SPILL_IO: Final = Metric(
    "dask.cluster.spill.io", "counter", _BY, (ACTIVITY,), "Bytes spilled outside of tasks", True
)
CLUSTER_SPILL_OPERATIONS: Final = Metric(
    "dask.cluster.spill.operations",
    "counter",
    _OPS,
    (ACTIVITY,),
    "Operations of spilling outside of tasks",
    True,
)
CLUSTER_MEMORY_USAGE: Final = Metric(
    "dask.cluster.memory.usage",
    "updowncounter",
    _BY,
    (MEMORY_STATE,),
    "Memory of the workers' processes and the spilled data, by what it is",
    True,
)
CLUSTER_MEMORY_SPILLED: Final = Metric(
    "dask.cluster.memory.spilled",
    "updowncounter",
    _BY,
    (),
    "Size of the data on disk, as it was in memory",
    True,
)
CLUSTER_SPILL_SIZE: Final = Metric(
    "dask.cluster.spill.size", "updowncounter", _BY, (), "Bytes on disk now", True
)
CLUSTER_WORKER_COUNT: Final = Metric(
    "dask.cluster.worker.count", "updowncounter", "{worker}", (), "Workers of the cluster", True
)
CLUSTER_THREAD_COUNT: Final = Metric(
    "dask.cluster.thread.count", "updowncounter", "{thread}", (), "Threads of the cluster", True
)
CLUSTER_TASK_COUNT: Final = Metric(
    "dask.cluster.task.count",
    "updowncounter",
    _TASK,
    (TASK_STATE,),
    "Tasks that the scheduler knows, by state",
    True,
)
EVENT_LOOP_BLOCKED_TIME: Final = Metric(
    "dask.event_loop.blocked.time",
    "counter",
    _S,
    (PROCESS_ROLE,),
    "Seconds by which the ticks of event loops were late, summed over processes",
)
EVENT_LOOP_CPU_TIME: Final = Metric(
    "dask.event_loop.cpu.time",
    "counter",
    _S,
    (PROCESS_ROLE,),
    "CPU seconds of the thread of the scheduler's event loop",
)
EVENT_LOOP_STARVED_TIME: Final = Metric(
    "dask.event_loop.starved.time",
    "counter",
    _S,
    (PROCESS_ROLE,),
    "Seconds for which the thread of the scheduler's event loop was ready to run and had no CPU",
)
WORKER_MEMORY_USAGE: Final = Metric(
    "dask.worker.memory.usage",
    "updowncounter",
    _BY,
    _WORKER,
    "Memory of the worker's process, at its last heartbeat",
    True,
)
WORKER_MEMORY_LIMIT: Final = Metric(
    "dask.worker.memory.limit",
    "updowncounter",
    _BY,
    _WORKER,
    "Memory that the worker may use, absent where there is no limit",
    True,
)
WORKER_MEMORY_MANAGED: Final = Metric(
    "dask.worker.memory.managed",
    "updowncounter",
    _BY,
    _WORKER,
    "Size of the Dask data in the worker's memory",
    True,
)
WORKER_MEMORY_SPILLED: Final = Metric(
    "dask.worker.memory.spilled",
    "updowncounter",
    _BY,
    _WORKER,
    "Size of the worker's Dask data on disk",
    True,
)
WORKER_CPU_UTILIZATION: Final = Metric(
    "dask.worker.cpu.utilization",
    "gauge",
    "1",
    _WORKER,
    "CPU time of the worker's process per second and thread of its pool",
)
WORKER_RMM_USAGE: Final = Metric(
    "dask.worker.rmm.usage",
    "updowncounter",
    _BY,
    _WORKER,
    "GPU memory that RMM has allocated for the worker's process",
    True,
)
WORKER_RMM_SIZE: Final = Metric(
    "dask.worker.rmm.size",
    "updowncounter",
    _BY,
    _WORKER,
    "GPU memory that RMM has reserved for the worker's process, its pool included",
    True,
)
WORKER_CUDF_SPILLED: Final = Metric(
    "dask.worker.cudf.spilled",
    "updowncounter",
    _BY,
    _WORKER,
    "Bytes that cuDF has moved from the GPU to the host's memory, less those moved to the GPU",
    True,
)
GPU_UTILIZATION: Final = Metric(
    "hw.gpu.utilization", "gauge", "1", _WORKER, "Share of the time in which the GPU was busy"
)
GPU_MEMORY_USAGE: Final = Metric(
    "hw.gpu.memory.usage", "gauge", _BY, _WORKER, "Used memory of the whole GPU", True
)
GPU_MEMORY_LIMIT: Final = Metric(
    "hw.gpu.memory.limit", "gauge", _BY, _WORKER, "Memory of the GPU", True
)
WORKER_THREAD_COUNT: Final = Metric(
    "dask.worker.thread.count", "updowncounter", "{thread}", _WORKER, "Threads of the worker", True
)
WORKER_TASK_COUNT: Final = Metric(
    "dask.worker.task.count",
    "updowncounter",
    _TASK,
    (WORKER_NAME, TASK_STATE),
    "Tasks that the worker has to run (processing), and those that it runs (executing)",
    True,
)
WORKER_OCCUPANCY: Final = Metric(
    "dask.worker.occupancy",
    "gauge",
    _S,
    _WORKER,
    "Seconds of work that the scheduler expects its tasks to be",
)
WORKER_LAST_SEEN_AGE: Final = Metric(
    "dask.worker.last_seen.age", "gauge", _S, _WORKER, "Seconds since the worker's last heartbeat"
)
OTEL_RUNNING: Final = Metric(
    "dask.otel.running",
    "updowncounter",
    "{bridge}",
    (),
    "1 while the bridge runs, 0 in the last export of a clean close",
    True,
)
OTEL_EXPORTED: Final = Metric(
    "dask.otel.exported",
    "counter",
    "{item}",
    _SIGNAL,
    "Spans, data points and log records that an exporter accepted",
    True,
)
OTEL_DROPPED: Final = Metric(
    "dask.otel.dropped",
    "counter",
    "{item}",
    (OTEL_SIGNAL, OTEL_REASON),
    "Spans, data points and log records that were lost, by reason",
    True,
)
OTEL_FOLDED: Final = Metric(
    "dask.otel.folded", "counter", "{item}", (OTEL_KIND,), "Names and series over the caps", True
)
OTEL_SANITIZED: Final = Metric(
    "dask.otel.sanitized", "counter", "{item}", (OTEL_KIND,), "Values that had to be changed", True
)
OTEL_LATE: Final = Metric(
    "dask.otel.late",
    "counter",
    "1",
    (OTEL_KIND,),
    "Measurements that arrived after the export of their span, by unit",
)
OTEL_CALLERS: Final = Metric(
    "dask.otel.callers",
    "counter",
    "{context}",
    (OTEL_KIND,),
    "Contexts that came with submitted work, and what became of them",
    True,
)
OTEL_UNSETTLED: Final = Metric(
    "dask.otel.unsettled",
    "counter",
    "{item}",
    (OTEL_KIND,),
    "Spans exported at the settle timeout, before their last metrics",
    True,
)
OTEL_INTERNAL_ERRORS: Final = Metric(
    "dask.otel.internal.errors",
    "counter",
    "{error}",
    (OTEL_KIND,),
    "Errors inside the bridge, caught at its boundary",
    True,
)
OTEL_LOOP_TIME: Final = Metric(
    "dask.otel.loop.time",
    "counter",
    _S,
    (),
    "Seconds of the scheduler's event loop that the bridge used, estimated from samples",
)
OTEL_EXPORT_LAST_SUCCESS_AGE: Final = Metric(
    "dask.otel.export.last_success.age",
    "gauge",
    _S,
    _SIGNAL,
    "Seconds since the last success of the signal's exporters; the longest of them",
)
OTEL_QUEUE_SIZE: Final = Metric(
    "dask.otel.queue.size",
    "updowncounter",
    "{item}",
    _SIGNAL,
    "Spans and log records that wait for export",
    True,
)
OTEL_QUEUE_CAPACITY: Final = Metric(
    "dask.otel.queue.capacity",
    "updowncounter",
    "{item}",
    _SIGNAL,
    "Limit of the export queue",
    True,
)
OTEL_SPOOL_SIZE: Final = Metric(
    "dask.otel.spool.size", "updowncounter", "{span}", _SIGNAL, "Spans that wait in the spool", True
)
OTEL_SPOOL_USAGE: Final = Metric(
    "dask.otel.spool.usage", "updowncounter", "By", _SIGNAL, "Bytes that the spool holds", True
)
OTEL_SPOOL_LIMIT: Final = Metric(
    "dask.otel.spool.limit", "updowncounter", "By", _SIGNAL, "Most bytes of the spool", True
)

#: All metrics by name.
METRICS: Final[dict[str, Metric]] = {
    value.name: value for value in list(globals().values()) if isinstance(value, Metric)
}

# -------------------------------------------------------------------- log records: events

WORKER_ADDRESS: Final = "dask.worker.address"
WORKER_REMOVAL_REASON: Final = "dask.worker.removal.reason"
WORKER_REMOVAL_EXPECTED: Final = "dask.worker.removal.expected"
WORKER_CLOSE_REASON: Final = "dask.worker.close.reason"
WORKER_NANNY_MEMORY: Final = "dask.worker.nanny.memory.usage"
WORKER_EXIT_CODE: Final = "dask.worker.exit.code"
WORKER_LAST_LINES: Final = "dask.worker.last_lines"
LOG_LOGGER: Final = "dask.log.logger"
LOG_LEFT_OUT_COUNT: Final = "dask.log.left_out.count"
TASK_RUNNING_COUNT: Final = "dask.task.running.count"
TASK_PREFIXES: Final = "dask.task.prefixes"
TASK_SUSPECTS: Final = "dask.task.suspects"
TASK_START: Final = "dask.task.transition.start"
TASK_FINISH: Final = "dask.task.transition.finish"
RESULT_LOST_COUNT: Final = "dask.result.lost.count"
DATA_LOST_COUNT: Final = "dask.data.lost.count"
ROOT_NAMES: Final = "dask.span.root.names"
CLIENT_ID: Final = "dask.client.id"
P2P_ID: Final = "dask.p2p.id"
EVENT_INTERVAL: Final = "dask.event.interval"
EVENT_TOPIC: Final = "dask.event.topic"
OTEL_DESTINATION: Final = "dask.otel.destination"

WORKER_ADDED: Final = "dask.worker.added"
WORKER_REMOVED: Final = "dask.worker.removed"
WORKER_OVERDUE: Final = "dask.worker.overdue"
WORKER_PAUSED: Final = "dask.worker.paused"
WORKER_RESUMED: Final = "dask.worker.resumed"
WORKER_TERMINATED: Final = "dask.worker.terminated"
WORKER_FAILED: Final = "dask.worker.failed"
WORKERS_RETIRED: Final = "dask.workers.retired"
WORKER_LOG: Final = "dask.worker.log"
WORKER_LOG_LEFT_OUT: Final = "dask.worker.log.left_out"
SCHEDULER_STARTED: Final = "dask.scheduler.started"
SCHEDULER_RESTARTED: Final = "dask.scheduler.restarted"
SCHEDULER_CLOSING: Final = "dask.scheduler.closing"
CLIENT_ADDED: Final = "dask.client.added"
CLIENT_REMOVED: Final = "dask.client.removed"
GRAPH_FAILED: Final = "dask.graph.failed"
TRANSITION_FAILED: Final = "dask.task.transition_failed"
NO_WORKER: Final = "dask.task.no_worker"
TASKS_STOLEN: Final = "dask.task.stolen"
P2P_FAILED: Final = "dask.p2p.failed"
OTEL_STARTED: Final = "dask.otel.started"
OTEL_STOPPED: Final = "dask.otel.stopped"
OTEL_EXPORT_FAILING: Final = "dask.otel.export.failing"
OTEL_EXPORT_RECOVERED: Final = "dask.otel.export.recovered"
OTEL_FOLDING: Final = "dask.otel.folding"
OTEL_QUEUE_FULL: Final = "dask.otel.queue_full"
TOPIC_MESSAGE: Final = "dask.topic.message"

#: The facts about a worker that are known, at its last heartbeat.
_ABOUT_WORKER = {
    WORKER_NAME: _STRING,
    WORKER_ADDRESS: _STRING,
    WORKER_THREAD_COUNT.name: _INT,
    WORKER_MEMORY_USAGE.name: _INT,
    WORKER_MEMORY_LIMIT.name: _INT,
    WORKER_CPU_UTILIZATION.name: _DOUBLE,
    WORKER_LAST_SEEN_AGE.name: _DOUBLE,
}

#: What workers and users write, not events of the cluster.
WRITTEN: Final = frozenset({WORKER_LOG, WORKER_LOG_LEFT_OUT, TOPIC_MESSAGE})

#: The events that are log records: all attributes with their types, by name. Besides these,
#: all have `EVENT_NAME`.
LOG_EVENTS: Final[dict[str, dict[str, str]]] = {
    WORKER_ADDED: _ABOUT_WORKER,
    WORKER_REMOVED: {
        **_ABOUT_WORKER,
        WORKER_REMOVAL_REASON: _STRING,
        WORKER_REMOVAL_EXPECTED: _BOOL,
        WORKER_CLOSE_REASON: _STRING,
        WORKER_NANNY_MEMORY: _INT,
        WORKER_EXIT_CODE: _INT,
        TASK_COUNT: _INT,
        TASK_RUNNING_COUNT: _INT,
        TASK_OUTCOME_COUNT.format("erred"): _INT,
        TASK_PREFIXES: _STRINGS,
        TASK_SUSPECTS: _STRINGS,
        RESULT_LOST_COUNT: _INT,
        DATA_LOST_COUNT: _INT,
        ROOT_NAMES: _STRINGS,
        WORKER_LAST_LINES: _STRINGS,
    },
    WORKER_OVERDUE: _ABOUT_WORKER,
    WORKER_PAUSED: _ABOUT_WORKER,
    WORKER_RESUMED: _ABOUT_WORKER,
    WORKER_TERMINATED: {**_ABOUT_WORKER, WORKER_NANNY_MEMORY: _INT},
    WORKER_FAILED: {**_ABOUT_WORKER, EXCEPTION_MESSAGE: _STRING},
    WORKERS_RETIRED: {WORKER_COUNT: _INT},
    WORKER_LOG: {
        WORKER_NAME: _STRING,
        WORKER_ADDRESS: _STRING,
        LOG_LOGGER: _STRING,
        TASK_KEY: _STRING,
        EXCEPTION_TYPE: _STRING,
        EXCEPTION_MESSAGE: _STRING,
        EXCEPTION_STACKTRACE: _STRING,
    },
    WORKER_LOG_LEFT_OUT: {
        WORKER_NAME: _STRING,
        WORKER_ADDRESS: _STRING,
        LOG_LEFT_OUT_COUNT: _INT,
    },
    SCHEDULER_STARTED: {WORKER_COUNT: _INT},
    SCHEDULER_RESTARTED: {WORKER_COUNT: _INT},
    SCHEDULER_CLOSING: {WORKER_COUNT: _INT},
    CLIENT_ADDED: {CLIENT_ID: _STRING},
    CLIENT_REMOVED: {CLIENT_ID: _STRING},
    GRAPH_FAILED: {CLIENT_ID: _STRING},
    TRANSITION_FAILED: {
        TASK_KEY: _STRING,
        TASK_START: _STRING,
        TASK_FINISH: _STRING,
        ROOT_NAMES: _STRINGS,
    },
    NO_WORKER: {TASK_COUNT: _INT, TASK_PREFIXES: _STRINGS, ROOT_NAMES: _STRINGS},
    TASKS_STOLEN: {TASK_COUNT: _INT, EVENT_INTERVAL: _DOUBLE},
    P2P_FAILED: {P2P_ID: _STRING, ROOT_NAMES: _STRINGS},
    OTEL_STARTED: {WORKER_COUNT: _INT},
    OTEL_STOPPED: {WORKER_COUNT: _INT},
    OTEL_EXPORT_FAILING: {OTEL_SIGNAL: _STRING, OTEL_DESTINATION: _STRING},
    OTEL_EXPORT_RECOVERED: {OTEL_DESTINATION: _STRING},
    OTEL_FOLDING: {OTEL_KIND: _STRING},
    OTEL_QUEUE_FULL: {OTEL_SIGNAL: _STRING},
    TOPIC_MESSAGE: {EVENT_TOPIC: _STRING},
}

# ------------------------------------------------------------------------ dask-otel doctor

#: The doctor's test span, which is not part of the bridge's telemetry.
DOCTOR_SPAN: Final = "dask-otel doctor"
DOCTOR_EVENT: Final = "dask.otel.doctor"
#: The id of the doctor's run, on its test span, counter and log record.
DOCTOR_RUN: Final = "dask.otel.doctor.run"
DOCTOR_CHECKS: Final = Metric(
    "dask.otel.doctor.checks", "counter", "{check}", (DOCTOR_RUN,), "Test counter of the doctor"
)

#: Bounds of the duration histograms, in seconds: from a tenth of a second to a day.
DURATION_BOUNDS: Final = (
    0.1,
    0.5,
    1.0,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    900.0,
    1800.0,
    3600.0,
    10800.0,
    43200.0,
    86400.0,
)
