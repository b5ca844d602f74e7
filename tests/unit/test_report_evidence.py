"""The facts of a run for its diagnoses, from telemetry as it stands in files."""

from __future__ import annotations

from typing import Any

import pytest

from dask_otel.core.diagnosis.facts import Facts
from dask_otel.report.evidence import facts_of
from dask_otel.report.findings import failures, workers
from tests.unit.report_files import (
    counter,
    log,
    logs,
    metrics,
    point,
    report_of,
    run_of,
    span,
    traces,
)
from tests.unit.test_report_path import bounded, link

WORKER = {"dask.worker.name": "w1"}
LOST = {"dask.worker.removal.reason": "lost", "dask.task.count": 1}


def root(number: int, name: str, parts: dict[str, float], **more: Any) -> dict[str, Any]:
    """A root with four threads; underscores in `more` are dots."""
    seconds = sum(parts.values())
    own = {"dask.span.dask.active_cpu.time": 4.0 * seconds, "dask.task.count": 9}
    return bounded(number, name, parts, **own, **more)


def group(number: int, owner: int, prefix: str, count: int, compute: float, **own: Any) -> Any:
    return span(
        number,
        f"{prefix} tasks",
        kind="group",
        parent=owner,
        seconds=2.0,
        **{"dask.span.id": f"id-{owner}", "dask.task.prefix": prefix, "dask.task.count": count},
        **{"dask.task_group.name": f"{prefix}-1", "dask.span.root.name": own.pop("of", "train")},
        **{"dask.task_group.duration.compute": compute, "dask.task.memory.count": count},
        **{f"dask.task_group.{key}": value for key, value in own.items()},
    )


def of(*requests: Any) -> Facts:
    run = run_of(*requests)
    return facts_of(run, failures(run), workers(run))


def test_the_parts_of_a_span_are_without_those_below_it() -> None:
    facts = of(
        traces(
            root(1, "etl", {"no_thread": 40.0, "client": 20.0}),
            bounded(2, "etl/load", {"no_thread": 39.0, "other_span": 1.0}, parent=1),
        )
    )
    parts = {
        one.name: {part: took for part, took in one.parts.items() if took} for one in facts.spans
    }
    assert parts == {
        "etl": {"no_thread": 1.0, "client": 20.0},
        "etl/load": {"no_thread": 39.0, "other_span": 1.0},
    }
    assert (facts.seconds, facts.roots["etl"].threads) == (60.0, 4.0)


def test_all_groups_of_a_name_in_a_span_count() -> None:
    """Dask forgets a group with its last task, and makes a new one for the same tasks later."""
    fetched = {"duration.transfer": 2.0}
    groups = [group(number, 1, "f", 3, 0.5, **fetched) for number in (2, 3)]
    facts = of(traces(root(1, "train", {"starting": 5.0}), *groups))
    assert facts.spans[0].before == {"f": {"transfer": 4.0}}


def test_a_link_is_compared_by_its_computing_alone() -> None:
    """It fetched for 4 s: its group computed 11 results for 1.1 s, and it for 0.1 s of these."""
    one = link(3, 1, "f", 5.0, transfer=4.0, compute=0.1)
    one["attributes"] += span(9, **{"dask.task_group.name": "f-1"})["attributes"][-1:]
    own = group(2, 1, "f", 11, 1.1)
    # Those that failed or were cancelled have no seconds.
    own["attributes"] += span(9, **{"dask.task.count": 14})["attributes"][-1:]
    facts = of(traces(root(1, "train", {"transfer": 4.0, "compute": 0.1}), own, one))
    (found,) = facts.spans[0].links
    assert (found.prefix, found.alike) == ("f", 14)
    assert found.others == pytest.approx(0.1)


def removed(**own: Any) -> dict[str, Any]:
    return log(3.0, "It left.", "dask.worker.removed", **WORKER, **own)


@pytest.mark.parametrize(
    ("own", "died"),
    [
        ({"dask.worker.removal.reason": "lost", "dask.task.count": 1}, True),
        ({"dask.worker.removal.reason": "closed", "dask.result.lost.count": 2}, True),
        # Without tasks, it still takes its threads with it.
        ({"dask.worker.removal.reason": "lost", "dask.task.count": 0}, True),
        # A cluster that closes, and a worker that is retired.
        ({"dask.worker.removal.reason": "closed", "dask.task.count": 0}, False),
        ({"dask.worker.removal.reason": "requested", "dask.task.count": 3}, False),
        ({"dask.worker.removal.expected": True, "dask.task.count": 3}, False),
    ],
)
def test_a_worker_that_leaves_in_order_is_no_death(own: dict[str, Any], died: bool) -> None:
    facts = of(traces(root(1, "train", {"compute": 1.0})), logs(removed(**own)))
    assert [one.said for one in facts.deaths] == ["It left."] * died


def test_no_task_is_suspected_of_the_restart_that_a_client_requested() -> None:
    own = {"dask.task.count": 1, "dask.task.prefixes": ["fit"]}
    reasons = ("restarted", "lost")
    events = [removed(**own, **{"dask.worker.removal.reason": why}) for why in reasons]
    facts = of(traces(root(1, "train", {"compute": 1.0})), logs(*events))
    assert [(one.restarted, [*one.suspects]) for one in facts.deaths] == [
        (True, []),
        (False, ["fit"]),
    ]


def test_threads_of_a_dead_worker_are_missing_until_another_worker_comes() -> None:
    """The first is replaced after 2 s, the second not in the 3 s until the root ends."""
    began = {"dask.worker.thread.count": 2}
    facts = of(
        traces(root(1, "train", {"compute": 6.0})),
        logs(
            log(1.0, "", "dask.worker.added", **WORKER, **began),
            log(1.1, "", "dask.worker.added", **{"dask.worker.name": "w2"}, **began),
            removed(**LOST),
            log(
                3.0,
                "It left.",
                "dask.worker.removed",
                **{"dask.worker.name": "w2", "dask.worker.removal.reason": "lost"},
                **{"dask.task.count": 1},
            ),
            log(5.0, "", "dask.worker.added", **{"dask.worker.name": "w3"}, **began),
        ),
    )
    assert facts.roots["train"].missing == pytest.approx(2.0 * 2.0 + 2.0 * 3.0)


def test_an_event_is_quoted_in_whole_sentences() -> None:
    said = f"It left. {'It had tasks to run. ' * 9}Its last lines are unknown: {'x' * 99}."
    death = log(3.0, said, "dask.worker.removed", **WORKER, **{"dask.task.count": 1})
    (found,) = of(traces(root(1, "train", {"compute": 1.0})), logs(death)).deaths
    assert found.said == f"It left. {'It had tasks to run. ' * 9}".rstrip()


def test_a_pause_counts_while_the_root_was_open() -> None:
    facts = of(
        traces(root(1, "train", {"starting": 6.0})),
        logs(
            log(2.0, "", "dask.worker.paused", **WORKER),
            log(2.5, "", "dask.worker.paused", **{"dask.worker.name": "w2"}),
            log(4.0, "", "dask.worker.resumed", **WORKER),
            log(9.0, "", "dask.worker.resumed", **{"dask.worker.name": "w2"}),
        ),
    )
    assert facts.roots["train"].paused == pytest.approx(4.0)
    assert facts.pauses == ["w1", "w2"]


def test_before_a_task_is_submitted_and_while_it_computes_it_waits_for_no_worker() -> None:
    """One worker dies after a second, and another one is paused after four, both until the end."""
    began = {"dask.worker.name": "w2", "dask.worker.thread.count": 2}
    parts = {"client": 2.0, "no_thread": 4.0, "compute": 2.0}
    facts = of(
        traces(root(1, "train", parts), link(2, 1, "fit", 8.0, **parts)),
        logs(
            log(0.0, "", "dask.worker.added", **began),
            log(1.0, "", "dask.worker.removed", **began, **LOST),
            log(4.0, "", "dask.worker.paused", **WORKER),
        ),
    )
    assert facts.roots["train"].missing == pytest.approx(2.0 * 7.0)
    assert facts.roots["train"].paused == pytest.approx(4.0)
    assert facts.spans[0].missing == pytest.approx(4.0)
    assert facts.spans[0].paused == pytest.approx(2.0)


@pytest.mark.parametrize(("events", "seconds"), [(("worker", "client"), 5.0), (("worker",), 0.0)])
def test_the_time_before_the_first_root_is_the_clients(
    events: tuple[str, ...], seconds: float
) -> None:
    """If it was connected, and a worker was there."""
    first = root(1, "train", {"compute": 1.0})
    first["startTimeUnixNano"] = str(int(first["startTimeUnixNano"]) + 7 * 10**9)
    first["endTimeUnixNano"] = str(int(first["endTimeUnixNano"]) + 7 * 10**9)
    added = [log(1.0 + n, "", f"dask.{one}.added") for n, one in enumerate(events)]
    assert of(traces(first), logs(*added)).before_first == pytest.approx(seconds)


@pytest.mark.parametrize(("left", "seconds"), [(3.0, 0.0), (9.0, 4.0)])
def test_the_time_between_roots_is_that_of_a_client_that_stays(left: float, seconds: float) -> None:
    first, second = root(1, "train", {"compute": 1.0}), root(2, "join", {"compute": 1.0})
    end = int(first["endTimeUnixNano"])
    second["startTimeUnixNano"], second["endTimeUnixNano"] = (
        str(end + 4 * 10**9),
        str(end + 5 * 10**9),
    )
    added = [log(0.0, "", f"dask.{one}.added") for one in ("worker", "client")]
    removed = log(left, "", "dask.client.removed")
    assert of(traces(first, second), logs(*added, removed)).between == pytest.approx(seconds)


def test_repeated_runs_are_those_of_their_root() -> None:
    labels = {"dask.span.root.name": "train", "dask.task.retry.reason": "error"}
    asked = {**labels, "dask.task.retry.reason": "rescheduled"}
    facts = of(
        traces(root(1, "train", {"repeated": 1.0}), root(2, "join", {"compute": 1.0})),
        metrics(counter("dask.task.retried", point(4, labels), point(9, asked))),
    )
    assert {name: one.retries for name, one in facts.roots.items()} == {
        "train": {"error": 4.0},
        "join": {},
    }


def test_the_json_has_what_the_text_and_the_page_say() -> None:
    found = report_of(traces(root(1, "train", {"client": 4.0, "compute": 1.0})))
    (one,) = found.to_dict()["runs"][0]["diagnosis"]
    assert one == {
        "kind": "client",
        "span": "train",
        "seconds": 4.0,
        "title": "train waited 4.00 s of 5.00 s for its client",
        "evidence": "",
        "next": found.accounts()[0].diagnoses[0].next,
        "prefixes": (),
        "experiment": None,
    }
    assert one["title"] in found.text()
    assert found.to_dict()["version"] == 3


def test_for_how_long_the_scheduler_waited_for_a_cpu() -> None:
    times = {"dask.event_loop.starved.time": 0.2, "dask.event_loop.cpu.time": 0.1}
    exported = [counter(name, point(took, time=5.0)) for name, took in times.items()]
    own = of(traces(root(1, "train", {"compute": 5.0})), metrics(*exported)).roots["train"]
    assert (own.starved, own.starving) == (2.0, 0.2)


def test_the_scheduler_was_blocked_for_no_longer_than_the_run_took() -> None:
    """Its export interval had begun before the run."""
    roles = ({"dask.process.role": role} for role in ("scheduler", "worker"))
    exported = counter("dask.event_loop.blocked.time", *(point(9.0, of, time=5.0) for of in roles))
    own = of(traces(root(1, "train", {"client": 5.0})), metrics(exported)).roots["train"]
    assert own.blocked == {"scheduler": 5.0, "worker": 9.0}


@pytest.mark.parametrize(
    ("lost", "died", "notices"), [(3.0, False, 1), (1.0, False, 0), (3.0, True, 0)]
)
def test_seconds_that_workers_did_not_report(lost: float, died: bool, notices: int) -> None:
    """They were not idle, and the page has a gap there if they are a tenth; a death says it."""
    exported = counter("dask.cluster.time", point(lost, {"dask.activity": "lost"}, time=5.0))
    events = [removed(**{"dask.worker.removal.reason": "lost", "dask.task.count": 1})] * died
    facts = of(traces(root(1, "train", {"compute": 5.0})), metrics(exported), logs(*events))
    assert facts.roots["train"].unreported == lost
    said = "3.00 s thread-time that workers did not report before they left"
    assert facts.gaps == [said] * notices
