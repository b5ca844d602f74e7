"""Log records that name the trace, the span and the task that they come from."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
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


def logged(logger: logging.Logger, text: str, *args: Any, extra: Any = None) -> logging.LogRecord:
    """Return the record that a handler would get."""
    return logger.makeRecord("user", logging.WARNING, "", 1, text, args, None, extra=extra)


def in_task(logger: logging.Logger, *args: Any, task: Any = TASK, **more: Any) -> logging.LogRecord:
    context = TaskContext()
    entered = context.enter(task)
    assert entered is not None
    record = logged(logger, *args, **more)
    context.leave(entered)
    return record


def test_records_of_tasks_have_the_fields_and_others_have_them_empty(logger: logging.Logger):
    assert fields(in_task(logger, "x")) == IN_TASK
    assert fields(logged(logger, "x")) == OUTSIDE


def test_what_the_docs_show(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch):
    """The format string and the JSON, for records in a task, outside, and without the fields."""
    root = logging.Logger("root")
    monkeypatch.setattr(logging, "getLogger", lambda: root)
    page = (Path(__file__).parents[2] / "docs" / "context.md").read_text(encoding="utf-8")
    shown: dict[str, Any] = {"json": json}
    for block in re.findall(r"```python\n(.*?)```", page.partition("## In logs")[2], re.DOTALL):
        exec(block, shown)
    assert shown["FIELDS"] == FIELDS
    shown["dask_setup"](None)
    (handler,) = root.handlers
    record = in_task(logger, "read %d rows", 3)
    outside = logged(logger, "x")
    before = logging.LogRecord("user", logging.WARNING, "", 1, "x", None, None)
    ends = [handler.format(each).partition(" WARNING ")[2] for each in (record, outside, before)]
    assert ends == [
        f"[trace_id={7:032x} span_id={8:016x} task=('x', 1)] read 3 rows",
        "[trace_id= span_id= task=] x",
        "[trace_id= span_id= task=] x",
    ]
    lines = [json.loads(shown["JsonFormatter"]().format(each)) for each in (record, outside)]
    assert lines == [
        {"message": "read 3 rows", "level": "WARNING", **IN_TASK},
        {"message": "x", "level": "WARNING"},
    ]


def test_what_the_user_gives_stays_and_raises_nothing(logger: logging.Logger):
    """With a record factory, logging would refuse these keys with a KeyError."""
    own = {"trace_id": "mine", "dask.task.key": "mine"}
    assert fields(in_task(logger, "x", extra=own)) == {**IN_TASK, **own}


def test_a_factory_of_the_user_and_its_fields_stay(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
):
    class Record(logging.LogRecord):
        otelTraceID = "its own"

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.span_id = "its own"

    monkeypatch.setattr(logging, "_logRecordFactory", Record)
    record = in_task(logger, "x")
    assert type(record) is Record
    assert fields(record) == {**IN_TASK, "span_id": "its own"}


def test_it_can_be_taken_off_and_is_put_on_once(monkeypatch: pytest.MonkeyPatch):
    before = logging.Logger.makeRecord
    made = []
    for request in (injection.add, injection.add, injection.remove, injection.remove):
        request()
        made.append(logging.Logger.makeRecord)
    ours, *others = made
    assert others == [ours, ours, before]
    # Somebody may have kept it, and called it ever since.
    monkeypatch.setattr(logging.Logger, "makeRecord", ours)
    assert fields(in_task(logging.Logger("user"), "x")) == {}


def test_a_task_that_breaks_the_fields_breaks_no_log_call(logger: logging.Logger):
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    task = SimpleNamespace(key=Broken(), span_id="own", annotations={})
    assert in_task(logger, "x", task=task).getMessage() == "x"
