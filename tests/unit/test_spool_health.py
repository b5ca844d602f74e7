"""The log messages about a spool, once for each change."""

from __future__ import annotations

import logging

import pytest

from dask_otel.pump.spool_health import SpoolHealth
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
