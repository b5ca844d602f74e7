"""A script as people write them: a cluster in its own process, and processes forked from that.

Prints, as JSON, for each child how it ended and how many seconds that took.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
import warnings

from distributed import Client, LocalCluster, span

TASKS = 10
#: Spans before the forks, and after them.
SPANS = 4
#: Seconds after which a child hangs.
LIMIT = 60.0


def _increment(x: int) -> int:
    return x + 1


def _work(client: Client, numbers: range) -> None:
    for number in numbers:
        with span(f"work {number}"):
            keys = [(f"step-work{number}x", index) for index in range(TASKS)]
            client.gather(client.map(_increment, range(TASKS), key=keys))


def waited_for(pid: int) -> tuple[int | None, float]:
    """Wait for a child; return its exit code, None if it had to be killed, and the seconds."""
    began = time.monotonic()
    while time.monotonic() - began < LIMIT:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), time.monotonic() - began
        time.sleep(0.02)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return None, LIMIT


def main() -> None:
    """Work, fork in both ways, work again, and end."""
    # Newer Pythons warn of what is done here on purpose.
    warnings.simplefilter("ignore", DeprecationWarning)
    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    )
    client = Client(cluster)
    _work(client, range(SPANS))
    children = []
    for _ in range(3):
        child = multiprocessing.get_context("fork").Process(target=_increment, args=(1,))
        child.start()
        children.append(("multiprocessing", *waited_for(child.pid or 0)))
    for _ in range(2):
        pid = os.fork()
        if not pid:
            # As a child of a person's making ends: with all that Python does at its end.
            sys.exit(0)
        children.append(("os.fork", *waited_for(pid)))
    _work(client, range(SPANS, 2 * SPANS))
    client.close()
    cluster.close()
    print(json.dumps(children), flush=True)


if __name__ == "__main__":
    main()
