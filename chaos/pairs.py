"""The same work in turn on three clusters: with a fault, with none, and without the bridge.

They are of the same age and kind, and each round is a short block of tiny tasks on each of them, in
another order each time. CPU is read between rounds: it holds what the bridge's threads do after a
block, and while it waits for the next one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

from chaos import ratios
from chaos.ratios import BARE, FAULT, HEALTHY, LOOKS, TASKS
from chaos.world import World, world

#: Rounds before a verdict, and again while it is undecided. Six at least, for an interval.
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "12"))
_ORDERS = list(permutations((FAULT, HEALTHY, BARE)))


class Pairs:
    """Two clusters to compare a third one with.

    Parameters
    ----------
    healthy
        For the bridge with a collector that works.
    bare
        For a scheduler without the bridge.
    starters
        Start both while the third one starts.
    """

    def __init__(self, healthy: World, bare: World, starters: ThreadPoolExecutor) -> None:
        #: What was found; None so far.
        self.cost: dict[str, Any] | None = None
        self._peers = {HEALTHY: healthy, BARE: bare}
        self._starters = starters
        self._started: list[Future[None]] = []
        self._cpu: dict[str, list[float]] = {FAULT: [], HEALTHY: [], BARE: []}
        self._seconds: list[float] = []
        self._rate: dict[str, list[float]] = {FAULT: [], HEALTHY: [], BARE: []}

    @property
    def bare(self) -> World:
        """The one without the bridge."""
        return self._peers[BARE]

    def start(self, env: Mapping[str, str], workers: int) -> None:
        """Begin to start both, with variables of the third one's scheduler."""
        for name, one in self._peers.items():
            one.gate.mode = "pass"
            self._started.append(
                self._starters.submit(one.start, env, workers=workers, bridge=name != BARE)
            )

    def compare(self, subject: World) -> None:
        """Compare a cluster that is in a fault."""
        for started in self._started:
            started.result()
        worlds = {FAULT: subject, **self._peers}
        # Imports, caches, and the first of everything.
        for one in worlds.values():
            one.block(TASKS)
        for _ in range(LOOKS):
            self._rounds(worlds, ROUNDS)
            self.cost = ratios.cost(self._cpu, self._rate, self._seconds)
            if self.cost["verdict"] != ratios.UNDECIDED:
                break
        healthy = self._peers[HEALTHY]
        healthy.all_spans_arrived()
        assert healthy.logged("WARNING") == [], healthy.logged("WARNING")

    def _rounds(self, worlds: Mapping[str, World], rounds: int) -> None:
        for _ in range(rounds):
            began = time.monotonic()
            before = {name: one.cpu() for name, one in worlds.items()}
            for name in _ORDERS[len(self._cpu[FAULT]) % len(_ORDERS)]:
                self._rate[name].append(TASKS / worlds[name].block(TASKS))
            for name, one in worlds.items():
                self._cpu[name].append((one.cpu() - before[name]) / TASKS)
            self._seconds.append(time.monotonic() - began)


@contextmanager
def pairs(folder: Path, protocol: str) -> Iterator[Pairs]:
    """Give two clusters to compare with, which start when they are told to."""
    with ExitStack() as stack:
        peers = []
        for name in (HEALTHY, BARE):
            place = folder / name
            place.mkdir(exist_ok=True)
            peers.append(stack.enter_context(world(place, protocol)))
        # Ends first: what starts while a scenario fails is there to be ended then.
        starters = stack.enter_context(ThreadPoolExecutor(len(peers)))
        yield Pairs(*peers, starters)
