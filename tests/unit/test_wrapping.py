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
        def called(*args: Any, number: int) -> int:
            result = original(*args, number=number)
            self.calls.append(number)
            return result

        return called

    def read(self, message: dict[str, Any]) -> None:
        self.calls.append(message["number"])


class Dasks:
    def method(self, number: int) -> int:
        return number + 1


def of_an_instance(wrappers: Wrappers, ours: Ours) -> Any:
    dasks = Dasks()
    wrappers.method(dasks, "method", ours.around)
    return dasks.method


def of_a_class(wrappers: Wrappers, ours: Ours) -> Any:
    owner = type("Owner", (Dasks,), {})
    wrappers.method(owner, "method", ours.around)
    return partial(vars(owner)["method"], owner())


def of_a_table(wrappers: Wrappers, ours: Ours) -> Any:
    handlers = {"method": Dasks().method}
    wrappers.handler(handlers, "method", ours.around)
    return handlers["method"]


def of_its_messages(wrappers: Wrappers, ours: Ours) -> Any:
    handlers = {"method": Dasks().method}
    wrappers.after(handlers, "method", "kind", ours.read)
    return handlers["method"]


@pytest.mark.usefixtures("only_new_garbage")
@pytest.mark.parametrize("wrap", [of_an_instance, of_a_class, of_a_table, of_its_messages])
def test_a_wrapper_that_somebody_keeps_holds_its_original_alone(wrap: Callable[..., Any]) -> None:
    wrappers, ours = Wrappers(), Ours()
    kept = wrap(wrappers, ours)
    assert (kept(number=1), ours.calls) == (2, [1])
    with pytest.raises(TypeError):
        kept(number="a")
    assert ours.calls == [1]
    # Dask reads it.
    assert [*signature(kept).parameters][:1] == ["number"]
    wrappers.remove()
    assert (kept(number=2), ours.calls) == (3, [1])
    gone = weakref.ref(ours), weakref.ref(wrappers)
    del ours, wrappers
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_handlers_are_as_they_were_but_for_one_that_somebody_wrapped_after_us() -> None:
    wrappers, ours, original = Wrappers(), Ours(), Dasks().method
    handlers: dict[str, Any] = dict.fromkeys(["operation", "other", "another"], original)
    wrappers.handler(handlers, "operation", ours.around)
    wrappers.handler(handlers, "other", ours.around)
    wrappers.after(handlers, "another", "kind", ours.read)
    theirs = handlers["operation"] = partial(handlers["operation"])
    wrappers.remove()
    assert handlers == {"operation": theirs, "other": original, "another": original}
    assert (theirs(number=1), ours.calls) == (2, [])
