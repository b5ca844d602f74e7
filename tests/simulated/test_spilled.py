"""Results on the workers' disks: held as before, and no part of their processes."""

from __future__ import annotations

import time

import pytest
from dask.sizeof import sizeof
from distributed import wait

from tests.simulated.observed import Simulated
from tests.simulated.tasks import filled


@pytest.mark.options(room=5_000, workers=1)
def test_they_are_in_the_sum_of_the_clusters_memory(o: Simulated) -> None:
    futures = o.client.map(filled, [2_000] * 4, key=[("load", number) for number in range(4)])
    wait(futures)
    time.sleep(1.0)
    (ws,) = o.scheduler.workers.values()
    each, spilled = sizeof(bytes(2_000)), ws.metrics["spilled_bytes"]
    assert (spilled["memory"], ws.nbytes) == (2 * each, 4 * each)
    assert spilled["disk"] > 2 * 2_000
    # Against what Dask has: the parts, and their sum.
    o.audit()
    assert o.client.gather(futures) == [bytes(2_000)] * 4
