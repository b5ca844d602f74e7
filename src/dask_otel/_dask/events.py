"""Events of one scheduler: the facts for log records, from Dask's event log and its hooks.

Dask has deleted a worker when it logs its removal, and the nanny's message comes on another
connection. So the states of workers are kept here, and a lost worker's event waits a moment.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeAlias

from distributed.core import Status
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_otel import semconv
from dask_otel._dask.facts import measured, memory_of
from dask_otel._dask.lines import WorkerLines
from dask_otel._dask.nannies import AT_ONCE, add_exit_code
from dask_otel.core.events.lines import MESSAGE
from dask_otel.core.events.narration import UNEXPECTED
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.records import ClusterEvent, Fact, SpanIdentity
from dask_otel.core.text import ARRAY_LIMIT

#: Seconds to wait for the message of a lost worker's nanny, or of a worker that leaves by itself.
PATIENCE: Final = 2.0
#: Seconds to wait for the scheduler's close after its last worker.
CLOSING: Final = 10.0
#: Least seconds between two events about stolen tasks.
STEALS: Final = 60.0
#: Most tasks, workers and spans that one event reads.
_MOST_READ: Final = 10_000
_MOST_SPANS: Final = 64
#: Dask ends some of its reasons with the time; other numbers, as in signal-15, are part of them.
_TIME: Final = re.compile(r"-\d+\.\d+$")
_RESTARTS: Final = ("client-restart", "restart-workers")

_Message: TypeAlias = Mapping[str, Any]
#: Takes an event if there is room; if not, the flag is whether to count it as lost.
Put: TypeAlias = Callable[[ClusterEvent, bool], bool]


class ClusterEvents:
    """Makes events of one scheduler's log and hooks, on its event loop.

    `put` takes them. `enabled` is whether to make events of the cluster; messages on `topics`, and
    log records of workers from `level` on, become events anyway. Methods may raise: the adapter
    catches the errors.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        lifecycle: Lifecycle,
        clocks: ClockOffsets,
        put: Put,
        enabled: bool,
        topics: Collection[str],
        level: int | None,
    ) -> None:
        self._scheduler = scheduler
        self._open = lifecycle.open
        self._enabled = enabled
        self._topics = frozenset(topics)
        self._logs = level is not None
        #: Log records of workers.
        self.lines = WorkerLines(scheduler, clocks, level)
        self._put = put
        #: By address: the known workers, and facts about their ends that came before these.
        self._workers: dict[str, WorkerState] = {}
        self._known_ends: dict[str, dict[str, Any]] = {}
        #: By address, for each worker that has gone: when its event is due, the worker, the event,
        #: and the question to its nanny.
        self._pending: dict[
            str, tuple[float, WorkerState, ClusterEvent, asyncio.Future[None] | None]
        ] = {}
        self._stolen, self._stolen_since = 0, 0.0

    # ------------------------------------------------------------------ called by the adapter

    def attach(self, now: float) -> None:
        """Begin with the present workers."""
        if not self._enabled:
            return
        self._workers.update(self._scheduler.workers)
        running = self._scheduler.status == Status.running
        self._of_cluster(now, semconv.OTEL_STARTED if running else semconv.SCHEDULER_STARTED)

    def close(self, now: float, removed: bool) -> None:
        """Emit all that waits: the scheduler closes, or the bridge is `removed`."""
        for address in list(self._pending):
            self._complete(address, {Fact.CLOSING: not removed})
        self.tick(now, closing=True)
        self._of_cluster(now, semconv.OTEL_STOPPED if removed else semconv.SCHEDULER_CLOSING)

    def restarted(self, now: float) -> None:
        """Emit the event that all tasks are gone."""
        self._of_cluster(now, semconv.SCHEDULER_RESTARTED)

    def worker_added(self, ws: WorkerState, now: float) -> None:
        """Emit the event of a new worker."""
        if self._enabled:
            self._workers[ws.address] = ws
            if ws.address in self._pending:
                # From here on, messages about this address are about the new worker.
                self._complete(ws.address, {})
        self._of_worker(now, semconv.WORKER_ADDED, ws)

    def log_event(self, topic: str, message: Any, now: float) -> None:
        """Read a message of Dask's event log; any client may log any object on any topic."""
        if topic in self._topics:
            facts = {semconv.EVENT_TOPIC: topic, MESSAGE: message}
            self._put(ClusterEvent(now, semconv.TOPIC_MESSAGE, facts), True)
        lines = self.lines.read(topic, message, now)
        if lines is not None and not self._put(lines, True):
            self.lines.leave_out(lines)
        if not self._enabled:
            return
        if topic == "stealing" and type(message) is tuple and message[:1] == ("confirm",):
            if not self._stolen:
                self._stolen_since = now
            self._stolen += 1
        if type(message) is not dict:
            return
        action = message.get("action")
        if action is not None and type(action) is not str:
            return
        kind = "worker" if topic in self._workers or topic in self._pending else topic
        kind = "client" if topic in self._scheduler.clients else kind
        self._read(kind, action, topic, message, now)

    def tick(self, now: float, closing: bool = False) -> None:
        """Emit what has waited long enough."""
        for address, (until, _, event, _) in list(self._pending.items()):
            # Or the nanny has answered, and others go on.
            known = event.facts[semconv.WORKER_EXIT_CODE] and event.facts[Fact.OTHERS]
            if known or now >= until:
                self._complete(address, {})
        for left_out in self.lines.tick(now, closing):
            if not self._put(left_out, closing):
                self.lines.leave_out(left_out)
        if self._stolen and (closing or now - self._stolen_since >= STEALS):
            seconds = max(0.0, now - self._stolen_since)
            facts = {semconv.TASK_COUNT: self._stolen, semconv.EVENT_INTERVAL: seconds}
            self.emit(now, semconv.TASKS_STOLEN, facts)
            self._stolen = 0

    @property
    def waiting(self) -> bool:
        """Whether an event waits for a tick."""
        return bool(self._pending or self._stolen or self.lines.unsaid)

    # ------------------------------------------------------------------------------ facts

    def emit(
        self, now: float, name: str, facts: Mapping[str, Any], tasks: Iterable[TaskState] = ()
    ) -> None:
        """Emit an event about some tasks."""
        if self._enabled:
            self._put(ClusterEvent(now, name, facts, self._work(tasks)), True)

    def _of_cluster(self, now: float, name: str) -> None:
        self.emit(now, name, {semconv.WORKER_COUNT: len(self._scheduler.workers)})

    def _of_worker(self, now: float, name: str, ws: WorkerState, **more: Any) -> None:
        self.emit(now, name, {**_about(ws, now), **more})

    def _work(self, tasks: Iterable[TaskState]) -> tuple[SpanIdentity, ...]:
        """Return the open spans of some tasks."""
        ids = dict.fromkeys(task.group.span_id for task in tasks)
        spans = (self._open.get(span_id) for span_id in ids if span_id is not None)
        return tuple(span.identity for span in islice(filter(None, spans), _MOST_SPANS))

    def _tasks(self, keys: Iterable[Any]) -> list[TaskState]:
        found = (self._scheduler.tasks.get(key) for key in islice(keys, _MOST_READ))
        return [task for task in found if task is not None]

    # -------------------------------------------------------------------- Dask's own messages

    def _read(
        self, kind: str, action: str | None, topic: str, message: _Message, now: float
    ) -> None:
        """Read a message by its topic, or what the topic names, and by its action."""
        match kind, action:
            case "all", "remove-worker":
                self._removed(message, now)
            case "worker-restart-memory", None:
                self._terminated(message, now)
            case "worker-fail-hard", None:
                if ws := self._workers.get(str(message.get("worker"))):
                    text = {semconv.EXCEPTION_MESSAGE: message.get("exception_text")}
                    self._of_worker(now, semconv.WORKER_FAILED, ws, **text)
            case "worker", "closing-worker":
                reason = _TIME.sub("", str(message.get("reason"))[:200])
                self._complete(topic, {semconv.WORKER_CLOSE_REASON: reason})
            case "worker", "worker-status-change":
                before, after = message.get("prev-status"), message.get("status")
                # None if it has gone: any client may log any event.
                ws = self._workers.get(topic)
                if ws and after == "paused":
                    self._of_worker(now, semconv.WORKER_PAUSED, ws)
                elif ws and (before, after) == ("paused", "running"):
                    self._of_worker(now, semconv.WORKER_RESUMED, ws)
            case "scheduler", "worker-ttl-timed-out":
                for address in islice(message["workers"], _MOST_READ):
                    if ws := self._workers.get(address):
                        self._known_ends.setdefault(address, {})[Fact.OVERDUE] = now - ws.last_seen
                        self._of_worker(now, semconv.WORKER_OVERDUE, ws)
            case "all", "retire-workers":
                listed = {Fact.RETIRED: "retired", Fact.FAILED: "could-not-retire"}
                names = {fact: list(message[key]) for fact, key in listed.items() if message[key]}
                if names:
                    count = {semconv.WORKER_COUNT: len(message["retired"])}
                    self.emit(now, semconv.WORKERS_RETIRED, {**count, **names})
            case "all", "add-client" | "remove-client":
                client, added = str(message.get("client")), action == "add-client"
                # Dask logs the removal of a client a second time.
                if added != (client in self._scheduler.clients):
                    name = semconv.CLIENT_ADDED if added else semconv.CLIENT_REMOVED
                    self.emit(now, name, {semconv.CLIENT_ID: client})
            case "client", "update-graph":
                if message.get("status") == "error":
                    self.emit(now, semconv.GRAPH_FAILED, {semconv.CLIENT_ID: topic})
            case "scheduler", "no-workers-timeout-exceeded":
                tasks = self._tasks(message["keys"])
                facts = {
                    semconv.TASK_COUNT: len(message["keys"]),
                    Fact.HAD: Counter(task.group.prefix.name for task in tasks).most_common(),
                }
                self.emit(now, semconv.NO_WORKER, facts, tasks)
            case "transitions", "scheduler-transition-failed":
                facts = {
                    semconv.TASK_KEY: message["key"],
                    semconv.TASK_START: message.get("start"),
                    semconv.TASK_FINISH: message.get("finish"),
                }
                self.emit(now, semconv.TRANSITION_FAILED, facts, self._tasks([message["key"]]))
            case "p2p", "p2p-failed":
                shuffle = message.get("shuffle")
                barrier = self._tasks([f"shuffle-barrier-{shuffle}"])
                self.emit(now, semconv.P2P_FAILED, {semconv.P2P_ID: shuffle}, barrier)

    # ---------------------------------------------------------------------------- workers

    def _removed(self, message: _Message, now: float) -> None:
        address = message.get("worker")
        if type(address) is not str or address in self._scheduler.workers:
            return
        ws = self._workers.pop(address, None)
        if ws is None:
            return
        keys = message["processing-tasks"]
        tasks = self._tasks(keys)
        # Dask's tasks of the last heartbeat: some may have ended since.
        running = {task: seconds for task, seconds in ws.executing.items() if task.key in keys}
        known = self._known_ends.pop(address, {})
        stimulus = str(message.get("stimulus_id"))
        reason = _reason({**known, semconv.WORKER_REMOVAL_EXPECTED: message["expected"]})
        if reason == "lost" and stimulus.startswith(_RESTARTS):
            # It has no nanny, or none that answers: Dask removes it.
            reason = "restarted"
        facts: dict[str, Any] = {
            **_about(ws, now),
            **known,
            **(_suspects(tasks, running) if reason in UNEXPECTED else {}),
            semconv.WORKER_REMOVAL_REASON: reason,
            semconv.WORKER_REMOVAL_EXPECTED: bool(message["expected"]),
            semconv.WORKER_EXIT_CODE: None,
            semconv.TASK_COUNT: len(keys),
            semconv.TASK_RUNNING_COUNT: len(running),
            semconv.TASK_OUTCOME_COUNT.format("erred"): sum(one.state == "erred" for one in tasks),
            semconv.RESULT_LOST_COUNT: len(message["lost-computed-tasks"]),
            semconv.DATA_LOST_COUNT: len(message["lost-scattered-tasks"]),
            Fact.RUNNING: _running(running),
            Fact.HAD: Counter(task.group.prefix.name for task in tasks).most_common(),
            Fact.LOGS: self._logs,
        }
        event = ClusterEvent(now, semconv.WORKER_REMOVED, facts, self._work(tasks))
        # Its own message with the reason comes after Dask has removed it.
        leaves = stimulus.startswith("worker-close-gracefully")
        facts[Fact.NANNY] = reason == "lost" and bool(ws.nanny) and not leaves
        if leaves or facts[Fact.NANNY] or keys or facts[semconv.RESULT_LOST_COUNT]:
            # Its nanny may give the reason, or the scheduler may close, too.
            others = facts[Fact.OTHERS] = len(self._scheduler.running)
            asking = (
                asyncio.ensure_future(add_exit_code(facts, self._scheduler, ws))
                if facts[Fact.NANNY] and len(self._pending) < AT_ONCE
                else None
            )
            self._pending[address] = (now + (PATIENCE if others else CLOSING), ws, event, asking)
        else:
            self._put(event, True)

    def _terminated(self, message: _Message, now: float) -> None:
        """Read the message of a nanny that ends its worker for memory."""
        address, memory = message.get("worker"), measured(message.get("rss"))
        if type(address) is not str or memory is None:
            return
        waiting = self._pending.get(address)
        ws = self._workers.get(address) if waiting is None else waiting[1]
        if ws is None or ws.pid != message.get("pid"):
            return
        held: Counter[str] = Counter()
        for task in islice(ws.has_what, _MOST_READ):
            held[task.group.prefix.name] += task.get_nbytes()
        facts = {semconv.WORKER_NANNY_MEMORY: memory, Fact.HELD: held.most_common()}
        self._of_worker(now, semconv.WORKER_TERMINATED, ws, **facts)
        self._complete(address, facts)

    def _complete(self, address: str, more: Mapping[str, Any]) -> None:
        """Add facts to the event of a worker's end: emit the waiting event, or keep them for it."""
        waiting = self._pending.pop(address, None)
        if waiting is None:
            self._known_ends.setdefault(address, {}).update(more)
        else:
            _, _, event, asking = waiting
            if asking is not None:
                asking.cancel()
            facts = {**event.facts, **more}
            facts[semconv.WORKER_REMOVAL_REASON] = _reason(facts)
            self._put(replace(event, facts=facts), True)


def _about(ws: WorkerState, now: float) -> dict[str, Any]:
    """Return the facts about a worker at its last heartbeat."""
    memory, cpu = memory_of(ws), measured(ws.metrics.get("cpu"))
    facts: dict[str, Any] = {
        semconv.WORKER_NAME: str(ws.name),
        semconv.WORKER_ADDRESS: ws.address,
        semconv.WORKER_THREAD_COUNT.name: ws.nthreads,
        semconv.WORKER_LAST_SEEN_AGE.name: max(0.0, now - ws.last_seen),
    }
    if memory is not None:
        facts[semconv.WORKER_MEMORY_USAGE.name] = memory.process
    if ws.memory_limit:
        facts[semconv.WORKER_MEMORY_LIMIT.name] = ws.memory_limit
    if cpu is not None and ws.nthreads:
        facts[semconv.WORKER_CPU_UTILIZATION.name] = cpu / 100 / ws.nthreads
    return facts


def _reason(facts: Mapping[str, Any]) -> str:
    """Return why a worker was removed, as far as it is known."""
    closing: str | None = facts.get(semconv.WORKER_CLOSE_REASON)
    if semconv.WORKER_NANNY_MEMORY in facts:
        return "memory"
    if facts[semconv.WORKER_REMOVAL_EXPECTED]:
        return "lifetime" if closing == "worker-lifetime-reached" else "requested"
    if facts.get(Fact.OVERDUE):
        return "overdue"
    if closing is None:
        return "lost"
    return "restarted" if closing.startswith(_RESTARTS) else "closed"


def _suspects(tasks: Iterable[TaskState], running: Collection[TaskState]) -> dict[str, Any]:
    """Return the tasks that the most workers had as they ended, if those are several."""
    most = max([task.suspicious for task in tasks], default=0)
    them = [task for task in tasks if task.suspicious == most > 1]
    suspects = [task for task in them if task in running] or them
    keys = [str(task.key) for task in suspects[:ARRAY_LIMIT]]
    return {semconv.TASK_SUSPECTS: keys, Fact.DEATHS: most} if keys else {}


def _running(tasks: Mapping[TaskState, float]) -> list[tuple[str, int, float]]:
    """Return prefix, number and longest seconds of running tasks, the longest first."""
    found: dict[str, list[float]] = {}
    for task, seconds in tasks.items():
        found.setdefault(task.group.prefix.name, []).append(seconds)
    longest = [(prefix, len(all_), max(all_)) for prefix, all_ in found.items()]
    return sorted(longest, key=lambda one: -one[2])
