"""Events as log records: the sentences, their severities, and what redaction sees."""

from __future__ import annotations

from typing import Any

import pytest

from dask_otel import semconv
from dask_otel.core.events.lines import MESSAGE, LastLines
from dask_otel.core.events.narration import narrate
from dask_otel.core.masking import Mask
from dask_otel.core.records import ClusterEvent, Fact, LogRecord, SpanIdentity
from dask_otel.core.text import Sanitizer
from dask_otel.core.trace import Trace
from dask_otel.core.traces.values import SpanLimits

GIB = 1024**3
ERRED = semconv.TASK_OUTCOME_COUNT.format("erred")
ABOUT = {
    semconv.WORKER_NAME: "3",
    semconv.WORKER_ADDRESS: "tcp://w:1",
    semconv.WORKER_THREAD_COUNT.name: 2,
    semconv.WORKER_LAST_SEEN_AGE.name: 0.42,
    semconv.WORKER_MEMORY_USAGE.name: int(3.9 * GIB),
    semconv.WORKER_MEMORY_LIMIT.name: 4 * GIB,
    semconv.WORKER_CPU_UTILIZATION.name: 0.97,
}
REMOVED = {
    **ABOUT,
    semconv.WORKER_REMOVAL_REASON: "lost",
    semconv.WORKER_REMOVAL_EXPECTED: False,
    semconv.TASK_COUNT: 3,
    semconv.TASK_RUNNING_COUNT: 1,
    ERRED: 0,
    semconv.RESULT_LOST_COUNT: 0,
    semconv.DATA_LOST_COUNT: 0,
    Fact.OTHERS: 1,
    Fact.RUNNING: [("merge", 1, 41.2)],
    Fact.HAD: [("merge", 2), ("sum", 1)],
}
BUSY = (
    "At its last heartbeat, 420 ms before, it held 3.9 of 4.0 GiB, used 97% of a CPU for each "
    "thread and ran `merge` for 41.2 s."
)
HAD = "It had 3 tasks to run: 2 × `merge`, `sum`. Tasks still needed run again elsewhere."


def recorded(
    name: str, facts: dict[str, Any], *work: SpanIdentity, limits: SpanLimits | None = None
) -> LogRecord:
    event = ClusterEvent(1.5, name, facts, work)
    sanitizer, mask = Sanitizer(), Mask(["s3cret"])
    (record,) = narrate(event, limits or SpanLimits(), sanitizer, mask, LastLines())
    return record


def removed(*work: SpanIdentity, limits: SpanLimits | None = None, **changes: Any) -> LogRecord:
    """A record of a worker that is gone, with changed facts; None takes one away."""
    facts = dict(REMOVED)
    for name, value in changes.items():
        key = vars(semconv).get(name, name)
        facts[getattr(key, "name", key)] = value
    known = {key: value for key, value in facts.items() if value is not None}
    return recorded(semconv.WORKER_REMOVED, known, *work, limits=limits)


UNKNOWN = ("WORKER_MEMORY_USAGE", "WORKER_MEMORY_LIMIT", "WORKER_CPU_UTILIZATION")
MANY = [(f"p{number}", 1) for number in range(7)]


LOST = (
    "Worker 3 (tcp://w:1) was lost: its connection dropped without notice. Its process was killed "
    "or crashed, or the network failed."
)
CLOSED = "Worker 3 (tcp://w:1) closed. Its reason: nanny-close."
AT_REST = (
    "At its last heartbeat, 420 ms before, it held 3.9 of 4.0 GiB and used 97% of a CPU for each "
    "thread"
)
GUESS = "Probably it was killed for its memory, which was close to its limit."


@pytest.mark.parametrize(
    ("changes", "severity", "body"),
    [
        ({"nanny": False}, semconv.WARN, f"{LOST} {GUESS} {BUSY} {HAD}"),
        (
            {"nanny": True, "WORKER_MEMORY_USAGE": GIB},
            semconv.WARN,
            f"{LOST} Its nanny reported no kill for memory. {BUSY.replace('3.9', '1.0')} {HAD}",
        ),
        (
            {"WORKER_REMOVAL_REASON": "memory", "WORKER_NANNY_MEMORY": int(3.95 * GIB)},
            semconv.WARN,
            "Worker 3 (tcp://w:1) was killed by its nanny: its process held 3.9 GiB of "
            f"4.0 GiB. {BUSY} {HAD}",
        ),
        (
            {
                "WORKER_REMOVAL_REASON": "memory",
                "WORKER_NANNY_MEMORY": int(3.95 * GIB),
                "held": [("load", 2 * GIB), ("sum", 28)],
            },
            semconv.WARN,
            "Worker 3 (tcp://w:1) was killed by its nanny: its process held 3.9 GiB of "
            f"4.0 GiB. Results there: `load` 2.0 GiB, `sum` 28 B. {BUSY} {HAD}",
        ),
        (
            {ERRED: 1, "RESULT_LOST_COUNT": 2, "DATA_LOST_COUNT": 1},
            semconv.ERROR,
            f"{LOST} {GUESS} {BUSY} It had 3 tasks to run: 2 × `merge`, `sum`. 1 task failed for "
            "good: more workers died than distributed.scheduler.allowed-failures. It held the only "
            "copy of 2 results, which Dask computes again. "
            "Lost for good: 1 piece of scattered data.",
        ),
        (
            {
                "WORKER_REMOVAL_REASON": "closed",
                "WORKER_CLOSE_REASON": "nanny-close",
                "TASK_COUNT": 0,
                "running": [],
                "had": [],
            },
            semconv.INFO,
            f"{CLOSED} {AT_REST}.",
        ),
        (
            {
                "WORKER_REMOVAL_REASON": "closed",
                "WORKER_CLOSE_REASON": "nanny-close",
                "TASK_COUNT": 0,
                "running": [],
                "had": [],
                "RESULT_LOST_COUNT": 2,
                "others": 0,
            },
            semconv.WARN,
            f"{CLOSED} {AT_REST}. It held the only copy of 2 results. No other worker runs tasks.",
        ),
        (
            {
                "WORKER_REMOVAL_REASON": "closed",
                "WORKER_CLOSE_REASON": "nanny-close",
                "running": [],
                "RESULT_LOST_COUNT": 2,
                "closing": True,
            },
            semconv.INFO,
            f"{CLOSED} The cluster was closing. {AT_REST}. It had 3 tasks to run: 2 × `merge`, "
            "`sum`. It held the only copy of 2 results.",
        ),
        # Its last heartbeat may have come after that it was given up.
        *(
            (
                {"WORKER_REMOVAL_REASON": "overdue", "WORKER_LAST_SEEN_AGE": age, "overdue": 11.0},
                semconv.WARN,
                "Worker 3 (tcp://w:1) was removed by Dask: it had sent no heartbeat for 11.0 s, "
                f"longer than distributed.scheduler.worker-ttl.{again}"
                f" {BUSY.replace('420 ms', shown)} {HAD}",
            )
            for age, shown, again in (
                (11.4, "11.4 s", ""),
                (0.0, "0 s", " A heartbeat came after that: too late."),
            )
        ),
        # Many prefixes are cut.
        (
            {"had": MANY, "running": [(prefix, 2, 0.25) for prefix, _ in MANY]},
            semconv.WARN,
            f"{LOST} {GUESS} {AT_REST.replace(' and used', ', used')} and ran 2 × `p0` for up to "
            "250 ms, 2 × `p1` for up to 250 ms, 2 × `p2` for up to 250 ms, 2 × `p3` for up to "
            "250 ms, 2 × `p4` for up to 250 ms, and 2 more. It had 3 tasks to run: `p0`, `p1`, "
            "`p2`, `p3`, `p4`, and 2 more. Tasks still needed run again elsewhere.",
        ),
        # Unknown facts are left out.
        (
            dict.fromkeys(UNKNOWN),
            semconv.WARN,
            f"{LOST} At its last heartbeat, 420 ms before, it ran `merge` for 41.2 s. {HAD}",
        ),
    ],
)
def test_why_a_worker_is_gone(changes: dict[str, Any], severity: int, body: str) -> None:
    record = removed(**changes)
    assert (record.body, record.severity) == (body, severity)


@pytest.mark.parametrize(
    ("code", "ended", "guessed"),
    [
        (-9, "was killed with SIGKILL: by the kernel when memory ran out, by a batch", True),
        (-11, "crashed with SIGSEGV, probably in a library's native code.", False),
        (-64, "was killed with signal 64.", False),
        (3, "ended itself, with exit code 3.", False),
        (None, "was killed or crashed, or the network failed.", True),
    ],
)
def test_how_a_lost_worker_ended(code: int | None, ended: str, guessed: bool) -> None:
    record = removed(WORKER_EXIT_CODE=code)
    body = str(record.body)
    assert (f" without notice. Its process {ended}" in body, GUESS in body) == (True, guessed)
    assert record.attributes.get(semconv.WORKER_EXIT_CODE) == code


@pytest.mark.parametrize(
    ("limits", "suspects"),
    [
        (SpanLimits(), ("merge-1", "('x', 2)")),
        (SpanLimits(task_keys=False), None),
        (
            SpanLimits(redact=lambda name, text: "-" if name == semconv.TASK_KEY else text),
            ("-",) * 2,
        ),
    ],
    ids=["all", "no keys", "redacted"],
)
def test_the_suspects_are_named_as_far_as_allowed(
    limits: SpanLimits, suspects: tuple[str, ...] | None
) -> None:
    record = removed(limits=limits, TASK_SUSPECTS=["merge-1", "('x', 2)"], deaths=3)
    said = f"Suspected: {', '.join(suspects or ())} (assigned to each of 3 workers that ended)."
    body = str(record.body)
    assert (said in body, "merge-1" in body) == (bool(suspects), "merge-1" in (suspects or ()))
    assert record.attributes.get(semconv.TASK_SUSPECTS) == suspects


def test_redaction_is_asked_about_all_that_users_wrote() -> None:
    asked: list[tuple[str, str]] = []

    def redact(name: str, text: str) -> str | None:
        asked.append((name, text))
        return None if text == "nightly" else text.replace("merge", "(m)")

    who = SpanIdentity("a", "a", ("nightly",), 1, Trace(5), 6, None)
    record = removed(who, limits=SpanLimits(redact=redact))
    shown = [record.attributes[name] for name in (semconv.TASK_PREFIXES, semconv.ROOT_NAMES)]
    assert shown == [("(m)", "sum"), (semconv.EMPTY,)]
    assert record.body == f"{LOST} {GUESS} {BUSY} {HAD}".replace("merge", "(m)")
    assert ("body", record.body) in asked
    nothing = SpanLimits(redact=lambda name, text: None if name == "body" else text)
    assert removed(limits=nothing).body is None


@pytest.mark.parametrize(
    ("name", "key", "facts", "limits", "bodies"),
    [
        (
            semconv.TRANSITION_FAILED,
            semconv.TASK_KEY,
            {semconv.TASK_START: "a", semconv.TASK_FINISH: "b"},
            SpanLimits(task_keys=False),
            ["The task is key-1.", ""],
        ),
        (
            semconv.WORKER_FAILED,
            semconv.EXCEPTION_MESSAGE,
            ABOUT,
            SpanLimits(message=0),
            ["key-1", ""],
        ),
    ],
)
def test_keys_and_messages_have_their_settings(
    name: str, key: str, facts: dict[str, Any], limits: SpanLimits, bodies: list[str]
) -> None:
    for allowed, part in zip((None, limits), bodies, strict=True):
        record = recorded(name, {**facts, key: "key-1"}, limits=allowed)
        assert part in str(record.body)
        assert {"key-1" in str(record.body), key in record.attributes} == {allowed is None}


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ("text", "text"),
        ({"a": [1, "ä"]}, '{"a": [1, "ä"]}'),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ({"x": object}, '{"x": "<class \'object\'>"}'),
        ("a\0b", "a\ufffdb"),
        ("see http://u:pw@h/x?token=1 and s3cret", "see http://h/x and …"),
        ("x" * 9000, "x" * 4095 + "…"),
        (0, "0"),
    ],
)
def test_users_messages(message: object, body: str) -> None:
    record = recorded(semconv.TOPIC_MESSAGE, {semconv.EVENT_TOPIC: "mine", MESSAGE: message})
    assert (record.body, record.attributes) == (body, {semconv.EVENT_TOPIC: "mine"})


def test_a_huge_message_becomes_text_in_part() -> None:
    """The encoder in C would make all of it, and hold the GIL meanwhile."""
    made: list[int] = []

    class Counted:
        def __str__(self) -> str:
            made.append(1)
            return "x"

    record = recorded(semconv.TOPIC_MESSAGE, {MESSAGE: [Counted()] * 200_000})
    assert (str(record.body)[-1], len(made) < 100_000) == ("…", True)
