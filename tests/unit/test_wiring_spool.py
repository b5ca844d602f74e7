"""Wiring: the spool where it can't be had at all; the names that bridges own."""

from __future__ import annotations

import sys
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

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


def test_names_are_claimed_and_left_by_one_bridge_at_a_time() -> None:
    """Each makes its exporters in a thread of its own."""
    first, second, done = Owner("one"), Owner("two"), list[object]()
    assert first.claims("s", "i")
    with wiring._owning:
        for call in (partial(second.claims, "other", "i"), partial(disown, "one")):
            thread = threading.Thread(target=lambda call=call: done.append(call()))
            thread.start()
            thread.join(0.05)
        assert done == [], "they did not wait for this one"
    eventually(lambda: len(done) == 2)
    assert second.claims("s", "i")
