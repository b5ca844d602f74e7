"""Row 1: CPU of the scheduler's process per task, with and without the bridge.

One scheduler runs all windows; the bridge is put on and taken off between them, so that
nothing else differs. A window ends when everything has been exported. Rounds go forwards and
backwards, A B B A: what a drift adds to one side of such a block, it adds to the other.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from statistics import median
from typing import Any

from distributed import Client, span, wait

from benchmarks import meter
from benchmarks.cluster import cluster
from benchmarks.results import Row, balanced, interval, verdict
from benchmarks.sink import Sink

#: Seconds after the last task in which heartbeats, linger and export take place.
AFTER = 2.2
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
    """Run tasks each of which has a group and a span to itself."""
    futures = []
    for i in range(count):
        with span(f"span-{i % 50}"):
            futures.append(client.submit(_inc, i, key=f"inc-{uuid.uuid4().hex}"))
    wait(futures)


def eventually(client: Client, check: Callable[..., bool]) -> None:
    """Wait until something holds on the scheduler."""
    until = time.monotonic() + 60
    while not client.run_on_scheduler(check):
        if time.monotonic() > until:
            raise TimeoutError(check.__name__)
        time.sleep(0.02)


def window(client: Client, shape: Callable[[Client, int], None], count: int) -> float:
    """Return the CPU seconds of the scheduler for these tasks, up to their export."""
    before = client.run_on_scheduler(meter.cpu)
    shape(client, count)
    eventually(client, meter.idle)
    time.sleep(AFTER)
    eventually(client, meter.exported)
    return float(client.run_on_scheduler(meter.cpu)) - float(before)


def _take_turns(
    client: Client,
    shape: Callable[[Client, int], None],
    count: int,
    pairs: int,
    *bridges: dict[str, Any],
) -> list[list[float]]:
    """Return microseconds per task, round by round: without, then with each of the bridges."""
    arms: list[dict[str, Any] | None] = [None, *bridges]
    found: list[list[float]] = [[] for _ in arms]
    for number in range(-1, pairs):
        turn = list(zip(arms, found, strict=True))
        for overrides, figures in reversed(turn) if number % 2 else turn:
            if overrides is not None:
                client.run_on_scheduler(meter.install, overrides=overrides)
                eventually(client, meter.connected)
            took = 1e6 * window(client, shape, count) / count
            if overrides is not None:
                client.run_on_scheduler(meter.uninstall)
            if number >= 0:  # the first one warms up
                figures.append(took)
    return found


def _ratio_row(what: str, limit: float, without: list[float], bridged: list[float]) -> Row:
    ratios = balanced(without, bridged)
    within = interval(ratios)
    # Of too few blocks nothing is known but what was seen.
    low, high = within or (min(ratios), max(ratios))
    figure = (
        f"{median(ratios):.3f} [{low:.3f}, {high:.3f}], {len(ratios)} blocks of 2 pairs; "
        f"{median(bridged):.0f} with, {median(without):.0f} µs/task without"
    )
    if within is None:
        figure += "; too few for an interval: the range"
    elif low <= limit < high:
        figure += "; too wide to decide"
    data = {"without": without, "bridged": bridged, "ratios": ratios}
    return Row("1", what, f"interval not above {limit:.2f}", figure, verdict(low <= limit), data)


def own_cpu(
    client: Client, shape: Callable[[Client, int], None], count: int, overrides: dict[str, Any]
) -> dict[str, float]:
    """Return microseconds per task of a real run: the bridge's in the loop, and its threads."""
    client.run_on_scheduler(meter.install, overrides=overrides)
    eventually(client, meter.connected)
    time.sleep(1)
    client.run_on_scheduler(meter.begin_recording)
    before = client.run_on_scheduler(meter.reading)
    shape(client, count)
    eventually(client, meter.idle)
    time.sleep(AFTER)
    eventually(client, meter.exported)
    after = client.run_on_scheduler(meter.reading)
    client.run_on_scheduler(meter.uninstall)
    replayed = client.run_on_scheduler(meter.replay, overrides=overrides)
    return {
        "loop": 1e6 * replayed["seconds"] / count,
        "threads": 1e6 * (after["threads"] - before["threads"]) / count,
        "calls": replayed["calls"] / count,
        "scheduler": 1e6 * (after["cpu"] - before["cpu"]) / count,
    }


def _own_row(what: str, judged: bool, runs: list[dict[str, float]], scheduler: float) -> Row:
    loop = median(r["loop"] for r in runs)
    threads = median(r["threads"] for r in runs)
    share = (loop + threads) / scheduler
    figure = f"{loop + threads:.1f} µs ({loop:.1f} loop, {threads:.1f} threads), {share:.1%}"
    data = {"runs": runs, "scheduler": scheduler}
    if not judged:
        return Row("1", what, "", figure, "info", data)
    met = verdict(loop + threads <= 8 and share <= 0.02)
    return Row("1", what, "≤ 8 µs and ≤ 2 %", figure, met, data)


def run(quick: bool, pairs: int | None = None) -> list[Row]:
    """Measure all shapes.

    Parameters
    ----------
    pairs
        Rounds of windows with and without the bridge; two thirds as many for the worst shape.
    """
    pairs = pairs or (2 if quick else 18)
    pairs += pairs % 2
    few = max(2, 2 * (pairs // 3))
    tasks, spans, repeats = (2000, 300, 1) if quick else (5000, 1000, 3)
    group: dict[str, Any] = {}
    single = {"spans": {"detail": "span"}}
    worst = "worst shape (each task a group and a span)"
    with Sink() as sink, cluster(sink.environment() | SOON) as client:
        without, by_group, by_span = _take_turns(client, many_tasks, tasks, pairs, group, single)
        without_worst, by_task = _take_turns(client, many_spans, spans, few, group)
    rows = [
        _ratio_row("scheduler CPU, detail group, A/B", 1.02, without, by_group),
        _ratio_row("scheduler CPU, detail span, A/B", 1.02, without, by_span),
        _ratio_row(f"{worst}, A/B", 1.10, without_worst, by_task),
    ]
    with Sink() as sink, cluster(sink.environment() | SOON) as client:
        client.run_on_scheduler(meter.record)
        own_cpu(client, many_tasks, tasks, group)
        for what, overrides in (("group", group), ("span", single)):
            runs = [own_cpu(client, many_tasks, 2 * tasks, overrides) for _ in range(repeats)]
            rows.append(_own_row(f"own CPU per task, detail {what}", True, runs, median(without)))
        runs = [own_cpu(client, many_spans, spans, group) for _ in range(repeats)]
        rows.append(_own_row(f"own CPU per task, {worst}", False, runs, median(without_worst)))
    return rows
