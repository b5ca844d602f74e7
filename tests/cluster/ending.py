"""A script whose run has succeeded when it ends, in the way that its argument names."""

from __future__ import annotations

import sys
from pathlib import Path

from distributed import Client, Event, LocalCluster, span, wait

from tests.waiting import eventually


def inc(x: int) -> int:
    return x + 1


def stay() -> None:
    Event("never").wait()


def main(way: str, folder: str) -> None:
    """Run a span, hold its results, and end."""
    # Workers with nannies, where the way is the usual one.
    processes = way == "cluster closes"
    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, processes=processes, dashboard_address=None
    )
    client = Client(cluster)
    with span("job"):
        held = client.map(inc, range(40))
        summed = client.submit(sum, held)
        assert summed.result() == 820
        if way == "a task is unfinished":
            held.append(client.submit(stay))
            eventually(lambda: client.processing(), what="it was sent")
    if way == "published":
        client.publish_dataset(held, name="held")
        del held, summed
    if way == "late":
        eventually(lambda: any("job" in f.read_text() for f in Path(folder).glob("*-traces.jsonl")))
    if way == "script ends":
        return
    if way == "shutdown":
        client.shutdown()
    elif way == "one worker is lost":
        # It has a copy of each result; some are nowhere else.
        (address,) = client.who_has([summed])[summed.key]
        worker = next(w for w in cluster.workers.values() if w.address == address)
        client.sync(worker.close)
        wait(summed)
        assert client.gather(held)[-1] == 40
    cluster.close()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
