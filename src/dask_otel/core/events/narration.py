"""Makes log records of events of the cluster: name, severity, a text for people, attributes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from dask_otel import semconv
from dask_otel.core.events.lines import BODY_LIMIT, MESSAGE, SEVERITY, LastLines, lines_of
from dask_otel.core.figures import counted, seconds, size
from dask_otel.core.masking import Mask
from dask_otel.core.records import AttributeValue, ClusterEvent, Fact, LogRecord
from dask_otel.core.text import (
    Sanitizer,
    attribute_text,
    attribute_value,
    listed,
    plain_text,
    stacktrace_text,
)
from dask_otel.core.traces.redact import LONGEST, redacted
from dask_otel.core.traces.values import SpanLimits
from dask_otel.semconv import DEBUG, ERROR, INFO, WARN

#: The part of its memory limit from which a lost worker's memory is a likely cause.
_NEARLY_ALL: Final = 0.8

_ERRED: Final = semconv.TASK_OUTCOME_COUNT.format("erred")
#: Counts that are not worth a sentence if they are 0.
_UNSAID: Final = (_ERRED, semconv.RESULT_LOST_COUNT, semconv.DATA_LOST_COUNT, semconv.WORKER_COUNT)

#: Facts with texts of users, and their names for the function of ``otel.redact``.
_OF_USERS: Final = {
    semconv.TASK_KEY: semconv.TASK_KEY,
    semconv.TASK_SUSPECTS: semconv.TASK_KEY,
    semconv.EXCEPTION_MESSAGE: semconv.EXCEPTION_MESSAGE,
    semconv.EXCEPTION_STACKTRACE: semconv.EXCEPTION_STACKTRACE,
    semconv.TASK_PREFIXES: semconv.TASK_PREFIX,
    semconv.ROOT_NAMES: semconv.SPAN_TAGS,
    semconv.LOG_LOGGER: semconv.LOG_LOGGER,
}


class _Template(NamedTuple):
    severity: int
    #: With placeholders, which are names of facts. A sentence with an unknown fact is left out.
    sentences: tuple[str, ...]


def _fact(name: str) -> str:
    return f"%({name})s"


_WORKER: Final = "Worker %(worker)s"
_KEPT: Final = (
    "%(unfinished)s",
    f"Suspected: {_fact(semconv.TASK_SUSPECTS)} (assigned to each of %(deaths)s workers that "
    "ended).",
    f"{_fact(_ERRED)} failed for good: more workers died than "
    "distributed.scheduler.allowed-failures.",
    f"It held the only copy of {_fact(semconv.RESULT_LOST_COUNT)}%(recomputed)s.",
    "%(alone)s",
    f"Lost for good: {_fact(semconv.DATA_LOST_COUNT)} of scattered data.",
)

#: By the reason of a worker's removal.
_REMOVED: Final = {
    "requested": _Template(INFO, (f"{_WORKER} left as requested.",)),
    "lifetime": _Template(
        INFO, (f"{_WORKER} left: its lifetime was over (distributed.worker.lifetime).",)
    ),
    "closed": _Template(
        INFO, (f"{_WORKER} closed. Its reason: {_fact(semconv.WORKER_CLOSE_REASON)}.",)
    ),
    "restarted": _Template(INFO, (f"{_WORKER} ended: a client restarted it.",)),
    "memory": _Template(
        WARN,
        (
            f"{_WORKER} was killed by its nanny: its process held "
            f"{_fact(semconv.WORKER_NANNY_MEMORY)} of {_fact(semconv.WORKER_MEMORY_LIMIT.name)}.",
            "%(held_there)s",
        ),
    ),
    "overdue": _Template(
        WARN,
        (
            f"{_WORKER} was removed by Dask: it had sent no heartbeat for {_fact(Fact.OVERDUE)}, "
            "longer than distributed.scheduler.worker-ttl.",
            "%(again)s",
        ),
    ),
    "lost": _Template(
        WARN,
        (
            f"{_WORKER} was lost: its connection dropped without notice. Its process %(ended)s.",
            "%(guess)s",
            "%(nanny)s",
        ),
    ),
}

#: By exit code, 0 for an unknown one: how a worker's process ended.
_ENDS: Final = {
    0: "was killed or crashed, or the network failed",
    -4: "crashed with SIGILL, probably in a library's native code",
    -6: "crashed with SIGABRT, probably in a library's native code",
    -7: "crashed with SIGBUS, probably in a library's native code",
    -8: "crashed with SIGFPE, probably in a library's native code",
    -9: "was killed with SIGKILL: by the kernel when memory ran out, by a batch system, or by hand",
    -11: "crashed with SIGSEGV, probably in a library's native code",
    -15: "was ended with SIGTERM: by a batch system, or by hand",
}

#: Reasons without a request, and without a message of the worker.
UNEXPECTED: Final = ("memory", "overdue", "lost")
_NO_LINES: Final = (
    "Its last lines are unknown: otel.logs.level is off.",
    "No line of its log has arrived.",
)

_TEMPLATES: Final = {
    semconv.WORKER_ADDED: _Template(
        INFO,
        (
            f"{_WORKER} joined with {_fact(semconv.WORKER_THREAD_COUNT.name)}.",
            f"Its memory limit is {_fact(semconv.WORKER_MEMORY_LIMIT.name)}.",
        ),
    ),
    semconv.WORKER_OVERDUE: _Template(
        WARN,
        (
            f"{_WORKER} sent no heartbeat for {_fact(semconv.WORKER_LAST_SEEN_AGE.name)}, longer "
            "than distributed.scheduler.worker-ttl: Dask restarts or removes it.",
        ),
    ),
    semconv.WORKER_PAUSED: _Template(
        WARN, (f"{_WORKER} paused: its memory is nearly full. It begins no tasks.", "%(then)s")
    ),
    semconv.WORKER_RESUMED: _Template(INFO, (f"{_WORKER} runs tasks again.", "%(then)s")),
    semconv.WORKER_TERMINATED: _Template(
        WARN,
        (
            f"{_WORKER} is being terminated by its nanny for memory: its process held "
            f"{_fact(semconv.WORKER_NANNY_MEMORY)}.",
            "%(held_there)s",
        ),
    ),
    semconv.WORKER_FAILED: _Template(
        ERROR,
        (f"{_WORKER} closes after an error in its own code: {_fact(semconv.EXCEPTION_MESSAGE)}",),
    ),
    semconv.WORKER_LOG_LEFT_OUT: _Template(
        WARN,
        (
            f"{_WORKER} logged more than the limit or the queue allows: "
            f"{_fact(semconv.LOG_LEFT_OUT_COUNT)} left out.",
        ),
    ),
    semconv.WORKERS_RETIRED: _Template(
        INFO, ("Retired: %(retired)s.", "Could not be retired: %(failed)s.")
    ),
    semconv.SCHEDULER_STARTED: _Template(INFO, ("The scheduler starts.",)),
    semconv.SCHEDULER_RESTARTED: _Template(
        WARN, ("A client restarted the cluster: all its tasks and results are gone.",)
    ),
    semconv.SCHEDULER_CLOSING: _Template(
        INFO, ("The scheduler closes.", f"It has {_fact(semconv.WORKER_COUNT)}.")
    ),
    semconv.CLIENT_ADDED: _Template(INFO, (f"Client {_fact(semconv.CLIENT_ID)} connected.",)),
    semconv.CLIENT_REMOVED: _Template(INFO, (f"Client {_fact(semconv.CLIENT_ID)} left.",)),
    semconv.GRAPH_FAILED: _Template(
        ERROR,
        (
            f"A graph of client {_fact(semconv.CLIENT_ID)} could not become tasks; the "
            "scheduler's log has the error.",
        ),
    ),
    semconv.TRANSITION_FAILED: _Template(
        ERROR,
        (
            "An error in the scheduler itself: a task could not pass from "
            f"{_fact(semconv.TASK_START)} to {_fact(semconv.TASK_FINISH)}. Its state may be wrong "
            "from now on; the scheduler's log has the error.",
            f"The task is {_fact(semconv.TASK_KEY)}.",
        ),
    ),
    semconv.NO_WORKER: _Template(
        ERROR,
        (
            f"{_fact(semconv.TASK_COUNT)} failed: no suitable worker was there within "
            "distributed.scheduler.no-workers-timeout.",
            "By prefix: %(by_prefix)s.",
        ),
    ),
    semconv.TASKS_STOLEN: _Template(
        DEBUG,
        (
            f"{_fact(semconv.TASK_COUNT)} moved to other workers (work stealing) in "
            f"{_fact(semconv.EVENT_INTERVAL)}.",
        ),
    ),
    semconv.P2P_FAILED: _Template(ERROR, (f"The P2P shuffle {_fact(semconv.P2P_ID)} failed.",)),
    semconv.OTEL_STARTED: _Template(
        INFO,
        ("dask-otel began to watch this scheduler.", f"It has {_fact(semconv.WORKER_COUNT)}."),
    ),
    semconv.OTEL_STOPPED: _Template(INFO, ("dask-otel was removed; the scheduler continues.",)),
    semconv.OTEL_EXPORT_FAILING: _Template(
        WARN,
        (
            f"dask-otel can't export {_fact(semconv.OTEL_SIGNAL)} to "
            f"{_fact(semconv.OTEL_DESTINATION)}; it keeps as much as its queue holds, and retries.",
        ),
    ),
    semconv.OTEL_EXPORT_RECOVERED: _Template(
        INFO, (f"dask-otel exports to {_fact(semconv.OTEL_DESTINATION)} again.",)
    ),
    semconv.OTEL_FOLDING: _Template(
        WARN,
        (
            f"dask-otel begins to fold metrics under _OTHER: a limit of {_fact(semconv.OTEL_KIND)} "
            "is reached.",
        ),
    ),
    semconv.OTEL_QUEUE_FULL: _Template(
        WARN, (f"dask-otel drops {_fact(semconv.OTEL_SIGNAL)}: the queue of an exporter is full.",)
    ),
    semconv.TOPIC_MESSAGE: _Template(INFO, ("%(message)s",)),
}


def narrate(
    event: ClusterEvent, limits: SpanLimits, sanitizer: Sanitizer, mask: Mask, last: LastLines
) -> tuple[LogRecord, ...]:
    """Return the log record of an event, or those of a worker's message.

    Parameters
    ----------
    event
        What happened.
    limits
        Limits of texts; whether to export keys of tasks; the operator's redaction.
    sanitizer
        Counts the values that had to be changed.
    mask
        Masks secrets in the text.
    last
        The last lines of workers, which this keeps.
    """
    events = lines_of(event) if event.name == semconv.WORKER_LOG else (event,)
    return tuple([_record(one, limits, sanitizer, mask, last) for one in events])


def _record(
    event: ClusterEvent, limits: SpanLimits, sanitizer: Sanitizer, mask: Mask, last: LastLines
) -> LogRecord:
    types = semconv.LOG_EVENTS[event.name]
    facts = _redacted(_with_roots(event), limits, sanitizer)
    if event.name == semconv.WORKER_REMOVED and (lines := last.ended(event)):
        facts[semconv.WORKER_LAST_LINES] = lines
    stack = facts.pop(semconv.EXCEPTION_STACKTRACE, None)
    template = _template(event.name, facts)
    shown = _shown(facts)
    sentences = (_filled(sentence, shown) for sentence in template.sentences)
    body: str | None = " ".join(filter(None, sentences))[:LONGEST]
    if limits.redact is not None:
        body = redacted(limits.redact, semconv.LOG_BODY, body, sanitizer)
    if body is not None:
        body = attribute_text(mask(body), sanitizer, BODY_LIMIT)
    known = ((key, attribute_value(facts.get(key), sanitizer)) for key in types)
    attributes: dict[str, AttributeValue] = {k: value for k, value in known if value is not None}
    if stack is not None:
        attributes[semconv.EXCEPTION_STACKTRACE] = stacktrace_text(
            stack, sanitizer, limits.stacktrace
        )
    if event.name == semconv.WORKER_LOG:
        severity = semconv.SEVERITIES[template.severity]
        last.add(event, f"{severity} {facts[semconv.LOG_LOGGER]}: {body}")
    spans = {(who.trace_id, who.span_id) for who in event.work}
    trace_id, span_id = spans.pop() if len(spans) == 1 else (None, None)
    time_ns = int(event.time * 1e9)
    return LogRecord(time_ns, event.name, template.severity, body, attributes, trace_id, span_id)


def _filled(sentence: str, shown: Mapping[str, str]) -> str:
    try:
        return sentence % shown
    except KeyError:
        # One of its facts is unknown.
        return ""


def _with_roots(event: ClusterEvent) -> dict[str, Any]:
    facts = dict(event.facts)
    if event.work:
        facts[semconv.ROOT_NAMES] = list(
            dict.fromkeys(who.tags[0] for who in event.work if who.tags)
        )
    prefixes = [prefix for prefix, *_ in (*facts.get(Fact.RUNNING, ()), *facts.get(Fact.HAD, ()))]
    if prefixes:
        facts[semconv.TASK_PREFIXES] = list(dict.fromkeys(prefixes))
    return facts


def _redacted(facts: dict[str, Any], limits: SpanLimits, sanitizer: Sanitizer) -> dict[str, Any]:
    """Return the facts as the operator allows: texts of users can be secret."""
    for key, allowed in (
        (semconv.TASK_KEY, limits.task_keys),
        (semconv.TASK_SUSPECTS, limits.task_keys),
        (semconv.EXCEPTION_MESSAGE, limits.message),
        (semconv.EXCEPTION_STACKTRACE, limits.stacktrace),
    ):
        if not allowed:
            facts.pop(key, None)
    redact = limits.redact
    if redact is None:
        return facts

    def text(name: str, value: object) -> str:
        return redacted(redact, name, value, sanitizer) or semconv.EMPTY

    for key, name in _OF_USERS.items():
        if isinstance(value := facts.get(key), list):
            facts[key] = [text(name, item) for item in value]
        elif value is not None:
            facts[key] = text(name, value)
    for key in (Fact.RUNNING, Fact.HAD, Fact.HELD):
        if key in facts:
            facts[key] = [(text(semconv.TASK_PREFIX, one), *more) for one, *more in facts[key]]
    return facts


def _template(name: str, facts: Mapping[str, Any]) -> _Template:
    if name == semconv.WORKER_LOG:
        return _Template(facts[SEVERITY], (_fact(MESSAGE),))
    if name != semconv.WORKER_REMOVED:
        return _TEMPLATES[name]
    template = _REMOVED[facts[semconv.WORKER_REMOVAL_REASON]]
    severity = template.severity
    if not facts.get(Fact.CLOSING):
        if facts.get(semconv.TASK_COUNT) or facts.get(semconv.RESULT_LOST_COUNT):
            severity = max(WARN, severity)
        if facts.get(semconv.DATA_LOST_COUNT) or facts.get(_ERRED):
            severity = ERROR
    then = ("%(closing)s", "%(then)s", *_KEPT, "%(lines)s")
    return _Template(severity, (*template.sentences, *then))


# -------------------------------------------------------------------------- facts as text


def _shown(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of facts by name, and the sentences that several facts make."""
    # Numbers become text here on purpose; changes of the whole body and the attributes are counted.
    sanitizer = Sanitizer()
    shown = {
        key: _TEXTS[key](value) if key in _TEXTS else attribute_text(value, sanitizer)
        for key, value in facts.items()
        if value or key not in _UNSAID
    }
    name, address = shown.get(semconv.WORKER_NAME), shown.get(semconv.WORKER_ADDRESS)
    shown["worker"] = f"{address}" if name in (None, address) else f"{name} ({address})"
    if then := [*_busy(facts)]:
        *first, last = then
        said = f"{', '.join(first)} and {last}" if first else last
        age = shown.get(semconv.WORKER_LAST_SEEN_AGE.name, "a moment")
        shown["then"] = f"At its last heartbeat, {age} before, it {said}."
    code = facts.get(semconv.WORKER_EXIT_CODE) or 0
    shown["ended"] = _ENDS.get(code) or (
        f"was killed with signal {-code}" if code < 0 else f"ended itself, with exit code {code}"
    )
    if facts.get(Fact.OVERDUE, 0.0) > facts.get(semconv.WORKER_LAST_SEEN_AGE.name, math.inf):
        shown["again"] = "A heartbeat came after that: too late."
    memory = facts.get(semconv.WORKER_MEMORY_USAGE.name, 0)
    limit = facts.get(semconv.WORKER_MEMORY_LIMIT.name, math.inf)
    if memory >= _NEARLY_ALL * limit and code in (0, -9):
        shown["guess"] = "Probably it was killed for its memory, which was close to its limit."
    shown["nanny"] = "Its nanny reported no kill for memory." if facts.get(Fact.NANNY) else ""
    if lines := facts.get(semconv.WORKER_LAST_LINES):
        shown["lines"] = "\n".join(("The last lines of its log:", *lines))
    elif Fact.LOGS in facts and facts[semconv.WORKER_REMOVAL_REASON] in UNEXPECTED:
        shown["lines"] = _NO_LINES[facts[Fact.LOGS]]
    others = facts.get(Fact.OTHERS)
    shown["recomputed"] = ", which Dask computes again" if others else ""
    if facts.get(Fact.CLOSING):
        shown["closing"], shown["recomputed"] = "The cluster was closing.", ""
    elif others == 0:
        shown["alone"] = "No other worker runs tasks."
    if results := facts.get(Fact.HELD):
        there = listed([f"`{prefix}` {size(bytes_)}" for prefix, bytes_ in results])
        shown["held_there"] = f"Results there: {there}."
    if facts.get(Fact.HAD):
        shown["by_prefix"] = listed(
            [f"{_times(tasks)}`{prefix}`" for prefix, tasks in facts[Fact.HAD]]
        )
        shown["unfinished"] = f"It had {shown[semconv.TASK_COUNT]} to run: {shown['by_prefix']}."
        if others and not (facts.get(Fact.CLOSING) or facts.get(_ERRED)):
            shown["unfinished"] += " Tasks still needed run again elsewhere."
    return shown


def _busy(facts: Mapping[str, Any]) -> Iterator[str]:
    memory = facts.get(semconv.WORKER_MEMORY_USAGE.name)
    if memory is not None:
        yield f"held {size(memory, facts.get(semconv.WORKER_MEMORY_LIMIT.name))}"
    cpu = facts.get(semconv.WORKER_CPU_UTILIZATION.name)
    if cpu is not None:
        yield f"used {cpu:.0%} of a CPU for each thread"
    if running := facts.get(Fact.RUNNING):
        yield "ran " + listed(
            [
                f"{_times(tasks)}`{prefix}` for {'up to ' * (tasks > 1)}{seconds(took)}"
                for prefix, tasks, took in running
            ]
        )


def _times(count: int) -> str:
    return f"{count} × " if count > 1 else ""


def _message(message: object) -> str:
    if not isinstance(message, str):
        with suppress(TypeError, ValueError, RecursionError):
            # In pieces: all at once, a large message would hold the GIL for seconds.
            pieces = json.JSONEncoder(default=str, ensure_ascii=False).iterencode(message)
            return "".join(islice(pieces, LONGEST))
    return plain_text(message, Sanitizer())


#: How facts become text; the others stay as they are.
_TEXTS: Final[dict[str, Callable[[Any], str]]] = {
    semconv.WORKER_MEMORY_LIMIT.name: size,
    semconv.WORKER_NANNY_MEMORY: size,
    semconv.WORKER_LAST_SEEN_AGE.name: seconds,
    Fact.OVERDUE: seconds,
    semconv.EVENT_INTERVAL: seconds,
    semconv.WORKER_THREAD_COUNT.name: partial(counted, what="thread"),
    semconv.WORKER_COUNT: partial(counted, what="worker"),
    semconv.TASK_COUNT: partial(counted, what="task"),
    _ERRED: partial(counted, what="task"),
    semconv.LOG_LEFT_OUT_COUNT: partial(counted, what="record"),
    semconv.RESULT_LOST_COUNT: partial(counted, what="result"),
    semconv.DATA_LOST_COUNT: partial(counted, what="piece"),
    semconv.TASK_SUSPECTS: listed,
    Fact.RETIRED: listed,
    Fact.FAILED: listed,
    MESSAGE: _message,
}
