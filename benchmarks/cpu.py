"""Row 1: CPU of the scheduler's process per task, with and without the bridge.

One scheduler runs all windows; the bridge is put on and taken off between them, so that
nothing else differs. A window ends when everything has been exported. Rounds go forwards and
backwards, A B B A: what a drift adds to one side of such a block, it adds to the other.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median
from typing import Any

from distributed import Client, span, wait
from tests.waiting import eventually

from benchmarks import meter
from benchmarks.cluster import cluster
from benchmarks.results import Row, balanced, interval, verdict
from benchmarks.sink import Sink

#: Seconds after the last task in which heartbeats, linger and export take place.
AFTER = 2.2
#: Load of the machine from which on nothing is published: the pairs' differences are noise then.
MOST_LOAD = 2.0
#: As by default, but windows need not wait for long: neither changes what there is to do.
SOON = {"DASK_OTEL__SPANS__LINGER": "0.5s", "OTEL_BSP_SCHEDULE_DELAY": "500"}


def _inc(x: int) -> int:
    return x + 1


def many_tasks(client: Client, count: int) -> None:
    """Run tasks of one group in one span."""
    with span("benchmark"):
        futures = client.map(_inc, range(count), key=f"inc-{uuid.uuid4().hex}")
    wait(futures)


def many_spans(client: Client, count: int) -> None:
    """Run tasks that each have their own group and span."""
    futures = []
    for i in range(count):
        with span(f"span-{i % 50}"):
            futures.append(client.submit(_inc, i, key=f"inc-{uuid.uuid4().hex}"))
    wait(futures)


def until(client: Client, check: Callable[..., bool]) -> None:
    """Wait until something holds on the scheduler."""
    eventually(lambda: client.run_on_scheduler(check), 60, check.__name__)


@contextmanager
def bridge(client: Client, overrides: dict[str, Any]) -> Iterator[None]:
    """Put the bridge on the scheduler for a while."""
    client.run_on_scheduler(meter.install, overrides=overrides)
    until(client, meter.connected)
    yield
    client.run_on_scheduler(meter.uninstall)


def nothing(client: Client) -> AbstractContextManager[None]:
    """Add nothing to the scheduler: what the others are compared with."""
    return nullcontext()


def measure(
    client: Client,
    arms: Mapping[str, Callable[[Client], AbstractContextManager[None]]],
    shape: Callable[[Client, int], None],
    count: int,
    rounds: int,
) -> dict[str, list[float]]:
    """Return the scheduler's microseconds of CPU per task by arm and round.

    The arms take turns forwards and backwards: A B C, C B A. A window ends when everything has been
    exported.
    """
    found: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(-1, rounds):
        for name, arm in reversed(arms.items()) if number % 2 else arms.items():
            with arm(client):
                before = client.run_on_scheduler(meter.cpu)
                shape(client, count)
                until(client, meter.idle)
                time.sleep(AFTER)
                until(client, meter.exported)
                used = client.run_on_scheduler(meter.cpu) - before
            # The first round warms up.
            if number >= 0:
                found[name].append(1e6 * used / count)
    return found


def _ratio_row(what: str, limit: float, without: list[float], bridged: list[float]) -> Row:
    ratios = balanced(without, bridged)
    within = interval(ratios)
    # With too few blocks there is only the range.
    low, high = within or (min(ratios), max(ratios))
    figure = (
        f"{median(ratios):.3f} [{low:.3f}, {high:.3f}], {len(ratios)} blocks of 2 pairs; "
        f"{median(bridged):.0f} with, {median(without):.0f} µs/task without; "
        f"load {os.getloadavg()[0]:.1f} at the end"
    )
    if within is None:
        figure += "; too few for an interval: the range"
    elif low <= limit < high:
        figure += "; too wide to decide"
    data = {"without": without, "bridged": bridged, "ratios": ratios}
    return Row("1", what, f"interval not above {limit:.2f}", figure, verdict(low <= limit), data)


def run(quick: bool, pairs: int | None = None) -> list[Row]:
    """Measure all shapes.

    Parameters
    ----------
    pairs
        Rounds of windows with and without the bridge; two thirds as many for the worst shape.
    """
    if (load := os.getloadavg()[0]) > MOST_LOAD:
        return [Row("1", "scheduler CPU, A/B", "", f"not at a load of {load:.1f}", "skipped")]
    pairs = pairs or (2 if quick else 18)
    pairs += pairs % 2
    few = max(2, 2 * (pairs // 3))
    tasks, spans = (2000, 300) if quick else (5000, 1000)
    group: dict[str, Any] = {}
    single = {"spans": {"detail": "span"}}
    worst = "worst shape (each task a group and a span)"
    arms = {
        "none": nothing,
        "group": partial(bridge, overrides=group),
        "span": partial(bridge, overrides=single),
    }
    with Sink() as sink, cluster(sink.environment() | SOON) as client:
        usual = measure(client, arms, many_tasks, tasks, pairs)
        del arms["span"]
        extreme = measure(client, arms, many_spans, spans, few)
    return [
        _ratio_row("scheduler CPU, detail group, A/B", 1.02, usual["none"], usual["group"]),
        _ratio_row("scheduler CPU, detail span, A/B", 1.02, usual["none"], usual["span"]),
        _ratio_row(f"{worst}, A/B", 1.10, extreme["none"], extreme["group"]),
    ]
