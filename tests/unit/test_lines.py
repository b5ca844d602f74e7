"""Log records of workers: the sent ones, those left out, and the exported form."""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(st.lists(st.tuples(st.floats(0, 0.5), st.booleans(), st.integers(1, 9000)), max_size=300))
def test_no_record_disappears_and_no_message_is_too_large(
    logged: list[tuple[float, bool, int]],
) -> None:
    """Whatever is logged when: sent and left out is all; at most one message a second, and five."""
    batch, now, due = LineBatch(), 0.0, None
    sent: list[tuple[float, dict[str, Any]]] = []

    def send(planned: bool) -> None:
        message = batch.take(now, planned)
        if message is not None:
            sent.append((now, message))

    for pause, urgent, size in logged:
        if due is not None and now + pause >= due:
            now, due = due, None
            send(planned=True)
        now += pause
        if batch.leave_out(urgent):
            continue
        wait = batch.add(b'"%s"' % (b"x" * size), urgent, now)
        if wait == 0:
            send(planned=False)
        elif wait is not None:
            assert due is None
            due = now + wait
    send(planned=True)
    total = sum(m[lines.RECORDS] + m[lines.LEFT_OUT] for _, m in sent)
    assert total == len(logged)
    for _, message in sent:
        assert len(message[lines.BLOB]) <= lines.MOST_BYTES + 2
        assert len(json.loads(message[lines.BLOB])) == message[lines.RECORDS] <= lines.MOST_RECORDS
    # The last one is the test's own.
    assert len(sent) - 1 <= now + 6


def test_a_warning_finds_room_in_a_storm_of_less() -> None:
    batch = LineBatch()
    for _ in range(1000):
        if not batch.leave_out(urgent=False):
            batch.add(b"1", False, 0.0)
    assert not batch.leave_out(urgent=True)
    assert batch.add(b"2", True, 0.0) == 0.0
    message = batch.take(0.0, planned=False)
    assert message is not None
    assert json.loads(message[lines.BLOB])[-1] == 2
    assert message[lines.RECORDS] + message[lines.LEFT_OUT] == 1001


def test_the_rate_is_kept_whatever_the_clock_does() -> None:
    rate = Rate(2.0, 3.0)
    assert [rate.allows(0.0) for _ in range(4)] == [True, True, True, False]
    assert [rate.allows(1.0) for _ in range(3)] == [True, True, False]
    assert not rate.allows(0.0)
    assert rate.allows(2.0)


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


def as_worker(made: Worker) -> Any:
    return made


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    for name in ("user", "distributed"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.INFO)
    made, own = Worker(), Forwarding()
    own.add(as_worker(made), logging.INFO)
    yield made
    own.remove(as_worker(made))


def test_a_warning_goes_at_once_and_less_after_a_second(worker: Worker) -> None:
    log = logging.getLogger("user")
    log.info("read %d rows", 3)
    assert worker.sent == []
    log.debug("unheard")
    log.warning("disk is nearly full")
    assert worker.texts == ["read 3 rows", "disk is nearly full"]
    log.info("more")
    worker.run()
    assert worker.texts[2:] == ["more"]
    assert worker.later == []


def test_a_record_has_the_ids_and_the_key_of_its_task(worker: Worker) -> None:
    context = TaskContext()
    forwarding.workers.append(as_worker(worker))
    try:
        entered = context.enter(TASK)
        assert entered is not None
        try:
            raise KeyError("row 7")
        except KeyError:
            logging.getLogger("user").exception("failed")
        context.leave(entered)
    finally:
        forwarding.workers.clear()
    ((time, level, name, text, key, ids, error),) = worker.lines
    assert abs(time - 1.7e9) < 1e9
    assert (level, name, text, key) == (40, "user", "failed", "('x', 1)")
    assert ids == [f"{7:032x}", f"{8:016x}", "01"]
    assert error[:2] == ["builtins.KeyError", "'row 7'"]
    assert error[2].startswith("Traceback")
    assert error[2].endswith("KeyError: 'row 7'\n")


@pytest.mark.parametrize(
    ("name", "level", "forwarded"),
    [
        ("distributed.worker", logging.WARNING, True),
        ("distributed.core", logging.WARNING, True),
        ("distributed.core", logging.INFO, False),
        ("distributed.dask_otel", logging.ERROR, False),
        ("opentelemetry.sdk", logging.ERROR, False),
        ("distributed", logging.INFO, True),
    ],
)
def test_nothing_goes_round_in_a_circle(
    worker: Worker, name: str, level: int, forwarded: bool
) -> None:
    """Neither records of ours, nor those of Dask's transport, nor those of our own sending."""
    logger = logging.Logger(name)
    logger.addHandler(logging.NullHandler())
    logger.log(level, "x")
    worker.run()
    assert worker.texts == ["x"] * forwarded


def test_records_of_other_processes_stay_there(worker: Worker) -> None:
    """Dask's clients handle forwarded records; a forked process has no connection."""
    record = logging.makeLogRecord({"name": "user", "levelno": 40, "msg": "x"})
    logging.getLogger("user").handle(record)
    record.process = os.getpid() + 1
    logging.getLogger("user").handle(record)
    assert worker.texts == ["x"]


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
    ],
)
def test_what_can_hardly_be_printed_is_sent(
    worker: Worker, fields: dict[str, Any], text: str, error: tuple[str, str] | None
) -> None:
    handled(fields)
    ((*_, sent, _, _, sent_error),) = worker.lines
    assert (sent, sent_error and tuple(sent_error[:2])) == (text, error)


def test_what_cannot_be_printed_at_all_is_counted(worker: Worker) -> None:
    handled({"exc_info": (Broken, Broken(), "no traceback")})
    worker.run()
    assert [(one[lines.RECORDS], one[lines.LEFT_OUT]) for one in worker.sent] == [(0, 1)]


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
    worker: Worker, character: str, kept: int
) -> None:
    """Each part by itself, by its bytes in the message."""
    long = character * 40_000
    fields = {"name": long, "msg": long, "exc_info": (KeyError, KeyError(long), None)}
    handled(fields)
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
    before, root = logging.Logger.callHandlers, logging.getLogger()
    own, one, two = Forwarding(), Worker(), Worker()
    with monkeypatch.context() as patch:
        # As in a worker's process, where nobody has configured logging.
        patch.setattr(root, "handlers", [])
        patch.setattr(root, "level", logging.WARNING)
        own.add(as_worker(one), logging.INFO)
        own.add(as_worker(two), logging.INFO)
        assert (root.level, root.handlers) == (logging.INFO, [])
        logging.getLogger("user").info("x")
        own.remove(as_worker(one))
        assert one.texts == ["x"]
        logging.getLogger("user").warning("y")
        assert two.texts == ["y"]
        own.remove(as_worker(two))
        assert logging.Logger.callHandlers is before
        assert root.level == logging.WARNING
        # A level that the user chose stays, and so does that of a configured root.
        own.add(as_worker(one), logging.INFO)
        root.level = logging.ERROR
        own.remove(as_worker(one))
        assert root.level == logging.ERROR
        root.handlers.append(logging.NullHandler())
        own.add(as_worker(one), logging.INFO)
        assert root.level == logging.ERROR
        own.remove(as_worker(one))
    logging.getLogger("user").manager._clear_cache()  # type: ignore[attr-defined]


def test_a_storm_of_many_threads_is_bounded_and_counted(worker: Worker) -> None:
    def storm() -> None:
        for number in range(2500):
            logging.getLogger("user").info("line %d", number)

    threads = [threading.Thread(target=storm) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    worker.run()
    assert len(worker.sent) == 1
    assert worker.sent[0][lines.RECORDS] <= lines.MOST_RECORDS
    assert worker.sent[0][lines.RECORDS] + worker.sent[0][lines.LEFT_OUT] == 10_000


# -------------------------------------------------------------------------- on the scheduler


class Cluster:
    """The used part of a scheduler with one worker."""

    def __init__(self, level: int | None = 20) -> None:
        self.truncated: list[str] = []
        self._broker = SimpleNamespace(truncate=self.truncated.append)
        self.workers = {"tcp://w:1": SimpleNamespace(name="w", address="tcp://w:1")}
        clocks = SimpleNamespace(offset=lambda address: 100.0)
        self.read = WorkerLines(self, clocks, level)  # type: ignore[arg-type]

    def sends(self, now: float, topic: str = lines.TOPIC, **message: Any) -> ClusterEvent | None:
        return self.read.read(topic, {"worker": "tcp://w:1", **message}, now)


def message_of(blob: bytes) -> dict[str, Any]:
    return {lines.BLOB: blob, lines.RECORDS: 1}


def message(count: int = 1, left_out: int = 0, size: int = 10) -> dict[str, Any]:
    written = [line(5.0, 30, "user", "x" * size) for _ in range(count)]
    blob = b"[" + b",".join(written) + b"]"
    return {lines.BLOB: blob, lines.RECORDS: count, lines.LEFT_OUT: left_out}


def records(event: ClusterEvent | None, limits: SpanLimits | None = None) -> tuple[LogRecord, ...]:
    assert event is not None
    return narrate(event, limits or SpanLimits(), Sanitizer(), Mask(), LastLines())


def test_a_message_is_read_later_and_its_times_are_the_schedulers() -> None:
    cluster = Cluster()
    event = cluster.sends(106.0, **message(2))
    assert event is not None
    assert event.weight == 2
    one, two = records(event)
    assert one == two
    assert (one.name, one.severity, one.body) == (semconv.WORKER_LOG, semconv.WARN, "x" * 10)
    assert one.time_ns == 105_000_000_000
    assert one.attributes == {**ABOUT, semconv.LOG_LOGGER: "user"}
    assert cluster.truncated == [lines.TOPIC]


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
    healthy = json.loads(line(5.0, 30, "user", "healthy"))
    sent = [one for odd in ODD for one in (odd, healthy)]
    message = {lines.BLOB: json.dumps(sent).encode(), lines.RECORDS: len(sent)}
    told = records(Cluster().sends(106.0, **message))
    assert len(told) == len(sent)
    assert [record.body for record in told[1::2]] == ["healthy"] * len(ODD)
    assert {record.time_ns for record in told} == {105_000_000_000, 106_000_000_000}


@pytest.mark.parametrize(
    ("level", "severity"),
    [(1, 5), (10, 5), (20, 9), (25, 9), (30, 13), (40, 17), (50, 21), (99, 21)],
)
def test_levels_become_severities(level: int, severity: int) -> None:
    blob = b"[" + line(5.0, level, "user", "x") + b"]"
    (record,) = records(Cluster().sends(6.0, **message_of(blob)))
    assert record.severity == severity


def test_what_is_too_much_is_left_out_and_said_once_a_second() -> None:
    cluster = Cluster()
    taken = sum(event.weight for _ in range(50) if (event := cluster.sends(0.0, **message(100))))
    assert 0 < taken < 2000
    assert cluster.read.left_out == 5000 - taken
    assert list(cluster.read.tick(0.5)) == []
    (said,) = cluster.read.tick(1.0)
    (record,) = records(said)
    assert record.attributes == {**ABOUT, semconv.LOG_LEFT_OUT_COUNT: 5000 - taken}
    assert record.body == (
        "Worker w (tcp://w:1) logged more than is forwarded, or than the queue has room for: "
        f"{5000 - taken} records left out."
    )
    assert list(cluster.read.tick(9.0)) == []
    # What a worker left out by itself is counted, too.
    assert cluster.sends(60.0, **message(1, left_out=7)) is not None
    assert cluster.read.left_out == 5007 - taken
    (said,) = cluster.read.tick(60.0, closing=True)
    assert said.facts[semconv.LOG_LEFT_OUT_COUNT] == 7


def test_what_the_queue_has_no_room_for_is_said_when_it_has() -> None:
    room: list[bool] = []
    taken: list[ClusterEvent] = []

    def put(event: ClusterEvent, counted: bool) -> bool:
        taken.extend([event] if room else [])
        return bool(room)

    cluster: Any = Cluster()
    clocks: Any = SimpleNamespace(offset=lambda address: 0.0)
    events = ClusterEvents(cluster, Mock(), clocks, put, False, (), 20)
    events.log_event(lines.TOPIC, {"worker": "tcp://w:1", **message(5)}, 0.0)
    # It is time to say it, but there is no room.
    events.tick(2.0)
    assert (events.waiting, taken) == (True, [])
    room.append(True)
    events.tick(4.0)
    assert [(e.name, e.facts[semconv.LOG_LEFT_OUT_COUNT]) for e in taken] == [
        (semconv.WORKER_LOG_LEFT_OUT, 5)
    ]
    assert not events.waiting


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
    ],
)
def test_wrong_messages_are_ignored(wrong: dict[str, Any]) -> None:
    assert Cluster().sends(0.0, **{**message(), **wrong}) is None
    assert Cluster().read.read(lines.TOPIC, [1], 0.0) is None
    assert Cluster(level=None).sends(0.0, **message()) is None


@pytest.mark.parametrize(
    ("topic", "message", "severity", "logger", "body"),
    [
        ("print", {"args": ("a", "b"), "sep": None}, semconv.INFO, "print", "a b"),
        ("print", {"args": ["a", "b"], "sep": "-"}, semconv.INFO, "print", "a-b"),
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
    assert (record.severity, record.body) == (severity, body)
    assert record.attributes[semconv.LOG_LOGGER] == logger
    assert record.time_ns == 107_000_000_000
    assert Cluster(level=logging.ERROR).sends(107.0, topic, **message) is None


def test_redaction_and_the_settings_of_texts() -> None:
    error = ("E", "secret", "Traceback secret")
    blob = b"[" + line(5.0, 30, "user", "secret pw", "k", ("5", "6", "1"), error) + b"]"
    event = Cluster().sends(6.0, **message_of(blob))
    (record,) = records(event)
    assert (record.trace_id, record.span_id) == (5, 6)
    assert record.attributes == {
        **ABOUT,
        semconv.LOG_LOGGER: "user",
        semconv.TASK_KEY: "k",
        semconv.EXCEPTION_TYPE: "E",
        semconv.EXCEPTION_MESSAGE: "secret",
        semconv.EXCEPTION_STACKTRACE: "Traceback secret",
    }
    (record,) = records(event, SpanLimits(redact=lambda name, text: text.replace("secret", "-")))
    assert "secret" not in str(record)
    assert record.body == "- pw"
    (record,) = records(event, SpanLimits(message=0, stacktrace=0, task_keys=False))
    assert record.attributes.keys() == {*ABOUT, semconv.LOG_LOGGER, semconv.EXCEPTION_TYPE}


def test_the_last_lines_of_a_lost_worker() -> None:
    last, sanitizer = LastLines(), Sanitizer()

    def narrated(event: ClusterEvent) -> LogRecord:
        return narrate(event, SpanLimits(), sanitizer, Mask(), last)[-1]

    event = Cluster().sends(6.0, **message(LAST + 2))
    assert event is not None
    narrated(event)
    facts = {**ABOUT, semconv.WORKER_REMOVAL_REASON: "lost", Fact.LOGS: True}
    lost = ClusterEvent(107.0, semconv.WORKER_REMOVED, facts)
    record = narrated(lost)
    assert (
        record.attributes[semconv.WORKER_LAST_LINES]
        == ("2.0 s before: WARN user: xxxxxxxxxx",) * LAST
    )
    assert record.body is not None
    assert record.body.endswith(
        "The last lines of its log:" + "\n2.0 s before: WARN user: xxxxxxxxxx" * LAST
    )
    # They are forgotten then, and what is not known is said.
    record = narrated(lost)
    assert str(record.body).endswith("No line of its log has arrived.")
    assert semconv.WORKER_LAST_LINES not in record.attributes
    off = {**facts, Fact.LOGS: False}
    record = narrated(ClusterEvent(107.0, semconv.WORKER_REMOVED, off))
    assert str(record.body).endswith("Its last lines are not known: otel.logs.level is off.")
    expected = {**off, semconv.WORKER_REMOVAL_REASON: "requested"}
    record = narrated(ClusterEvent(107.0, semconv.WORKER_REMOVED, expected))
    assert record.body == "Worker w (tcp://w:1) left as requested."


def test_last_lines_of_many_workers_are_bounded() -> None:
    last = LastLines()
    for number in range(1500):
        about = {semconv.WORKER_ADDRESS: str(number)}
        last.add(ClusterEvent(0.0, semconv.WORKER_LOG, about), "x" * 900)
    assert len(last._lines) == 1000
    assert len(last._lines["1499"][0][1]) == 300
