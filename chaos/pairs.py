"""The same work in turn on three clusters: with a fault, with none, and without the bridge.

They are of the same age and kind, and each round is a short block of tiny tasks on each of them, in
another order each time. CPU is read between rounds: it holds what the bridge's threads do after a
block, and while it waits for the next one.
"""

from __future__ import annotations

import os
import time
from itertools import permutations

from chaos import ratios
from chaos.ratios import BARE, FAULT, HEALTHY, LOOKS, TASKS
from chaos.world import World

#: Rounds before a verdict, and again while it is undecided. Six at least, for an interval.
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "12"))
_ORDERS = list(permutations((FAULT, HEALTHY, BARE)))


def compare(subject: World) -> None:
    """Compare a cluster, as it is now, with its peers; the figures go into its `cost`."""
    worlds = {FAULT: subject, **subject.peers}
    # Imports, caches, and the first of everything.
    for one in worlds.values():
        one.block(TASKS)
    cpu: dict[str, list[float]] = {name: [] for name in worlds}
    rate: dict[str, list[float]] = {name: [] for name in worlds}
    seconds: list[float] = []
    for _ in range(LOOKS):
        for _ in range(ROUNDS):
            began = time.monotonic()
            before = {name: one.cpu() for name, one in worlds.items()}
            for name in _ORDERS[len(seconds) % len(_ORDERS)]:
                rate[name].append(TASKS / worlds[name].block(TASKS))
            for name, one in worlds.items():
                cpu[name].append((one.cpu() - before[name]) / TASKS)
            seconds.append(time.monotonic() - began)
        subject.cost = ratios.cost(cpu, rate, seconds)
        if subject.cost["verdict"] != ratios.UNDECIDED:
            break
    healthy = subject.peers[HEALTHY]
    healthy.all_spans_arrived()
    assert healthy.logged("WARNING") == [], healthy.logged("WARNING")
