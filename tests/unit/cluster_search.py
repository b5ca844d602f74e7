"""Random clusters by the thousand, for as long as one likes: where is idle above the truth?

``python -m tests.unit.cluster_search --seconds 600`` goes through seeds and prints those that are
not true. Unlike the properties of `test_accounting_properties` it leans to what was wrong before:
workers that are killed, heartbeats that are late by seconds, tasks that secede at once.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterator

from tests.unit.cluster_model import Cluster, Task, Totals, Worker

ROOTS = {"a": "r", "b": "r", "c": "s"}

#: Seconds after which all tasks of a random cluster have ended and were reported.
REST = 60.0


def random_cluster(seed: int) -> Cluster:
    """Return the cluster of that seed, to be run."""
    rng = random.Random(seed)

    def seconds() -> float:
        return rng.choice([0.1, 1.0, 5.0, rng.uniform(0.1, 5.0)])

    latency = rng.choice([1e-4, 0.001, 0.01])
    cluster = Cluster(rng.choice([0.3, 0.5, 2.0]), latency, rng.choice([0.0, 0.005]))
    for number in range(rng.randint(1, 2)):
        delays = [rng.uniform(0.1, 1.0) * latency for _ in range(rng.randint(1, 5))]
        late = [rng.choice([0.0, 0.0, 0.0, 3.0]) for _ in range(rng.randint(1, 9))]
        ways = zip(itertools.cycle(delays), itertools.cycle(late), strict=False)
        fates = ["ok", *rng.choices(["ok", "ok", "skipped"], k=rng.randint(0, 7))]
        worker = Worker(
            f"w{number}",
            rng.randint(1, 3),
            clock=rng.uniform(-5.0, 5.0),
            latencies=itertools.chain([latency], (delay + more for delay, more in ways)),
            fates=itertools.cycle(fates),
        )
        cluster.call(rng.choice([0.0, 4.0]), lambda w=worker: cluster.add_worker(w))  # type: ignore[misc]
        if rng.random() < 0.5:
            cluster.call(rng.uniform(0.5, 15.0), lambda w=worker: cluster.kill(w))  # type: ignore[misc]
    for _ in range(rng.randint(1, 8)):
        span = rng.choice("abc")
        cluster.submit(
            Task(
                at=rng.choice([0.01, 1.0, rng.uniform(0.01, 10.0)]),
                duration=rng.choice([0.002, 0.05, seconds(), seconds()]),
                span=span,
                root=ROOTS[span],
                worker=rng.randint(0, 3),
                wait=rng.choice([0.0, 0.0, seconds()]),
                cut_in_gap=rng.random() < 0.3,
                secede=rng.choice([None, seconds(), 0.1, 0.001]),
                steal=rng.choice([None, None, seconds()]),
                fails=rng.random() < 0.3,
            )
        )
    return cluster


def tolerance(cluster: Cluster) -> float:
    """Return by how much idle may be off: what no clock shows, and the scheduler's lag."""
    threads = sum(worker.threads for worker in cluster.workers)
    return 0.002 + threads * (cluster.blur + 2 * cluster.latency + cluster.batch)


def run_to_rest(cluster: Cluster, rest: float) -> tuple[float, Totals]:
    """Export often; returns by how much idle exceeded the truth at worst."""
    worst = 0.0
    while cluster.now < rest:
        totals = cluster.run(cluster.now + (0.3 if cluster.now < 25.0 else 5.0))
        free = totals.idle + totals.unused
        worst = max(worst, free - cluster.truth.idle - cluster.truth.unused)
    return worst, totals


def untruths(cluster: Cluster, rest: float = REST) -> Iterator[str]:
    """Run a cluster; yields what is not true of it."""
    worst, totals = run_to_rest(cluster, rest)
    truth, allowed = cluster.truth, tolerance(cluster)
    if not math.isclose(totals.reported, truth.reported, rel_tol=1e-6):
        yield f"{totals.reported} s are reported of {truth.reported}"
    if worst > allowed:
        yield f"idle was {worst:.4f} s above the truth, of which {allowed:.4f} s are allowed"
    if not all(worker.alive for worker in cluster.workers):
        return
    missing = truth.idle + truth.unused - totals.idle - totals.unused
    for what, seconds in (
        ("missing", missing),
        ("lost", totals.lost),
        ("in flight", totals.in_flight),
        ("off in excess", abs(totals.excess - truth.excess)),
    ):
        if seconds > allowed:
            yield f"{seconds:.4f} s are {what}, of which {allowed:.4f} s are allowed"


def main() -> int:
    """Search, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    until, found = time.monotonic() + options.seconds, 0
    for seed in itertools.count(options.first):
        if time.monotonic() > until:
            print(f"{seed - options.first} clusters, {found} untrue")
            return min(found, 1)
        for what in untruths(random_cluster(seed)):
            found += 1
            print(f"seed {seed}: {what}", flush=True)
    raise AssertionError


if __name__ == "__main__":
    raise SystemExit(main())
