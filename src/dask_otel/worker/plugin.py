"""The worker plugin; the scheduler's bridge or a preload adds it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import Token
from typing import Any, TypeAlias, TypeVar

from distributed.diagnostics.plugin import WorkerPlugin
from distributed.worker import Worker
from distributed.worker_state_machine import TaskState

from dask_otel._dask.workers.execution import is_beside_a_scheduler, within_contexts
from dask_otel._otel.api.current import Context, attach, detach, get_current
from dask_otel.client.instrumentation import INSTRUMENTATION
from dask_otel.worker.contexts import TaskContexts
from dask_otel.worker.forwarding import forwarding
from dask_otel.worker.logs import injection, running

T = TypeVar("T")

#: What restores the context: with the running task if log records need it.
_Entered: TypeAlias = Token[Context] | tuple[Token[Context], Token[TaskState | None]]


class TaskContext(TaskContexts):
    """Makes a task's span current while the task's code runs."""

    def enter(self, task: TaskState) -> _Entered | None:
        """See `within_contexts`. Setting a context variable takes a quarter of a microsecond."""
        context = self.of(task)
        if context is None:
            return None
        if injection.wanted or forwarding.workers:
            return attach(context), running.set(task)
        return attach(context)

    def leave(self, entered: _Entered) -> None:
        """See `within_contexts`."""
        if isinstance(entered, tuple):
            entered, task = entered
            running.reset(task)
        detach(entered)

    def carried(self, call: Callable[..., T]) -> Callable[..., T]:
        """See `within_contexts`."""
        context, task = get_current(), running.get()

        def carrying(*args: Any, **kwargs: Any) -> T:
            token = attach(context)
            entered: _Entered = token if task is None else (token, running.set(task))
            try:
                return call(*args, **kwargs)
            finally:
                self.leave(entered)

        return carrying


class _Hooks:
    """The hooks of one worker, and the plugins that use them."""

    def __init__(self, worker: Worker) -> None:
        self.wanted_by: set[TaskContextPlugin] = set()
        self.context = TaskContext()
        self.wrappers = within_contexts(
            worker, self.context.enter, self.context.leave, self.context.carried
        )

    def choose(self) -> None:
        """Apply the settings of one plugin, preferably one with the scheduler's settings."""
        known = sorted(self.wanted_by, key=lambda plugin: not plugin.decided)
        self.context.ratio = known[0].ratio if known else 0.0


class TaskContextPlugin(WorkerPlugin):
    """Adds the hooks to a worker and removes them; several plugins share them.

    If no scheduler shares the worker's process, the submissions of its tasks carry their context.

    Parameters
    ----------
    inject
        Whether to add the ids, the span's name and the task's key to log records.
    ratio
        The fraction of tasks with spans of their own.
    decided
        Whether `ratio` comes from the scheduler. Otherwise it comes from the worker's
        configuration, and is used only if no plugin has the scheduler's.
    level
        The least level of the log records to send to the scheduler; None for none.
    profiles
        Seconds between two samples of the threads that run tasks; None for none.
    later
        Unknown settings from a scheduler with a later version of this package; ignored.
    """

    def __init__(
        self,
        inject: bool = False,
        ratio: float = 0.0,
        decided: bool = False,
        level: int | None = None,
        profiles: float | None = None,
        **later: object,
    ) -> None:
        self.inject = inject
        self.ratio = ratio
        self.decided = decided
        self.level = level
        self.profiles = profiles
        self.hooks: _Hooks | None = None
        #: Ends what `setup` has begun, besides the hooks.
        self._undo = ExitStack()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "hooks": None, "_undo": ExitStack()}

    def setup(self, worker: Worker) -> None:
        """See ``WorkerPlugin.setup``."""
        if self.hooks is not None:
            return
        others = (getattr(plugin, "hooks", None) for plugin in worker.plugins.values())
        self.hooks = next((hooks for hooks in others if isinstance(hooks, _Hooks)), None)
        if self.hooks is None:
            self.hooks = _Hooks(worker)
        self.hooks.wanted_by.add(self)
        self.hooks.choose()
        # Beside a scheduler, the process is the application's, which decides by itself whether
        # submissions carry the context (`dask_otel.instrument`). In the process of any other
        # worker, all submissions come from tasks, which have a context.
        if not is_beside_a_scheduler():
            INSTRUMENTATION.settle(holders=1)
            self._undo.callback(INSTRUMENTATION.settle, holders=-1)
            if self.level is not None:
                forwarding.add(worker, self.level)
                self._undo.callback(forwarding.remove, worker)
        if self.inject:
            injection.add()
            self._undo.callback(injection.remove)
        if self.profiles is not None:
            # Only here: other workers need not import it.
            from dask_otel.worker.sampling import Sampler

            sampler = Sampler(worker, self.profiles)
            sampler.start()
            self._undo.callback(sampler.stop)

    def teardown(self, worker: Worker) -> None:
        """See ``WorkerPlugin.teardown``."""
        hooks, self.hooks = self.hooks, None
        if hooks is None:
            return
        hooks.wanted_by.remove(self)
        hooks.choose()
        self._undo.close()
        if not hooks.wanted_by:
            hooks.wrappers.remove()
