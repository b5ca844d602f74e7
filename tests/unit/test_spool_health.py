"""The log messages about a spool, once for each change."""

from __future__ import annotations

import logging
import math

import pytest

from dask_otel.pump.spool_health import LONGEST_RETRY, SpoolHealth
from dask_otel.spool.store import rows_limit


@pytest.mark.parametrize("max_bytes", [1_000_000, 50_000_000, 256 * 2**20, 10**11])
def test_a_spool_that_stays_full_is_told_once(max_bytes, caplog):
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    health = SpoolHealth("there.db", max_bytes)
    limit = rows_limit(max_bytes)
    # Each time that it drops, it drops a little more, and is then filled again.
    for _ in range(3):
        health.wrote(dropped=True, usage=limit - limit // 64)
        health.wrote(dropped=False, usage=limit - limit // 64)
        health.wrote(dropped=False, usage=limit)
    assert health.full
    assert len(caplog.messages) == 1
    assert "is full" in caplog.messages[0]

    health.wrote(dropped=False, usage=limit // 2)
    assert not health.full
    assert "has room again" in caplog.messages[1]
    health.wrote(dropped=True, usage=limit)
    assert "is full" in caplog.messages[2]


def test_a_full_disk_is_told_once_although_it_takes_some_writes(caplog):
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    seconds = 0.0
    health = SpoolHealth("there.db", 10**6, now=lambda: seconds)
    for _ in range(20):
        health.failed(OSError(28, "no space left"))
        assert health.trouble
        seconds += health.rest
        # Spans that are removed, and one that has found room.
        for calm in (math.inf, LONGEST_RETRY, math.inf):
            health.works("uses its spool again", calm)
            assert not health.trouble
            seconds += LONGEST_RETRY / 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    seconds += LONGEST_RETRY
    health.works("uses its spool again", math.inf)
    for _ in range(2):
        health.works("uses its spool again", LONGEST_RETRY)
    assert caplog.messages[1:] == ["dask-otel uses its spool again"]
