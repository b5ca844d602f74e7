"""Hooks around user code on a worker: tasks and actors' methods.

They are on the worker's instance, and can be removed. Threads inherit the hook's context, because
Dask copies the context variables into its executors. The executor of actors is an exception: a
hook on its ``submit`` adds the context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from distributed.worker import Worker
from distributed.worker_state_machine import TaskState

from dask_otel._dask.wrapping import Wrappers

T = TypeVar("T")


def is_beside_a_scheduler() -> bool:
    """Whether this process has a scheduler, as with ``LocalCluster(processes=False)``."""
    from distributed import Scheduler

    return len(Scheduler._instances) > 0


def within_contexts(
    worker: Worker,
    enter: Callable[[TaskState], Any],
    leave: Callable[[Any], None],
    carried: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Wrappers:
    """Let a worker in this process run user code within a task's context.

    Remove the wrappers on the worker's event loop, too; a hook that other code has wrapped remains,
    without effect.

    Parameters
    ----------
    worker
        The worker.
    enter
        Makes a task's context current; returns the argument of `leave`, or None if the task has no
        context.
    leave
        Restores the context before `enter`.
    carried
        Binds a call to the present context, for another thread. None of the three may raise.
    """
    tasks = worker.state.tasks

    def around(run: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def within(*args: Any, **kwargs: Any) -> T:
            # The key of a task is the first argument; of an actor, a named one.
            task = tasks.get(args[0] if args else kwargs.get("actor"))
            entered = None if task is None else enter(task)
            if entered is None:
                return await run(*args, **kwargs)
            try:
                result = await run(*args, **kwargs)
            except GeneratorExit:
                # Closed by other code, in another context.
                raise
            except BaseException:
                leave(entered)
                raise
            leave(entered)
            return result

        return within

    def submitting(submit: Callable[..., T]) -> Callable[..., T]:
        def submit_within(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> T:
            return submit(carried(call), *args, **kwargs)

        return submit_within

    wrappers = Wrappers()
    wrappers.method(worker, "execute", around)
    wrappers.handler(worker.handlers, "actor_execute", around)
    wrappers.method(worker.executors["actor"], "submit", submitting)
    return wrappers
