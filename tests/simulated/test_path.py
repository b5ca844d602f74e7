"""What bounded a span: histories whose answer is known, to the float steps of a wall clock.

Each part is what the history says. What is not a sleep of the history is Dask's own doing, and is
said beside it: the batches of messages, which go out at most every 2 ms from a worker and 10 ms
from a client; a second task that waits on a worker for its thread; a heartbeat.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import dask
import distributed
import pytest
from distributed import as_completed, wait, worker_client
from distributed.shuffle import ShuffleWorkerPlugin
from lab.programs import Counter, flaky, moved
from packaging.version import Version

from dask_otel import span
from dask_otel.core.records import FinishedSpan
from dask_otel.semconv import PATH_PARTS
from tests.environment import REPOSITORY
from tests.simulated.observed import QUICK, Simulated
from tests.simulated.tasks import apart, nap

#: Floats, added up.
STEP = 5e-6

History: TypeAlias = Callable[[Simulated], Any]


def fails(seconds: float) -> None:
    time.sleep(seconds)
    raise ValueError


def mapped(function: Callable[..., Any], seconds: list[float], **options: Any) -> History:
    """Tasks that are submitted together, in a group of their own."""
    return lambda o: wait(o.client.map(function, seconds, pure=False, key="mapped", **options))


def straggler(o: Simulated) -> None:
    short = o.client.map(nap, [0.05] * 8, pure=False, key="short")
    slow = o.client.submit(nap, 1.0, key="slow")
    o.client.submit(nap, 0.0, *short, slow, key="after").result()


def rounds(o: Simulated) -> None:
    # The tasks are kept, and with them their group.
    kept = []
    for number in range(5):
        kept.append(o.client.submit(nap, 0.05, key=f"round-{number}"))
        kept[-1].result()
        time.sleep(0.2)


def completed(o: Simulated) -> None:
    futures = as_completed(o.client.map(nap, [0.1] * 4, pure=False, key="first"))
    for number, _ in zip(range(12), futures, strict=False):
        time.sleep(0.05)
        if number < 8:
            futures.add(o.client.submit(nap, 0.1, key=f"next-{number}"))


def chain(o: Simulated, length: int = 500, seconds: float = 0.002) -> None:
    """Longer than the part that is kept link by link; the first link takes no time."""
    task = dask.delayed(nap)(0.0, dask_key_name="link-0")
    for number in range(1, length):
        task = dask.delayed(nap)(seconds, task, dask_key_name=f"link-{number}")
    wait(o.client.compute(task, optimize_graph=False))


def fan_in(o: Simulated) -> None:
    leaves = o.client.map(nap, [0.0] * 400, pure=False, key="leaf")
    o.client.submit(nap, 1.0, leaves, key="all").result()


def tree(o: Simulated) -> None:
    level = o.client.map(nap, [0.05] * 32, pure=False, key="twig")
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        keys = [f"fork{len(level)}-{number}" for number in range(len(level) // 2)]
        level = [
            o.client.submit(nap, 0.05, *pair, key=key)
            for key, pair in zip(keys, pairs, strict=True)
        ]
    wait(level)


def pairs(o: Simulated) -> None:
    """12 arrays by turns on the two workers, then 6 tasks that need two each."""
    places = [*o.scheduler.workers] * 6
    arrays = [
        o.client.submit(nap, 0.1, key=f"array-{number}", workers=[place])
        for number, place in enumerate(places)
    ]
    wait(
        [
            o.client.submit(nap, 0.1, *arrays[number : number + 2], key=f"pair-{number}")
            for number in range(0, 12, 2)
        ]
    )


def actor(o: Simulated) -> None:
    """The scheduler does not know what an actor does."""
    # A new key for each try: Dask forgets an actor some time after the last one.
    made = o.client.submit(Counter, actor=True, key=f"actor-{time.time()}").result()
    for _ in range(5):
        made.work(0.1).result()


def retried_behind_others(o: Simulated) -> None:
    """Its first run waits on its worker, too, where all threads are taken."""
    others = o.client.map(nap, [0.3] * 2, pure=False, workers=["w0"])
    o.client.submit(flaky, 0.2, retries=2, key="behind", workers=["w0"]).result()
    del others


def slow_client(o: Simulated) -> None:
    o.client.submit(nap, 0.1, key="before").result()
    time.sleep(1.0)


def cancelled(o: Simulated) -> None:
    future = o.client.submit(nap, 1.5, key="cancelled")
    # Not in the moment of a heartbeat.
    time.sleep(1.1)
    future.cancel()


def nested(o: Simulated) -> None:
    with span("load"):
        o.client.submit(nap, 0.3, key="load").result()
    time.sleep(0.2)
    with span("fit"):
        o.client.submit(nap, 0.4, key="fit").result()


def waits_for_another(o: Simulated) -> None:
    with span("another"):
        slow = o.client.submit(nap, 0.8, key="another")
    with span("mine"):
        o.client.submit(nap, 0.2, slow, key="mine").result()


def waits_in_vain(o: Simulated) -> None:
    with span("other"):
        slow = o.client.submit(nap, 1.5, key="other")
    with span("vain"):
        o.client.submit(nap, 0.1, key="short").result()
        late = o.client.submit(nap, 0.1, slow, key="late")
        time.sleep(0.9)
        o.client.cancel([slow, late])
        # Only this is the client's.
        time.sleep(0.2)


def waits_for_a_failure(o: Simulated) -> None:
    with span("bad"):
        bad = o.client.submit(fails, 0.8, key="bad")
    with span("blamed"):
        wait(o.client.submit(nap, 0.1, bad, key="late"))


def shuffled(o: Simulated) -> None:
    """Two partitions, as many as a worker has threads; each stage takes as long as it says."""
    stages = {"add_partition": 0.5, "barrier": 0.3, "get_output_partition": 0.7}
    frame = dask.datasets.timeseries("2000-01-01", "2000-01-03", freq="1h", partition_freq="1D")
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in stages.items():
            patch.setattr(ShuffleWorkerPlugin, name, slower(name, seconds))
        wait(o.client.persist(frame.shuffle("id")))


def slower(name: str, seconds: float) -> Callable[..., Any]:
    """Return a stage of a shuffle that takes so long in addition."""
    real = getattr(ShuffleWorkerPlugin, name)

    def method(*args: Any, **more: Any) -> Any:
        # It reschedules a task that is on the wrong worker.
        result = real(*args, **more)
        time.sleep(seconds)
        return result

    return method


def persisted(o: Simulated) -> None:
    with span("made"):
        made = o.client.submit(nap, 0.5, key="made")
        wait(made)
    with span("used"):
        o.client.submit(nap, 0.3, made, key="used").result()


def fetched(o: Simulated) -> None:
    """Messages with data take half a second."""
    o.cluster.latency = lambda sender, receiver, message: (
        0.5 if type(message) is dict and message.get("data") else 0.0
    )
    data = o.client.submit(nap, 0.1, key="data", workers=["w0"])
    wait(o.client.submit(nap, 0.3, data, key="moved", workers=["w1"]))


def overtaken(o: Simulated) -> None:
    """While it fetches its data, two begin that were sent to its worker after it."""
    o.cluster.latency = lambda sender, receiver, message: (
        0.2 if type(message) is dict and message.get("data") else 0.0
    )
    data = o.client.submit(nap, 0.1, key="data", workers=["w0"])
    first = o.client.submit(nap, 0.3, data, key="first", workers=["w1"])
    wait(data)
    wait([first, *(o.client.submit(nap, 1.0, key=f"then-{n}", workers=["w1"]) for n in range(2))])


class SlowDisk(dict[Any, Any]):
    """Results of a worker, which are long to read."""

    def __getitem__(self, key: Any) -> Any:
        time.sleep(1.0)
        return super().__getitem__(key)


def spilled(o: Simulated) -> None:
    o.cluster.add_worker("disk", data=SlowDisk())
    large = o.client.submit(nap, 0.1, key="large", workers=["disk"])
    wait(o.client.submit(nap, 0.5, large, key="read", workers=["disk"]))


def killed(o: Simulated) -> None:
    """Its worker dies after 0.3 s, and it begins anew on the other one."""
    lost = o.client.submit(nap, 0.5, key="lost", workers=["w0"], allow_other_workers=True)
    time.sleep(0.3)
    o.cluster.kill("w0")
    wait(lost)


def restarted(o: Simulated) -> None:
    wait(o.client.submit(nap, 0.3, key="before-restart"))
    cut = o.client.submit(nap, 3.0, key="cut-off")
    time.sleep(1.0)
    o.cluster.restart()
    del cut
    wait(o.client.submit(nap, 0.4, key="after-restart"))


def adaptive(o: Simulated) -> None:
    """Only its run is repeated, not what it waited for before that."""
    for name in ("w0", "w1"):
        o.cluster.leave(name)
    task = o.client.submit(flaky, 0.2, retries=2, key="adaptive")
    time.sleep(1.0)
    o.cluster.adapt(minimum=0, maximum=1)
    wait(task)


def resource(o: Simulated) -> None:
    """One worker has one unit of what each task needs; the other worker is free."""
    o.cluster.add_worker("gpu", threads=4, resources={"GPU": 1})
    wait(o.client.map(nap, [0.2] * 5, pure=False, resources={"GPU": 1}))


def late_worker(o: Simulated) -> None:
    """No worker for a second."""
    for name in ("w0", "w1"):
        o.cluster.leave(name)
    task = o.client.submit(nap, 0.2, key="late-worker")
    time.sleep(1.0)
    o.cluster.add_worker("late")
    wait(task)


def all_paused(o: Simulated) -> None:
    """One of them for a second, the other one for longer."""
    o.cluster.pause("w0", 5.0)
    o.cluster.pause("w1", 1.1)
    time.sleep(0.1)
    wait(o.client.submit(nap, 0.2, key="all-paused"))


def paused_with_tasks(o: Simulated) -> None:
    """Six tasks are on w0 as it pauses, two of them run; w1 is free."""
    tasks = o.client.map(nap, [0.3] * 6, pure=False, workers=["w0"])
    time.sleep(0.1)
    o.cluster.pause("w0", 1.0)
    wait(tasks)


def importing(o: Simulated) -> None:
    """Fresh workers import for 2 s, which blocks their event loops."""
    for name in ("w0", "w1"):
        o.cluster.machines[name].block(2.0)
    wait(o.client.map(nap, [0.5] * 4, pure=False))


def blocked(o: Simulated) -> None:
    """The event loop of one worker is blocked for 2 s as its task comes."""
    o.cluster.machines["w0"].block(2.0)
    wait(o.client.submit(nap, 0.2, key="blocked", workers=["w0"]))


def waits_for_its_own(seconds: float) -> float:
    with worker_client() as client:
        return float(client.submit(nap, seconds, key="inner-own").result())


def inner(o: Simulated) -> None:
    """Its own task is submitted by its worker, in a span without a name."""
    wait(o.client.submit(waits_for_its_own, 0.8, key="outer"))


def stolen(o: Simulated) -> None:
    """Three are sent to w0; the third one is stolen 0.2 s after another worker has joined."""
    o.cluster.leave("w1")
    tasks = o.client.map(nap, [0.5] * 3, key=[f"stolen-{n}" for n in range(3)])
    time.sleep(0.2)
    o.cluster.add_worker("thief")
    time.sleep(0.2)

    async def steal() -> None:
        scheduler = o.scheduler
        (victim, thief) = (scheduler.workers[f"lab://{name}"] for name in ("w0", "thief"))
        scheduler.extensions["stealing"].move_task_request(
            scheduler.tasks["stolen-2"], victim, thief
        )

    o.cluster.do("scheduler", steal)
    wait(tasks)


#: The histories, and their parts in seconds, on two workers of two threads.
HISTORIES: dict[str, tuple[History, dict[str, float]]] = {
    "sixty": (mapped(nap, [0.05] * 64), {"no_thread": 0.75, "uneven": 0.05, "compute": 0.05}),
    "straggler": (straggler, {"no_thread": 0.05, "compute": 1.0, "report": 0.002}),
    "rounds": (rounds, {"client": 1.0, "compute": 0.25}),
    "completed": (completed, {"client": 0.3, "compute": 0.4}),
    "chain": (chain, {"starting": 1.499, "compute": 0.998}),
    "fan_in": (fan_in, {"no_thread": 0.325, "starting": 0.01, "compute": 1.0}),
    "tree": (tree, {"no_thread": 0.65, "compute": 0.3}),
    "pairs": (pairs, {"no_thread": 0.3, "compute": 0.2}),
    "actor": (actor, {"client": 0.5}),
    "pinned": (mapped(nap, [0.1] * 20, workers=["w0"]), {"uneven": 0.9, "compute": 0.1}),
    "retried": (
        mapped(flaky, [0.5], retries=2),
        {"repeated": 0.5, "compute": 0.5},
    ),
    "retried_behind_others": (
        retried_behind_others,
        {"uneven": 0.3, "repeated": 0.2, "compute": 0.2},
    ),
    "rescheduled": (mapped(moved, [0.5]), {"repeated": 0.5, "compute": 0.5}),
    "seceded": (mapped(apart, [0.5] * 8), {"inner": 0.5}),
    "slow_client": (slow_client, {"client": 1.0, "compute": 0.1}),
    "cancelled": (cancelled, {"compute": 1.09}),
    "nested": (nested, {"client": 0.2, "compute": 0.7}),
    "waits_for_another": (waits_for_another, {"compute": 1.0}),
    "waits_in_vain": (waits_in_vain, {"compute": 1.0, "client": 0.2}),
    "waits_for_a_failure": (waits_for_a_failure, {"compute": 0.8}),
    "persisted": (persisted, {"compute": 0.8}),
    "shuffled": (shuffled, {"repeated": 0.002, "starting": 0.016, "compute": 1.5, "report": 0.002}),
    "fetched": (fetched, {"transfer": 0.5, "compute": 0.4}),
    "overtaken": (overtaken, {"uneven": 1.005, "compute": 0.4}),
    "spilled": (spilled, {"transfer": 1.0, "compute": 0.6}),
    "killed": (killed, {"repeated": 0.29, "compute": 0.5}),
    "restarted": (restarted, {"client": 0.2, "compute": 1.7}),
    "adaptive": (adaptive, {"no_worker": 0.99, "repeated": 0.2, "compute": 0.2}),
    # Without a limit on the tasks that workers get; all threads are taken to the end.
    "saturated": (mapped(nap, [0.1] * 40), {"no_thread": 0.9, "compute": 0.1}),
    "resource": (resource, {"uneven": 0.8, "compute": 0.2}),
    # All are sent to one worker, and nobody steals.
    "skewed": (
        mapped(nap, [0.25] * 8, workers=["w0"], allow_other_workers=True),
        {"uneven": 0.75, "compute": 0.25},
    ),
    "late_worker": (late_worker, {"no_worker": 0.99, "compute": 0.2}),
    "all_paused": (all_paused, {"no_worker": 1.0, "compute": 0.2}),
    "paused_with_tasks": (paused_with_tasks, {"uneven": 1.39, "compute": 0.3}),
    "importing": (importing, {"starting": 1.99, "compute": 0.5}),
    "blocked": (blocked, {"starting": 1.99, "compute": 0.2}),
    "inner": (inner, {"client": 0.002, "inner": 0.81}),
    "stolen": (stolen, {"no_thread": 0.19, "uneven": 0.2, "compute": 0.5}),
}
#: By history, the configuration of its cluster.
CONFIGS: dict[str, dict[str, Any]] = {
    "saturated": {"distributed.scheduler.worker-saturation": float("inf")},
    "skewed": {"distributed.scheduler.work-stealing": False},
    "stolen": {
        "distributed.scheduler.worker-saturation": float("inf"),
        "distributed.scheduler.work-stealing-interval": "1 hour",
    },
}
#: On releases before these, which send tasks to workers in another order.
OLDER: dict[str, tuple[str, dict[str, float]]] = {
    "tree": ("2026", {"no_thread": 0.65, "compute": 0.3}),
    "shuffled": (
        "2025.4",
        {"repeated": 0.002, "starting": 0.016, "compute": 1.5, "report": 0.004},
    ),
}
#: Spans below those.
BELOW: dict[str, dict[str, dict[str, float]]] = {
    "nested": {"load": {"compute": 0.3}, "fit": {"compute": 0.4}},
    "waits_for_another": {"another": {"compute": 0.8}, "mine": {"compute": 0.2, "other_span": 0.8}},
    "waits_in_vain": {
        "other": {"compute": 1.0},
        "vain": {"compute": 0.1, "other_span": 0.9, "client": 0.2},
    },
    "waits_for_a_failure": {"bad": {"compute": 0.8}, "blamed": {"other_span": 0.8}},
    "persisted": {"made": {"compute": 0.5}, "used": {"compute": 0.3}},
}

#: By history: the thread-seconds that are counted until all is reported; unused, to its end.
SECONDS: dict[str, dict[str, float]] = {
    "straggler": {"idle": 2.808, "unused": 0.04, "lost": 0.0, "excess": 0.0},
    "rounds": {"idle": 0.75, "unused": 4.04, "lost": 0.0, "excess": 0.0},
    "killed": {"idle": 1.37, "unused": 0.04, "lost": 0.29, "excess": 0.0},
    "seceded": {"idle": 2.0, "unused": 0.04, "lost": 0.0, "excess": 4.0},
}


def parts_of(finished: FinishedSpan) -> dict[str, float]:
    """Return the parts of a path that are not 0."""
    assert finished.path is not None
    found = dict(zip(PATH_PARTS, finished.path.parts, strict=True))
    return {part: seconds for part, seconds in found.items() if seconds > STEP}


def options_of(name: str) -> pytest.MarkDecorator:
    """Return the options of a history's cluster."""
    # A heartbeat that follows a read from the disk at once does not list it: that second is booked
    # as idle, and as excess when it is metered.
    within = 1.0 + STEP if name == "spilled" else 0.02
    return pytest.mark.options(limits=QUICK, config=CONFIGS.get(name), within=within)


@pytest.mark.filterwarnings("ignore:Dask annotations")
@pytest.mark.parametrize("name", [pytest.param(name, marks=options_of(name)) for name in HISTORIES])
def test_a_history_with_a_known_answer(o: Simulated, name: str) -> None:
    history, parts = HISTORIES[name]
    before = o.sums()
    with span(name):
        history(o)
    unused = o.sums()["unused"]
    o.quiet()
    until, older = OLDER.get(name, ("0", {}))
    answers = {name: parts, **BELOW.get(name, {})}
    if Version(distributed.__version__) < Version(until):
        answers[name] = older
    found = {one.identity.tags[-1]: parts_of(one) for one in o.exported}
    assert found == {name: pytest.approx(parts, abs=STEP) for name, parts in answers.items()}
    # In each round but the first one, the client alone led to the task.
    assert name != "rounds" or o.named(name).path.submitted == 4
    seceded = {"seceded": 8 * 0.5, "inner": 0.81}.get(name, 0.0)
    assert o.named(name).seceded == pytest.approx(seceded, abs=STEP)
    sums = {**o.sums(), "unused": unused}
    for kind, seconds in SECONDS.get(name, {}).items():
        assert sums[kind] - before[kind] == pytest.approx(seconds, abs=STEP), kind


def rows_of(page: str, heading: str) -> Iterator[list[str]]:
    """Return the rows of a page's table by its heading."""
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    for line in text.partition(heading)[2].partition("\n\n")[0].splitlines()[2:]:
        yield [cell.strip(" `") for cell in line.strip("|").split(" | ")]


def test_the_pages_have_the_answers_of_these_histories() -> None:
    answers = {name: parts for name, (_, parts) in HISTORIES.items()}
    answers |= {f"{name}/{one}": BELOW[name][one] for name in BELOW for one in BELOW[name]}
    known = "|".join(part.replace("_", " ") for part in PATH_PARTS)
    rows = [*rows_of("why.md", "| History | What happens | Path | Duration |")]
    assert {name.partition("/")[0] for name, *_ in rows} == HISTORIES.keys()
    for name, _, path, duration in rows:
        found = re.findall(rf"\b({known}) ([\d.]+)", path)
        parts = {part.replace(" ", "_"): float(seconds) for part, seconds in found}
        assert parts == answers[name], name
        assert float(duration) == pytest.approx(sum(parts.values())), name
    heading = "| History | What happens | idle | unused | lost | excess |"
    seconds = {name: [*map(float, rest)] for name, _, *rest in rows_of("telemetry.md", heading)}
    assert seconds == {name: [*each.values()] for name, each in SECONDS.items()}


@pytest.mark.options(limits=QUICK)
def test_a_folded_chain_among_other_tasks_has_the_waits_of_all_its_links(o: Simulated) -> None:
    """The fixture compares them with the walk, which folds nothing."""
    others = o.client.map(nap, [0.03] * 300, pure=False)
    with span("chain"):
        chain(o, 100, 0.01)
    wait(others)
    o.quiet()
    assert o.named("chain").path.tasks == 100
    assert parts_of(o.named("chain"))["no_thread"] > 1.0
