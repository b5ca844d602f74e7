"""The kinds of diagnoses: their sentences and the next steps. docs/diagnoses.md explains each."""

from __future__ import annotations

from typing import Final, NamedTuple


class Kind(NamedTuple):
    """A cause in words: the title has `span`, `took` and `what`, which depends on the facts."""

    title: str
    next: str


#: By name, the order is that of the documentation.
KINDS: Final[dict[str, Kind]] = {
    "failed": Kind("{what} failed for good", "Look at the messages and the tracebacks."),
    "lost": Kind(
        "{span} lost about {took} because {what} died",
        "Look at the worker's last lines and at the suspected tasks; give workers more memory if "
        "the system killed them.",
    ),
    "memory": Kind(
        "{span} lost about {took} because {what} ran out of memory",
        "Give each worker more memory, or make partitions smaller.",
    ),
    "repeated": Kind(
        "{span} lost about {took} to runs that were repeated: {what}",
        "Correct the cause; shorter tasks lose less.",
    ),
    "paused": Kind(
        "{span} waited {took} while {what}",
        "Their memory is full: release results, make partitions smaller, or give workers more.",
    ),
    "spill": Kind(
        "{span} spent {took} on writing data to disk and reading it again",
        "Give workers more memory, or keep fewer results at a time.",
    ),
    "no_workers": Kind(
        "{span} waited {took} for workers",
        "Start workers sooner, or raise the minimum of the adaptive cluster.",
    ),
    "held": Kind(
        "{span} waited {took} for threads that {what} held",
        "Give it a higher priority= at its submission, or a cluster of its own.",
    ),
    "threads": Kind(
        "{span} waited for a free thread: {what}doubling the threads can save about {took}",
        "Use more threads, or give the tasks less work.",
    ),
    "restricted": Kind(
        "{span} waited {took} for workers that may run its tasks, while other threads were free",
        "Loosen {what}, or let more workers meet it.",
    ),
    "uneven": Kind(
        "{span} waited {took} behind tasks on one worker, while other workers had a free thread",
        "Allow work stealing, and spread the data and the partitions more evenly.",
    ),
    "queued": Kind(
        "{span} waited {took} on the scheduler's queue, while workers had free threads",
        "Set distributed.scheduler.worker-saturation to 1.0 or more: below, workers get fewer "
        "tasks than they have threads.",
    ),
    "slow_worker": Kind(
        "{span} waited {took} for tasks that take longer on {what}",
        "See what else runs on that machine, or replace the worker.",
    ),
    "starting": Kind(
        "{span} waited {took} for workers to begin its tasks",
        "If event loops of workers were blocked, import modules before the run (worker preload, "
        "PipInstall plugin); else, make closures smaller, and look at the network to workers.",
    ),
    "worker_loop": Kind(
        "{span} waited {took} for a worker whose event loop was blocked",
        "On that worker, look for imports and long functions on its event loop, tasks that hold "
        "the GIL, and too few CPUs.",
    ),
    "gil": Kind(
        "{span} waited {took} for Python's lock, the GIL",
        "Use workers with one thread each, or functions that release the GIL.",
    ),
    "cpus": Kind(
        "{span} waited {took} for a CPU",
        "Use as many threads as there are cores, those of BLAS and OpenMP (OMP_NUM_THREADS) "
        "included, and look at what else uses these machines.",
    ),
    "pickle": Kind(
        "{span} spent {took} on pickling and unpickling data",
        "Return arrays or data frames instead of many small objects; look for a slow __reduce__.",
    ),
    "transfer": Kind(
        "{span} waited {took} for data from other workers",
        "Use fewer and larger workers, or a faster network, or reduce data before it moves.",
    ),
    "shuffle": Kind(
        "{span} spent {took} in a shuffle",
        "Avoid it with an index or with other chunks, make it faster with larger partitions, or "
        "filter before it.",
    ),
    "tiny": Kind(
        "{span} spent {took} on Dask's own work for {what}",
        "Make fewer and longer tasks: larger partitions, or batches.",
    ),
    "scheduler": Kind(
        "{span} waited {took} for the scheduler, whose event loop was blocked",
        "Look at scheduler plugins, at what else runs in its process, such as a client, and at its "
        "CPU.",
    ),
    "graph": Kind(
        "{span} waited {took} until the scheduler had made tasks of its graph",
        "Submit smaller graphs: load data in tasks, or scatter it once, instead of passing it.",
    ),
    "messages": Kind(
        "{span} waited about {took} for messages between the scheduler and workers",
        "Look at the network between them, or move workers closer to the scheduler.",
    ),
    "client": Kind(
        "{span} waited {took} for its client",
        "Look at what the client does in that time: submit more tasks at once, let tasks load data "
        "instead of sending them, and fetch small results instead of large ones.",
    ),
    "chain": Kind(
        "{span} ran {what} one after another while threads were idle: side by side can save about "
        "{took}",
        "Submit steps that do not need one another at once; split the others into pieces that run "
        "side by side.",
    ),
    "long_task": Kind(
        "{span} waited for {what} while threads were idle: splitting can save about {took}",
        "Split these tasks; if others ran before them, start these first.",
    ),
    "inner": Kind(
        "{span} waited {took} for tasks that its own tasks had submitted",
        "Submit them all at once, or from the client, and look for slow ones.",
    ),
    "off_cpu": Kind(
        "{span} waited {took} while tasks of {what} used no CPU",
        "They wait for I/O, locks, other tasks or sleep: make the waits shorter, let one task wait "
        "for many at once, or give workers more threads than cores.",
    ),
    "healthy": Kind("Nothing is in the way{what}", ""),
    "short": Kind("{what}", ""),
    "sizing": Kind("{what}", "Choose the size of workers accordingly."),
    "open": Kind(
        "{what} still open at the end of the telemetry",
        "The work goes on, or the scheduler died: see its log.",
    ),
    "gaps": Kind("The telemetry has gaps: {what}", "What was dropped is missing here."),
    "merged": Kind(
        "{span} includes the work of {what}, and perhaps of other spans",
        "While any future of a function is alive, all its tasks belong to the span that submitted "
        "them first. Give each span a key of its own: client.map(f, items, key='f_2').",
    ),
}
