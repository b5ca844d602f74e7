"""Measures the bridge's cost for the scheduler: seconds of its event loop.

There are too many transitions to time each one: a few are timed after every tick, and the
scheduler's own counter has their number. All other work is timed directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from distributed.diagnostics.plugin import SchedulerPlugin

    from dask_otel._dask.adapter import SchedulerAdapter

#: Transitions timed after each call of `OwnCost.sample`.
SAMPLE: Final = 8


class OwnCost:
    """The event loop's seconds that one bridge takes.

    To time a few transitions, the plugin's `transition`, which Dask looks up for each call, is
    replaced for these calls. A flag that `transition` itself tests would take 70 instructions of
    each call: 485 of the 42,600 a task.
    """

    def __init__(self, adapter: SchedulerAdapter) -> None:
        self._adapter = adapter
        self._plugin: SchedulerPlugin | None = None
        #: Transitions up to the last call of `take`, and the timed ones among them.
        self._counted = 0
        self._timed = 0
        self._seconds = 0.0
        #: Number of transitions still to time.
        self._left = 0
        #: Timers' seconds since the last call of `take`; the adapter's seconds up to then.
        self._timers = 0.0
        self._before = 0.0

    def watch(self, plugin: SchedulerPlugin) -> None:
        """Begin to count a plugin's transitions."""
        self._plugin = plugin
        self._counted = self._adapter.transitions()

    def sample(self) -> None:
        """Time the next few transitions."""
        if self._plugin is not None:
            self._left = SAMPLE
            self._plugin.transition = self._transition

    def _transition(self, *args: Any, **kwargs: Any) -> None:
        began = perf_counter()
        self._adapter.transition(*args, **kwargs)
        self._seconds += perf_counter() - began
        self._timed += 1
        self._left -= 1
        if self._left == 0 and self._plugin is not None:
            self._plugin.transition = self._adapter.transition

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of the code inside."""
        began = perf_counter()
        try:
            yield
        finally:
            self._timers += perf_counter() - began

    def take(self) -> float:
        """Return the seconds since the last call; those of transitions are an estimate."""
        spent, counted = self._adapter.spent, self._adapter.transitions()
        seconds, self._timers = self._timers + spent - self._before, 0.0
        calls, self._counted = counted - self._counted, counted
        self._before = spent
        if self._timed:
            each = self._seconds / self._timed
            # Keep the known mean, with the weight of the next sample.
            self._timed, self._seconds = SAMPLE, each * SAMPLE
            seconds += calls * each
        return seconds
