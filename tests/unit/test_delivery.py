"""What travels to the workers: text that any of them can read."""

from __future__ import annotations

import ast
import asyncio
import itertools
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from distributed.core import Status
from distributed.diagnostics.plugin import WorkerPlugin

from dask_otel._dask.workers import delivery as on_its_way
from dask_otel._dask.workers.delivery import Delivery
from dask_otel.scheduler import workers
from dask_otel.scheduler.workers import NAME, pickled
from dask_otel.worker.plugin import TaskContextPlugin
from tests.environment import python
from tests.unit.looped import looped

PICKLED = pickled({"inject": True})


@pytest.mark.parametrize("settings", [{"inject": True}, {"later": [1]}, {}])
def test_it_is_the_plugin_where_the_package_is(settings: dict[str, Any]):
    """With settings of another version, too, as Dask pickles them; no name stays."""
    before = set(vars(sys.modules[__name__]))
    plugin = pickle.loads(pickled(settings))
    assert type(plugin) is TaskContextPlugin
    assert plugin.inject is pickle.loads(pickle.dumps(plugin)).inject is ("inject" in settings)
    assert set(vars(sys.modules[__name__])) == before


def test_what_travels_names_only_a_builtin_and_holds_no_bytecode():
    """By reference a worker without the package dies; bytecode is another with each Python."""
    found = [(op.name, arg) for op, arg, _ in pickletools.genops(PICKLED)]
    assert [name for name, _ in found if "GLOBAL" in name] == ["STACK_GLOBAL"]
    assert not any(isinstance(arg, CodeType) for _, arg in found)
    # The rest is the text, and plain values.
    assert [arg for _, arg in found if isinstance(arg, str)] == [
        "builtins", "eval",
        "exec(source) or plugin", "source", workers.SOURCE, "settings", "inject",
    ]  # fmt: skip
    # In the syntax of every Python that runs a worker.
    ast.parse(workers.SOURCE, feature_version=(3, 8))


@pytest.mark.parametrize("code", ["", "raise RuntimeError('broken')"])
def test_it_does_nothing_where_the_package_is_not(tmp_path: Path, code: str):
    (tmp_path / "dask_otel").mkdir()
    (tmp_path / "dask_otel" / "__init__.py").write_text(code)
    script = (
        f"import sys, pickle; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"print(type(pickle.loads({PICKLED!r})).__qualname__)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.stdout.strip() == WorkerPlugin.__qualname__, run.stderr
    assert ("broken" in run.stderr) == bool(code)


def test_a_worker_imports_neither_the_sdk_nor_the_scheduler_s_side():
    script = (
        f"import sys, pickle; pickle.loads({PICKLED!r})\n"
        "print(sorted(name for name in sys.modules if name.startswith(('opentelemetry.sdk',"
        " 'opentelemetry.exporter', 'dask_otel.scheduler', 'dask_otel.settings',"
        " 'dask_otel._otel.sdk', 'grpc', 'requests'))"
        " and name not in ('dask_otel.settings', 'dask_otel.settings.defaults')))"
    )
    assert python(script) == "[]"


# ------------------------------------------------------------------------------ on its way


class Boundary:
    def __init__(self) -> None:
        self.errors: list[str] = []

    def failed(self, kind: str) -> None:
        self.errors.append(str(sys.exc_info()[1]))


class Reporting:
    """A worker that has always reported since one looked."""

    def __init__(self) -> None:
        self._beats = itertools.count()

    @property
    def last_seen(self) -> int:
        return next(self._beats)


class Scheduler:
    """Answers as each worker does, in turn; an `asyncio.Event` holds it up until it is set."""

    def __init__(self, **answers: list[Any]) -> None:
        self.workers = {address: Reporting() for address in answers}
        self.worker_plugins: dict[str, bytes] = {"users": b""}
        self.status = Status.running
        self.answers = answers
        self.sent: list[tuple[str, str]] = []

    async def broadcast(self, *, msg: Any, workers: list[str], on_error: str) -> dict[str, Any]:
        (address,) = workers
        assert on_error == "return"
        answers = self.answers[address]
        answer = answers.pop(0) if answers else {"status": "OK"}
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = {"status": "OK"}
        self.sent.append((address, msg["op"]))
        return {address: answer}


async def begun(scheduler: Any) -> tuple[Delivery, list[str]]:
    boundary = Boundary()
    brought = Delivery(scheduler, NAME, PICKLED, boundary)
    brought.begin()
    await settled()
    return brought, boundary.errors


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@looped
async def test_one_that_stands_still_or_fails_holds_up_no_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(on_its_way, "PAUSE", 0.01)
    # Long enough for those that answer, among them one that pauses between its tries.
    monkeypatch.setattr(on_its_way, "FAREWELL", 1.0)
    still = asyncio.Event()
    scheduler = Scheduler(still=[still], fails=[OSError("no route")], good=[])
    brought, errors = await begun(scheduler)
    assert set(scheduler.worker_plugins) == {"users", NAME}
    assert ("good", "plugin-add") in scheduler.sent
    while scheduler.sent.count(("fails", "plugin-add")) < 2:
        await asyncio.sleep(0.005)
    assert errors == ["no route"]
    await brought.end()
    assert set(scheduler.worker_plugins) == {"users"}
    taken = [address for address, op in scheduler.sent if op == "plugin-remove"]
    assert sorted(taken) == ["fails", "good"]
    # It goes on: what it was sent is taken back at once.
    still.set()
    await settled()
    assert scheduler.sent[-2:] == [("still", "plugin-add"), ("still", "plugin-remove")]


@looped
async def test_what_was_brought_this_moment_is_taken_back():
    held = asyncio.Event()
    scheduler = Scheduler(good=[held])
    brought, _ = await begun(scheduler)
    held.set()
    bringing = brought._under_way["good"]
    while not bringing.done():
        await asyncio.sleep(0)
    assert brought._under_way, "it is done, and not forgotten yet"
    await brought.end()
    assert scheduler.sent == [("good", "plugin-add"), ("good", "plugin-remove")]
    assert not brought._under_way


@looped
async def test_a_bridge_that_leaves_takes_nothing_from_the_next_one():
    still = asyncio.Event()
    scheduler = Scheduler(still=[still])
    first, _ = await begun(scheduler)
    ending = asyncio.ensure_future(first.end())
    await settled()
    await begun(scheduler)
    still.set()
    await ending
    assert scheduler.sent == [("still", "plugin-add")] * 2
    assert set(scheduler.worker_plugins) == {"users", NAME}


@pytest.mark.parametrize(
    ("answer", "leaves", "errors", "sent"),
    [
        ({"status": "error", "text": "plugin failed"}, False, 1, ["plugin-add", "plugin-remove"]),
        (OSError("closed"), True, 0, ["plugin-add"]),
    ],
)
@looped
async def test_an_error_of_a_worker_is_not_sent_again_and_counted_unless_it_has_left(
    answer: Any, leaves: bool, errors: int, sent: list[str]
):
    scheduler = Scheduler(bad=[answer])
    if leaves:
        asyncio.get_running_loop().call_soon(scheduler.workers.clear)
    brought, found = await begun(scheduler)
    await brought.end()
    assert ["plugin failed" in error for error in found] == [True] * errors
    assert [message for _, message in scheduler.sent] == sent


@looped
async def test_another_s_entry_of_that_name_stays():
    scheduler = Scheduler(good=[])
    brought, _ = await begun(scheduler)
    scheduler.worker_plugins[NAME] = b"another"
    await brought.end()
    assert scheduler.worker_plugins[NAME] == b"another"
    assert scheduler.sent == [("good", "plugin-add")]


@looped
async def test_at_the_end_of_the_scheduler_nothing_is_sent():
    scheduler = Scheduler(still=[asyncio.Event()], good=[])
    brought, errors = await begun(scheduler)
    scheduler.status = Status.closing
    await brought.end()
    await settled()
    assert set(scheduler.worker_plugins) == {"users"}
    assert scheduler.sent == [("good", "plugin-add")]
    assert errors == []
    assert not brought._under_way
