"""Log records of workers: the sent ones, those left out, and the exported form."""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dask_otel import semconv
from dask_otel._dask.events import ClusterEvents
from dask_otel._dask.lines import WorkerLines
from dask_otel.core.events import lines
from dask_otel.core.events.lines import LAST, LastLines, LineBatch, Rate, line
from dask_otel.core.events.narration import narrate
from dask_otel.core.masking import Mask
from dask_otel.core.records import ClusterEvent, Fact, LogRecord
from dask_otel.core.text import Sanitizer
from dask_otel.core.traces.values import SpanLimits
from dask_otel.worker.forwarding import Forwarding, forwarding
from dask_otel.worker.plugin import TaskContext
from tests.unit.test_log_injection import TASK

ABOUT = {semconv.WORKER_NAME: "w", semconv.WORKER_ADDRESS: "tcp://w:1"}


# ------------------------------------------------------------------------------- on a worker


#: When, whether urgent, and the sizes of records for which as many threads find room before the
#: first of them adds its own.
Logged = list[tuple[float, bool, list[int]]]


@pytest.mark.parametrize(
    ("logged", "expected"),
    [
        # A second after the first record; an urgent one at once, with those before it.
        ([(n / 2, False, [1]) for n in range(4)], [(1.0, 2, 0), (2.0, 2, 0)]),
        (
            [(0.0, False, [1]), (0.5, True, [1]), (0.75, False, [1])],
            [(0.5, 2, 0), (1.0, 1, 0)],
        ),
        # Of urgent ones, five at once and then one a second, of which planned ones are some.
        (
            [(n / 64, True, [1]) for n in range(10)],
            [*((n / 64, 1, 0) for n in range(5)), (1 + 5 / 64, 5, 0)],
        ),
        (
            [(n / 4, True, [1]) for n in range(20)],
            [
                *((n / 4, 1, 0) for n in range(6)),
                *((2.0, 3, 0), (2.5, 1, 0), (3.5, 4, 0), (4.5, 4, 0), (5.5, 2, 0)),
            ],
        ),
        # A quarter is for urgent ones; of threads that find the last places, some lose.
        ([*[(0.0, False, [1])] * 1000, (0.5, True, [1])], [(0.5, 76, 925)]),
        ([(0.0, False, [1] * 1000)], [(1.0, 100, 900)]),
        ([(0.0, False, [9000] * number) for number in (1, 9)], [(1.0, 3, 7)]),
        ([(0.0, True, [9000] * 10)], [(0.0, 3, 7)]),
        ([*[(0.0, False, [5000])] * 10, (0.5, True, [5000])], [(0.5, 6, 5)]),
        ([(n * 1.5, False, [9000] * 3) for n in (0, 1)], [(1.0, 3, 0), (2.5, 3, 0)]),
    ],
)
def test_no_record_disappears_and_no_message_is_too_large(
    logged: Logged, expected: list[tuple[float, int, int]]
) -> None:
    """Sent and left out is all that was logged: the times of messages, and their numbers."""
    batch, due, sent = LineBatch(), math.inf, list[tuple[float, int, int]]()

    def send(now: float, planned: bool) -> None:
        message = batch.take(now, planned)
        if message is not None:
            assert len(message[lines.BLOB]) <= lines.MOST_BYTES + 2
            assert len(json.loads(message[lines.BLOB])) == message[lines.RECORDS]
            sent.append((now, message[lines.RECORDS], message[lines.LEFT_OUT]))

    for now, urgent, sizes in logged:
        if now >= due:
            send(due, planned=True)
            due = math.inf
        found = [size for size in sizes if not batch.leave_out(urgent)]
        waits = [batch.add(b'"%s"' % (b"x" * size), urgent, now) for size in found]
        if 0.0 in waits:
            send(now, planned=False)
        # One message is planned at most.
        (due,) = {due, *(now + wait for wait in waits if wait)} - {math.inf} or {math.inf}
    send(due, planned=True)
    assert sent == expected


def test_the_rate_is_kept_whatever_the_clock_does() -> None:
    rate = Rate(2.0, 3.0)
    allowed = [now for now in (0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.5) if rate.allows(now)]
    assert allowed == [0.0, 0.0, 0.0, 1.0, 1.0, 0.5]


class Worker:
    """What forwarding uses of a worker."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.later: list[Any] = []
        self.loop = self

    def log_event(self, topic: str, message: dict[str, Any]) -> None:
        assert topic == lines.TOPIC
        self.sent.append(message)
        # Like Dask's own loggers at DEBUG, and like a careless transport.
        logging.getLogger("distributed.core").debug("Message")
        logging.getLogger("user").error("in a circle")

    def add_callback(self, call: Any, *args: Any) -> None:
        call(*args)

    def call_later(self, seconds: float, call: Any) -> None:
        assert 0 < seconds <= 1
        self.later.append(call)

    def run(self) -> None:
        later, self.later = self.later, []
        for call in later:
            call()

    @property
    def lines(self) -> list[Any]:
        return [one for message in self.sent for one in json.loads(message[lines.BLOB])]

    @property
    def texts(self) -> list[str]:
        return [one[3] for one in self.lines]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("user", "distributed"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
    made: Any = Worker()
    own = Forwarding()
    own.add(made, logging.INFO)
    yield made
    own.remove(made)


def test_a_warning_goes_at_once_and_less_after_a_second(worker: Any) -> None:
    log, sent = logging.getLogger("user"), []
    for level, text in ((20, "read %d rows"), (10, "unheard %d"), (30, "row %d"), (20, "more %d")):
        log.log(level, text, 3)
        sent.append(worker.texts)
    worker.run()
    both = ["read 3 rows", "row 3"]
    assert [*sent, worker.texts] == [[], [], both, both, [*both, "more 3"]]


def test_a_record_has_the_ids_and_the_key_of_its_task(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "workers", [worker])
    context = TaskContext()
    entered: Any = context.enter(TASK)
    logging.getLogger("user").error("failed", exc_info=KeyError("row 7"))
    context.leave(entered)
    ((time, *record),) = worker.lines
    assert record == [
        40, "user", "failed", "('x', 1)", [f"{7:032x}", f"{8:016x}", "01"],
        ["builtins.KeyError", "'row 7'", "KeyError: 'row 7'\n"],
    ]  # fmt: skip
    assert abs(time - 1.7e9) < 1e9


class Broken(Exception):
    """Cannot be printed in any way."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


HEALTHY = logging.makeLogRecord({"name": "user", "levelno": 40, "msg": "x"}).__dict__


def handled(fields: dict[str, Any]) -> None:
    """Let a logger of its own handle a record: pytest's handlers could not print it."""
    seen: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = seen.append  # type: ignore[method-assign, assignment]
    logger = logging.Logger("user")
    logger.addHandler(handler)
    logger.handle(logging.makeLogRecord({**HEALTHY, **fields}))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("fields", "text", "error"),
    [
        ({"msg": "%d rows", "args": ("many",)}, "%d rows ('many',)", None),
        ({"msg": "%s rows", "args": (1, 2)}, "%s rows (1, 2)", None),
        ({"msg": "x %s", "args": (Broken(),)}, "x %s <unreadable>", None),
        ({"msg": Broken()}, "<unreadable> ()", None),
        ({"exc_info": (Broken, Broken(), None)}, "x", (f"{__name__}.Broken", "<unreadable>")),
        ({"exc_info": 1}, "x", None),
        ({"exc_info": (None, None, None)}, "x", None),
        ({"name": None}, "x", None),
        # Nothing goes round in a circle: neither records of ours, nor those of Dask's transport,
        # nor those of our own sending.
        *(
            ({"name": name, "levelno": level}, text, None)
            for name, level, text in (
                ("distributed.worker", logging.WARNING, "x"),
                ("distributed.core", logging.WARNING, "x"),
                ("distributed.core", logging.INFO, None),
                ("distributed.dask_otel", logging.ERROR, None),
                ("opentelemetry.sdk", logging.ERROR, None),
                ("distributed", logging.INFO, "x"),
            )
        ),
    ],
)
def test_what_is_sent_also_of_what_can_hardly_be_printed(
    worker: Any, fields: dict[str, Any], text: str | None, error: tuple[str, str] | None
) -> None:
    handled(fields)
    worker.run()
    found = [(one[3], one[6] and tuple(one[6][:2])) for one in worker.lines]
    assert found == [(text, error)] * (text is not None)


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        # What cannot be printed at all is counted.
        ({"exc_info": (Broken, Broken(), "no traceback")}, [(0, 1)]),
        # Dask's clients handle forwarded records.
        ({"process": os.getpid() + 1}, []),
        # A forked process: its copy of the lock may never be released.
        ({"process": None}, []),
        ({}, [(1, 0)]),
    ],
)
def test_what_is_counted(
    worker: Any, fields: dict[str, Any], counts: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # `logging.logProcesses` can be False.
    process = os.getpid() + (None in fields.values())
    monkeypatch.setattr(os, "getpid", lambda: process)
    handled(fields)
    worker.run()
    assert [(one[lines.RECORDS], one[lines.LEFT_OUT]) for one in worker.sent] == counts


@pytest.mark.parametrize(
    ("character", "kept"),
    [
        ("x", lines.BODY_LIMIT),
        ('"', lines.BODY_LIMIT),
        ("é", lines.BODY_LIMIT),
        ("数", lines.BODY_LIMIT),
        # They take four bytes and six.
        ("😀", 3000),
        ("\x01", 2000),
        ("\ud800", lines.BODY_LIMIT),
    ],
    ids=["ascii", "escaped", "latin", "chinese", "emoji", "control", "surrogate"],
)
def test_a_long_record_is_cut_and_fits_into_a_message(
    worker: Any, character: str, kept: int
) -> None:
    """Each part by itself, by its bytes in the message."""
    long = character * 40_000
    handled({"name": long, "msg": long, "exc_info": (KeyError, KeyError(long), None)})
    worker.run()
    (sent,) = worker.sent
    assert (sent[lines.RECORDS], sent[lines.LEFT_OUT]) == (1, 0)
    assert len(sent[lines.BLOB]) <= lines.MOST_BYTES
    (exported,) = records(Cluster().sends(6.0, **sent))
    body, stack = str(exported.body), str(exported.attributes[semconv.EXCEPTION_STACKTRACE])
    assert (body[-1], stack[0]) == ("…", "…")
    assert kept <= len(body) <= lines.BODY_LIMIT
    assert len(stack) > 1500


def test_logging_is_as_it_was_after_the_last_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    root, own, workers = logging.getLogger(), Forwarding(), [Worker(), Worker()]
    # As in a worker's process, where nobody has configured logging.
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    original = logging.Logger.callHandlers
    for one in workers:
        own.add(one, logging.INFO)  # type: ignore[arg-type]
    assert (root.level, root.handlers) == (logging.INFO, [])
    for level, one in ((logging.INFO, workers[0]), (logging.WARNING, workers[1])):
        logging.getLogger("user").log(level, "x")
        own.remove(one)  # type: ignore[arg-type]
        assert one.texts[0] == "x"
    assert (logging.Logger.callHandlers, root.level) == (original, logging.WARNING)
    # A level that the user chose stays, and so does that of a configured root.
    own.add(workers[0], logging.INFO)  # type: ignore[arg-type]
    root.level = logging.ERROR
    own.remove(workers[0])  # type: ignore[arg-type]
    root.handlers.append(logging.NullHandler())
    own.add(workers[0], logging.INFO)  # type: ignore[arg-type]
    assert root.level == logging.ERROR
    own.remove(workers[0])  # type: ignore[arg-type]
    root.manager._clear_cache()  # type: ignore[attr-defined]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_worker_whose_loop_ends_before_its_message_is_due_silences_no_other(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    log, own, first, second = logging.getLogger("user"), Forwarding(), Worker(), Worker()
    monkeypatch.setattr(log, "level", logging.INFO)
    own.add(first, logging.INFO)  # type: ignore[arg-type]
    if at_once:
        own.add(second, logging.INFO)  # type: ignore[arg-type]
    log.info("of the first")
    own.remove(first)  # type: ignore[arg-type]
    if not at_once:
        own.add(second, logging.INFO)  # type: ignore[arg-type]
    log.info("of the second")
    second.run()
    assert (first.texts, second.texts) == (["of the first"], ["of the second"])
    own.remove(second)  # type: ignore[arg-type]


def test_a_storm_is_bounded_and_counted_and_leaves_room_for_warnings(worker: Any) -> None:
    for number in range(3000):
        logging.getLogger("user").info("line %d", number)
    logging.getLogger("user").warning("late")
    (sent,) = worker.sent
    assert worker.texts[-1] == "late"
    assert sent[lines.RECORDS] <= lines.MOST_RECORDS
    assert sent[lines.RECORDS] + sent[lines.LEFT_OUT] == 3001


# -------------------------------------------------------------------------- on the scheduler


class Cluster:
    """The used part of a scheduler with one worker."""

    def __init__(self, level: int | None = 20) -> None:
        self.truncated: list[str] = []
        self._broker = SimpleNamespace(truncate=self.truncated.append)
        self.workers = {"tcp://w:1": SimpleNamespace(name="w", address="tcp://w:1")}
        self.read = WorkerLines(self, SimpleNamespace(offset=lambda address: 100.0), level)  # type: ignore[arg-type]

    def sends(self, now: float, topic: str = lines.TOPIC, **message: Any) -> ClusterEvent | None:
        return self.read.read(topic, {"worker": "tcp://w:1", **message}, now)


def message(
    count: int = 1, left_out: int = 0, lines_: Sequence[bytes] | None = None
) -> dict[str, Any]:
    written = lines_ or [line(5.0, 30, "user", "x" * 10)] * count
    blob = b"[" + b",".join(written) + b"]"
    return {lines.BLOB: blob, lines.RECORDS: len(written), lines.LEFT_OUT: left_out}


def records(event: Any, limits: SpanLimits | None = None) -> tuple[LogRecord, ...]:
    return narrate(event, limits or SpanLimits(), Sanitizer(), Mask(), LastLines())


ODD = [
    [5.0, 30.5, "user", "x", None, None, None],
    [math.nan, 30, "user", "x", None, None, None],
    [-math.inf, 30, "user", "x", None, None, None],
    [1e300, 30, "user", "x", None, None, None],
    [5.0, math.nan, "user", "x", None, None, None],
    [5.0, math.inf, "user", "x", None, None, None],
    [5.0, "INFO", "user", "x", None, None, None],
    ["now", 30, "user", "x", None, None, None],
    [5.0, 30, ["user"], {"x": 1}, 7, None, None],
    [5.0, 30, "user", "x", None, ["no", "hex", "!"], None],
    [5.0, 30, "user", "x", None, 7, None],
    [5.0, 30, "user", "x", None, None, 7],
    [5.0, 30, "user", "x", None, None, [1, 2, 3, 4]],
    [5.0, 30],
    {},
    "x",
    None,
]


def test_an_odd_record_costs_no_other_one() -> None:
    """Neither a worker's own code nor another version of it can throw away a message."""
    sent = [one for odd in ODD for one in (json.dumps(odd).encode(), line(5.0, 30, "user", "y"))]
    said = records(Cluster().sends(106.0, **message(lines_=sent)))
    assert [record.body for record in said[1::2]] == ["y"] * len(ODD)
    assert {record.time_ns for record in said[::2]} == {105_000_000_000, 106_000_000_000}


@pytest.mark.parametrize(
    ("level", "severity"),
    [(1, 5), (10, 5), (20, 9), (25, 9), (30, 13), (40, 17), (50, 21), (99, 21)],
)
def test_levels_become_severities(level: int, severity: int) -> None:
    event = Cluster().sends(6.0, **message(lines_=[line(5.0, level, "user", "x")]))
    assert [record.severity for record in records(event)] == [severity]


def test_what_is_too_much_is_left_out_and_said_once_a_second() -> None:
    cluster = Cluster()
    taken = sum(event.weight for _ in range(50) if (event := cluster.sends(0.0, **message(100))))
    assert 0 < taken < 2000
    assert (cluster.read.left_out, list(cluster.read.tick(0.5))) == (5000 - taken, [])
    (said,) = cluster.read.tick(1.0)
    (record,) = records(said)
    assert (record.attributes, record.body) == (
        {**ABOUT, semconv.LOG_LEFT_OUT_COUNT: 5000 - taken},
        "Worker w (tcp://w:1) logged more than the limit or the queue allows: "
        f"{5000 - taken:,} records left out.",
    )
    assert list(cluster.read.tick(9.0)) == []
    # What a worker left out by itself is counted, too.
    assert cluster.sends(60.0, **message(1, left_out=7)) is not None
    (said,) = cluster.read.tick(60.0, closing=True)
    assert (said.facts[semconv.LOG_LEFT_OUT_COUNT], cluster.read.left_out) == (7, 5007 - taken)


def test_what_the_queue_has_no_room_for_is_said_when_it_has() -> None:
    cluster: Any = Cluster()
    # There is room the third time.
    put = Mock(side_effect=[False, False, True])
    events = ClusterEvents(cluster, Mock(), Mock(offset=lambda _: 0.0), put, False, (), 20)
    events.log_event(lines.TOPIC, {"worker": "tcp://w:1", **message(5)}, 0.0)
    waiting = []
    for now in (2.0, 4.0):
        events.tick(now)
        waiting.append(events.waiting)
    assert waiting == [True, False]
    said = put.call_args.args[0]
    assert (said.name, said.facts[semconv.LOG_LEFT_OUT_COUNT]) == (semconv.WORKER_LOG_LEFT_OUT, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {lines.RECORDS: -1},
        {lines.RECORDS: 10**9},
        {lines.RECORDS: True},
        {lines.LEFT_OUT: -1},
        {lines.LEFT_OUT: "7"},
        {lines.BLOB: "text"},
        {lines.BLOB: bytes(1_000_000)},
        {"worker": "tcp://unknown:1"},
        {"worker": ["x"]},
        # It is switched off.
        {"level": None},
    ],
)
def test_wrong_messages_are_ignored(wrong: dict[str, Any]) -> None:
    assert Cluster(wrong.pop("level", 20)).sends(0.0, **{**message(), **wrong}) is None
    assert Cluster().read.read(lines.TOPIC, [1], 0.0) is None


@pytest.mark.parametrize(
    ("topic", "message", "severity", "logger", "body"),
    [
        ("print", {"args": ("a", "b"), "sep": None}, semconv.INFO, "print", "a b"),
        ("print", {"args": ["a", "b"], "sep": "-"}, semconv.INFO, "print", "a-b"),
        ("print", {"args": ["a", "b"], "sep": ""}, semconv.INFO, "print", "ab"),
        ("warn", {"message": pickle.dumps("old")}, semconv.WARN, "py.warnings", "old"),
        (
            "warn",
            {"message": pickle.dumps(DeprecationWarning("old"))},
            semconv.WARN,
            "py.warnings",
            "old",
        ),
    ],
)
def test_what_dask_forwards(
    topic: str, message: dict[str, Any], severity: int, logger: str, body: str
) -> None:
    (record,) = records(Cluster().sends(107.0, topic, **message))
    about = {**ABOUT, semconv.LOG_LOGGER: logger}
    assert record == LogRecord(107_000_000_000, semconv.WORKER_LOG, severity, body, about)
    assert Cluster(level=logging.ERROR).sends(107.0, topic, **message) is None


def test_redaction_and_the_settings_of_texts() -> None:
    error = ("E", "secret", "Traceback secret")
    sent = line(5.0, 30, "user.secret", "secret pw", "k", ("5", "6", "1"), error)
    event = Cluster().sends(6.0, **message(lines_=[sent]))
    about = {**ABOUT, semconv.LOG_LOGGER: "user.secret", semconv.EXCEPTION_TYPE: "E"}
    more = {
        semconv.TASK_KEY: "k",
        semconv.EXCEPTION_MESSAGE: "secret",
        semconv.EXCEPTION_STACKTRACE: "Traceback secret",
    }
    starred = SpanLimits(redact=lambda name, text: text.replace("secret", "-"))
    for limits, attributes in (
        (SpanLimits(), {**about, **more}),
        (starred, {k: text.replace("secret", "-") for k, text in (about | more).items()}),
        (SpanLimits(message=0, stacktrace=0, task_keys=False), about),
    ):
        (record,) = records(event, limits)
        assert (record.trace_id, record.span_id, record.attributes) == (5, 6, attributes)
        assert record.body == ("- pw" if limits is starred else "secret pw")


def test_the_last_lines_of_a_lost_worker() -> None:
    last = LastLines()
    facts = {**ABOUT, semconv.WORKER_REMOVAL_REASON: "lost", Fact.LOGS: True}
    expected = {**facts, Fact.LOGS: False, semconv.WORKER_REMOVAL_REASON: "requested"}

    def narrated(event: Any) -> LogRecord:
        return narrate(event, SpanLimits(), Sanitizer(), Mask(), last)[-1]

    narrated(Cluster().sends(6.0, **message(LAST + 2)))
    said = "2.00 s before: WARN user: xxxxxxxxxx"
    for about, kept, end in (
        (facts, (said,) * LAST, "The last lines of its log:" + f"\n{said}" * LAST),
        # They are forgotten then, and the text says which facts are unknown.
        (facts, None, "No line of its log has arrived."),
        (
            {**facts, Fact.LOGS: False},
            None,
            "Its last lines are unknown: otel.logs.level is off.",
        ),
        (expected, None, "Worker w (tcp://w:1) left as requested."),
    ):
        record = narrated(ClusterEvent(107.0, semconv.WORKER_REMOVED, about))
        assert record.attributes.get(semconv.WORKER_LAST_LINES) == kept
        assert str(record.body).endswith(end)
    # Those of many workers are bounded, and so is each.
    for number in range(1500):
        gone = ClusterEvent(0.0, semconv.WORKER_LOG, {semconv.WORKER_ADDRESS: str(number)})
        last.add(gone, "x" * 900)
    assert (len(last._lines), len(last._lines["1499"][0][1])) == (1000, 300)
