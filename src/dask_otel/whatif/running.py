"""Runs replays in a process of their own, because Python's clocks are replaced there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from tempfile import TemporaryFile
from time import monotonic
from typing import Any, Final

from dask_otel._children import started
from dask_otel.core.figures import counted
from dask_otel.core.figures import seconds as in_words
from dask_otel.whatif.experiments import Experiment
from dask_otel.whatif.graph import Graph
from dask_otel.whatif.plan import BANDWIDTH, LARGE, fetched_by, messages
from dask_otel.whatif.result import Replayed, WhatIf

#: A replay of the run as it was that is further off answers nothing.
MOST: Final = 0.15
#: Replays of each change, with other orders of what Dask leaves to chance; one of a run with more
#: tasks, where chance evens out, or with one worker, which gets all tasks.
ORDERS: Final = 3
_MANY: Final = 5000
#: If replays are limited: the most runs of tasks in all of them, and the most seconds. The start of
#: a process takes as long as some runs.
_ROOM, _LIMIT, _START = 6_000, 20.0, 100
#: Why there is no answer then.
NO_TIME: Final = (
    "There was no time for its replay; `dask-otel report --replay` takes as long as it needs."
)

#: The most likely reason of a wrong replay if no other is known: it is too short, or too long.
UNEXPLAINED: Final = (
    "something that is not recorded took time, such as a busy scheduler or network, or its clock "
    "was set forward"
)
_OTHERWISE: Final = (
    "something that is not recorded gave its tasks other workers or another order, or the "
    "scheduler's clock was set back"
)

#: Functions whose tasks talk to each other past the scheduler.
_P2P: Final = ("p2p", "shuffle-transfer", "shuffle-barrier")
#: Mean seconds of tasks that cost the scheduler as much.
_SHORT: Final = 0.01


class ReplayError(RuntimeError):
    """The process of a replay died."""


class Room:
    """What replays may take, all together: runs of tasks, and seconds of real time."""

    def __init__(self, *, limited: bool) -> None:
        self.runs: float = _ROOM if limited else inf
        self.until = monotonic() + (_LIMIT if limited else inf)

    def times(self, *graphs: Graph) -> float:
        """Return how often all these runs can be replayed."""
        return self.runs / sum(map(_size, graphs)) if monotonic() < self.until else 0.0


def replay(
    graph: Graph,
    experiments: Sequence[Experiment],
    progress: Callable[[int, int], object] = lambda *_: None,
    room: Room | None = None,
    times: float = inf,
) -> WhatIf:
    """Replay a run as it was, and then with each change.

    Each is replayed several times if all can be, with other orders of what Dask leaves to chance.
    The median counts.

    Parameters
    ----------
    graph
        The run as recorded.
    experiments
        The changes; the first ones matter most.
    progress
        Called with the number of tasks that are done, and of all tasks of all replays.
    room
        What the replays may take. They take it from there.
    times
        How many replays there may be.

    Returns
    -------
    The results, as far as there was room. If the run as it was can't be replayed well enough, the
    reason, and no experiments.

    Raises
    ------
    ReplayError
        If the process of the replays dies. Nothing of it is left.
    """
    recorded = base = graph.stop - graph.start
    unfit = {
        f"{graph.left_out:,} runs of its tasks are not in its graph log, which is limited. "
        "Give its parts root spans of their own.": graph.left_out,
        "Its scheduler closed, or the bridge was removed, before it was done.": not graph.complete,
        "No run of a task was recorded.": (
            not graph.workers or all(one is None for one in graph.runs["seconds"])
        ),
    }
    if refused := next(_true(unfit), None):
        return WhatIf(graph.name, recorded, None, refused=refused)
    room, results, stuck = room or Room(limited=False), list[Replayed](), list[str]()
    changes = [Experiment("as it was"), *experiments][: int(min(times, len(experiments) + 1))]
    orders = [1 if len({*graph.runs["task"]}) > _MANY else ORDERS] * len(changes)
    if hurried := sum(orders) > times:
        # Those of the run as it was show what chance makes.
        orders = [max(1, min(orders[0], 1 + int(times) - len(changes))), *[1] * (len(changes) - 1)]
    room.runs -= sum(orders) * _size(graph)
    for said in _answers((graph, changes, orders), room.until):
        progress(said["done"], said["total"])
        if "result" in said:
            if not results:
                base = said["first"]
            results.append(Replayed(**said["result"]))
        elif "stuck" in said:
            stuck.append(said["stuck"])
        # Without the run as it was, the others say nothing.
        if (stuck and not results) or abs(base - recorded) > MOST * recorded:
            break
    reasons = {
        _reason(graph, base, recorded): abs(base - recorded) > MOST * recorded,
        " ".join(stuck): stuck and len(results) < 2,
        NO_TIME: not results,
    }
    refused = next(_true(reasons), None)
    return WhatIf(
        graph.name, recorded, results[0] if results else None,
        () if refused else tuple(results[1:]),
        tuple(_assumptions(
            # The first result has no change.
            graph, experiments, 1 + len(experiments) - len(results) - len(stuck), hurried,
        )), refused, tuple(stuck),
    )  # fmt: skip


def _true(said: Mapping[str, object]) -> Iterator[str]:
    """Yield the sentences that are true."""
    return (sentence for sentence, is_true in said.items() if is_true)


def _size(graph: Graph) -> int:
    return _START + len(graph.runs["task"])


def _answers(
    asked: tuple[Graph, list[Experiment], list[int]], until: float
) -> Iterator[dict[str, Any]]:
    """Yield what the process of a replay says until a time."""
    words = "none"
    with TemporaryFile() as request:
        request.write(json.dumps(asked, default=vars).encode())
        request.seek(0)
        # The order of sets is then the same each time.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        with started(
            "dask_otel.whatif.child", until - monotonic(),
            stdin=request, stderr=subprocess.STDOUT, env=environment,
        ) as process:  # fmt: skip
            for line in process.stdout or ():
                if line.startswith(b'{"'):
                    yield json.loads(line)
                else:
                    words = line.decode(errors="replace").strip() or words
            status = process.wait()
    if status and monotonic() < until:
        raise ReplayError(
            f"The process of the replay ended with status {status}. Its last output: {words}"
        )


def _reason(graph: Graph, seconds: float, recorded: float) -> str:
    """Return why the replay of a run as it was is so different from it: the most likely reason."""
    runs = graph.runs
    took = [one for one in runs["seconds"] if one is not None]
    reasons = {
        "the scheduler's clock was set back, so tasks were sent before the run began": (
            min(one or 0.0 for one in runs["sent"]) < -0.01
        ),
        "tasks of a p2p shuffle exchange data past the scheduler": any(
            word in prefix for prefix in graph.prefixes for word in _P2P
        ),
        "tasks waited for tasks that they started themselves": any(runs["seceded"]),
        "runs were lost with their workers, or cancelled": {*runs["outcome"]} & {"l", "c"},
        f"tasks waited for data of other spans, {graph.outside:,} times": graph.outside,
        "its tasks are so short that the scheduler took most of the time": (
            seconds < recorded and sum(took) < _SHORT * len(took)
        ),
        UNEXPLAINED: seconds < recorded,
        _OTHERWISE: True,
    }
    return (
        f"The replay of the run as it was took {in_words(seconds)} instead of "
        f"{in_words(recorded)}; the most likely reason: {next(_true(reasons))}."
    )


def _assumptions(
    graph: Graph, experiments: Sequence[Experiment], missing: int, hurried: bool
) -> Iterator[str]:
    """Yield what the replays assume, and what there was no time for."""
    others = any(one.workers for one in experiments)
    changed = any(one.bandwidth or "transfers" in one.without for one in experiments)
    but = ", except where an experiment says otherwise" if changed else ""
    assumed = {
        "Tasks take as long as they took, however many run side by side.": True,
        "Memory is not simulated: nothing is spilled, and no worker is paused.": True,
        "The transfers from or to one worker share its bandwidth, and it is the only limit.": True,
        "Other workers are there from the start to the end, and none is lost.": others,
        "A task that had to run on a certain worker has to run on the one of the same number.": (
            others and graph.restrictions
        ),
        "No transfer of a megabyte or more was recorded; beyond the largest one, a worker sends "
        f"{BANDWIDTH / 1e6:g} MB/s{but}.": (
            max(messages(fetched_by(graph.rows())).values(), default=0.0) < LARGE
        ),
        "A task that started other tasks waits for them as long as it did.": (
            any(graph.runs["seceded"])
        ),
        "Changes were replayed once; `dask-otel whatif` has the median of three.": hurried,
        f"There was no time for {counted(missing, 'more change')}.": missing,
    }
    return _true(assumed)
