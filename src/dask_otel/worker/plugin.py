"""The worker plugin, which the scheduler's bridge brings and the preload may put on, too."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Token
from typing import TYPE_CHECKING, Any, TypeVar

from distributed.diagnostics.plugin import WorkerPlugin

from dask_otel._dask.workers.execution import Execution
from dask_otel._otel.api.current import Context, attach, detach, get_current
from dask_otel.client.instrumentation import INSTRUMENTATION
from dask_otel.worker.contexts import Task, TaskContexts
from dask_otel.worker.logs import injection, running

if TYPE_CHECKING:
    from distributed.worker import Worker

T = TypeVar("T")


class TaskContext:
    """Makes the span of a task the current one while the task's code runs."""

    def __init__(self) -> None:
        self.contexts = TaskContexts()

    def enter(self, task: Task) -> tuple[Token[Context], Token[Task | None] | None] | None:
        """See `Execution`. Each variable that is set costs a quarter of a microsecond."""
        context = self.contexts.of(task)
        if context is None:
            return None
        return attach(context), running.set(task) if injection.wanted else None

    def leave(self, entered: tuple[Token[Context], Token[Task | None] | None]) -> None:
        """See `Execution`."""
        context, task = entered
        if task is not None:
            running.reset(task)
        detach(context)

    def carried(self, call: Callable[..., T]) -> Callable[..., T]:
        """See `Execution`."""
        context, task = get_current(), running.get()

        def carrying(*args: Any, **kwargs: Any) -> T:
            entered = attach(context), None if task is None else running.set(task)
            try:
                return call(*args, **kwargs)
            finally:
                self.leave(entered)

        return carrying


class _Hooks:
    """The hooks of one worker, and the plugins that want them."""

    def __init__(self, worker: Worker) -> None:
        self.wanted_by: set[TaskContextPlugin] = set()
        self.context = TaskContext()
        self.execution = Execution(
            worker, self.context.enter, self.context.leave, self.context.carried
        )

    def choose(self) -> None:
        """Take over the settings of who knows best."""
        known = sorted(self.wanted_by, key=lambda plugin: not plugin.decided)
        self.context.contexts.ratio = known[0].ratio if known else 0.0


def _beside_a_client(worker: Worker) -> bool:
    """Whether the worker shares its process with the user's own client.

    There the user decides whether submissions carry his context (`dask_otel.instrument`). In any
    other worker's process all submissions come from tasks, which have one.
    """
    return bool(worker.address.startswith("inproc://"))


class TaskContextPlugin(WorkerPlugin):
    """Puts the hooks on a worker, once however many plugins are there, and takes them off.

    In a process of the worker's own, what tasks submit carries their context on.

    Parameters
    ----------
    inject
        Whether log records get the ids, the span's name and the task's key.
    ratio
        Which part of the tasks has spans of their own.
    decided
        Whether that is what the scheduler does; otherwise it is what the worker's configuration
        says, which counts where nobody knows better.
    later
        Settings of a scheduler with a later version of this package: not known here.
    """

    def __init__(
        self,
        inject: bool = False,
        ratio: float = 0.0,
        decided: bool = False,
        **later: object,
    ) -> None:
        self.inject = inject
        self.ratio = ratio
        self.decided = decided
        self.hooks: _Hooks | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "hooks": None}

    def setup(self, worker: Worker) -> None:
        """See ``WorkerPlugin.setup``."""
        if self.hooks is not None:
            return
        others = (getattr(plugin, "hooks", None) for plugin in worker.plugins.values())
        self.hooks = next((hooks for hooks in others if isinstance(hooks, _Hooks)), None)
        if self.hooks is None:
            self.hooks = _Hooks(worker)
            self.hooks.execution.attach()
        self.hooks.wanted_by.add(self)
        self.hooks.choose()
        if not _beside_a_client(worker):
            INSTRUMENTATION.hold()
        if self.inject:
            injection.add()

    def teardown(self, worker: Worker) -> None:
        """See ``WorkerPlugin.teardown``."""
        hooks, self.hooks = self.hooks, None
        if hooks is None:
            return
        hooks.wanted_by.remove(self)
        hooks.choose()
        if not _beside_a_client(worker):
            INSTRUMENTATION.release()
        if self.inject:
            injection.remove()
        if not hooks.wanted_by:
            hooks.execution.detach()
