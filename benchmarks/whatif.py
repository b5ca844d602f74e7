"""Does a replay tell the truth? Recorded on one real cluster, replayed as others that really ran.

``python -m benchmarks.whatif`` runs each case on real processes with five shapes of a cluster, lets
the bridge record the one, replays that record with the other shapes, and compares the durations. It
writes the table of docs/whatif.md. Tasks sleep, or wait for another process, so that two cores are
enough.
"""

from __future__ import annotations

import argparse
import contextvars
import json
import os
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from distributed import Client, secede, wait
from tests.cluster import processes

from benchmarks.cluster import environment
from benchmarks.results import RESULTS, machine
from dask_otel import span
from dask_otel.whatif.experiments import with_workers
from dask_otel.whatif.graph import Graph, read_graphs
from dask_otel.whatif.running import replay

#: Workers and the threads of each. The first is recorded.
SHAPES = ((2, 2), (2, 1), (1, 4), (4, 2), (2, 4))
#: A run counts if a plain sleep beside it is late by this share at most.
LATE = 0.02
#: So many runs are compared, the fastest of them; and so many are tried.
RUNS, MOST = 2, 5

PAGE = Path(__file__).parent.parent / "docs" / "whatif.md"
BEGIN = "<!-- made by `python -m benchmarks.whatif`: begin -->\n"
END = "<!-- made by `python -m benchmarks.whatif`: end -->\n"

#: The seconds of a task, and the tasks that it needs.
Spec: TypeAlias = tuple[Any, ...]


def nap(seconds: float, *_: object) -> None:
    """Sleep."""
    time.sleep(seconds)


def ask(seconds: float, *_: object) -> None:
    """Wait for another process."""
    subprocess.run(["sleep", str(seconds)], check=True)


def flaky(path: str, seconds: float) -> None:
    """Fail once."""
    time.sleep(seconds)
    if not os.path.exists(path):
        Path(path).touch()
        raise OSError("try it again")


def leave(seconds: float) -> None:
    """Leave the thread to others after a while."""
    time.sleep(seconds / 4)
    secede()
    time.sleep(3 * seconds / 4)


def make(size: int, seconds: float) -> bytes:
    """Return so many bytes."""
    time.sleep(seconds)
    return bytes(size)


def burn(seconds: float) -> None:
    """Compute for so many seconds of the CPU."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))


class User:
    """One run of a case: a user with names for tasks that no other run has."""

    def __init__(self, client: Client, name: str, cluster: processes.Cluster, first: bool) -> None:
        self.client, self.name, self.cluster = client, name, cluster
        #: Whether it is on the cluster that is recorded.
        self.recorded = first
        # The same for each run of a case.
        self.rng = random.Random(name.rsplit("-", 1)[0])
        self._made = 0

    def submit(
        self, prefix: str, does: Sequence[Spec], run: Callable[..., Any] = nap, **options: Any
    ) -> list[Any]:
        """Submit some tasks at once; return their futures, or for whole numbers of needs those."""
        self._made += 1
        keys = [(f"{prefix}-{self.name}", 1000 * self._made + i) for i in range(len(does))]
        graph = {key: (run, *spec) for key, spec in zip(keys, does, strict=True)}
        return self.client.get(graph, keys, sync=False, **options)

    def some(self, count: int, least: float = 0.1, most: float = 0.5) -> list[Spec]:
        """Return so many tasks of random lengths."""
        return [(self.rng.uniform(least, most),) for _ in range(count)]


CASES: dict[str, Callable[[User], None]] = {}


def case(run: Callable[[User], None]) -> Callable[[User], None]:
    """Add a case; its docstring is its row."""
    CASES[run.__name__] = run
    return run


@case
def fan(user: User) -> None:
    """48 independent tasks."""
    wait(user.submit("load", user.some(48)))


@case
def io(user: User) -> None:
    """40 tasks that wait for a process each."""
    wait(user.submit("ask", user.some(40), ask))


@case
def chains(user: User) -> None:
    """6 chains of 8 tasks."""
    links: Sequence[Any] = [()] * 6
    for _ in range(8):
        links = user.submit(
            "step", [(*one, *link) for one, link in zip(user.some(6), links, strict=True)]
        )
        links = [(link,) for link in links]
    wait([link for (link,) in links])


@case
def tree(user: User) -> None:
    """A tree of merges over 32 tasks."""
    level = user.submit("load", user.some(32))
    while len(level) > 1:
        pairs = zip(user.some(len(level) // 2, 0.1, 0.3), level[::2], level[1::2], strict=True)
        level = user.submit("merge", [(*one, left, right) for one, left, right in pairs])
    wait(level)


@case
def skew(user: User) -> None:
    """40 tasks, and one that takes ten times as long."""
    wait(user.submit("load", [*user.some(40, 0.2, 0.3), (2.5,)]))


@case
def pins(user: User) -> None:
    """10 of 40 tasks must run on one worker."""
    pinned = user.submit("pin", user.some(10), workers=["w0"])
    wait(pinned + user.submit("load", user.some(30)))


@case
def resource(user: User) -> None:
    """10 of 40 tasks need a resource, one at a time on each worker."""
    held = user.submit("hold", user.some(10), resources={"slot": 1})
    wait(held + user.submit("load", user.some(30)))


@case
def stealing(user: User) -> None:
    """40 tasks that need a large result of one worker."""
    (root,) = user.submit("root", [(20_000_000, 0.1)], make)
    wait(root)
    wait(user.submit("use", [(*one, root) for one in user.some(40)]))


@case
def retries(user: User) -> None:
    """10 of 40 tasks fail once, and are tried again."""
    folder = tempfile.mkdtemp(dir=user.cluster.folder)
    specs = [(f"{folder}/{i}", *one) for i, one in enumerate(user.some(10))]
    failing = user.submit("flaky", specs, flaky, retries=2)
    wait(failing + user.submit("load", user.some(30)))


@case
def transfers(user: User) -> None:
    """24 tasks that need three results of 20 MB each."""
    made = user.submit("make", [(20_000_000, 0.2)] * 8, make)
    needs = [user.rng.sample(made, 3) for _ in range(24)]
    wait(
        user.submit("use", [(*one, *some) for one, some in zip(user.some(24), needs, strict=True)])
    )


@case
def gaps(user: User) -> None:
    """6 rounds of 8 tasks; the client works for 0.3 s after each."""
    for _ in range(6):
        wait(user.submit("load", user.some(8)))
        time.sleep(0.3)


@case
def nested(user: User) -> None:
    """Three spans one after the other below one."""
    for name in ("load", "clean", "fit"):
        with span(name):
            wait(user.submit(name, user.some(16)))


@case
def joining(user: User) -> None:
    """60 tasks; a third worker joined while they ran."""
    futures = user.submit("load", user.some(60))
    if user.recorded:
        start_worker(user.cluster, user.name, 2)
    wait(futures)
    if user.recorded:
        user.client.retire_workers(names=[user.name])


@case
def queue(user: User) -> None:
    """200 short tasks in the scheduler's queue."""
    wait(user.submit("load", user.some(200, 0.04, 0.12)))


@case
def submissions(user: User) -> None:
    """16 submissions of 3 tasks that need two earlier ones; the client waits for none."""
    known: list[Any] = []
    for _ in range(16):
        needs = [user.rng.sample(known, min(2, len(known))) for _ in range(3)]
        known += user.submit(
            "load", [(*one, *some) for one, some in zip(user.some(3), needs, strict=True)]
        )
    wait(known)


@case
def seceding(user: User) -> None:
    """10 of 40 tasks leave their threads to others."""
    wait(user.submit("leave", user.some(10), leave) + user.submit("load", user.some(30)))


@case
def users(user: User) -> None:
    """Two users side by side, with rounds of their own."""

    def rounds(number: int) -> None:
        for _ in range(4):
            wait(user.submit("ab"[number], user.some(6)))
            time.sleep(0.2)

    each = [
        threading.Thread(target=contextvars.copy_context().run, args=(rounds, number))
        for number in range(2)
    ]
    for one in each:
        one.start()
    for one in each:
        one.join()


@case
def cpu(user: User) -> None:
    """24 tasks that compute on two cores: their seconds are not the same on other threads."""
    wait(user.submit("burn", [(0.25,)] * 24, burn))


def start_worker(cluster: processes.Cluster, name: str, threads: int) -> None:
    """Start a worker with a resource."""
    cluster.start_worker(name, "--resources", "slot=1", nthreads=threads, env=environment({}))


@contextmanager
def running(shape: tuple[int, int], files: Path) -> Iterator[tuple[Client, processes.Cluster]]:
    """Give a cluster of a shape, whose bridge writes files."""
    more = {"DASK_OTEL__FILES__PATH": str(files)}
    with tempfile.TemporaryDirectory() as folder, processes.cluster(Path(folder)) as built:
        scheduler = built.start_scheduler("--preload", "dask_otel.preload", env=environment(more))
        for number in range(shape[0]):
            start_worker(built, f"w{number}", shape[1])
        with Client(built.address, timeout=90) as client:
            client.wait_for_workers(shape[0], timeout=90)
            # Each worker has then imported what a task needs.
            client.run(nap, 0.1)
            wait(client.map(nap, [0.05] * 20 * shape[0] * shape[1], pure=False))
            yield client, built
        scheduler.terminate()


def measured(user: User, run: Callable[[User], None]) -> dict[str, float]:
    """Run a case; return its seconds, and the lateness of a sleep beside it."""
    over, late = threading.Event(), list[float]()

    def sleep() -> None:
        while not over.is_set():
            began = time.perf_counter()
            time.sleep(0.1)
            late.append((time.perf_counter() - began) / 0.1 - 1)

    beside = threading.Thread(target=sleep)
    with span(user.name):
        beside.start()
        began = time.perf_counter()
        run(user)
        took = time.perf_counter() - began
        over.set()
        beside.join()
    return {"seconds": took, "late": sum(late) / len(late), "load": os.getloadavg()[0]}


def really(shape: tuple[int, int], names: Sequence[str], files: Path) -> dict[str, dict[str, Any]]:
    """Return by case the fastest run on a cluster of this shape."""
    found: dict[str, dict[str, Any]] = {}
    with running(shape, files) as (client, cluster):
        for name in names:
            runs: list[dict[str, Any]] = []
            while len(runs) < MOST and sum(one["late"] <= LATE for one in runs) < RUNS:
                own = f"{name}-{'abcdefgh'[len(runs)]}"
                user = User(client, own, cluster, shape == SHAPES[0])
                runs.append({"name": own, **measured(user, CASES[name])})
            calm = [one for one in runs if one["late"] <= LATE]
            best = min(calm or runs, key=lambda one: one["seconds" if calm else "late"])
            found[name] = best
            print(f"{shape} {best}", flush=True)
    return found


def matrix(names: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Run all shapes; return by case what was real, and what the replay of the first one says."""
    real = [
        really(shape, names, folder / "x".join(map(str, shape))) for shape in SHAPES
    ]  # fmt: skip
    graphs = {one.name: one for one in read_graphs(folder / "2x2")}
    return [
        {
            "case": name,
            "real": [one[name] for one in real],
            **replays(graphs[real[0][name]["name"]]),
        }
        for name in names
    ]


def replays(graph: Graph) -> dict[str, Any]:
    """Return the seconds of the replays: as it was, and with each other shape."""
    found = replay(graph, [with_workers([threads] * workers) for workers, threads in SHAPES[1:]])
    known = [found.replayed, *found.experiments]
    return {"replayed": [one.seconds for one in known if one], "refused": found.refused}


def errors(row: dict[str, Any], first: int = 1) -> list[float]:
    """Return by how much the replays with other shapes are too long, as shares."""
    pairs = zip(row["replayed"][first:], row["real"][first:], strict=False)
    return [replayed / real["seconds"] - 1 for replayed, real in pairs]


def table(content: dict[str, Any]) -> str:
    """Return the table of all cases, and a sentence on their errors."""
    lines = [["case", *(f"{workers} x {threads}" for workers, threads in SHAPES)]]
    for row in content["rows"]:
        cells = [
            f"{real['seconds']:.2f} s: {error:+.1%}"
            for real, error in zip(row["real"], errors(row, 0), strict=False)
        ]
        lines.append([CASES[row["case"]].__doc__ or "", *cells, *[""] * (5 - len(cells))])
    lines.insert(1, ["---"] * len(lines[0]))
    found = [abs(one) for row in content["rows"] if row["case"] != "cpu" for one in errors(row)]
    here = content["machine"]
    return (
        "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        + f"\n\nWithout the last case, the median error is {median(found):.1%}, "
        f"{sum(one <= 0.03 for one in found) / len(found):.0%} are below 3%, and the largest is "
        f"{max(found):.1%}. Measured on {here['time'][:10]} with distributed "
        f"{here['versions']['distributed']} on {here['cores']} cores.\n"
    )


def main() -> None:
    """Run the cases; write the results and the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whatif", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)} (default: all)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the telemetry there")
    options = parser.parse_args()
    path = RESULTS / "whatif.json"
    content = json.loads(path.read_text()) if path.exists() else {"rows": []}
    rows = {row["case"]: row for row in content["rows"]}
    with tempfile.TemporaryDirectory() as folder:
        found = matrix(options.cases or [*CASES], options.keep or Path(folder))
    rows.update((row["case"], row) for row in found)
    content = {"machine": machine(), "rows": [rows[name] for name in CASES if name in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(
        before + BEGIN + table(content) + END + rest.partition(END)[2], encoding="utf-8"
    )


if __name__ == "__main__":
    main()
