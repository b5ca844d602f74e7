"""Ctrl-C where Python ignores it."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest
from distributed.utils import LoopRunner, sync

from dask_otel.cli.interrupt import ctrl_c_is_not_lost


class Thing:
    """Something that a weak reference can be had of."""


def interrupted(*_: object) -> None:
    """Ctrl-C, pressed while this runs."""
    raise KeyboardInterrupt


def in_a_finalizer() -> None:
    class Finalized:
        def __del__(self) -> None:
            interrupted()

    Finalized()


def in_a_weak_reference() -> None:
    thing = Thing()
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
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def nothing() -> None:
        pass

    runner = LoopRunner(asynchronous=False)
    runner.start()
    try:
        with ctrl_c_is_not_lost():
            runner.loop.add_callback(time.sleep, 0.5)
            threading.Timer(
                0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)
            ).start()
            with pytest.raises(KeyboardInterrupt):
                sync(runner.loop, nothing)
            # Callbacks run in order: the cancel has run by then.
            sync(runner.loop, nothing)
    finally:
        runner.stop()
    assert caplog.messages == []


def test_other_errors_are_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[type[BaseException] | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_type))
    before = sys.unraisablehook

    class Broken:
        def __del__(self) -> None:
            raise ValueError

    with ctrl_c_is_not_lost():
        Broken()
    assert told == [ValueError]
    assert sys.unraisablehook is before
