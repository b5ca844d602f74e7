"""Wiring: the spool where it can't be had at all; the names that bridges own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import pytest

from dask_otel.scheduler import wiring
from dask_otel.scheduler.wiring import Owner, _spool, disown
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("keys", "without", "words"),
    [
        # As if `import sqlite3` fails.
        (["otlp"], "dask_otel.spool.store", "sqlite3"),
        ([], "", "no spool is used: no spans are exported"),
    ],
)
def test_without_a_spool_everything_else_works(
    keys: list[str],
    without: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if without:
        monkeypatch.setitem(sys.modules, without, None)
    settings: Any = SimpleNamespace(spool=SimpleNamespace(path="/there.db", max_size=10**6))
    sinks = [SimpleNamespace(key=key) for key in keys]
    outputs: Any = SimpleNamespace(span_sinks=sinks, resource={})
    assert _spool(settings, outputs) is None
    (said,) = caplog.messages
    assert "otel.spool.path is /there.db" in said
    assert words in said


def test_a_name_is_free_again_when_its_bridge_is_gone() -> None:
    """Also one whose exporters were made after its event loop was closed: nobody disowns it."""
    first, second = Owner("one"), Owner("two")
    assert (first.claims("s", "i"), second.claims("s", "i")) == (True, False)
    del first
    assert second.claims("s", "i")


def test_of_two_bridges_that_start_at_once_one_owns_a_name() -> None:
    """Each makes its exporters in a thread of its own."""
    first, second, claimed = Owner("one"), Owner("two"), list[bool]()

    class Interrupted(str):
        """It is looked up twice: is it there, and if not, add it."""

        lookups = 0

        def __hash__(self) -> int:
            self.lookups += 1
            if self.lookups == 2:
                _meanwhile(lambda: claimed.append(second.claims("s", "i")))
            return super().__hash__()

    assert first.claims(Interrupted("s"), "i")
    eventually(lambda: claimed == [False])


def test_a_bridge_can_end_while_another_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, claimed = Owner("one"), Owner("two"), list[bool]()

    class Interrupted(WeakValueDictionary[Any, Any]):
        def items(self) -> Iterator[Any]:
            for item in super().items():
                _meanwhile(lambda: claimed.append(second.claims("other", "i")))
                yield item

    monkeypatch.setattr(wiring, "_owners", Interrupted())
    assert first.claims("s", "i")
    disown("one")
    eventually(lambda: claimed == [True])
    assert second.claims("s", "i")


def _meanwhile(call: Callable[[], object]) -> None:
    """Let another thread make a call now, unless it has to wait for this one."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(0.1)
