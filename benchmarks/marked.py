"""A scheduler's preload, loaded before the bridge: callgrind sees which of our calls runs.

Callgrind knows C functions alone. So each of our entry points is called through an operator that
nothing else in a scheduler uses, and the C function behind that operator has the inclusive cost.
Collections of garbage wait until the call is over, for they are an item of their own.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from distributed.protocol import dumps

from dask_otel._dask.heartbeats import Heartbeats
from dask_otel._dask.spans import DaskSpans
from dask_otel._dask.tasks import TaskEvents
from dask_otel.core.context import DECISION_KEY
from dask_otel.scheduler.bridge import Bridge
from dask_otel.scheduler.hand_over import HandOver

OTHER = "other transitions"
#: By kind of call: the operator, and its C function.
KINDS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "released → waiting": (operator.matmul, "PyNumber_MatrixMultiply"),
    "waiting → queued": (operator.imatmul, "PyNumber_InPlaceMatrixMultiply"),
    "queued → processing": (operator.ilshift, "PyNumber_InPlaceLshift"),
    "processing → memory": (operator.irshift, "PyNumber_InPlaceRshift"),
    "waiting → waiting": (operator.ixor, "PyNumber_InPlaceXor"),
    "memory → forgotten": (operator.ipow, "PyNumber_InPlacePower"),
    OTHER: (operator.imod, "PyNumber_InPlaceRemainder"),
    "submissions": (operator.ifloordiv, "PyNumber_InPlaceFloorDivide"),
    "heartbeats": (operator.itruediv, "PyNumber_InPlaceTrueDivide"),
    # Not `&=`, which other code of a scheduler uses some four times in an idle second.
    "ticks and timers": (divmod, "PyNumber_Divmod"),
}
#: Entry points by kind; that of a transition has it in its arguments.
ENTRIES: list[tuple[type, str, str]] = [
    (TaskEvents, "transition", ""),
    (DaskSpans, "_collisions", "submissions"),
    (DaskSpans, "_take_in_spans", "submissions"),
    (Heartbeats, "_heartbeat", "heartbeats"),
    (Bridge, "_tick", "ticks and timers"),
    (HandOver, "_take_step", "ticks and timers"),
]
#: Calls of an empty function in place of ours, and messages: the part to subtract.
CALLS = 500
#: The kinds that count messages with our annotation, and without it.
MESSAGES = ("released → waiting", "queued → processing")
#: The last arguments of each kind.
_last: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}


class _Call:
    """A call that an operator makes."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    def make(self, _other: object) -> Any:
        """Make it."""
        gc.disable()
        try:
            return self._call()
        finally:
            gc.enable()

    __matmul__ = __imatmul__ = __ilshift__ = __irshift__ = __ixor__ = __ipow__ = make
    __imod__ = __ifloordiv__ = __itruediv__ = __divmod__ = make


def _marked(kind: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        one = kind or f"{args[2]} → {args[3]}"
        one = one if one in KINDS else OTHER
        _last[one] = args, kwargs
        return KINDS[one][0](_Call(partial(method, *args, **kwargs)), None)

    return call


def dask_setup(_scheduler: object) -> None:
    """Mark the entry points; see Dask's preloads."""
    for owner, name, kind in ENTRIES:
        setattr(owner, name, _marked(kind, getattr(owner, name)))


def _empty(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing."""


def call_empty() -> None:
    """Let each mark call nothing, with the last arguments of its kind. Runs on the scheduler."""
    for kind, (args, kwargs) in [*_last.items()]:
        for _ in range(CALLS):
            KINDS[kind][0](_Call(partial(_empty, *args, **kwargs)), None)


def write_messages(dask_scheduler: Any) -> None:
    """Serialize the message of a running task with our annotation, and without. See `MESSAGES`."""
    task = next(one for one in dask_scheduler.tasks.values() if one.processing_on)
    run_id, message = task.run_id, dask_scheduler._task_to_msg(task)
    task.run_id = run_id
    bare = {k: v for k, v in message["annotations"].items() if k != DECISION_KEY}
    for kind, written in zip(MESSAGES, (message["annotations"], bare), strict=True):
        batch = [message | {"annotations": written}] * CALLS
        KINDS[kind][0](_Call(partial(dumps, batch)), None)
