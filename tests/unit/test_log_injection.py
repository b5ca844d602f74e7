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
from tests.unit.garbage import Broken

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
    entered: Any = context.enter(task)
    record = logged(logger, *args, **more)
    context.leave(entered)
    return record


@pytest.mark.parametrize("own", [{}, {"trace_id": "mine", "dask.task.key": "mine"}])
def test_records_of_tasks_have_the_fields_and_others_have_them_empty(
    logger: logging.Logger, own: dict[str, str]
):
    """What the user gives stays: with a factory, logging would refuse these keys."""
    found = [fields(made(logger, "x", extra=own)) for made in (in_task, logged)]
    assert found == [{**IN_TASK, **own}, {**OUTSIDE, **own}]


def test_what_the_docs_show(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch):
    """The format string and the JSON, for records in a task, outside, and without the fields."""
    root = logging.Logger("root")
    monkeypatch.setattr(logging, "getLogger", lambda: root)
    page = (Path(__file__).parents[2] / "docs" / "context.md").read_text(encoding="utf-8")
    shown: dict[str, Any] = {"json": json}
    for block in re.findall(r"```python\n(.*?)```", page.partition("## In logs")[2], re.DOTALL):
        exec(block, shown)
    shown["dask_setup"](None)
    (handler,) = root.handlers
    records = [
        in_task(logger, "read %d rows", 3),
        logged(logger, "x"),
        logging.LogRecord("user", logging.WARNING, "", 1, "x", None, None),
    ]
    ends = [handler.format(each).partition(" WARNING ")[2] for each in records]
    assert (shown["FIELDS"], ends) == (
        FIELDS,
        [
            f"[trace_id={7:032x} span_id={8:016x} task=('x', 1)] read 3 rows",
            *["[trace_id= span_id= task=] x"] * 2,
        ],
    )
    assert [json.loads(shown["JsonFormatter"]().format(each)) for each in records[:2]] == [
        {"message": "read 3 rows", "level": "WARNING", **IN_TASK},
        {"message": "x", "level": "WARNING"},
    ]


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
    made = [logging.Logger.makeRecord]
    for request in (injection.add, injection.add, injection.remove, injection.remove):
        request()
        made.append(logging.Logger.makeRecord)
    before, ours, *others = made
    assert others == [ours, ours, before]
    # Somebody may have kept it, and called it ever since.
    monkeypatch.setattr(logging.Logger, "makeRecord", ours)
    assert fields(in_task(logging.Logger("user"), "x")) == {}


def test_a_task_that_breaks_the_fields_breaks_no_log_call(logger: logging.Logger):
    task = SimpleNamespace(key=Broken(), span_id="own", annotations={})
    assert in_task(logger, "x", task=task).getMessage() == "x"
