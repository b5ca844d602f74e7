"""What the bridge itself costs the scheduler: seconds of its event loop.

Transitions are too many to time each of them: a few are timed after every tick, and the
scheduler's own counter says how many there were. All else is timed where it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from dask_otel._dask.adapter import SchedulerAdapter

#: Transitions that are timed after each call of `TransitionCost.arm`.
SAMPLE: Final = 8


class Hook(Protocol):
    """The plugin, whose attribute Dask looks up for each transition."""

    transition: Callable[..., None]


class TransitionCost:
    """Estimates the seconds that transitions took.

    Parameters
    ----------
    plugin
        Its ``transition`` is replaced for a few calls at a time.
    transition
        What is called at all other times.
    count
        Returns how many transitions there were since the scheduler's start.

    Notes
    -----
    All methods belong to the scheduler's event loop.
    """

    def __init__(
        self, plugin: Hook, transition: Callable[..., None], count: Callable[[], int]
    ) -> None:
        self._plugin = plugin
        self._transition = transition
        self._count = count
        self._counted = count()
        self._left = 0
        self._calls = 0
        self._seconds = 0.0

    def arm(self) -> None:
        """Time the next few transitions."""
        self._left = SAMPLE
        self._plugin.transition = self._timed

    def disarm(self) -> None:
        """Time no more."""
        if self._left:
            self._left = 0
            self._plugin.transition = self._transition

    def take(self) -> float:
        """Return the estimated seconds since the last call."""
        total = self._count()
        calls, self._counted = total - self._counted, total
        if not self._calls:
            return 0.0
        each = self._seconds / self._calls
        # Keep what is known of the price, and let what comes count as much.
        self._calls, self._seconds = SAMPLE, each * SAMPLE
        return calls * each

    def _timed(self, *args: Any, **kwargs: Any) -> None:
        began = perf_counter()
        self._transition(*args, **kwargs)
        self._seconds += perf_counter() - began
        self._calls += 1
        self._left -= 1
        if self._left == 0:
            self._plugin.transition = self._transition


class LoopTime:
    """The seconds of the event loop that one bridge takes.

    Parameters
    ----------
    adapter
        Of the scheduler at hand.
    """

    def __init__(self, adapter: SchedulerAdapter) -> None:
        self._adapter = adapter
        self._hook: Hook | None = None
        self._transitions: TransitionCost | None = None
        #: Of timers since the last call of `take`, and what the adapter had spent then.
        self._timers = 0.0
        self._before = 0.0

    def watch(self, hook: Hook) -> None:
        """Let the adapter have a plugin's transitions, and see now and then what they cost."""
        self._hook = hook
        hook.transition = self._adapter.transition
        self._transitions = TransitionCost(
            hook, self._adapter.transition, self._adapter.transitions
        )

    def sample(self) -> None:
        """Time the next few transitions."""
        if self._transitions is not None:
            self._transitions.arm()

    def unwatch(self) -> None:
        """Pass no more transitions on."""
        if self._transitions is not None and self._hook is not None:
            self._transitions.disarm()
            vars(self._hook).pop("transition", None)
            self._hook = None

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what is done inside."""
        began = perf_counter()
        try:
            yield
        finally:
            self._timers += perf_counter() - began

    def take(self) -> float:
        """Return the seconds since the last call."""
        total = self._adapter.spent
        seconds, self._timers = self._timers + total - self._before, 0.0
        self._before = total
        if self._transitions is not None:
            seconds += self._transitions.take()
        return seconds
