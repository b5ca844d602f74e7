"""What bounded a span, on real clusters, by histories whose answer is known.

Each part is what the history says, to 5 % of the duration, and to what a busy machine adds: the
time that the history took longer than it says, or by which short sleeps beside it were late.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Reschedule, as_completed, secede, wait
from distributed.shuffle import ShuffleWorkerPlugin

from dask_otel import span
from dask_otel.core.life.open_span import Limits, TaskLimits
from dask_otel.core.records import FinishedSpan
from dask_otel.semconv import PATH_PARTS
from tests.cluster.observed import Observed, observed
from tests.waiting import eventually, lateness

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("workers die here; others compare the seconds of such runs"),
]

LIMITS = Limits(linger=0.1, settle_timeout=5.0, tasks=TaskLimits(slowest=1))
#: What messages and the start of threads may add.
CLOCK = 0.03
#: The share of the duration that a busy machine may add: beyond it, a history proves little.
STEADY = 0.15

RUNS: dict[str, int] = {}


def nap(seconds: float, *after: Any) -> float:
    time.sleep(seconds)
    return seconds


def fails_once(seconds: float, how: type[Exception]) -> None:
    """Fail in the first run; workers are threads of this process."""
    time.sleep(seconds)
    RUNS[how.__name__] = RUNS.get(how.__name__, 0) + 1
    if RUNS[how.__name__] == 1:
        raise how


class Slow:
    """Takes long to arrive."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return arrive, (type(self), self.seconds)


def arrive(kind: type[Slow], seconds: float) -> Slow:
    time.sleep(seconds)
    return kind(seconds)


class Large(Slow):
    """Takes long to be read from the disk, to which it is moved for its size."""

    def __sizeof__(self) -> int:
        return 100_000_000


class Actor:
    """Works beside the tasks."""

    def work(self, seconds: float) -> None:
        time.sleep(seconds)


def dies_once(path: str, seconds: float) -> None:
    time.sleep(seconds)
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)


def away(seconds: float) -> None:
    secede()
    time.sleep(seconds)


@pytest.fixture(scope="module")
def shared() -> Iterator[Observed]:
    with observed(LIMITS, threads_per_worker=2) as o:
        yield o


def many(client: Any, seconds: list[float], name: str) -> list[Any]:
    """Tasks in a group of their own: Dask books them on the span that it saw a group in first."""
    return client.map(nap, seconds, key=[f"{name}-{number}" for number in range(len(seconds))])


def sixty(o: Observed) -> None:
    wait(many(o.client, [0.05] * 64, "sixty"))


def straggler(o: Observed) -> None:
    short, slow = many(o.client, [0.05] * 8, "short"), o.client.submit(nap, 1.0, key="slow")
    o.client.submit(nap, 0.0, *short, slow, key="after").result()


def rounds(o: Observed) -> None:
    # The tasks are kept, and with them their group.
    kept = []
    for number in range(5):
        kept.append(o.client.submit(nap, 0.05, key=f"round-{number}"))
        kept[-1].result()
        time.sleep(0.2)


def completed(o: Observed) -> None:
    futures = as_completed(many(o.client, [0.1] * 4, "first"))
    for number, _ in zip(range(12), futures, strict=False):
        time.sleep(0.05)
        if number < 8:
            futures.add(o.client.submit(nap, 0.1, key=f"next-{number}"))


def chain(o: Observed) -> None:
    """Longer than what is kept link by link."""
    task = dask.delayed(nap)(0.0, dask_key_name="link-0")
    for number in range(1, 500):
        task = dask.delayed(nap)(0.002, task, dask_key_name=f"link-{number}")
    assert o.client.compute(task, optimize_graph=False).result() == 0.002


def fan_in(o: Observed) -> None:
    leaves = many(o.client, [0.0] * 2000, "leaf")
    o.client.submit(nap, 1.0, leaves, key="all").result()


def tree(o: Observed) -> None:
    level = many(o.client, [0.05] * 32, "twig")
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        keys = [f"fork{len(level)}-{number}" for number in range(len(level) // 2)]
        level = [
            o.client.submit(nap, 0.05, *pair, key=key)
            for key, pair in zip(keys, pairs, strict=True)
        ]
    wait(level)


def pairs(o: Observed) -> None:
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


def actor(o: Observed) -> None:
    """The scheduler does not know what an actor does."""
    # A new key for each try: Dask forgets an actor some time after the last one.
    made = o.client.submit(Actor, actor=True, key=f"actor-{time.time()}").result()
    for _ in range(5):
        made.work(0.1).result()


def pinned(o: Observed) -> None:
    (address, *_) = o.scheduler.workers
    keys = [f"pinned-{number}" for number in range(20)]
    wait(o.client.map(nap, [0.1] * 20, key=keys, workers=[address]))


def retried(o: Observed) -> None:
    o.client.submit(fails_once, 0.5, ValueError, retries=2, key="retried").result()


def rescheduled(o: Observed) -> None:
    o.client.submit(fails_once, 0.5, Reschedule, key="rescheduled").result()


def seceded(o: Observed) -> None:
    wait(o.client.map(away, [0.5] * 8, key=[f"away-{number}" for number in range(8)]))


def slow_client(o: Observed) -> None:
    o.client.submit(nap, 0.1, key="before").result()
    time.sleep(1.0)


def cancelled(o: Observed) -> None:
    future = o.client.submit(nap, 1.5, key="cancelled")
    time.sleep(1.0)
    future.cancel()


def nested(o: Observed) -> None:
    with span("load"):
        o.client.submit(nap, 0.3, key="load").result()
    time.sleep(0.2)
    with span("fit"):
        o.client.submit(nap, 0.4, key="fit").result()


def waits_for_another(o: Observed) -> None:
    with span("another"):
        slow = o.client.submit(nap, 0.8, key="another")
    with span("mine"):
        o.client.submit(nap, 0.2, slow, key="mine").result()


def shuffled(o: Observed) -> None:
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


def persisted(o: Observed) -> None:
    with span("made"):
        made = o.client.submit(nap, 0.5, key="made")
        wait(made)
    with span("used"):
        o.client.submit(nap, 0.3, made, key="used").result()


def fetched(o: Observed) -> None:
    here, there = o.scheduler.workers
    data = o.client.submit(Slow, 0.5, key="data", workers=[here])
    o.client.submit(nap, 0.3, data, key="moved", workers=[there]).result()


def spilled(o: Observed) -> None:
    (here, *_) = o.scheduler.workers
    large = []
    for number in range(2):
        # The second one moves the first to the disk.
        large.append(o.client.submit(Large, 1.0, key=f"large-{number}", workers=[here]))
        wait(large)
    o.client.submit(nap, 0.5, large[0], key="read", workers=[here]).result()


def lost(o: Observed, folder: str) -> None:
    o.client.submit(dies_once, f"{folder}/ran", 0.5, key="lost").result()


#: By history, the parts in seconds, on two workers of two threads. None is for what is only known
#: to be no other part.
HISTORIES: dict[Callable[[Observed], None], dict[str, float | None]] = {
    sixty: {"no_thread": None, "compute": 0.05},
    straggler: {"compute": 1.0},
    rounds: {"client": 1.0, "compute": 0.25},
    completed: {"compute": None, "client": None},
    chain: {"compute": None, "scheduler": None, "worker_queue": None, "report": None},
    fan_in: {"compute": 1.0, "no_thread": None, "worker_queue": None, "scheduler": None},
    tree: {"compute": 6 * 0.05, "no_thread": None, "worker_queue": None},
    pairs: {"compute": 0.2, "no_thread": None, "worker_queue": None, "transfer": None},
    actor: {"client": 0.5},
    pinned: {"worker_queue": 0.9, "compute": 0.1},
    retried: {"repeated": 0.5, "compute": 0.5},
    rescheduled: {"repeated": 0.5, "compute": 0.5},
    seceded: {"compute": 0.5},
    slow_client: {"client": 1.0, "compute": 0.1},
    cancelled: {"compute": 1.0},
    nested: {"client": 0.2, "compute": 0.7},
    waits_for_another: {"compute": 1.0},
    persisted: {"compute": 0.8},
    shuffled: {"compute": 0.5 + 0.3 + 0.7},
}
#: Spans below those.
BELOW: dict[str, dict[str, float | None]] = {
    "load": {"compute": 0.3},
    "fit": {"compute": 0.4},
    "another": {"compute": 0.8},
    "mine": {"compute": 0.2, "other_span": 0.8},
    "made": {"compute": 0.5},
    "used": {"compute": 0.3},
}


def parts_of(finished: FinishedSpan) -> dict[str, float]:
    """Return the parts of a path, which add up to the duration."""
    assert finished.path is not None
    found = dict(zip(PATH_PARTS, finished.path.parts, strict=True))
    assert sum(found.values()) == pytest.approx(finished.stop - finished.start, abs=1e-6)
    return found


def known_parts(expected: dict[str, float | None]) -> dict[str, float | None]:
    """Return the parts that a history must have; None for those that it leaves open."""
    return {part: expected.get(part, 0.0) for part in PATH_PARTS}


def added(finished: FinishedSpan, expected: dict[str, float | None], late: float = 0.0) -> float:
    """Return the seconds by which a busy machine may have changed the parts."""
    known = known_parts(expected).values()
    return max(late, 0.0 if None in known else finished.stop - finished.start - sum(known))


def misses(
    finished: FinishedSpan, expected: dict[str, float | None], late: float = 0.0
) -> list[str]:
    """Return the parts that are off."""
    found, took = parts_of(finished), finished.stop - finished.start
    print(
        *finished.identity.tags,
        f"{took:.2f}, late by {late:.2f}",
        {k: round(v, 2) for k, v in found.items() if v > 0.005},
    )
    known = known_parts(expected)
    allowed = 0.05 * took + CLOCK + added(finished, expected, late)
    return [
        f"{part} {found[part]:.3f} {seconds}"
        for part, seconds in known.items()
        if seconds is not None and abs(found[part] - seconds) > allowed
    ]


def fits(o: Observed, make: Callable[[], None], name: str, expected: Any, tries: int = 3) -> None:
    """Let a history happen, again if it does not fit; skip the test if no try proves anything.

    A part that is off, or a history that takes too long, is an error on a calm machine. Whether
    the machine is calm does not depend on the history: sleeps beside it are late, or they are not.
    """
    calm, wrong = False, list[str]()
    for _ in range(tries):
        RUNS.clear()
        before = len(o.exported)
        with lateness() as late, span(name):
            make()
        o.quiet()
        answers = {name: expected, **BELOW}
        mine = [
            (one, answers[one.identity.tags[-1]], STEADY * (one.stop - one.start) + CLOCK)
            for one in o.exported[before:]
            if one.identity.tags[-1] in answers
        ]
        assert mine
        wrong = [miss for one, answer, _ in mine for miss in misses(one, answer, *late)]
        wrong += [
            f"{one.identity.tags} took {added(one, answer):.3f} too long"
            for one, answer, most in mine
            if added(one, answer) > most
        ]
        calm = all(late[0] <= most for _, _, most in mine)
        if calm and not wrong:
            return
    assert not (calm and wrong), wrong
    pytest.skip(f"the machine was busy: sleeps were late by {late[0]:.2f} s; {wrong or 'no error'}")


@pytest.mark.filterwarnings("ignore:Dask annotations")
@pytest.mark.parametrize("make", HISTORIES, ids=lambda make: make.__name__)
def test_a_history_with_a_known_answer(shared: Observed, make: Callable[[Observed], None]) -> None:
    fits(shared, lambda: make(shared), make.__name__, HISTORIES[make])


def test_workers_without_a_thread_are_not_the_client() -> None:
    with observed(LIMITS, n_workers=0) as o:
        with lateness() as late, span("adaptive"):
            # Only its run is repeated, not what it waited for before that.
            RUNS.clear()
            task = fails_once, 0.2, ValueError
            futures = [o.client.submit(*task, retries=2, key="adaptive")]
            eventually(lambda: o.scheduler.tasks, what="a task without a worker")
            time.sleep(1.0)
            began = time.time()
            o.cluster.adapt(minimum=0, maximum=1, interval="100ms")
            wait(futures)
            until = time.time() - began
        del futures
        o.quiet()
        (finished,) = o.exported
        # The cluster may shrink between the two runs.
        known = {"no_thread": None, "repeated": None, "compute": 0.2}
        assert not misses(finished, known, *late)
        parts = parts_of(finished)
        assert parts["repeated"] >= 0.2
        assert 1.0 <= parts["no_thread"] <= parts["no_thread"] + parts["repeated"] <= 1.4 + until


def test_transfers_spilled_data_and_lost_workers(tmp_path: Path) -> None:
    memory = {"target": 0.3, "spill": False, "pause": False, "terminate": False}
    config = {f"distributed.worker.memory.{key}": value for key, value in memory.items()}
    with observed(LIMITS, config=config, processes=True, memory_limit="400MB") as o:
        client = o.client
        # Workers import this module.
        client.run(nap, 0.0)
        fits(o, lambda: fetched(o), "fetched", {"transfer": 0.5, "compute": 0.3})
        fits(o, lambda: spilled(o), "spilled", {"transfer": 1.0, "compute": 0.5})
        with lateness() as late, span("lost"):
            lost(o, str(tmp_path))
        with lateness() as cut_late, span("restarted"):
            client.submit(nap, 0.3, key="before-restart").result()
            cut = client.submit(nap, 3.0, key="cut-off")
            eventually(lambda: "cut-off" in o.scheduler.tasks, what="a task that was submitted")
            time.sleep(1.0)
            restart = time.time()
            client.restart()
            restart = time.time() - restart
            client.submit(nap, 0.4, key="after-restart").result()
        del cut
        o.quiet()
        restarted, gone = o.named("restarted"), o.named("lost")
        assert not misses(gone, {"repeated": None, "compute": 0.5, "no_thread": None}, *late)
        # What was cut off counts until then. The client waits for new workers.
        parts = parts_of(restarted)
        known = dict.fromkeys(("client", "worker_queue", "compute"))
        assert not misses(restarted, known, *cut_late)
        assert parts["compute"] >= 0.7
        assert parts["compute"] + parts["worker_queue"] >= 1.7
        assert parts["client"] == pytest.approx(restart, abs=0.4 + cut_late[0])
        assert restarted.path is not None
        assert restarted.path.tasks == 3
        assert parts_of(gone)["repeated"] >= 0.5
        assert not o.adapter.tasks.paths.waits
