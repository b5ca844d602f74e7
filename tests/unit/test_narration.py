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
    "At its last heartbeat, 0.4 s before, it held 3.9 of 4.0 GiB, used 97% of a CPU for each "
    "thread and ran `merge` for 41 s."
)
HAD = "It had 3 tasks to run: 2 × `merge`, `sum`. Tasks still needed run again elsewhere."


def told(
    name: str, facts: dict[str, Any], *work: SpanIdentity, limits: SpanLimits | None = None
) -> LogRecord:
    event = ClusterEvent(1.5, name, facts, work)
    sanitizer, mask = Sanitizer(), Mask(["s3cret"])
    (record,) = narrate(event, limits or SpanLimits(), sanitizer, mask, LastLines())
    return record


def removed(**changes: Any) -> LogRecord:
    by_name = {name: value for name, value in vars(semconv).items() if name in changes}
    given = {getattr(key, "name", key): changes[name] for name, key in by_name.items()}
    rest = {name: value for name, value in changes.items() if name not in by_name}
    return told(semconv.WORKER_REMOVED, {**REMOVED, **given, **rest})


LOST = (
    "Worker 3 (tcp://w:1) was lost: its connection dropped without notice. Its process was killed "
    "or crashed, or the network failed."
)
CLOSED = "Worker 3 (tcp://w:1) closed. Its reason: nanny-close."
AT_REST = (
    "At its last heartbeat, 0.4 s before, it held 3.9 of 4.0 GiB and used 97% of a CPU for each "
    "thread"
)
GUESS = "A guess: it was killed for its memory, which was close to its limit."


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
            "Worker 3 (tcp://w:1) was killed by its nanny, since its process held 3.9 GiB of "
            f"4.0 GiB. {BUSY} {HAD}",
        ),
        (
            {ERRED: 1, "RESULT_LOST_COUNT": 2, "DATA_LOST_COUNT": 1},
            semconv.ERROR,
            f"{LOST} {GUESS} {BUSY} It had 3 tasks to run: 2 × `merge`, `sum`. 1 task failed for "
            "good, as too many workers died with them. It held the only copy of 2 results, which "
            "Dask computes again. Lost for good: 1 piece of scattered data.",
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
    ],
)
def test_why_a_worker_is_gone(changes: dict[str, Any], severity: int, body: str) -> None:
    record = removed(**changes)
    assert record.body == body
    assert record.severity == severity


@pytest.mark.parametrize(
    ("code", "ended", "guessed"),
    [
        (-9, "was killed with SIGKILL: by the kernel as memory ran out, by a batch", True),
        (-11, "crashed with SIGSEGV, probably in a library's native code.", False),
        (-64, "was killed with signal 64.", False),
        (3, "ended itself, with exit code 3.", False),
        (None, "was killed or crashed, or the network failed.", True),
    ],
)
def test_how_a_lost_worker_ended(code: int | None, ended: str, guessed: bool) -> None:
    record = removed(WORKER_EXIT_CODE=code)
    assert f" without notice. Its process {ended}" in str(record.body)
    assert (GUESS in str(record.body)) == guessed
    assert record.attributes.get(semconv.WORKER_EXIT_CODE) == code


@pytest.mark.parametrize("age", [11.4, 0.0])
def test_a_worker_that_was_overdue(age: float) -> None:
    """Its last heartbeat may have come after that."""
    overdue = {"WORKER_REMOVAL_REASON": "overdue", "WORKER_LAST_SEEN_AGE": age}
    body = str(removed(**overdue, overdue=11.0).body)
    again = " A heartbeat came after that, too late." if age == 0 else ""
    assert (
        "was given up, since it had sent no heartbeat for 11 s, longer than "
        f"distributed.scheduler.worker-ttl.{again} At its last heartbeat, "
    ) in body


def test_the_suspects_are_named_as_far_as_allowed() -> None:
    several = {"TASK_SUSPECTS": ["merge-1", "('x', 2)"], "deaths": 3}
    record = removed(**several)
    said = "Suspected: merge-1, ('x', 2) (to run on each of 3 workers that ended)."
    assert said in str(record.body)
    assert record.attributes[semconv.TASK_SUSPECTS] == ("merge-1", "('x', 2)")
    facts = {**REMOVED, semconv.TASK_SUSPECTS: ["merge-1"], "deaths": 3}
    hidden = told(semconv.WORKER_REMOVED, facts, limits=SpanLimits(task_keys=False))
    assert "merge-1" not in str(hidden)
    redacted = told(
        semconv.WORKER_REMOVED,
        facts,
        limits=SpanLimits(redact=lambda name, text: "-" if name == semconv.TASK_KEY else text),
    )
    assert redacted.attributes[semconv.TASK_SUSPECTS] == ("-",)
    assert "Suspected: - (" in str(redacted.body)


def test_what_is_not_known_is_not_said() -> None:
    unknown = {semconv.WORKER_MEMORY_USAGE.name, semconv.WORKER_MEMORY_LIMIT.name,
               semconv.WORKER_CPU_UTILIZATION.name}  # fmt: skip
    facts = {key: value for key, value in REMOVED.items() if key not in unknown}
    record = told(semconv.WORKER_REMOVED, facts)
    assert record.body == (
        f"{LOST} At its last heartbeat, 0.4 s before, it ran `merge` for 41 s. {HAD}"
    )
    assert not unknown & record.attributes.keys()
    assert told(semconv.WORKER_ADDED, facts).body == "Worker 3 (tcp://w:1) joined with 2 threads."


def test_many_prefixes_are_cut() -> None:
    had = [(f"p{number}", 1) for number in range(7)]
    body = removed(had=had, running=[(p, 2, 0.25) for p, _ in had]).body or ""
    assert "`p0`, `p1`, `p2`, `p3`, `p4`, and 2 more." in body
    assert "2 × `p0` for up to 0.2 s" in body


def test_attributes_are_the_facts_of_the_event() -> None:
    record = removed()
    known = {*semconv.LOG_EVENTS[semconv.WORKER_REMOVED]}
    assert record.attributes == {
        **{key: value for key, value in REMOVED.items() if key in known},
        semconv.TASK_PREFIXES: ("merge", "sum"),
    }
    assert (record.time_ns, record.trace_id, record.span_id) == (1_500_000_000, None, None)


def test_the_trace_of_the_work_if_there_is_one() -> None:
    one = SpanIdentity("a", "a", ("nightly",), 1, Trace(5), 6, None)
    two = SpanIdentity("b", "a", ("nightly", "load"), 1, Trace(5), 7, 6)
    record = told(semconv.P2P_FAILED, {semconv.P2P_ID: "x"}, one)
    assert (record.trace_id, record.span_id) == (5, 6)
    record = told(semconv.P2P_FAILED, {semconv.P2P_ID: "x"}, one, two)
    assert (record.trace_id, record.span_id) == (None, None)
    assert record.attributes[semconv.ROOT_NAMES] == ("nightly",)


def test_redaction_is_asked_about_all_that_users_wrote() -> None:
    asked: list[tuple[str, str]] = []

    def redact(name: str, text: str) -> str | None:
        asked.append((name, text))
        return None if text == "nightly" else text.replace("merge", "(m)")

    who = SpanIdentity("a", "a", ("nightly",), 1, Trace(5), 6, None)
    record = told(semconv.WORKER_REMOVED, REMOVED, who, limits=SpanLimits(redact=redact))
    assert record.attributes[semconv.TASK_PREFIXES] == ("(m)", "sum")
    assert record.attributes[semconv.ROOT_NAMES] == (semconv.EMPTY,)
    assert record.body is not None
    assert "`(m)` for 41 s" in record.body
    assert "merge" not in record.body
    assert ("body", record.body) in asked
    nothing = SpanLimits(redact=lambda name, text: None if name == "body" else text)
    assert told(semconv.WORKER_REMOVED, REMOVED, limits=nothing).body is None


def test_keys_and_messages_have_their_settings() -> None:
    facts = {semconv.TASK_KEY: "k", semconv.TASK_START: "a", semconv.TASK_FINISH: "b"}
    assert "The task is k." in (told(semconv.TRANSITION_FAILED, facts).body or "")
    record = told(semconv.TRANSITION_FAILED, facts, limits=SpanLimits(task_keys=False))
    assert "k." not in (record.body or "").split()
    assert semconv.TASK_KEY not in record.attributes
    facts = {**ABOUT, semconv.EXCEPTION_MESSAGE: "KeyError"}
    assert "KeyError" in (told(semconv.WORKER_FAILED, facts).body or "")
    record = told(semconv.WORKER_FAILED, facts, limits=SpanLimits(message=0))
    assert (record.body, semconv.EXCEPTION_MESSAGE in record.attributes) == ("", False)


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
    facts = {semconv.EVENT_TOPIC: "mine", MESSAGE: message}
    record = told(semconv.TOPIC_MESSAGE, facts)
    assert record.body == body
    assert record.attributes == {semconv.EVENT_TOPIC: "mine"}


def test_a_huge_message_becomes_text_in_part() -> None:
    """The encoder in C would make all of it, and hold the GIL meanwhile."""
    made: list[int] = []

    class Counted:
        def __str__(self) -> str:
            made.append(1)
            return "x"

    record = told(semconv.TOPIC_MESSAGE, {MESSAGE: [Counted()] * 200_000})
    assert str(record.body)[-1] == "…"
    assert len(made) < 100_000
