"""`dask_otel.held`: the sizes are those of the workers' own memories, and each keeper is real."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from dask.sizeof import sizeof
from distributed import Queue, Variable, span, wait

import dask_otel
from dask_otel import Held
from dask_otel._dask import holding
from tests.simulated.bridged import Bridged
from tests.simulated.tasks import filled, nap


class Counter:
    """An actor."""

    def __init__(self) -> None:
        self.filling = bytes(700)


def there(b: Bridged) -> dict[Any, int]:
    """Return the sizes of the results that the workers themselves have, once each."""
    return {
        key: sizeof(value)
        for ws in b.cluster.workers.values()
        for key, value in {**ws.data, **ws.state.actors}.items()
    }


def asked(b: Bridged, name: str | None = None) -> Held:
    """Ask, and compare the sums with the workers' memories."""
    answer = dask_otel.held(b.client, name)
    if name is None:
        assert (answer.bytes, answer.results) == (sum(there(b).values()), len(there(b)))
    assert answer.known == answer.results
    assert answer.bytes == sum(one.bytes for one in answer.largest)
    for one in answer.largest:
        assert one.bytes <= sum(keeper.bytes for keeper in one.keepers)
        assert max(keeper.results for keeper in one.keepers) <= one.results
    return answer


def kept(answer: Held, place: int = 0) -> list[tuple[str, str, int]]:
    return [(one.kind, one.name, one.results) for one in answer.largest[place].keepers]


def test_a_forgotten_persist(b: Bridged) -> None:
    assert repr(asked(b)) == "In memory: 0 B in 0 results."
    with span("train"), span("load"):
        forgotten = b.client.map(filled, [1000] * 3, pure=False)
    with span("use"):
        used = b.client.submit(filled, 50, forgotten, key="used-1")
    wait(used)
    time.sleep(60)
    answer = asked(b)
    first, second = answer.largest
    assert (first.span, first.prefix, first.results) == ("train/load", "filled", 3)
    assert first.bytes == 3 * sizeof(bytes(1000))
    assert (second.span, second.prefix) == ("use", "used")
    assert kept(answer) == [("client", b.client.id, 3)]
    assert first.keepers[0].seconds == pytest.approx(60, abs=1)
    assert f"In the client {b.client.id}, delete" in first.next_step
    assert repr(answer).startswith(
        "In memory: 3.0 KiB in 4 results.\n\ntrain/load, filled: 2.9 KiB in 3 results\n"
        f"  kept by client {b.client.id}: 2.9 KiB in 3 results, no submission for 60.0 s\n"
    )
    with pytest.raises(LookupError, match="knows no span with this id or full name"):
        dask_otel.held(b.client, "nobody")
    del forgotten
    time.sleep(1)
    assert [one.span for one in asked(b).largest] == ["use"]


def test_a_name_means_all_spans_of_it_and_an_id_one(b: Bridged) -> None:
    """With those below. An earlier run of a workflow may keep more than the last one."""
    kept = []
    for name, run, size in (("train", "first", 900), ("train", "last", 90), ("trainer", "no", 9)):
        with span(name), span("load"):
            kept.append(b.client.submit(filled, size, key=f"{run}-0"))
        wait(kept)
    time.sleep(60)
    last = b.scheduler.tasks["last-0"].group.span_id
    for name, found in {
        "train": ["first", "last"], "train/load": ["first", "last"], last: ["last"],
    }.items():  # fmt: skip
        assert [one.prefix for one in asked(b, name).largest] == found


def test_what_is_kept_without_a_client(b: Bridged) -> None:
    """Each keeper keeps what nobody else does, and its next step frees exactly that."""
    names = ("data set", "variable", "queue", "actor", "tasks")
    sizes = {name: 1000 * number for number, name in enumerate(names, 1)}
    futures = {name: b.client.submit(filled, size, key=f"{name}-0") for name, size in sizes.items()}
    wait([*futures.values()])
    b.client.publish_dataset(futures["data set"], name="prices")
    # In one process, what is published has the same future.
    futures.pop("data set").release()
    variable, queue = Variable("best", b.client), Queue("todo", b.client)
    variable.set(futures.pop("variable"))
    queue.put(futures.pop("queue"))
    del futures["actor"]
    actor = b.client.submit(Counter, key="actor-1", actor=True)
    handle = actor.result()
    waiter = b.client.submit(nap, 60, futures.pop("tasks"), key=("slow", 1))
    # It has no span, and its client no submission.
    data = b.cluster.new_client(set_as_default=False).scatter(bytes(500), hash=False)
    time.sleep(1)
    answer = asked(b)
    assert "no span, bytes: " in repr(answer)
    (scattered,) = [one for one in answer.largest if one.prefix == "bytes"]
    assert (scattered.span, scattered.keepers[0].seconds) == ("", None)
    del data
    found = {one.prefix: kept(answer, place) for place, one in enumerate(answer.largest)}
    del found["bytes"]
    assert found == {
        "data set": [("data set", "prices", 1)],
        "variable": [("variable", "best", 1)],
        "queue": [("queue", "todo", 1)],
        "actor": [("actor", b.client.id, 1)],
        "tasks": [("tasks", "slow", 1)],
    }
    steps = {one.prefix: one.next_step for one in answer.largest}
    assert "dask_otel.why(client, \"('slow', 1)\")" in steps["tasks"]
    # What the steps say, word for word.
    here = {"client": b.client, "Variable": Variable}
    for name in ("data set", "variable"):
        exec(steps[name].partition("Call ")[2].partition(",")[0].rstrip("."), here)
    assert "Queue('todo')" in steps["queue"]
    queue.get()
    del actor, handle
    waiter.cancel()
    time.sleep(2)
    assert asked(b).results == 0


@pytest.mark.options(unreconciled="a tag is hostile")
def test_one_result_with_several_keepers_of_hostile_names(b: Bridged) -> None:
    """It is counted once, and each of them keeps it."""
    key = "{task!r}\x1b]0;\x07-1"
    with span("ev\x1b[31mil\n{0}{name}"):
        future = b.client.submit(filled, 1000, key=key)
        wait(future)
    b.client.replicate(future)
    assert len(b.scheduler.tasks[key].who_has) == 2
    b.client.publish_dataset(future, name="{name}'\"); x(\n\x1b[31m")
    waiters = [b.client.submit(nap, 60, future, key=f"{{x}}\n-{n}") for n in range(3)]
    time.sleep(1)
    answer = asked(b)
    one, *_ = answer.largest
    assert {kind for kind, *_ in kept(answer)} == {"client", "data set", "tasks"}
    assert all(keeper.bytes == one.bytes for keeper in one.keepers)
    assert one.next_step.count("client") >= 2
    assert repr(answer).replace("\n", "").isprintable()
    with pytest.raises(LookupError):
        dask_otel.held(b.client, "a/" * 500_000)
    b.client.cancel(waiters)


def test_many_results_are_looked_at_in_steps_and_in_part(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the scheduler goes on: what leaves memory between two steps is not counted."""
    futures = b.client.map(filled, range(100, 140), key=[f"many-{n}" for n in range(40)])
    wait(futures)
    monkeypatch.setattr(holding, "STEP", 4)

    def steps(after: int = 1000) -> tuple[int, dict[str, Any]]:
        question, count = holding.held(b.bridge.adapter, None), 0
        while True:
            try:
                question.send(None)
            except StopIteration as end:
                return count, end.value
            count += 1
            if count == after:
                futures.clear()
                time.sleep(1)

    count, answer = steps()
    assert (count, answer["results"], answer["known"]) == (10, 40, 40)
    monkeypatch.setattr(holding, "MOST_RESULTS", 30)
    count, answer = steps()
    assert (count, answer["results"], answer["known"]) == (7, 30, 40)
    text = repr(dask_otel.held(b.client))
    assert "30 results of the 40 that are there." in text
    count, answer = steps(after=3)
    # It says nothing of results that were there once.
    assert (answer["results"], answer["known"]) == (12, 12)
    assert asked(b).results == 0


def test_the_rest_is_summed_up(b: Bridged) -> None:
    futures = [b.client.submit(filled, 1000 - n, key=f"f{chr(97 + n)}-0") for n in range(13)]
    wait(futures)
    answer = dask_otel.held(b.client)
    assert [one.prefix for one in answer.largest] == [f"f{chr(97 + n)}" for n in range(10)]
    rest = sum(sorted(there(b).values())[:3])
    assert answer.bytes - sum(one.bytes for one in answer.largest) == rest
    assert repr(answer).endswith("\n\nAnd 2.9 KiB of 3 more.")


def test_the_example_of_the_page(b: Bridged, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "held.md").read_text(encoding="utf-8")
    program, shown = re.findall(r"```(?:python|text)\n(.*?)```", page, re.DOTALL)
    exec(program, {"client": b.client, "dask_otel": dask_otel, "time": time})
    assert capsys.readouterr().out.replace(b.client.id, "Client-6f0b") == shown
