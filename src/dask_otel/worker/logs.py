"""Adds the ids of the trace, the span and the task to log records.

A record factory would not do: if its record has a key of the user's ``extra``, logging raises a
KeyError in the user's code, and ``extra={"trace_id": …}`` is common. So this adds the missing
fields after the user's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from threading import Lock
from typing import Any, Final

from distributed.worker_state_machine import TaskState

from dask_otel import semconv
from dask_otel._dask.wrapping import Wrappers
from dask_otel._otel.api.current import current_ids
from dask_otel.core.text import Sanitizer, span_path
from dask_otel.worker.contexts import KEPT

#: The running task.
running: Final[ContextVar[TaskState | None]] = ContextVar("dask_otel_task", default=None)

#: The fields of every record, inside and outside of tasks, so that one format string serves all.
FIELDS: Final = ("trace_id", "span_id", "trace_flags", semconv.SPAN_NAME, semconv.TASK_KEY)

_NO_IDS: Final = ("", "", "")


class Injection:
    """Adds the fields to the records of this process while any worker wants them."""

    def __init__(self) -> None:
        self._lock = Lock()
        #: The number of workers that want them.
        self.wanted = 0
        self._wrappers = Wrappers()

    def add(self) -> None:
        """Add one request; the first one wraps logging."""
        with self._lock:
            self.wanted += 1
            if self.wanted == 1:
                self._wrappers.method(logging.Logger, "makeRecord", self._adding)

    def remove(self) -> None:
        """Undo one `add`; the last one restores logging."""
        with self._lock:
            self.wanted -= 1
            if not self.wanted:
                self._wrappers.remove()

    def _adding(self, make: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
        def make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = make(*args, **kwargs)
            try:  # noqa: SIM105 - half the price of `suppress`
                _add(record.__dict__)
            except Exception:
                # The code that logs must not see our errors.
                pass
            return record

        return make_record


injection: Final = Injection()


def _add(record: dict[str, Any]) -> None:
    task = running.get()
    task_fields = ("", "") if task is None else (_span_name(task), str(task.key))
    for name, value in zip(FIELDS, (current_ids() or _NO_IDS) + task_fields, strict=True):
        record.setdefault(name, value)


def _span_name(task: TaskState) -> str:
    span = task.annotations.get("span") if task.annotations else None
    if span is None:
        return "default" if task.span_id else ""
    # By the id: tags can have any type, and equal tags can have different texts.
    dask_id = span["ids"][-1]
    name = _names.get(dask_id)
    if name is None:
        if len(_names) >= KEPT:
            _names.clear()
        name = _names[dask_id] = span_path(span["name"], Sanitizer())
    return name


#: Names by Dask span id. Concurrent writes are harmless: all threads write the same.
_names: Final[dict[str, str]] = {}
