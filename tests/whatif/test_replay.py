"""Replays of graphs by hand: each answer is known without a scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from dask.sizeof import sizeof

from dask_otel.whatif.engine import Result, replayed
from dask_otel.whatif.experiments import Experiment
from dask_otel.whatif.graph import Graph
from dask_otel.whatif.plan import plan
from dask_otel.whatif.result import Replayed
from tests.whatif.graphs import graph

#: Floats, added up; Dask's scheduler takes no task for free.
EXACT = 1e-5

#: Restrictions to the workers of these numbers, and to one with a GPU.
PINS: list[dict[str, Any]] = [
    {"workers": [number], "resources": {}, "loose": False, "actor": False} for number in range(3)
]
GPU = {"workers": None, "resources": {"GPU": 1}, "loose": False, "actor": False}
ON_GPU = [{"restriction": 0, "start": task} for task in range(4)]
#: A result of 100 MB on each of the first two workers; and what it is to fetch some for a second.
LARGE = [{"nbytes": 10**8, "restriction": n, "worker": n} for n in (0, 1)]
FETCHED = {"sent": 1.0, "fetched": 1.0, "start": 2.0, "transfer": 1.0}

#: Graphs, and the seconds of their replays with changes.
ANSWERS: dict[str, tuple[Graph, list[tuple[dict[str, Any], float]]]] = {
    "a chain is no shorter with more threads": (
        graph(*({"before": [task - 1] if task else [], "start": task} for task in range(5))),
        [({}, 5.0), ({"workers": (4,)}, 5.0), ({"faster": {"inc": 2.0}}, 2.5)],
    ),
    # Two halves beside another task of a second, then the task that needs both.
    "the longest task is split": (
        graph({}, {"seconds": 8.0}, {"before": [1], "start": 8.0}),
        [
            ({}, 9.0),
            ({"workers": (3,), "split": {"longest": 2}}, 5.0),
            ({"workers": (16,), "split": {"inc": 4}}, 2.25),
        ],
    ),
    # The counterpart of worker 1 has two threads.
    "a restriction costs what the other threads could have done": (
        graph(
            *({"restriction": 0, "start": task, "worker": 1} for task in range(4)),
            restrictions=PINS[1:2],
        ),
        [({}, 4.0), ({"without": ["restrictions"]}, 2.0), ({"workers": (1, 2)}, 2.0)],
    ),
    "a resource limits the tasks side by side": (
        graph(*ON_GPU, workers=[{"threads": 4, "resources": {"GPU": 1}}], restrictions=[GPU]),
        [({}, 4.0), ({"without": ["restrictions"]}, 1.0)],
    ),
    # Two results, two seconds in which the client thinks, and a task.
    "a client submits after the results that it had": (
        graph({}, {}, {"start": 3.0, "submission": 1}, submissions=[0.0, 3.0]),
        [
            ({}, 4.0),
            ({"faster": {"inc": 2.0}}, 3.0),
            ({"workers": (1,)}, 5.0),
            ({"without": ["gaps"]}, 2.0),
        ],
    ),
    # The task of the second submission needs that of the first.
    "what needs no results of an earlier submission does not wait for them": (
        graph({}, {"before": [0], "start": 1.0, "submission": 1}, submissions=[0.0, 0.2]),
        [({}, 2.0), ({"faster": {"inc": 10.0}}, 0.3)],
    ),
    # Two tasks; after the end of each, the client submits another one.
    "a client goes on with each result that comes": (
        graph(
            {},
            {"seconds": 2.0},
            {"start": 1.0, "submission": 1, "seconds": 2.0},
            {"start": 2.0, "submission": 2},
            submissions=[0.0, 1.0, 2.0],
            workers=(2,),
        ),
        [({}, 3.0), ({"workers": (1,)}, 6.0), ({"faster": {"inc": 2.0}}, 1.5)],
    ),
    # Two calls of map in one moment: the client waits for one of them, and submits another task.
    "a client waits for the group of tasks that was complete": (
        graph(
            {"seconds": 4.0},
            {"seconds": 4.0},
            {"group": 1, "prefix": 1},
            {"start": 1.0, "submission": 1, "prefix": 1, "seconds": 3.0},
            prefixes=["load", "fit"],
            submissions=[0.0, 1.0],
            workers=(4,),
        ),
        [({}, 4.0), ({"faster": {"load": 8.0}}, 4.0)],
    ),
    # The last submission follows the end of the long task, and needs the task of the one before.
    "a client does not submit before what it continues": (
        graph(
            {},
            {"seconds": 4.0, "group": 1, "prefix": 1},
            {"start": 1.5, "seconds": 4.0, "before": [0], "submission": 1, "group": 2},
            {"start": 5.5, "before": [2], "submission": 2, "group": 3},
            prefixes=["inc", "long"],
            submissions=[0.0, 1.5, 4.0],
            workers=(4,),
        ),
        [({}, 6.5), ({"faster": {"long": 100.0}}, 6.5)],
    ),
    # Two results of 100 MB on two workers; the third task gets one of them in half a second.
    "data takes its way between workers": (
        graph(
            {"nbytes": 10**8},
            {"nbytes": 10**8, "worker": 1},
            {"before": [0, 1], "sent": 1.0, "start": 1.5, "transfer": 0.5},
        ),
        [
            ({}, 2.5),
            ({"bandwidth": 1e9}, 2.1),
            ({"without": ["transfers"]}, 2.0),
            ({"workers": (2,)}, 2.0),
        ],
    ),
    # Both fetched 100 MB from the other worker in the same second.
    "the transfers from a worker share its bandwidth": (
        graph(
            LARGE[0],
            LARGE[0],
            *({"before": [n], "restriction": 1, "worker": 1, **FETCHED} for n in (0, 1)),
            workers=(2, 2),
            restrictions=PINS,
        ),
        [({}, 3.0), ({"bandwidth": 1e8}, 4.0), ({"without": ["transfers"]}, 2.0)],
    ),
    # Of two results of 100 MB on two workers, a third worker needs both.
    "the transfers to a worker share its bandwidth": (
        graph(
            *LARGE,
            {"before": [0, 1], "restriction": 2, "worker": 2, **FETCHED},
            workers=(1, 1, 1),
            restrictions=PINS,
        ),
        [({}, 3.0), ({"bandwidth": 1e8}, 4.0), ({"workers": (2, 2, 2), "bandwidth": 2e8}, 3.0)],
    ),
    "all tasks of a worker wait for data that one of them fetches": (
        graph(
            LARGE[0],
            *(
                {
                    "before": [0],
                    "restriction": 1,
                    "worker": 1,
                    "sent": 1.0,
                    **({"fetched": 1.0, "transfer": 0.5} if task == 2 else {}),
                    "start": 1.5 + task,
                }
                for task in range(3)
            ),
            restrictions=PINS,
        ),
        [({}, 4.5), ({"without": ["transfers"]}, 4.0), ({"workers": (1, 3)}, 2.5)],
    ),
    "failed and rescheduled runs are repeated": (
        graph(
            {"outcome": "f"},
            {"task": 0, "start": 1.0, "outcome": "r", "seconds": 2.0},
            {"task": 0, "start": 3.0, "seconds": 3.0},
        ),
        [({}, 6.0), ({"without": ["failures"]}, 3.0)],
    ),
    # The second worker dies after a second; its task begins again when the first one is free.
    "a lost worker takes its runs with it": (
        graph(
            {"seconds": 2.0},
            {"outcome": "l", "worker": 1, "seconds": None, "start": 0.0},
            {"task": 1, "start": 2.0, "seconds": 3.0},
            workers=[1, {"threads": 1, "went": 1.0}],
        ),
        [({}, 5.0), ({"without": ["failures"]}, 3.0), ({"workers": (1, 1)}, 3.0)],
    ),
    "a thread changes from a task to the next one": (
        graph(*({"sent": 0.0, "start": 0.1 + 1.1 * task} for task in range(3)), workers=(1,)),
        [({}, 3.3), ({"faster": {"inc": 2.0}}, 1.8), ({"workers": (3,)}, 1.1)],
    ),
    "reading from the disk takes a thread": (
        graph({"disk": 0.5, "sent": 0.0, "start": 0.5}, workers=(1,)),
        [({}, 1.5)],
    ),
    "a worker reported nonsense": (
        graph({"disk": None, "transfer": None}, workers=(1,)),
        [({}, 1.0)],
    ),
    "the span ends as long after its last task as it did": (
        graph({}, stop=1.7),
        [({}, 1.7), ({"faster": {"inc": 2.0}}, 1.2), ({"without": ["gaps"]}, 1.0)],
    ),
    # What only another worker did is as it was; what only this one did is as slow as the rest. The
    # third one is as fast as the first.
    "tasks are slow on the slow worker alone": (
        graph(
            *(
                {
                    "prefix": prefix,
                    "worker": worker,
                    "restriction": worker,
                    "start": start,
                    "seconds": took,
                }
                for prefix, worker, start, took in [
                    *((0, 0, start, 1.0) for start in (0.0, 1.0, 2.0, 3.0)),
                    *((0, 1, start, 3.0) for start in (0.0, 3.0)),
                    *((1, 0, 4.0, 7.0), (2, 1, 6.0, 6.0)),
                ]
            ),
            prefixes=["inc", "fit", "sum"],
            restrictions=PINS,
        ),
        [
            ({}, 12.0),
            ({"without": ["slow-worker"]}, 11.0),
            ({"workers": (1,)}, 4.0 + 2.0 + 7.0 + 2.0),
            ({"workers": (1, 1, 1)}, 12.0),
        ],
    ),
    "one long task is no slow worker": (
        graph(
            *({"start": start} for start in range(3)),
            {"worker": 1},
            {"seconds": 9.0, "start": 1.0, "worker": 1},
        ),
        [({"workers": (1,)}, 13.0)],
    ),
    # Without stealing, the worker that comes later gets nothing.
    "without unevenness each free thread takes the next task": (
        graph(
            *({"start": float(task)} for task in range(8)),
            workers=[1, {"threads": 1, "came": 2.0}],
            scheduler={"stealing": False, "saturation": None},
        ),
        [({}, 8.0), ({"without": ["unevenness"]}, 5.0)],
    ),
}


def seconds(of: Graph, **change: Any) -> float:
    return replayed(plan(of, Experiment("x", **change))).seconds


def near(value: float | list[float]) -> object:
    return pytest.approx(value, abs=EXACT)


@pytest.mark.parametrize(("of", "answers"), ANSWERS.values(), ids=ANSWERS)
def test_the_answer_is_known(of: Graph, answers: list[tuple[dict[str, Any], float]]) -> None:
    found = [(change, seconds(of, **change)) for change, _ in answers]
    assert found == [(change, near(took)) for change, took in answers]


def test_the_result_has_the_thread_hours_and_the_idle_share() -> None:
    three = graph({}, {}, {"start": 1.0})
    assert replayed(plan(three, Experiment(""))) == Replayed(
        "", near(2.0), near(4 / 3600), near(0.25), 2
    )


def test_small_transfers_say_nothing_of_large_ones() -> None:
    """A kilobyte takes 10 ms, as messages do; 100 MB do not take 1,000 s for that."""
    first = {"before": [0], "worker": 1, "sent": 1.0, "start": 1.01, "transfer": 0.01}
    small = graph({"nbytes": 1000}, {"nbytes": 10**8}, first)
    wire = plan(small, Experiment("")).wire
    assert [wire(nbytes) for nbytes in (500, 1000, 10**8)] == near([0.005, 0.01, 1.00999])
    # A large one took as long as 100 MB took from there.
    second = {"before": [1], "worker": 1, "sent": 3.0, "start": 5.0, "transfer": 2.0}
    wire = plan(graph({"nbytes": 1000}, {"nbytes": 10**8}, first, second), Experiment("")).wire
    assert [wire(nbytes) for nbytes in (1000, 10**8)] == near([0.01, 2.00998])


def test_a_worker_comes_and_goes() -> None:
    moved = [1, {"threads": 1, "came": 2.0, "went": 4.0}]
    found = replayed(plan(graph(*({"start": task} for task in range(4)), workers=moved),
                          Experiment("")))  # fmt: skip
    # All tasks are with the first worker when the second one comes, which steals one of them.
    assert 3.0 - EXACT <= found.seconds <= 4.0
    assert found.threads is None
    assert found.thread_hours == near((found.seconds + min(found.seconds, 4.0) - 2.0) / 3600)


def test_a_worker_that_leaves_hands_its_results_over() -> None:
    made = [{"seconds": 4.0, "restriction": 0}, {"worker": 1, "restriction": 1}]
    left = graph(*made, {"before": [0, 1], "start": 4.0, "restriction": 0},
                 workers=[1, {"threads": 1, "went": 2.0}], restrictions=PINS)  # fmt: skip
    found = replayed(plan(left, Experiment("")))
    assert (found.seconds, found.thread_hours) == (near(5.0), near(7 / 3600))


def test_each_worker_begins_as_late_as_it_did() -> None:
    # Two workers need 2 s and 1 s before their first task, as if they had to import modules.
    late = [{"sent": 0.0, "start": start, "worker": worker}
            for worker, first in ((0, 2.0), (1, 1.0)) for start in (first, first + 1)]  # fmt: skip
    recorded = graph(*late)
    assert (recorded.stop, seconds(recorded)) == (4.0, pytest.approx(4.0, abs=0.06))
    # Of four workers, every second one begins after 2 s, and the others after 1 s.
    assert seconds(recorded, workers=(1, 1, 1, 1)) == pytest.approx(3.0, abs=0.06)
    # The only one begins like the first one.
    assert seconds(recorded, workers=(4,)) == pytest.approx(3.0, abs=0.06)


def test_a_result_has_the_recorded_size() -> None:
    assert sizeof(Result(24)) == 24


@pytest.mark.parametrize(("place", "took"), [(0, 4.0), (1, 4.0), (2, 5.0)])
def test_tasks_are_sent_in_the_recorded_order(place: int, took: float) -> None:
    # Two threads begin with the last two in Dask's set, whatever their priorities are.
    first = [{"task": task, "seconds": 1.0} for task in (0, 1)]
    first.insert(place, {"task": 2, "seconds": 3.0})
    for number, one in enumerate(first):
        one["hash"] = 7 - number
    last = {"task": 3, "before": [0, 1, 2], "sent": 5.0, "hash": 0}
    assert seconds(graph(*first, last, workers=(2,))) == near(took)


def test_tasks_of_a_short_run_are_stolen_even_if_it_is_replayed_once() -> None:
    # All of them go to the worker that has the result of the first one.
    short = graph(*({"before": [0] if task else [], "seconds": 0.11, "start": task * 0.11,
                     "sent": 0.11} for task in range(9)))  # fmt: skip
    assert seconds(short) < 0.95 < seconds(short, without=["stealing"]) == near(0.99)


@pytest.mark.parametrize("disk", [0.0, 2.0])
def test_what_a_worker_does_first_is_no_time_of_a_task_for_the_scheduler(disk: float) -> None:
    # Both begin after 2 s, by imports or the disk. The scheduler learns that tasks of one kind are
    # short, so none of them waits behind the long one.
    first = [{"prefix": n, "group": n, "worker": n, "start": 2.0, "sent": 0.0, "seconds": took,
              "disk": disk}
             for n, took in enumerate((4.0, 0.1))]  # fmt: skip
    second = [{**first[0], "group": 2, "start": 6.0, "sent": 6.0, "submission": 1, "disk": 0.0}]
    second += [{**first[1], "group": 3 + n, "start": 6.0 + n / 10, "sent": 6.0, "submission": 1,
                "disk": 0.0}
               for n in range(12)]  # fmt: skip
    again = graph(*first, *second, prefixes=["fit", "load"], submissions=[0.0, 6.0],
                  scheduler={"stealing": False, "saturation": None})  # fmt: skip
    assert (again.stop, seconds(again)) == (10.0, pytest.approx(10.0, abs=0.06))
