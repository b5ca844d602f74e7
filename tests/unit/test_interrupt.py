"""Ctrl-C where Python ignores it."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from distributed.utils import LoopRunner, sync

from dask_otel.cli.interrupt import ctrl_c_is_not_lost


def interrupted(*_: object) -> None:
    """Ctrl-C, pressed while this runs."""
    raise KeyboardInterrupt


def in_a_finalizer() -> None:
    type("Finalized", (), {"__del__": interrupted})()


def in_a_weak_reference() -> None:
    thing = {1}
    reference = weakref.ref(thing, interrupted)
    del thing
    assert reference() is None


def in_a_collection() -> None:
    def at_the_end(phase: str, info: object) -> None:
        if phase == "stop":
            gc.callbacks.remove(at_the_end)
            interrupted()

    gc.callbacks.append(at_the_end)
    gc.collect(0)


@pytest.mark.parametrize("swallow", [in_a_finalizer, in_a_weak_reference, in_a_collection])
def test_it_comes_again(swallow: Callable[[], None]) -> None:
    def command() -> None:
        with ctrl_c_is_not_lost():
            swallow()
            threading.Event().wait(60)

    with pytest.raises(KeyboardInterrupt):
        command()


def test_dask_logs_no_traceback_of_a_cancel_before_the_start(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing() -> None:
        pass

    asked, cancelled = threading.Event(), threading.Event()

    def busy() -> None:
        """Until the main thread waits for its coroutine, and until it has cancelled it."""
        asked.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        cancelled.wait(60)

    runner = LoopRunner(asynchronous=False)
    runner.start()
    loop: Any = runner.loop
    add, steps = loop.add_callback, iter((asked, cancelled))

    def added(*call: Any) -> None:
        add(*call)
        next(steps, cancelled).set()

    try:
        with ctrl_c_is_not_lost():
            add(busy)
            monkeypatch.setattr(loop, "add_callback", added)
            with pytest.raises(KeyboardInterrupt):
                sync(loop, nothing)
            # Callbacks run in order: the cancel has run by then.
            sync(loop, nothing)
    finally:
        runner.stop()
    assert caplog.messages == []


def test_other_errors_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: raised.append(error.exc_type))
    before = sys.unraisablehook
    with ctrl_c_is_not_lost():
        type("Broken", (), {"__del__": lambda self: 1 / 0})()
    assert (raised, sys.unraisablehook) == ([ZeroDivisionError], before)
