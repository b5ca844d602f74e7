"""The log messages about a spool, once for each change."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace

import pytest

from dask_otel.pump.spool_health import LONGEST_RETRY, SpoolHealth
from dask_otel.spool.store import rows_limit

FULL_DISK, INF = OSError(28, "no space left"), math.inf
#: What happens in turn, and the seconds after each; None until a retry.
FAILED = ("failed", (FULL_DISK,), None)
#: On a full disk, spans are removed, and one finds room.
SOME_WRITES = [("works", ("uses it again", calm), 7.5) for calm in (INF, LONGEST_RETRY, INF)]


def filled(max_bytes: int) -> list[tuple[str, tuple[object, ...], float]]:
    """Each time that it drops, it drops a little more, and is then filled again."""
    limit = rows_limit(max_bytes)
    low = limit - limit // 64
    return [("wrote", one, 0.0) for one in ((True, low), (False, low), (False, limit))] * 3


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        *((filled(most), ["is full"]) for most in (1_000_000, 50_000_000, 256 * 2**20, 10**11)),
        (
            [*filled(10**6), ("wrote", (False, rows_limit(10**6) // 2), 0.0)] * 2,
            ["is full", "has room again"] * 2,
        ),
        # A full disk is told of once although it takes some writes.
        (
            [
                *[FAILED, *SOME_WRITES] * 20,
                *[("works", ("uses it again", INF), 30.0)] * 2,
                *SOME_WRITES,
                *SOME_WRITES,
            ],
            ["can't use its spool", "uses it again"],
        ),
    ],
)
def test_each_change_is_told_once(steps, words, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    seconds = 0.0
    clock = SimpleNamespace(monotonic=lambda: seconds)
    monkeypatch.setattr("dask_otel.pump.spool_health.time", clock)
    health = SpoolHealth("there.db", 10**6)
    for call, arguments, after in steps:
        getattr(health, call)(*arguments)
        assert bool(health.trouble) is (call == "failed")
        seconds += health.rest if after is None else after
    found = [next(one for one in words if one in text) for text in caplog.messages]
    assert found == words
    assert health.full is (words[-1] == "is full")
