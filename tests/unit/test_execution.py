"""The hooks around user code on a worker: what is made current is taken back, whatever happens."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Scheduler

from dask_otel._dask.workers.execution import within_contexts
from dask_otel._dask.wrapping import Wrappers
from dask_otel._otel.api.current import get_current
from dask_otel.client.roots import ROOTS
from dask_otel.core.context import Traceparent, format_traceparent
from dask_otel.worker.logs import running
from dask_otel.worker.plugin import TaskContext, TaskContextPlugin
from tests.cluster.tasks import current


class Worker:
    """The part of a worker that is hooked into."""

    def __init__(self) -> None:
        annotations = {"dask_otel.span": format_traceparent(Traceparent(7, 8, 1))}
        task = SimpleNamespace(key="key", annotations=annotations, span_id="id")
        self.state = SimpleNamespace(tasks={"key": task})
        self.handlers: dict[str, Any] = {"actor_execute": self.execute}
        self.executors = {"actor": ThreadPoolExecutor(1)}
        self.plugins: dict[str, Any] = {}
        self.fails: BaseException | None = None

    async def execute(self, key: str, *, stimulus_id: str) -> Any:
        assert stimulus_id == "s"
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        return current()


def hook(worker: Any) -> Wrappers:
    context = TaskContext()
    return within_contexts(worker, context.enter, context.leave, context.carried)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result, and check that nothing of ours is current afterwards."""

    async def checked() -> Any:
        before = get_current()
        try:
            return await coroutine
        finally:
            assert get_current() is before
            assert running.get() is None

    return asyncio.run(checked())


def test_what_is_closed_from_outside_says_nothing(caplog: pytest.LogCaptureFixture):
    """As at the end of a process, with tasks under way: the context is another one by then."""
    worker: Any = Worker()
    hook(worker)
    coroutine = worker.execute("key", stimulus_id="s")

    async def begin() -> None:
        asyncio.get_running_loop().call_soon(lambda: None)
        coroutine.send(None)

    asyncio.run(begin())
    with caplog.at_level(logging.DEBUG):
        coroutine.close()
    assert not caplog.records


def test_it_is_taken_back_after_a_run_and_an_error_and_taken_off_all_is_as_it_was():
    worker: Any = Worker()

    async def theirs(key: str, **kwargs: Any) -> Any:
        return "theirs", current()

    def state() -> Any:
        return dict(worker.handlers), dict(vars(worker)), dict(vars(worker.executors["actor"]))

    for there, result in (({}, (7, 8, 1)), ({"execute": theirs}, ("theirs", (7, 8, 1)))):
        vars(worker).update(there)
        before = state()
        wrappers = hook(worker)
        assert run(worker.execute("key", stimulus_id="s")) == result
        wrappers.remove()
        assert state() == before
    vars(worker).pop("execute")
    hook(worker)
    for error in (ValueError("x"), asyncio.CancelledError()):
        worker.fails = error
        with pytest.raises(type(error)):
            run(worker.execute("key", stimulus_id="s"))


def test_plugins_are_one_hook_and_the_schedulers_own_says_which_tasks_have_spans():
    worker: Any = Worker()
    preloaded: Any = TaskContextPlugin(ratio=0.5)
    brought = pickle.loads(pickle.dumps(TaskContextPlugin(ratio=0.25, decided=True)))
    worker.plugins = {"a": preloaded, "b": brought}
    preloaded.setup(worker)
    hook, contexts = worker.execute, preloaded.hooks.context
    for request, ratio in (
        *((preloaded.setup, 0.5), (brought.setup, 0.25), (brought.setup, 0.25)),
        *((brought.teardown, 0.5), (brought.teardown, 0.5)),
    ):
        request(worker)
        assert (worker.execute, contexts.ratio) == (hook, ratio)
    preloaded.teardown(worker)
    assert "execute" not in vars(worker)
    assert contexts.ratio == 0.0


def test_a_process_with_a_scheduler_is_the_applications(monkeypatch: pytest.MonkeyPatch):
    """Under any protocol: also in a ``LocalCluster(processes=False, protocol="tcp")``."""
    schedulers: list[Any] = []
    monkeypatch.setattr(Scheduler, "_instances", schedulers)
    for beside, instrumented in ((Scheduler, False), (None, True)):
        schedulers[:] = [beside] if beside else []
        worker: Any = Worker()
        plugin = TaskContextPlugin()
        plugin.setup(worker)
        assert ROOTS.callers_travel is instrumented
        # The scheduler may have gone by then, and another one may be there.
        schedulers[:] = [] if beside else [Scheduler]
        plugin.teardown(worker)
        assert not ROOTS.callers_travel
