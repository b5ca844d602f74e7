"""Log records that name the trace, the span and the task that they come from."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dask_otel.core.context import Traceparent, format_traceparent
from dask_otel.worker.logs import FIELDS, injection
from dask_otel.worker.plugin import TaskContext

TASK = SimpleNamespace(
    key=("x", 1),
    span_id="own",
    annotations={
        "dask_otel.span": format_traceparent(Traceparent(7, 8, 1)),
        "span": {"name": ("etl", "a/b"), "ids": ("root", "own")},
    },
)
IDS = {"trace_id": f"{7:032x}", "span_id": f"{8:016x}", "trace_flags": "01"}
IN_TASK = {**IDS, "dask.span.name": "etl/a\\/b", "dask.task.key": "('x', 1)"}
OUTSIDE = dict.fromkeys(FIELDS, "")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.Logger("user")
    injection.add()
    yield made
    injection.remove()


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: vars(record)[name] for name in FIELDS if name in vars(record)}


def logged(logger: logging.Logger, *args: Any, **kwargs: Any) -> logging.LogRecord:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.warning(*args, **kwargs)
    logger.removeHandler(handler)
    (record,) = records
    return record


def in_task(logger: logging.Logger, *args: Any, **kwargs: Any) -> logging.LogRecord:
    context = TaskContext()
    entered = context.enter(TASK)
    assert entered is not None
    try:
        return logged(logger, *args, **kwargs)
    finally:
        context.leave(entered)


def test_records_of_tasks_have_the_fields_and_others_have_them_empty(logger: logging.Logger):
    assert fields(in_task(logger, "x")) == IN_TASK
    assert fields(logged(logger, "x")) == OUTSIDE


def test_the_documented_format_string_and_json(logger: logging.Logger):
    text = logging.Formatter(
        "%(levelname)s [trace_id=%(trace_id)s span_id=%(span_id)s task=%(dask.task.key)s] "
        "%(message)s"
    )
    record = in_task(logger, "read %d rows", 3)
    assert text.format(record) == (
        f"WARNING [trace_id={7:032x} span_id={8:016x} task=('x', 1)] read 3 rows"
    )
    assert text.format(logged(logger, "x")) == "WARNING [trace_id= span_id= task=] x"
    line = {"message": record.getMessage(), **fields(record)}
    assert json.loads(json.dumps(line)) == {"message": "read 3 rows", **IN_TASK}


def test_what_the_user_gives_stays_and_raises_nothing(logger: logging.Logger):
    """With a record factory, logging would refuse these keys with a KeyError."""
    own = {"trace_id": "mine", "dask.task.key": "mine"}
    assert fields(in_task(logger, "x", extra=own)) == {**IN_TASK, **own}


def test_a_factory_of_the_user_and_its_fields_stay(logger: logging.Logger):
    before = logging.getLogRecordFactory()

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        record.otelTraceID = "its own"
        record.span_id = "its own"
        return record

    logging.setLogRecordFactory(factory)
    try:
        record = in_task(logger, "x")
        assert logging.getLogRecordFactory() is factory
    finally:
        logging.setLogRecordFactory(before)
    assert vars(record)["otelTraceID"] == "its own"
    assert fields(record) == {**IN_TASK, "span_id": "its own"}


def test_it_can_be_taken_off_and_is_put_on_once():
    before = logging.Logger.makeRecord
    injection.add()
    once = logging.Logger.makeRecord
    injection.add()
    assert logging.Logger.makeRecord is once
    injection.remove()
    assert logging.Logger.makeRecord is once
    injection.remove()
    assert logging.Logger.makeRecord is before


def test_what_somebody_put_around_ours_stays_and_ours_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    before = logging.Logger.makeRecord
    injection.add()
    ours = logging.Logger.makeRecord

    def theirs(*args: Any, **kwargs: Any) -> logging.LogRecord:
        return ours(*args, **kwargs)

    monkeypatch.setattr(logging.Logger, "makeRecord", theirs)
    logger = logging.Logger("user")
    injection.remove()
    assert logging.Logger.makeRecord is theirs
    assert fields(in_task(logger, "x")) == {}
    # And on again, without a second one.
    injection.add()
    assert fields(in_task(logger, "x")) == IN_TASK
    injection.remove()
    monkeypatch.undo()
    assert logging.Logger.makeRecord is ours
    injection.add()
    injection.remove()
    assert logging.Logger.makeRecord is before


def test_a_task_that_breaks_the_fields_breaks_no_log_call(logger: logging.Logger):
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    context = TaskContext()
    entered = context.enter(SimpleNamespace(key=Broken(), span_id="own", annotations={}))
    assert entered is not None
    record = logged(logger, "x")
    context.leave(entered)
    assert record.getMessage() == "x"
