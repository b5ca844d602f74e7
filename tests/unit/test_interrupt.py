"""Ctrl-C where Python ignores it."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

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
