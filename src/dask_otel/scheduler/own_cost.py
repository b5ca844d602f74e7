"""Measures the bridge's cost for the scheduler: seconds of its event loop.

There are too many transitions to time each one: a few are timed once in a while, and the
scheduler's own counter has their number. All other work is timed directly.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_otel._dask.adapter import SchedulerAdapter

#: Transitions timed in a row, more than one task has. To time one takes as long as most do.
SAMPLE: Final = 8


class OwnCost:
    """The event loop's seconds that one bridge takes.

    To time a few transitions, the plugin's `transition`, which Dask looks up for each call, is
    replaced for these calls. A flag that `transition` itself tests would take 70 instructions of
    each call: 485 of the 37,300 a task.
    """

    def __init__(self, adapter: SchedulerAdapter) -> None:
        self._adapter = adapter
        self._plugin: SchedulerPlugin
        #: Transitions up to the last call of `take`, and the timed ones among them.
        self._counted = adapter.transitions()
        self._timed = 0
        self._seconds = 0.0
        #: Number of transitions still to time.
        self._left = 0
        #: The adapter's seconds up to the last call of `take`.
        self._before = 0.0

    def sample(self, plugin: SchedulerPlugin) -> None:
        """Time the next few transitions of a plugin."""
        self._plugin = plugin
        self._left = SAMPLE
        plugin.transition = self._transition

    def _transition(self, *args: Any, **kwargs: Any) -> None:
        began = perf_counter()
        self._adapter.transition(*args, **kwargs)
        self._seconds += perf_counter() - began
        self._timed += 1
        self._left -= 1
        if self._left == 0:
            self._plugin.transition = self._adapter.transition

    def take(self) -> float:
        """Return the seconds since the last call; those of transitions are an estimate."""
        spent, counted = self._adapter.wrappers.spent, self._adapter.transitions()
        seconds, self._before = spent - self._before, spent
        calls, self._counted = counted - self._counted, counted
        if self._timed:
            each = self._seconds / self._timed
            # Keep the known mean, with the weight of the next sample.
            self._timed, self._seconds = SAMPLE, each * SAMPLE
            seconds += calls * each
        return seconds
