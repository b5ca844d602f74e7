"""Replays of graphs by hand: each answer is known without a scheduler."""

from __future__ import annotations

import pytest

from dask_otel.lab import Stuck
from dask_otel.whatif.engine import replayed
from dask_otel.whatif.experiments import Experiment
from dask_otel.whatif.graph import Graph
from dask_otel.whatif.plan import plan
from dask_otel.whatif.result import Replayed
from tests.whatif.graphs import graph

#: Floats, added up; Dask's scheduler takes no task for free.
EXACT = 1e-5


def seconds(of: Graph, **change: object) -> float:
    if "without" in change:
        change["without"] = [change["without"]]
    return replayed(plan(of, Experiment("x", **change))).seconds  # type: ignore[arg-type]


def near(value: float | list[float]) -> object:
    return pytest.approx(value, abs=EXACT)


def test_the_result_has_the_thread_hours_and_the_idle_share() -> None:
    three = graph({}, {}, {"start": 1.0})
    assert replayed(plan(three, Experiment(""))) == Replayed(
        "", near(2.0), near(4 / 3600), near(0.25), 2
    )


def test_a_chain_is_no_shorter_with_more_threads() -> None:
    chain = graph(*({"before": [task - 1] if task else [], "start": task} for task in range(5)))
    assert seconds(chain) == near(5.0)
    assert seconds(chain, workers=(4,)) == near(5.0)
    assert seconds(chain, faster={"inc": 2.0}) == near(2.5)


def test_the_longest_task_is_split() -> None:
    skewed = graph({}, {"seconds": 8.0}, {"before": [1], "start": 8.0})
    assert seconds(skewed) == near(9.0)
    # Two halves beside another task of a second, then the task that needs both.
    assert seconds(skewed, workers=(3,), split={"longest": 2}) == near(5.0)
    assert seconds(skewed, workers=(16,), split={"inc": 4}) == near(2.25)


def test_a_restriction_costs_what_the_other_threads_could_have_done() -> None:
    pin = {"workers": [1], "resources": {}, "loose": False, "actor": False}
    pinned = graph(
        *({"restriction": 0, "start": task, "worker": 1} for task in range(4)), restrictions=[pin]
    )
    assert seconds(pinned) == near(4.0)
    assert seconds(pinned, without="restrictions") == near(2.0)
    # The counterpart of worker 1 has two threads.
    assert seconds(pinned, workers=(1, 2)) == near(2.0)


def test_a_resource_limits_the_tasks_side_by_side() -> None:
    gpu = {"workers": None, "resources": {"GPU": 1}, "loose": False, "actor": False}
    runs = [{"restriction": 0, "start": task} for task in range(4)]
    one = graph(*runs, workers=[{"threads": 4, "resources": {"GPU": 1}}], restrictions=[gpu])
    assert seconds(one) == near(4.0)
    assert seconds(one, without="restrictions") == near(1.0)
    with pytest.raises(Stuck):
        seconds(graph(*runs, restrictions=[gpu]))


def test_a_client_submits_after_the_results_that_it_had() -> None:
    # Two results, two seconds in which the client thinks, and a task.
    gap = graph({}, {}, {"start": 3.0, "submission": 1}, submissions=[0.0, 3.0])
    assert seconds(gap) == near(4.0)
    assert seconds(gap, faster={"inc": 2.0}) == near(3.0)
    assert seconds(gap, workers=(1,)) == near(5.0)
    assert seconds(gap, without="gaps") == near(2.0)


def test_what_needs_no_results_of_an_earlier_submission_does_not_wait_for_them() -> None:
    # The task of the second submission needs that of the first.
    later = graph({}, {"before": [0], "start": 1.0, "submission": 1}, submissions=[0.0, 0.2])
    assert seconds(later) == near(2.0)
    assert seconds(later, faster={"inc": 10.0}) == near(0.3)


def test_a_client_goes_on_with_each_result_that_comes() -> None:
    # Two tasks; after the end of each, the client submits another one.
    next_ones = [{"start": 1.0, "submission": 1, "seconds": 2.0},
                 {"start": 2.0, "submission": 2}]  # fmt: skip
    fed = graph({}, {"seconds": 2.0}, *next_ones, submissions=[0.0, 1.0, 2.0], workers=(2,))
    assert seconds(fed) == near(3.0)
    assert seconds(fed, workers=(1,)) == near(6.0)
    assert seconds(fed, faster={"inc": 2.0}) == near(1.5)


def test_a_client_waits_for_the_group_of_tasks_that_was_complete() -> None:
    # Two calls of map in one moment: the client waits for one of them, and submits another task.
    waited = graph({"seconds": 4.0}, {"seconds": 4.0}, {"group": 1, "prefix": 1},
                   {"start": 1.0, "submission": 1, "prefix": 1, "seconds": 3.0},
                   prefixes=["load", "fit"], submissions=[0.0, 1.0], workers=(4,))  # fmt: skip
    assert seconds(waited) == near(4.0)
    assert seconds(waited, faster={"load": 8.0}) == near(4.0)


def test_a_client_does_not_submit_before_what_it_continues() -> None:
    # The last submission follows the end of the long task, and needs the task of the one before.
    found = graph({}, {"seconds": 4.0, "group": 1, "prefix": 1},
                  {"start": 1.5, "seconds": 4.0, "before": [0], "submission": 1, "group": 2},
                  {"start": 5.5, "before": [2], "submission": 2, "group": 3},
                  prefixes=["inc", "long"], submissions=[0.0, 1.5, 4.0], workers=(4,))  # fmt: skip
    assert seconds(found) == near(6.5)
    assert seconds(found, faster={"long": 100.0}) == near(6.5)


def test_data_takes_its_way_between_workers() -> None:
    # Two results of 100 MB on two workers; the third task gets one of them in half a second.
    sent = graph(
        {"nbytes": 10**8}, {"nbytes": 10**8, "worker": 1},
        {"before": [0, 1], "sent": 1.0, "start": 1.5, "transfer": 0.5},
    )  # fmt: skip
    assert seconds(sent) == near(2.5)
    assert seconds(sent, bandwidth=1e9) == near(2.1)
    assert seconds(sent, without="transfers") == near(2.0)
    assert seconds(sent, workers=(2,)) == near(2.0)


def test_small_transfers_say_nothing_of_large_ones() -> None:
    """A kilobyte takes 10 ms, as messages do; 100 MB do not take 1,000 s for that."""
    first = {"before": [0], "worker": 1, "sent": 1.0, "start": 1.01, "transfer": 0.01}
    small = graph({"nbytes": 1000}, {"nbytes": 10**8}, first)
    wire = plan(small, Experiment("")).wire
    assert [wire.seconds(nbytes) for nbytes in (500, 1000, 10**8)] == near([0.005, 0.01, 1.00999])
    # A large one took as long as 100 MB took from there.
    second = {"before": [1], "worker": 1, "sent": 3.0, "start": 5.0, "transfer": 2.0}
    wire = plan(graph({"nbytes": 1000}, {"nbytes": 10**8}, first, second), Experiment("")).wire
    assert [wire.seconds(nbytes) for nbytes in (1000, 10**8)] == near([0.01, 2.00998])


def test_the_transfers_from_a_worker_share_its_bandwidth() -> None:
    # Both fetched 100 MB from the other worker in the same second.
    pins = [{"workers": [n], "resources": {}, "loose": False} for n in (0, 1)]
    fetched = {"sent": 1.0, "start": 2.0, "fetched": 1.0, "transfer": 1.0, "worker": 1}
    shared = graph(
        {"nbytes": 10**8, "restriction": 0}, {"nbytes": 10**8, "restriction": 0},
        {"before": [0], "restriction": 1, **fetched}, {"before": [1], "restriction": 1, **fetched},
        workers=(2, 2), restrictions=pins,
    )  # fmt: skip
    assert seconds(shared) == near(3.0)
    assert seconds(shared, bandwidth=1e8) == near(4.0)
    assert seconds(shared, without="transfers") == near(2.0)


def test_the_transfers_to_a_worker_share_its_bandwidth() -> None:
    # Of two results of 100 MB on two workers, a third worker needs both.
    pins = [{"workers": [n], "resources": {}, "loose": False} for n in range(3)]
    made = [{"nbytes": 10**8, "restriction": n, "worker": n} for n in (0, 1)]
    need = {"before": [0, 1], "restriction": 2, "worker": 2, "sent": 1.0, "fetched": 1.0}
    gathered = graph(
        *made, {**need, "start": 2.0, "transfer": 1.0}, workers=(1, 1, 1), restrictions=pins
    )
    assert seconds(gathered) == near(3.0)
    assert seconds(gathered, bandwidth=1e8) == near(4.0)
    assert seconds(gathered, workers=(2, 2, 2), bandwidth=2e8) == near(3.0)


def test_all_tasks_of_a_worker_wait_for_data_that_one_of_them_fetches() -> None:
    pins = [{"workers": [n], "resources": {}, "loose": False} for n in (0, 1)]
    need = [{"before": [0], "restriction": 1, "worker": 1, "sent": 1.0, "start": 1.5 + task}
            for task in range(3)]  # fmt: skip
    need[2] |= {"fetched": 1.0, "transfer": 0.5}
    waited = graph({"nbytes": 10**8, "restriction": 0}, *need, restrictions=pins)
    assert seconds(waited) == near(4.5)
    assert seconds(waited, without="transfers") == near(4.0)
    assert seconds(waited, workers=(1, 3)) == near(2.5)


def test_failed_and_rescheduled_runs_are_repeated() -> None:
    again = graph({"outcome": "f"}, {"task": 0, "start": 1.0, "outcome": "r", "seconds": 2.0},
                  {"task": 0, "start": 3.0, "seconds": 3.0})  # fmt: skip
    assert seconds(again) == near(6.0)
    assert seconds(again, without="failures") == near(3.0)


def test_a_lost_worker_takes_its_runs_with_it() -> None:
    # The second worker dies after a second; its task begins again when the first one is free.
    lost = graph(
        {"seconds": 2.0}, {"outcome": "l", "worker": 1, "seconds": None, "start": 0.0},
        {"task": 1, "start": 2.0, "seconds": 3.0},
        workers=[1, {"threads": 1, "went": 1.0}],
    )  # fmt: skip
    assert seconds(lost) == near(5.0)
    assert seconds(lost, without="failures") == near(3.0)
    assert seconds(lost, workers=(1, 1)) == near(3.0)


def test_a_worker_comes_and_goes() -> None:
    moved = [1, {"threads": 1, "came": 2.0, "went": 4.0}]
    found = replayed(plan(graph(*({"start": task} for task in range(4)), workers=moved),
                          Experiment("")))  # fmt: skip
    # All tasks are with the first worker when the second one comes, which steals one of them.
    assert 3.0 - EXACT <= found.seconds <= 4.0
    assert found.threads is None
    assert found.thread_hours == near((found.seconds + min(found.seconds, 4.0) - 2.0) / 3600)


def test_a_worker_that_leaves_hands_its_results_over() -> None:
    pins = [{"workers": [n], "resources": {}, "loose": False} for n in (0, 1)]
    made = [{"seconds": 4.0, "restriction": 0}, {"worker": 1, "restriction": 1}]
    left = graph(*made, {"before": [0, 1], "start": 4.0, "restriction": 0},
                 workers=[1, {"threads": 1, "went": 2.0}], restrictions=pins)  # fmt: skip
    found = replayed(plan(left, Experiment("")))
    assert (found.seconds, found.thread_hours) == (near(5.0), near(7 / 3600))


def test_a_thread_changes_from_a_task_to_the_next_one() -> None:
    starts = [{"sent": 0.0, "start": 0.1 + 1.1 * task} for task in range(3)]
    slow = graph(*starts, workers=(1,))
    assert seconds(slow) == near(3.3)
    assert seconds(slow, faster={"inc": 2.0}) == near(1.8)
    assert seconds(slow, workers=(3,)) == near(1.1)


def test_reading_from_the_disk_takes_a_thread() -> None:
    assert seconds(graph({"disk": 0.5, "sent": 0.0, "start": 0.5}, workers=(1,))) == near(1.5)
    # The worker reported nonsense.
    assert seconds(graph({"disk": None, "transfer": None}, workers=(1,))) == near(1.0)


def test_the_span_ends_as_long_after_its_last_task_as_it_did() -> None:
    late = graph({}, stop=1.7)
    assert seconds(late) == near(1.7)
    assert seconds(late, faster={"inc": 2.0}) == near(1.2)
    assert seconds(late, without="gaps") == near(1.0)


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


def test_tasks_are_slow_on_the_slow_worker_alone() -> None:
    pins = [{"workers": [worker], "resources": {}, "loose": False} for worker in range(2)]
    known = [("inc", 0, 1.0)] * 3 + [("inc", 1, 3.0)] * 2 + [("fit", 0, 8.0), ("sum", 1, 6.0)]
    prefixes, ends, runs = ["inc", "fit", "sum"], [0.0, 0.0], []
    for prefix, worker, took in known:
        runs.append({"prefix": prefixes.index(prefix), "worker": worker, "restriction": worker,
                     "start": ends[worker], "seconds": took})  # fmt: skip
        ends[worker] += took
    slow = graph(*runs, prefixes=prefixes, restrictions=pins)
    assert seconds(slow) == near(12.0)
    # What only another worker did is as it was; what only this one did is as slow as the rest.
    assert seconds(slow, without="slow-worker") == near(11.0)
    assert seconds(slow, workers=(1,)) == near(3.0 + 2.0 + 8.0 + 2.0)
    # The third one is as fast as the first.
    assert seconds(slow, workers=(1, 1, 1)) == near(12.0)
    # One long task is no slow worker.
    skewed = graph(*({"start": start} for start in range(3)), {"worker": 1},
                   {"seconds": 9.0, "start": 1.0, "worker": 1})  # fmt: skip
    assert seconds(skewed, workers=(1,)) == near(13.0)


def test_without_unevenness_each_free_thread_takes_the_next_task() -> None:
    # Without stealing, the worker that comes later gets nothing.
    late = graph(*({"start": float(task)} for task in range(8)),
                 workers=[1, {"threads": 1, "came": 2.0}],
                 scheduler={"stealing": False, "saturation": None})  # fmt: skip
    assert seconds(late) == near(8.0)
    assert seconds(late, without="unevenness") == near(5.0)
