"""The wrappers of Dask's methods and handlers, and what they keep alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import pytest

from dask_otel._dask.wrapping import Wrappers


class Ours:
    """The part of a bridge that a wrapper calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def around(self, original: Callable[..., int]) -> Callable[..., int]:
        def called(*args: Any) -> int:
            self.calls.append(args[-1])
            return original(*args)

        return called

    def read(self, message: dict[str, Any]) -> None:
        self.calls.append(message["number"])


class Dasks:
    def method(self, number: int) -> int:
        return number + 1


def of_an_instance(wrappers: Wrappers, make: Any) -> Any:
    dasks = Dasks()
    wrappers.method(dasks, "method", make)
    return dasks.method


def of_a_class(wrappers: Wrappers, make: Any) -> Any:
    owner = type("Owner", (Dasks,), {})
    wrappers.method(owner, "method", make)
    return partial(vars(owner)["method"], owner())


def of_a_table(wrappers: Wrappers, make: Any) -> Any:
    handlers = {"operation": Dasks().method}
    wrappers.handler(handlers, "operation", make)
    return handlers["operation"]


@pytest.mark.usefixtures("only_new_garbage")
@pytest.mark.parametrize("wrap", [of_an_instance, of_a_class, of_a_table])
def test_a_wrapper_that_somebody_keeps_holds_its_original_alone(wrap: Callable[..., Any]) -> None:
    wrappers, ours = Wrappers(), Ours()
    kept = wrap(wrappers, ours.around)
    assert (kept(1), ours.calls) == (2, [1])
    # Dask reads it.
    assert [*signature(kept).parameters] == ["number"]
    wrappers.remove()
    assert (kept(2), ours.calls) == (3, [1])
    gone = weakref.ref(ours), weakref.ref(wrappers)
    del ours, wrappers
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_a_handler_that_somebody_wrapped_after_us_stays() -> None:
    wrappers, ours = Wrappers(), Ours()
    handlers: dict[str, Any] = {"operation": Dasks().method}
    wrappers.handler(handlers, "operation", ours.around)
    theirs = handlers["operation"] = partial(handlers["operation"])
    wrappers.remove()
    assert (handlers["operation"], theirs(1), ours.calls) == (theirs, 2, [])


@pytest.mark.usefixtures("only_new_garbage")
def test_code_of_ours_gets_the_messages_of_a_handler_after_it() -> None:
    wrappers, ours, dasks = Wrappers(), Ours(), Dasks()
    handlers = {"operation": dasks.method}
    wrappers.after(handlers, "operation", "kind", ours.read)
    kept = handlers["operation"]
    assert (kept(number=1), ours.calls) == (2, [1])
    assert [*signature(kept).parameters] == ["number"]
    with pytest.raises(TypeError):
        kept(number="a")
    assert ours.calls == [1]
    wrappers.remove()
    assert (handlers, kept(number=2), ours.calls) == ({"operation": dasks.method}, 3, [1])
    gone = weakref.ref(ours), weakref.ref(wrappers)
    del ours, wrappers
    gc.collect()
    assert [one() for one in gone] == [None, None]
