"""The log messages about a spool, once for each change."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace

import pytest

from dask_otel.pump.spool_health import LONGEST_RETRY, SpoolHealth
from dask_otel.spool.store import rows_limit


@pytest.mark.parametrize("max_bytes", [1_000_000, 50_000_000, 256 * 2**20, 10**11])
def test_a_spool_that_stays_full_is_told_once(max_bytes, caplog):
    """Each time that it drops, it drops a little more, and is then filled again."""
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    health, limit = SpoolHealth("there.db", max_bytes), rows_limit(max_bytes)
    full = [(True, limit - limit // 64), (False, limit - limit // 64), (False, limit)]
    for steps, words in ((full * 3, "is full"), ([(False, limit // 2)], "has room again")) * 2:
        caplog.clear()
        for dropped, usage in steps:
            health.wrote(dropped, usage)
        (text,) = caplog.messages
        assert words in text
        assert health.full is (steps[-1] == full[-1])


def test_a_full_disk_is_told_once_although_it_takes_some_writes(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    seconds, words = 0.0, "uses its spool again"
    clock = SimpleNamespace(monotonic=lambda: seconds)
    monkeypatch.setattr("dask_otel.pump.spool_health.time", clock)
    health = SpoolHealth("there.db", 10**6)
    for _ in range(20):
        health.failed(OSError(28, "no space left"))
        assert health.trouble
        seconds += health.rest
        # Spans that are removed, and one that has found room.
        for calm in (math.inf, LONGEST_RETRY, math.inf):
            health.works(words, calm)
            assert not health.trouble
            seconds += LONGEST_RETRY / 4
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    seconds += LONGEST_RETRY
    for calm in (math.inf, LONGEST_RETRY, LONGEST_RETRY):
        health.works(words, calm)
    assert caplog.messages[1:] == [f"dask-otel {words}"]
