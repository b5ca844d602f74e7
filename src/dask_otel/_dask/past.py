"""The state that a bridge leaves for the next bridge on the same scheduler.

The scheduler and its spans outlive a removed bridge. The next bridge must continue from there,
because otherwise it would make the same ids again. The state belongs to the scheduler, not to the
plugin, because Dask replaces plugins without notice; it ends with the scheduler.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from distributed.scheduler import Scheduler

from dask_otel.core.life.generations import Generations


class Past(NamedTuple):
    """The exported spans, in bounded tables of plain data (``otel.spans.remember``)."""

    generations: Generations
    #: Number of Dask's spans at the removal of the bridge. Dask appends new ones.
    seen: int


#: By scheduler, for the next bridge.
PASTS: Final[WeakKeyDictionary[Scheduler, Past]] = WeakKeyDictionary()
