"""Simulated runs as the bridge records them, replayed as other clusters that really ran."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from distributed import wait
from lab.programs import apart, flaky

import dask_otel
from dask_otel.whatif.engine import replayed
from dask_otel.whatif.experiments import Experiment, with_workers
from dask_otel.whatif.plan import plan
from tests.simulated.tasks import filled, nap
from tests.whatif.graphs import random_graphs, recorded

#: Seconds: Dask sends messages in batches of 2 ms, and some of them follow one another.
MARGIN = 0.02
#: Where no message decides.
EXACT = 1e-3

#: The workers' threads. Their addresses are not in the order in which they came.
SHAPES = [(2, 2), (2, 2), (2, 2, 2), (1, 1, 1, 1), (1,) * 12] * 2


def rounds(b: Any, seed: int = 1) -> None:
    """A client that waits for each round and thinks after it."""
    rng = random.Random(seed)
    for name in "abcd":
        with dask_otel.span(name):
            wait(b.client.map(nap, [rng.uniform(0.5, 2.5) for _ in range(6)], pure=False))
        time.sleep(0.7)


def limited(b: Any) -> None:
    """Tasks that need a resource, beside others."""
    held = b.client.map(nap, [1.0] * 5, resources={"slot": 1}, pure=False)
    time.sleep(0.1)
    wait(held + b.client.map(nap, [0.9] * 9, pure=False))


def failing(b: Any) -> None:
    """Tasks that fail once."""
    wait(b.client.map(flaky, [0.8] * 9, retries=1, pure=False))


def leaving(b: Any) -> None:
    """Tasks that secede."""
    wait(b.client.map(apart, [1.4] * 9, pure=False))


def side_by_side(seed: int, b: Any) -> None:
    """Two users who each wait for their own rounds."""
    other = b.cluster.thread("client", partial(copy_context().run, rounds, b, seed + 1))
    rounds(b, seed)
    other.result()


def uneven(b: Any, key: str = "", long: Sequence[float] = (4.0,)) -> None:
    """A long task, and short ones that need not wait behind it."""
    specs: dict[Any, Any] = {(f"slow-0{key}", 0): (nap, seconds) for seconds in long}
    specs |= {(f"quick-{number}{key}", 0): (nap, 0.25) for number in range(12)}
    wait(b.client.get(specs, [*specs], sync=False))


def gathered(b: Any) -> None:
    """Tasks that all go to the worker which has what they need."""
    first = b.client.submit(nap, 0.5, pure=False)
    wait([b.client.submit(nap, 0.6, first, pure=False) for _ in range(9)])


def fetching(b: Any) -> None:
    """Tasks that need a large result of a worker, and a small one of another worker."""
    specs: dict[Any, Any] = {(f"load-{size}", 0): (filled, size) for size in (1, 2_000_000)}
    specs |= {(f"use-{number}", 0): (nap, 0.5, *[*specs][:2]) for number in range(6)}
    wait(b.client.get(specs, [*specs], sync=False))


def mixed(seed: int, b: Any, order: int = 0) -> None:
    """Submissions of random graphs that continue one another."""
    random_graphs(b.client, seed, order)


@pytest.mark.parametrize(
    ("work", "recorded_on", "others", "margin"),
    [
        *((work, 2, (1, 5), {"abs": MARGIN}) for work in (rounds, limited, failing, leaving)),
        # Whose results were there together; and who submitted within the time of one priority.
        *((partial(side_by_side, seed), recorded_on, others, {"abs": EXACT})
          for seed, recorded_on, others in ((12, 2, (1, 6)), (5, 2, (1, 6)), (5, 3, (2,)))),
        # Without messages between workers.
        *((partial(mixed, seed), 1 + seed % 4, (1 + seed // 4 % 4,), {"abs": EXACT})
          for seed in (1, 2, 7, 10)),
    ],
)  # fmt: skip
def test_the_replay_with_other_threads_is_what_really_happens(
    tmp_path: Path,
    work: Callable[[Any], object],
    recorded_on: int,
    others: Sequence[int],
    margin: dict[str, float],
) -> None:
    graph = recorded(tmp_path / "before", work, recorded_on)
    same = replayed(plan(graph, Experiment("as it was"))).seconds
    assert same == pytest.approx(graph.stop - graph.start, **margin)
    for threads in others:
        real = recorded(tmp_path / str(threads), work, threads)
        found = replayed(plan(graph, with_workers([threads]))).seconds
        assert found == pytest.approx(real.stop - real.start, **margin), threads


@pytest.mark.parametrize(
    ("work", "known", "forgotten"),
    [
        (uneven, {"before": partial(uneven, key="earlier")}, {"durations": ()}),
        (fetching, {"bandwidth": "2 MB"}, {"scheduler": {"stealing": False}}),
        (
            uneven,
            {"before": partial(uneven, key="earlier", long=()), "unknown-task-duration": "9s"},
            {"scheduler": {"stealing": False}},
        ),
        (gathered, {"work-stealing": True, "work-stealing-interval": "99s"}, {"scheduler": {}}),
    ],
)
def test_a_replay_begins_with_what_the_scheduler_knew(
    tmp_path: Path,
    work: Callable[[Any], object],
    known: dict[str, Any],
    forgotten: dict[str, Any],
) -> None:
    """It decides which task goes where, and nothing else does."""
    config = {
        name if name == "before" else f"distributed.scheduler.{name}": value
        for name, value in {"work-stealing": False, **known}.items()
    }
    graph = recorded(tmp_path / "1 x 2", work, 1, 1, **config)
    took = graph.stop - graph.start
    assert replayed(plan(graph, Experiment("as it was"))).seconds == pytest.approx(took, abs=MARGIN)
    real = recorded(tmp_path / "1 x 3", work, 1, 1, 1, **config)
    found = replayed(plan(graph, with_workers([1, 1, 1]))).seconds
    assert found == pytest.approx(real.stop - real.start, abs=MARGIN)
    # As files of earlier releases.
    before = replayed(plan(replace(graph, **forgotten), Experiment("as it was"))).seconds
    assert abs(before / took - 1) > 0.1


@pytest.mark.parametrize(("users", "refused"), [(1, False), (4, True)])
def test_a_run_beside_others_has_a_warning_or_that_reason(
    tmp_path: Path, users: int, refused: bool
) -> None:
    """Others have one or four of eight threads; a replay has only the run itself."""

    def other(client: Any) -> None:
        with dask_otel.span("other"):
            chains = [client.submit(nap, 1.0, pure=False, priority=10) for _ in range(users)]
            for _ in range(20):
                chains = [client.submit(nap, 1.0, one, priority=10) for one in chains]
            wait(chains)

    def begun(b: Any) -> None:
        b.cluster.user("other", other)
        time.sleep(3.0)

    def work(b: Any) -> None:
        wait(b.client.map(nap, [1.0] * 60, key="mine", pure=False))

    recorded(tmp_path, work, 4, 4, before=begun)
    found = dask_otel.what_if(tmp_path, "work", threads=[(4, 4)])
    said = found.result.refused or "" if refused else " ".join(found.notes())
    assert re.search(r"asks of other spans had \d+% of its threads", said), said
    assert bool(found.result.refused) is refused


def others_worked(b: Any) -> None:
    """Let the scheduler make tasks of other functions."""
    wait(b.client.map(nap, [0.1 + 0.01 * one for one in range(40)], key="other", pure=False))
    time.sleep(0.37)
    # How large sets were before decides their order, too, and is not recorded.
    stealable = b.scheduler.extensions["stealing"].stealable
    stealable.update({worker: tuple(map(set, levels)) for worker, levels in stealable.items()})


@pytest.mark.parametrize("before", [bool, others_worked])
def test_the_replay_of_several_workers_is_what_happened(
    tmp_path: Path, before: Callable[[Any], object]
) -> None:
    """The scheduler's number of tasks is recorded, and when workers steal, drop copies and beat."""

    def begun(b: Any) -> None:
        time.sleep(2.0)
        before(b)

    off = list[float]()
    for seed, shape in enumerate(SHAPES):
        graph = recorded(tmp_path / f"{seed}", partial(mixed, seed), *shape, before=begun)
        found = replayed(plan(graph, Experiment("as it was"))).seconds
        off.append(abs(found - (graph.stop - graph.start)))
    assert max(off) < EXACT, off


def test_replays_with_several_workers_are_as_real_runs_with_other_chance(tmp_path: Path) -> None:
    """Both leave the order of sets and the moments of stealing to chance.

    By chance, all three runs of one kind are shorter or longer than those of the other once in ten
    times, and the median of three is as often too long as too short.
    """
    shapes = [2, 2], [1, 1], [2, 2, 2], [1, 4]
    off, apart = list[float](), 0
    for seed, shape in enumerate(shapes):
        graph = recorded(tmp_path / f"{seed}", partial(mixed, seed), 2, 2)
        found, real = list[float](), list[float]()
        for order in range(3):
            folder = tmp_path / f"{seed}-{order}"
            one = recorded(folder, partial(mixed, seed, order=order), *shape)
            real.append(one.stop - one.start)
            found.append(replayed(plan(graph, with_workers(shape), order)).seconds)
        off.append(median(found) / median(real) - 1)
        apart += min(found) > max(real) + MARGIN or max(found) < min(real) - MARGIN
    assert (abs(median(off)) < 0.01, apart <= 1) == (True, True)
