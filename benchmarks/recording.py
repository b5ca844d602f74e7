"""Dask's calls of the bridge, recorded on a scheduler and replayed into a bridge.

The recording is made at Dask's interface (plugin, extension, handlers), so that it still fits when
the bridge changes inside. The replay leaves Dask out: its scheduler only makes the recorded calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any, NamedTuple

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_otel import semconv


class Call(NamedTuple):
    """One call from Dask, or one timer of the bridge."""

    #: ``transition``, ``submission``, ``heartbeat``, ``tick``, ``metrics`` or ``end``.
    kind: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}

    @property
    def detail(self) -> str:
        """The kind, with the states of a transition."""
        return f"{self.args[1]} → {self.args[2]}" if self.kind == "transition" else self.kind


class _Task:
    """A task as the bridge sees it while it has work left, or is done well."""

    actor = has_lost_dependencies = False
    state = "released"
    exception_blame = exception_text = None
    who_wants = waiters = True

    def __init__(self, key: Any, group: Any, annotations: Any) -> None:
        self.key = key
        self.group = group
        self.annotations = dict(annotations or {})
        self.processing_on: Any = None
        self.run_id: int | None = None


class _Submitted:
    """A task as it was when it was submitted: its group may have had no span yet."""

    def __init__(self, task: Any) -> None:
        self.group = _GroupBefore(task.group.span_id)
        self.annotations = dict(task.annotations or {})


class _GroupBefore:
    def __init__(self, span_id: str | None) -> None:
        self.span_id = span_id


class Recorder(SchedulerPlugin):
    """Records a scheduler's calls of its plugins and of its spans extension.

    Parameters
    ----------
    scheduler
        Put it there before the bridge: so the bridge can come and go above it.
    """

    name = "benchmark-recorder"

    def __init__(self, scheduler: Any) -> None:
        self.calls: list[Call] = []
        self.tasks: dict[Any, _Task] = {}
        self._scheduler = scheduler
        self._beat: tuple[Any, Any] | None = None
        extension = scheduler.extensions["spans"]
        extension.heartbeat = partial(self._heartbeat, extension.heartbeat)
        extension.observe_tasks = partial(self._observe_tasks, extension.observe_tasks)
        handler = scheduler.handlers["heartbeat_worker"]
        scheduler.handlers["heartbeat_worker"] = wraps(handler)(
            partial(self._heartbeat_worker, handler)
        )
        scheduler.add_plugin(self)

    def finish(self) -> None:
        """Add what the bridge does after the work: it ends the spans, and hands over metrics."""
        self.calls += [Call("end"), Call("metrics")]

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """See ``SchedulerPlugin.transition``."""
        self.calls.append(Call("transition", (key, start, finish, *args), kwargs))
        if start == "released" and finish != "forgotten":
            task = self._scheduler.tasks[key]
            self.tasks[key] = _Task(key, task.group, task.annotations)
        elif finish == "processing" and key in self.tasks:
            self.tasks[key].processing_on = self._scheduler.tasks[key].processing_on
            self.tasks[key].run_id = self._scheduler.tasks[key].run_id

    def _observe_tasks(
        self, original: Callable[..., Any], tss: Iterable[Any], *args: Any, **kwargs: Any
    ) -> Any:
        tasks = list(tss)
        self.calls.append(Call("submission", ([_Submitted(task) for task in tasks],)))
        return original(tasks, *args, **kwargs)

    def _heartbeat(self, original: Callable[..., Any], ws: Any, data: Any) -> Any:
        self._beat = (ws, dict(data))
        return original(ws, data)

    def _heartbeat_worker(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._beat = None
        result = original(*args, **kwargs)
        if self._beat is not None:
            self.calls.append(Call("heartbeat", self._beat, kwargs))
        return result


class _Extension:
    """The spans extension: Dask's spans, and methods that do nothing, for the bridge to wrap."""

    def __init__(self, spans: dict[str, Any]) -> None:
        self.spans = spans

    def heartbeat(self, ws: Any, data: Any) -> None:
        """Do nothing."""

    def observe_tasks(self, tss: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


class Stage:
    """A scheduler that does nothing but make the recorded calls; all else is the real one's.

    Parameters
    ----------
    scheduler
        On which the recording was made; nothing may run on it now.
    recorder
        With the calls.
    """

    def __init__(self, scheduler: Any, recorder: Recorder) -> None:
        self._scheduler = scheduler
        self._beat: tuple[Any, Any] = (None, None)
        self.tasks = recorder.tasks
        self.extensions = {"spans": _Extension(scheduler.extensions["spans"].spans)}
        self.handlers = {"heartbeat_worker": self._heartbeat_worker}
        self.stream_handlers = {"long-running": _nothing, "task-erred": _nothing}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _heartbeat_worker(self, **message: Any) -> None:
        self.extensions["spans"].heartbeat(*self._beat)

    def heartbeat(self, ws: Any, data: Any, **message: Any) -> None:
        """Handle a worker's message."""
        self._beat = (ws, data)
        self.handlers["heartbeat_worker"](**message)

    def submission(self, tasks: list[Any]) -> None:
        """Take in tasks."""
        self.extensions["spans"].observe_tasks(tasks, (), {})


def _now(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Let a run end now: the bridge compares workers' times with those of their messages."""
    if not kwargs.get("startstops"):
        return kwargs
    now = time.time()
    startstops = [{"action": "compute", "start": now - 1e-6, "stop": now}]
    return {**kwargs, "startstops": startstops, "stimulus_id": f"task-finished-{now}"}


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


class _Pump:
    """Takes the bridge's exports, and counts the tasks in them."""

    #: With `otel.spool.path`: notes of open spans are always taken.
    takes_notes = True

    def __init__(self) -> None:
        self.journal = self
        self.booked = 0
        self.notes = 0
        self.errors: dict[str, int] = {}

    def accepts_metrics(self) -> bool:
        return True

    def offer_span(self, span: Any) -> bool:
        return True

    def note(self, note: Any) -> None:
        self.notes += 1

    def offer_metrics(self, batch: Any) -> None:
        for series, count in batch.increments.items():
            if series[0] == semconv.TASK_FINISHED.name and series[-1] == "memory":
                self.booked += int(count)
            elif series[0] == semconv.OTEL_INTERNAL_ERRORS.name:
                self.errors[series[1]] = count


class Replay:
    """A stage and, if asked for, a fresh bridge on it, without exporters.

    Parameters
    ----------
    scheduler, recorder
        See `Stage`.
    bridged
        Without a bridge the same calls do nothing: their cost is to be subtracted.
    overrides
        The bridge's configuration.
    """

    def __init__(
        self,
        scheduler: Any,
        recorder: Recorder,
        bridged: bool,
        overrides: dict[str, Any] | None = None,
    ) -> None:
        self.calls = recorder.calls
        self._bridge: Any = None
        self._pump = _Pump()
        stage = Stage(scheduler, recorder)
        self._table: dict[str, Callable[..., Any]] = {
            **dict.fromkeys(("transition", "tick", "end", "metrics"), _nothing),
            "submission": stage.submission,
            "heartbeat": stage.heartbeat,
        }
        if bridged:
            self._put_bridge(stage, overrides)

    def _put_bridge(self, stage: Stage, overrides: dict[str, Any] | None) -> None:
        from dask_otel.scheduler.bridge import Bridge
        from dask_otel.settings.reading import read_settings

        self._bridge = bridge = Bridge(stage, read_settings(overrides or {}))
        bridge.hand_over.begin(self._pump)
        bridge.adapter.attach()
        self._table |= {
            "transition": bridge.adapter.transition,
            "tick": bridge._tick,
            "end": lambda: bridge.adapter.lifecycle.close(time.time()),
            "metrics": lambda: list(bridge.hand_over.steps()),
        }

    def run(self) -> None:
        """Make all calls."""
        table = self._table
        for kind, args, kwargs in self.calls:
            table[kind](*args, **_now(kwargs))

    def run_with(self, around: Callable[[Callable[[], Any]], Any], detail: str) -> None:
        """Make all calls, those with this detail through a function that measures them."""
        table = self._table
        for call in self.calls:
            kwargs = _now(call.kwargs)
            if call.detail == detail:
                around(lambda call=call, kwargs=kwargs: table[call.kind](*call.args, **kwargs))
            else:
                table[call.kind](*call.args, **kwargs)

    @property
    def notes(self) -> int:
        """Notes of open spans that the bridge has handed over."""
        return self._pump.notes

    def check(self) -> None:
        """Raise if the bridge swallowed an error, or did not book every task of the recording."""
        if self._bridge is None:
            return
        booked, errors = self._pump.booked, self._pump.errors | self._bridge.boundary.take()
        tasks = sum(call.detail == "processing → memory" for call in self.calls)
        if errors or booked != tasks:
            raise RuntimeError(f"the replay booked {booked} of {tasks} tasks; {errors}")
        self._bridge.adapter.detach()
