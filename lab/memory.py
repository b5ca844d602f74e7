"""What results take of the workers' memory, as the scheduler's own tables have it at each moment.

It looks at all tasks after each transition, and whenever the clock is about to go on, and so shares
nothing with an observer that follows what comes and goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from typing import Any, Final, TypeAlias

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_otel.lab.cluster import Cluster

#: Span (none of scattered data) and prefix.
Part: TypeAlias = tuple[str | None, str]

#: Of a result whose size is unknown, as Dask counts it.
UNKNOWN: Final = 1_000


class Memory(SchedulerPlugin):  # type: ignore[misc]
    """Looks at one simulated cluster; make it before there are tasks."""

    name = "memory"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        #: From when on there were so many bytes.
        self.history: list[tuple[float, Counter[Part]]] = [(0.0, Counter())]
        self._state: object = None
        self._stimulus = ""
        cluster.loop.looks.append(self._look)
        cluster.scheduler.add_plugin(self)
        # What a client scatters makes no transition, and may be replaced in the same moment.
        update_data = cluster.scheduler.handlers["update_data"]

        def scattered(**message: Any) -> None:
            self._look()
            update_data(**message)
            self._look()

        cluster.scheduler.handlers["update_data"] = scattered
        cluster.scheduler.update_data = scattered

    def transition(
        self, key: Hashable, start: str, finish: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """See ``SchedulerPlugin.transition``."""
        # A submission can give a span to data that a client has scattered; two of one moment have
        # the same id.
        if stimulus_id is not self._stimulus or (start != finish and "memory" in (start, finish)):
            self._stimulus = stimulus_id
            self._look()

    def now(self) -> Counter[Part]:
        """Return the bytes in memory at this moment."""
        found: Counter[Part] = Counter()
        for task in self._cluster.scheduler.tasks.values():
            if task.state == "memory":
                size = task.nbytes if task.nbytes >= 0 else UNKNOWN
                found[task.group.span_id or None, task.group.prefix.name] += size
        return found

    def _look(self) -> bool:
        scheduler = self._cluster.scheduler
        sizes = [ws.nbytes for ws in scheduler.workers.values()]
        state = scheduler.transition_counter, len(scheduler.tasks), sizes
        if state != self._state:
            self._state = state
            self.history.append((self._cluster.loop.now, self.now()))
        return False

    def between(self, start: float, stop: float) -> list[tuple[float, Counter[Part]]]:
        """Return the bytes in an interval, with the seconds for which there were so many."""
        ends = [*[when for when, _ in self.history[1:]], stop]
        parts = zip(self.history, ends, strict=True)
        return [
            (max(0.0, min(end, stop) - max(since, start)), sizes)
            for (since, sizes), end in parts
            if since <= stop and end >= start
        ]

    def spent(self, start: float, stop: float) -> dict[Part, float]:
        """Return the integrals of the bytes over an interval."""
        found: dict[Part, float] = {}
        for seconds, sizes in self.between(start, stop):
            for part, size in sizes.items():
                found[part] = found.get(part, 0.0) + seconds * size
        return found


def of_spans(sizes: Counter[Part], spans: Collection[str]) -> Counter[str]:
    """Return the bytes of some spans by prefix."""
    found: Counter[str] = Counter()
    for (span, prefix), size in sizes.items():
        if span in spans:
            found[prefix] += size
    return found
