"""The facts of a run for its diagnoses, from telemetry as it stands in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dask_otel.core.diagnosis.facts import Facts
from dask_otel.report import evidence
from dask_otel.report.evidence import facts_of
from dask_otel.report.findings import failures, workers
from dask_otel.report.telemetry.model import Block
from tests.unit.report_files import (
    SECOND,
    attributes,
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


def removed(name: str = "w1", at: float = 3.0, said: str = "It left.", **own: Any) -> Any:
    about = {"dask.worker.name": name, "dask.task.count": 1}
    return log(at, said, "dask.worker.removed", **{**about, **own})


def left(reason: str, **own: Any) -> Any:
    return removed(**{"dask.worker.removal.reason": reason}, **own)


def event(at: float, what: str, name: str = "w1", **own: Any) -> Any:
    return log(at, "", f"dask.{what}", **{"dask.worker.name": name}, **own)


def later(one: dict[str, Any], start: float) -> dict[str, Any]:
    """The same span, so many seconds after the begin."""
    moved = {
        key: str(int(one[key]) + int(start * SECOND))
        for key in ("startTimeUnixNano", "endTimeUnixNano")
    }
    return {**one, **moved}


def exported(name: str, *points: dict[str, Any]) -> Any:
    return metrics(counter(f"dask.{name}", *points))


def with_own(one: dict[str, Any], **own: Any) -> dict[str, Any]:
    return {**one, "attributes": one["attributes"] + attributes(own)}


def beat(share: float, after: float, tasks: int = 2) -> dict[str, Any]:
    """The fullest worker of a span, so many seconds after its start."""
    own = {"peak": share, "worker.name": "w1", "worker.time": after, "heartbeat.count": 40}
    named = {f"dask.span.worker_memory.{key}": value for key, value in own.items()}
    return {**named, "dask.span.worker_tasks.peak": tasks}


TRAIN = traces(root(1, "train", {"compute": 6.0}))
THREADS = {"dask.worker.thread.count": 2}
JOINED = (log(0.0, "", "dask.worker.added"), log(0.0, "", "dask.client.added"))
LONG = f"It left. {'It had tasks to run. ' * 9}"
WAITED = {"client": 2.0, "no_thread": 4.0, "compute": 2.0}
#: Before a task is submitted, and while it computes, it waits for no worker. One dies after a
#: second, and another one is paused after four, both until the end.
BOTH = (
    traces(root(1, "train", WAITED), link(2, 1, "fit", 8.0, **WAITED)),
    logs(
        event(0.0, "worker.added", "w2", **THREADS),
        removed("w2", 1.0, **LOST),
        event(4.0, "worker.paused"),
    ),
)
REPEATED = {"dask.span.root.name": "train", "dask.task.retry.reason": "error"}
AGAIN = {"dask.task_group.name": "f-1", "dask.task.attempt": 2}
INTERRUPTED = (
    *(
        ("dask.task.retried", {"dask.task.key": key, "dask.task.retry.reason": reason})
        for key, reason in [("f-3", "recomputed"), ("f-4", "worker_lost")]
    ),
    ("dask.task.retried", {"dask.task.retry.reason": "worker_lost"}),
)

#: Requests, a fact, and its value.
FACTS: dict[str, tuple[tuple[Any, ...], Callable[[Facts], object], object]] = {
    # More threads fetch no faster.
    "the longest task of a root is the one that computed longest, and did not fail": (
        (
            traces(
                root(1, "train", {"compute": 9.0}),
                *(
                    span(
                        number,
                        kind="task",
                        seconds=fetched + computed,
                        failed=failed,
                        events=(("dask.task.compute", {"dask.task.part.time": computed}),) * ran,
                        **{"dask.span.root.name": "train"},
                    )
                    for number, fetched, computed, failed, ran in (
                        (2, 5.0, 1.0, False, 1),
                        (3, 0.0, 2.0, False, 1),
                        (4, 0.0, 3.0, True, 1),
                        (5, 0.0, 4.0, False, 0),
                    )
                ),
            ),
        ),
        lambda facts: facts.roots["train"].longest,
        2.0,
    ),
    # Another run of the name had less memory in use, and all threads.
    "the fullest worker has its innermost spans, and the most tasks of all runs": (
        (
            traces(
                root(1, "etl", {"compute": 9.0}, **beat(0.39, 4.0)),
                later(bounded(2, "etl/a", {"compute": 6.0}, parent=1, **beat(0.39, 3.0)), 1.0),
                later(bounded(3, "etl/a/b", {"compute": 5.0}, parent=2, **beat(0.39, 2.0)), 2.0),
                later(bounded(4, "etl/c", {"compute": 5.0}, parent=1, **beat(0.39, 4.5)), 2.0),
                bounded(5, "etl/d", {"compute": 2.0}, parent=1, **beat(0.2, 1.0)),
                later(root(6, "etl", {"compute": 9.0}, **beat(0.38, 1.0, tasks=4)), 20.0),
            ),
        ),
        lambda facts: facts.roots["etl"].fullest,
        (0.39, "w1", 40, 4, ["etl/a/b"], 4.0),
    ),
    "the parts of a span are without those below it": (
        (
            traces(
                root(1, "etl", {"no_thread": 40.0, "client": 20.0}),
                bounded(2, "etl/load", {"no_thread": 39.0, "other_span": 1.0}, parent=1),
            ),
        ),
        lambda facts: (
            facts.seconds,
            facts.roots["etl"].threads,
            {one.name: {key: took for key, took in one.parts.items() if took}
             for one in facts.spans},
        ),
        (
            60.0,
            4.0,
            {
                "etl": {"no_thread": 1.0, "client": 20.0},
                "etl/load": {"no_thread": 39.0, "other_span": 1.0},
            },
        ),
    ),
    # Dask forgets a group with its last task, and makes a new one for the same tasks later.
    "all groups of a name in a span count": (
        (
            traces(
                root(1, "train", {"starting": 5.0}),
                *(group(n, 1, "f", 3, 0.5, **{"duration.transfer": 2.0}) for n in (2, 3)),
            ),
        ),
        lambda facts: facts.spans[0].before,
        {"f": {"transfer": 4.0}},
    ),
    # It fetched for 4 s: its group computed 11 results for 1.1 s, and it for 0.1 s of these. Those
    # that failed or were cancelled have no seconds.
    "a link is compared by its computing alone": (
        (
            traces(
                root(1, "train", {"transfer": 4.0, "compute": 0.1}),
                with_own(group(2, 1, "f", 11, 1.1), **{"dask.task.count": 14}),
                with_own(
                    link(3, 1, "f", 5.0, transfer=4.0, compute=0.1),
                    **{"dask.task_group.name": "f-1"},
                ),
            ),
        ),
        lambda facts: [(one.prefix, one.alike, one.others) for one in facts.spans[0].links],
        [("f", 14, pytest.approx(0.1))],
    ),
    # Both ran again: one had a result that was lost, and one was interrupted. Other keys are
    # redacted.
    "a link computed a result again, or ran again before it had one": (
        (
            traces(
                root(1, "train", {"compute": 3.0}, events=INTERRUPTED),
                with_own(group(2, 1, "f", 3, 3.0), **{"dask.task.recomputed.count": 2}),
                *(
                    with_own(link(n, 1, "f", n - 2.0, compute=1.0), **own, **AGAIN)
                    for n, own in [(3, {}), (4, {}), (5, {"dask.task.key": ""})]
                ),
            ),
        ),
        lambda facts: [one.again for one in facts.spans[0].links],
        [True, False, True],
    ),
    # A worker without tasks still takes its threads with it. Those of a cluster that closes, and
    # one that is retired, leave in order.
    **{
        f"a death: {event['body']['stringValue']} {number}": (
            (TRAIN, logs(event)), lambda facts: len(facts.deaths), int(number < 3),
        )
        for number, event in enumerate((
            left("lost"),
            left("closed", **{"dask.result.lost.count": 2}),
            left("lost", **{"dask.task.count": 0}),
            left("closed", **{"dask.task.count": 0}),
            left("requested", **{"dask.task.count": 3}),
            removed(**{"dask.worker.removal.expected": True}),
        ))
    },
    "no task is suspected of the restart that a client requested": (
        (
            TRAIN,
            logs(*(left(why, **{"dask.task.prefixes": ["fit"]}) for why in ("restarted", "lost"))),
        ),
        lambda facts: [(one.restarted, [*one.suspects]) for one in facts.deaths],
        [(True, []), (False, ["fit"])],
    ),
    # One is replaced in its moment, one after 2 s, and one not in the 3 s until the root ends.
    "threads of a dead worker are missing until another worker comes": (
        (
            TRAIN,
            logs(
                event(1.0, "worker.added", **THREADS),
                event(1.1, "worker.added", "w2", **THREADS),
                event(1.2, "worker.added", "w0", **THREADS),
                event(2.0, "worker.added", "w4", **THREADS),
                removed("w0", 2.0, **LOST),
                removed(**LOST),
                removed("w2", **LOST),
                event(5.0, "worker.added", "w3", **THREADS),
            ),
        ),
        lambda facts: facts.roots["train"].missing,
        pytest.approx(2.0 * 2.0 + 2.0 * 3.0),
    ),
    "an event is quoted in whole sentences": (
        (TRAIN, logs(removed(said=f"{LONG}Its last lines are unknown: {'x' * 99}."))),
        lambda facts: [one.said for one in facts.deaths],
        [LONG.rstrip()],
    ),
    "a pause counts while the root was open": (
        (
            TRAIN,
            logs(
                event(2.0, "worker.paused"),
                event(2.5, "worker.paused", "w2"),
                event(4.0, "worker.resumed"),
                event(9.0, "worker.resumed", "w2"),
            ),
        ),
        lambda facts: (facts.roots["train"].paused, facts.pauses),
        (pytest.approx(4.0), ["w1", "w2"]),
    ),
    "a root misses workers all the time": (
        BOTH,
        lambda facts: (facts.roots["train"].missing, facts.roots["train"].paused),
        (pytest.approx(2.0 * 7.0), pytest.approx(4.0)),
    ),
    "its tasks miss them while they wait": (
        BOTH,
        lambda facts: (facts.spans[0].missing, facts.spans[0].paused),
        (pytest.approx(4.0), pytest.approx(2.0)),
    ),
    # If it was connected, and a worker was there.
    **{
        f"the time before the first root is the client's: {seconds}": (
            (
                traces(later(root(1, "train", {"compute": 1.0}), 7.0)),
                logs(*(log(1.0 + n, "", f"dask.{one}.added") for n, one in enumerate(known))),
            ),
            lambda facts: facts.before_first,
            pytest.approx(seconds),
        )
        for known, seconds in ((("worker", "client"), 5.0), (("worker",), 0.0))
    },
    **{
        f"the time between roots is that of a client that stays: {seconds}": (
            (
                traces(
                    root(1, "train", {"compute": 1.0}),
                    later(root(2, "join", {"compute": 1.0}), 5.0),
                ),
                logs(*JOINED, log(gone, "", "dask.client.removed")),
            ),
            lambda facts: facts.between,
            pytest.approx(seconds),
        )
        for gone, seconds in ((3.0, 0.0), (9.0, 4.0))
    },
    "repeated runs are those of their root": (
        (
            traces(root(1, "train", {"repeated": 1.0}), root(2, "join", {"compute": 1.0})),
            exported(
                "task.retried",
                point(4, REPEATED),
                point(9, {**REPEATED, "dask.task.retry.reason": "rescheduled"}),
            ),
        ),
        lambda facts: {name: one.retries for name, one in facts.roots.items()},
        {"train": {"error": 4.0}, "join": {}},
    ),
    "for how long the scheduler waited for a CPU": (
        (
            traces(root(1, "train", {"compute": 5.0})),
            exported("event_loop.starved.time", point(0.2, time=5.0)),
            exported("event_loop.cpu.time", point(0.1, time=5.0)),
        ),
        lambda facts: (facts.roots["train"].starved, facts.roots["train"].starving),
        (2.0, 0.2),
    ),
    "workers with different limits, or without one": (
        (
            exported("worker.memory.usage", *(point(1, {"dask.worker.name": n}) for n in "abcd")),
            exported(
                "worker.memory.limit",
                *(point(8 + (n == "c"), {"dask.worker.name": n}) for n in "abc"),
            ),
        ),
        lambda facts: facts.limits,
        {8.0, 9.0, 0.0},
    ),
    # Its export interval had begun before the run.
    "the scheduler was blocked for no longer than the run took": (
        (
            traces(root(1, "train", {"client": 5.0})),
            exported(
                "event_loop.blocked.time",
                *(point(9.0, {"dask.process.role": role}, time=5.0)
                  for role in ("scheduler", "worker")),
            ),
        ),
        lambda facts: facts.roots["train"].blocked,
        {"scheduler": 5.0, "worker": 9.0},
    ),
    # They were not idle, and the page has a gap there if they are a tenth; a death says it.
    **{
        f"seconds that workers did not report: {lost}, {died}": (
            (
                traces(root(1, "train", {"compute": 5.0})),
                exported("cluster.time", point(lost, {"dask.activity": "lost"}, time=5.0)),
                logs(*[left("lost")] * died),
            ),
            lambda facts: (facts.roots["train"].unreported, facts.gaps),
            (
                lost,
                ["3.00 s thread-time that workers did not report before they left"] * notices,
            ),
        )
        for lost, died, notices in ((3.0, False, 1), (1.0, False, 0), (3.0, True, 0))
    },
}  # fmt: skip


@pytest.mark.parametrize(("requests", "fact", "value"), FACTS.values(), ids=FACTS)
def test_a_fact_is_what_the_telemetry_says(
    requests: tuple[Any, ...], fact: Callable[[Facts], object], value: object
) -> None:
    run = run_of(*requests)
    assert fact(facts_of(run, failures(run), workers(run))) == value


def test_a_block_among_many_trees_is_compared_with_each_of_them_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not they with each other: thousands would take minutes."""
    compared = list[object]()
    whole = evidence._computed
    monkeypatch.setattr(evidence, "_computed", lambda *of: compared.append(of) or whole(*of))
    busy = {"dask.span.elsewhere.time": 40.0}
    for many in (10, 20):
        compared.clear()
        names = [f"tree-{number}" for number in range(many)]
        run = run_of(
            traces(
                *(root(one, name, {"no_thread": 8.0}, **busy) for one, name in enumerate(names, 1))
            ),
            traces(
                *(group(99 + one, one, "f", 4, 4.0, of=name) for one, name in enumerate(names, 1))
            ),
        )
        own = frozenset(one.key for one in run.spans if one.text("dask.span.id") == "id-4")
        facts = facts_of(replace(run, block=Block("tree-3", "id-4"), own=own), [], [])
        assert len(compared) == 2 * many - 1
        # What others took from the block, and it from them, is as it was.
        alone = facts_of(run, [], []).roots
        assert facts.roots["tree-3"].holders == alone["tree-3"].holders
        back = [one.holders.get("tree-3") for one in facts.roots.values()]
        assert back == [one.holders.get("tree-3") for one in alone.values()]


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
