"""Simulated runs as the bridge records them, replayed as other clusters that really ran."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import secede, wait

import dask_otel
from dask_otel.whatif.engine import replayed
from dask_otel.whatif.experiments import with_workers
from dask_otel.whatif.plan import plan
from tests.whatif.graphs import recorded

#: Seconds: Dask sends messages in batches of 2 ms, and some of them follow one another.
MARGIN = 0.02


FAILED: set[int] = set()


def nap(seconds: float, fails: int = 0, leaves: bool = False) -> None:
    """Sleep; fail once, or leave the thread to others."""
    time.sleep(seconds)
    if leaves:
        secede()
        time.sleep(2 * seconds)
    if fails and fails not in FAILED:
        FAILED.add(fails)
        raise OSError("again")


def rounds(b: Any) -> None:
    """A client that waits for each round and thinks after it."""
    rng = random.Random(1)
    for name in "abc":
        with dask_otel.span(name):
            wait(b.client.map(nap, [rng.uniform(0.5, 3.0) for _ in range(8)], pure=False))
        time.sleep(0.7)


def limited(b: Any) -> None:
    """Tasks that need a resource, beside others."""
    held = b.client.map(nap, [1.0] * 5, resources={"slot": 1}, pure=False)
    time.sleep(0.1)
    wait(held + b.client.map(nap, [0.9] * 9, pure=False))


def failing(b: Any) -> None:
    """Tasks that fail once."""
    FAILED.clear()
    wait(b.client.map(nap, [0.8] * 9, range(9), retries=1, pure=False))


def leaving(b: Any) -> None:
    """Tasks that secede."""
    wait(b.client.map(nap, [0.7] * 9, leaves=True, pure=False))


def side_by_side(b: Any) -> None:
    """Two users who each wait for their own rounds."""

    def user(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(4):
            wait(b.client.map(nap, [rng.uniform(0.5, 2.0) for _ in range(6)], pure=False))
            time.sleep(0.7)

    other = b.cluster.thread("client", partial(copy_context().run, user, 2))
    user(1)
    other.result()


@pytest.mark.parametrize(
    ("work", "recorded_on", "others", "margin"),
    [
        *((work, 2, (1, 5), {"abs": MARGIN}) for work in (rounds, limited, failing, leaving)),
        (side_by_side, 3, (1, 6), {"rel": 0.02}),
    ],
)
def test_the_replay_with_other_threads_is_what_really_happens(
    tmp_path: Path,
    work: Callable[[Any], object],
    recorded_on: int,
    others: tuple[int, ...],
    margin: dict[str, float],
) -> None:
    graph = recorded(tmp_path / str(recorded_on), recorded_on, work)
    for threads in others:
        real = recorded(tmp_path / str(threads), threads, work)
        found = replayed(plan(graph, with_workers([threads]))).seconds
        assert found == pytest.approx(real.stop - real.start, **margin), threads
