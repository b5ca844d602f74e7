"""Does a replay tell the truth? Recorded on one real cluster, replayed as others that really ran.

``python -m benchmarks.whatif`` runs each case on real processes with five shapes of a cluster, lets
the bridge record the first one, replays that record with the other shapes, and compares the
durations. It writes the table of docs/whatif.md. Tasks sleep, or wait for another process, so that
two cores are enough, except for those that compute.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import mean, median
from typing import Any, Final, NamedTuple

from distributed import Client, get_worker, secede, wait
from tests.cluster import processes
from tests.planted.jobs import hashed, looped
from tests.waiting import eventually

from benchmarks import results
from benchmarks.cluster import environment
from dask_otel import span
from dask_otel.whatif.experiments import with_workers
from dask_otel.whatif.graph import Graph, read_graphs
from dask_otel.whatif.running import replay

#: Workers and the threads of each. The first is recorded.
SHAPES = ((2, 2), (2, 1), (1, 4), (4, 2), (2, 4))
#: A run counts if a plain sleep beside it is late by this share at most.
LATE = 0.02
#: Of so many runs that count, the median is compared; of more if they differ by a larger share; and
#: so many are tried.
RUNS, SPREAD, MOST = 3, 0.05, 9

PAGE: Final = Path(__file__).parent.parent / "docs" / "whatif.md"
BEGIN: Final = "<!-- made by `python -m benchmarks.whatif`: begin -->\n"
END: Final = "<!-- made by `python -m benchmarks.whatif`: end -->\n"


def nap(seconds: float, *_: object) -> None:
    """Sleep."""
    time.sleep(seconds)


def ask(seconds: float) -> None:
    """Wait for another process."""
    subprocess.run(["sleep", str(seconds)], check=True)


def flaky(seconds: float) -> None:
    """Fail once."""
    time.sleep(seconds)
    worker = get_worker()
    # The folder that all workers share.
    mark = Path(worker.local_directory).parent / f"{worker.get_current_task()}"
    if not mark.exists():
        mark.touch()
        raise OSError("try it again")


def leave(seconds: float) -> None:
    """Leave the thread to others after a while."""
    time.sleep(seconds / 4)
    secede()
    time.sleep(3 * seconds / 4)


def make(seconds: float) -> bytes:
    """Return 20 MB."""
    time.sleep(seconds)
    return bytes(20_000_000)


class Step(NamedTuple):
    """A submission of some tasks."""

    prefix: str
    count: int
    run: Callable[..., Any] = nap
    #: The range of their seconds.
    seconds: tuple[float, float] = (0.1, 0.5)
    #: How many results of earlier tasks each needs.
    needs: int = 0
    #: Only those of so many last tasks; each task needs the ones in its place.
    last: int = 0
    #: Whether the client waits for them, and how long it works then.
    waits: bool = False
    pause: float = 0.0
    #: The span below the case's own.
    within: str | None = None
    options: Mapping[str, Any] = {}


def work(client: Client, name: str, seed: str, steps: Sequence[Step]) -> None:
    """Do what a case says, with names for tasks that no other run has."""
    # The same tasks in each run of a case.
    rng, known, number = random.Random(seed), list[Any](), itertools.count()
    for step in steps:
        with span(step.within) if step.within else nullcontext():
            graph = {}
            for place in range(0, step.count * step.needs or step.count, step.needs or 1):
                mine = known[-step.last :][place : place + step.needs]
                needed = mine if step.last else rng.sample(known, min(step.needs, len(known)))
                key = f"{step.prefix}-{name}", next(number)
                graph[key] = (step.run, rng.uniform(*step.seconds), *needed)
            made = client.get(graph, [*graph], sync=False, **step.options)
            if step.waits:
                wait(made)
        known += made
        time.sleep(step.pause)
    wait(known)


_ROUND: Final = Step("load", 8, waits=True, pause=0.3)
_OTHERS: Final = Step("load", 30)
#: By the names of cases, what they are and do. Each list of steps is a user, beside the others.
CASES: Final[dict[str, tuple[str, list[list[Step]]]]] = {
    "fan": ("48 independent tasks", [[Step("load", 48)]]),
    "io": ("40 tasks that wait for a process each", [[Step("ask", 40, ask)]]),
    "queue": ("200 short tasks", [[Step("load", 200, seconds=(0.04, 0.12))]]),
    "skew": (
        "40 tasks, and one that takes ten times as long",
        [[Step("load", 40, seconds=(0.2, 0.3)), Step("fit", 1, seconds=(2.5, 2.5))]],
    ),
    "chains": (
        "6 chains of 8 tasks",
        [[Step("step", 6), *[Step("step", 6, needs=1, last=6)] * 7]],
    ),
    "tree": (
        "a tree of merges over 32 tasks",
        [
            [
                Step("load", 32),
                *(Step("merge", n, needs=2, last=2 * n) for n in (16, 8, 4, 2, 1)),
            ]
        ],
    ),
    "pins": (
        "10 of 40 tasks must run on one worker",
        [[Step("pin", 10, options={"workers": ["w0"]}), _OTHERS]],
    ),
    "resource": (
        "10 of 40 tasks need a resource, one at a time on each worker",
        [[Step("hold", 10, options={"resources": {"slot": 1}}), _OTHERS]],
    ),
    "retries": (
        "10 of 40 tasks fail once, and are tried again",
        [[Step("flaky", 10, flaky, options={"retries": 2}), _OTHERS]],
    ),
    "seceding": (
        "10 of 40 tasks leave their threads to others",
        [[Step("leave", 10, leave), _OTHERS]],
    ),
    "stealing": (
        "40 tasks that need the same result of 20 MB",
        [[Step("make", 1, make, waits=True), Step("use", 40, needs=1)]],
    ),
    "transfers": (
        "24 tasks that need three results of 20 MB each",
        [[Step("make", 8, make), Step("use", 24, needs=3)]],
    ),
    "gaps": ("6 rounds of 8 tasks; the client works for 0.3 s after each", [[_ROUND] * 6]),
    "nested": (
        "three spans one after the other below one",
        [[Step(name, 16, waits=True, within=name) for name in ("load", "clean", "fit")]],
    ),
    "submissions": (
        "16 submissions whose tasks need earlier ones",
        [[Step("load", 3, needs=2)] * 16],
    ),
    "users": ("two users side by side, with 4 rounds each", [[_ROUND] * 4] * 2),
    "joining": ("80 tasks; a third worker joined the recorded run", [[Step("load", 80)]]),
    "cpu": ("24 tasks that compute, without the GIL", [[Step("digest", 24, hashed)]]),
    "gil": ("24 tasks that compute and hold the GIL", [[Step("burn", 24, looped, (0.25, 0.25))]]),
}
#: Cases whose tasks take longer where others compute.
COMPUTE: Final = ("cpu", "gil")


def start_worker(cluster: processes.Cluster, name: str, threads: int) -> processes.Process:
    """Start a worker with a resource."""
    return cluster.start_worker(
        name, "--resources", "slot=1", nthreads=threads, env=environment({})
    )


@contextmanager
def running(shape: tuple[int, int], files: Path) -> Iterator[tuple[processes.Cluster, Client]]:
    """Give a cluster of a shape, whose bridge writes files."""
    more = environment({"DASK_OTEL__FILES__PATH": str(files)})
    with tempfile.TemporaryDirectory() as folder, processes.cluster(Path(folder)) as built:
        built.start_scheduler("--preload", "dask_otel.preload", env=more)
        with Client(built.address, timeout=90) as client:
            for number in range(shape[0]):
                start_worker(built, f"w{number}", shape[1])
            client.wait_for_workers(shape[0], timeout=90)
            # Each worker has then imported what a task needs.
            wait(client.map(nap, [0.1] * 20 * shape[0] * shape[1], pure=False))
            yield built, client


def once(name: str, own: str, client: Client) -> dict[str, Any]:
    """Run a case; return its seconds, and the lateness of a sleep beside it."""
    late: list[float] = []
    began = slept = time.perf_counter()
    with client.as_current(), span(own), ThreadPoolExecutor() as pool:
        users = [
            pool.submit(copy_context().run, work, client, f"{own}-{letter}", name + letter, steps)
            for letter, steps in zip("xy", CASES[name][1], strict=False)
        ]
        while futures.wait(users, 0.1).not_done:
            late.append((time.perf_counter() - slept) / 0.1 - 1)
            slept = time.perf_counter()
        for user in users:
            user.result()
    return {"name": own, "seconds": time.perf_counter() - began, "late": mean(late)}


def typical(name: str, cluster: processes.Cluster, client: Client, joins: bool) -> dict[str, Any]:
    """Return the median of the calm runs of a case, and how much longer the slowest one took."""
    runs, calm = list[dict[str, Any]](), list[dict[str, Any]]()
    while len(runs) < MOST and (len(calm) < RUNS or spread(calm) > SPREAD):
        own = f"{name}-{'abcdefghi'[len(runs)]}"
        joined = start_worker(cluster, own, 2) if joins else None
        runs.append(once(name, own, client))
        if joined is not None:
            joined.kill()
        calm = sorted((one for one in runs if one["late"] <= LATE), key=itemgetter("seconds"))
    calm = calm or [min(runs, key=itemgetter("late"))]
    return {**calm[(len(calm) - 1) // 2], "spread": spread(calm)}


def spread(runs: Sequence[dict[str, Any]]) -> float:
    """Return how much longer the last run took than the first one."""
    return float(runs[-1]["seconds"] / runs[0]["seconds"] - 1)


def recorded(folder: Path, name: str) -> list[Graph]:
    """Return the graphs of a span."""
    return [one for one in read_graphs(folder) if one.name == name]


def matrix(names: Sequence[str], folder: Path) -> Iterator[dict[str, Any]]:
    """Run each case on all shapes; yield what was real, and what replays of the first one say."""
    experiments = [with_workers([threads] * workers) for workers, threads in SHAPES[1:]]
    with ExitStack() as stack:
        clusters = [stack.enter_context(running(shape, folder / f"{shape}")) for shape in SHAPES]
        for name in names:
            joins = [name == "joining", *[False] * len(experiments)]
            real = [typical(name, *one, join) for one, join in zip(clusters, joins, strict=True)]
            found_in = partial(recorded, folder / f"{SHAPES[0]}", real[0]["name"])
            (graph,) = eventually(found_in, 60, "the graph")
            found = replay(graph, experiments)
            replayed = [one.seconds for one in (found.replayed, *found.experiments) if one]
            yield {"case": name, "real": real, "replayed": replayed, "refused": found.refused}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of some cases, and a paragraph on their errors."""
    lines = [["case", *(f"{workers} x {threads}" for workers, threads in SHAPES)]]
    found, spreads = list[float](), list[float]()
    for row in rows:
        pairs = [*zip(row["real"], row["replayed"], strict=False)]
        errors = [replayed / real["seconds"] - 1 for real, replayed in pairs]
        cells = [
            f"{one[0]['seconds']:.2f} s: {by:+.1%}" for one, by in zip(pairs, errors, strict=True)
        ]
        lines.append([CASES[row["case"]][0], *cells, *["refused"] * (len(SHAPES) - len(cells))])
        if row["case"] not in COMPUTE:
            found += map(abs, errors[1:])
            spreads += [one["spread"] for one in row["real"]]
    text = results.table(lines[0], lines[1:])
    if not found:
        return text
    here = results.machine()
    return text + (
        f"\nA cell has the median duration of {RUNS} real runs, or of up to {MOST} if they differ "
        f"by more than {SPREAD:.0%}, and how much longer (+) or shorter (-) the replay was. "
        f"Without the tasks that compute, the median error is {median(found):.1%}, "
        f"{sum(one <= 0.03 for one in found) / len(found):.0%} are at most 3%, and the largest is "
        f"{max(found):.1%}. The real runs of a case differ by {median(spreads):.1%} in the median "
        f"and by up to {max(spreads):.0%}. Measured on {here['time'][:10]} with distributed "
        f"{here['versions']['distributed']} on {here['cores']} cores.\n"
    )


def main() -> None:
    """Run the cases; if they are all, write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whatif", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)} (default: all)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the telemetry there")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in matrix(options.cases or [*CASES], options.keep or Path(folder)):
            print(json.dumps(row), flush=True)
            rows.append(row)
    text = table(rows)
    print(text)
    if not options.cases:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
