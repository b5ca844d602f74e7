"""Row 1: CPU of the scheduler's process per task, with and without the bridge.

One scheduler runs all windows; the bridge is put on and taken off between them, so that
nothing else differs. A window ends when everything has been exported.
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
from benchmarks.results import Row, interval, verdict
from benchmarks.sink import Sink

#: Seconds after the last task in which heartbeats, linger and export take place.
AFTER = 3.5


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


def _eventually(client: Client, check: Callable[..., bool]) -> None:
    until = time.monotonic() + 60
    while not client.run_on_scheduler(check):
        if time.monotonic() > until:
            raise TimeoutError(check.__name__)
        time.sleep(0.02)


def _window(client: Client, shape: Callable[[Client, int], None], count: int) -> float:
    before = client.run_on_scheduler(meter.cpu)
    shape(client, count)
    _eventually(client, meter.idle)
    time.sleep(AFTER)
    return float(client.run_on_scheduler(meter.cpu)) - float(before)


def _pairs(
    client: Client,
    shape: Callable[[Client, int], None],
    count: int,
    pairs: int,
    overrides: dict[str, Any],
) -> tuple[list[float], list[float]]:
    """Return microseconds per task without and with the bridge, pair by pair."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(-1, pairs):
        # Without first, then with first: a drift must not look like a difference.
        for bridged in (False, True) if pair % 2 else (True, False):
            if bridged:
                client.run_on_scheduler(meter.install, overrides=overrides)
                _eventually(client, meter.connected)
            took = 1e6 * _window(client, shape, count) / count
            if bridged:
                client.run_on_scheduler(meter.uninstall)
            if pair >= 0:  # the first one warms up
                found[bridged].append(took)
    return found[False], found[True]


def _ratio_row(
    number: str, what: str, limit: float, without: list[float], bridged: list[float]
) -> Row:
    ratios = [b / a for a, b in zip(without, bridged, strict=True)]
    middle, low, high = interval(ratios)
    figure = (
        f"{middle:.3f} [{low:.3f}, {high:.3f}], {len(ratios)} pairs; {median(bridged):.0f} with, "
        f"{median(without):.0f} µs/task without"
    )
    data = {"without": without, "bridged": bridged}
    return Row(number, what, f"interval not above {limit:.2f}", figure, verdict(low <= limit), data)


def own_cpu(client: Client, count: int, overrides: dict[str, Any]) -> dict[str, float]:
    """Return microseconds per task of a real run: the bridge's in the loop, and its threads."""
    client.run_on_scheduler(meter.install, overrides=overrides)
    _eventually(client, meter.connected)
    time.sleep(1)
    client.run_on_scheduler(meter.begin_recording)
    before = client.run_on_scheduler(meter.reading)
    with span("benchmark"):
        futures = client.map(_inc, range(count), key=f"inc-{uuid.uuid4().hex}")
    wait(futures)
    del futures
    _eventually(client, meter.idle)
    time.sleep(AFTER)
    after = client.run_on_scheduler(meter.reading)
    client.run_on_scheduler(meter.uninstall)
    replayed = client.run_on_scheduler(meter.replay, overrides=overrides)
    return {
        "loop": 1e6 * replayed["seconds"] / count,
        "threads": 1e6 * (after["threads"] - before["threads"]) / count,
        "calls": replayed["calls"] / count,
        "scheduler": 1e6 * (after["cpu"] - before["cpu"]) / count,
    }


def _own_row(what: str, target: str, runs: list[dict[str, float]], scheduler: float) -> Row:
    loop = median(r["loop"] for r in runs)
    threads = median(r["threads"] for r in runs)
    share = (loop + threads) / scheduler
    figure = f"{loop + threads:.1f} µs ({loop:.1f} loop, {threads:.1f} threads), {share:.1%}"
    met = loop + threads <= 8 and share <= 0.02
    return Row("1", what, target, figure, verdict(met), {"runs": runs, "scheduler": scheduler})


def run(quick: bool) -> list[Row]:
    """Measure all shapes."""
    pairs, tasks, spans = (2, 2000, 300) if quick else (10, 5000, 1000)
    rows = []
    group: dict[str, Any] = {}
    single = {"spans": {"detail": "span"}}
    with Sink() as sink, cluster(sink.environment()) as client:
        without, bridged = _pairs(client, many_tasks, tasks, pairs, group)
        rows.append(_ratio_row("1", "scheduler CPU, detail group, A/B", 1.02, without, bridged))
        base = median(without)
        few = max(2, pairs // 2)
        rows.append(
            _ratio_row(
                "1",
                "scheduler CPU, detail span, A/B",
                1.02,
                *_pairs(client, many_tasks, tasks, few, single),
            )
        )
        rows.append(
            _ratio_row(
                "1",
                "worst shape (each task a group and a span), A/B",
                1.10,
                *_pairs(client, many_spans, spans, few, group),
            )
        )
    with Sink() as sink, cluster(sink.environment()) as client:
        client.run_on_scheduler(meter.record)
        own_cpu(client, tasks, group)
        target = "≤ 8 µs and ≤ 2 %"
        for what, overrides in (("group", group), ("span", single)):
            runs = [own_cpu(client, 2 * tasks, overrides) for _ in range(3)]
            rows.append(_own_row(f"own CPU per task, detail {what}", target, runs, base))
    return rows
