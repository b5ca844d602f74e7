"""What a bridge leaves behind on its scheduler, for the one that is put on there next.

Taking a bridge off is not the end of the scheduler, nor of its spans: what is put on again must go
on where the last one stopped, or it would make ids a second time. Kept beside the scheduler, not on
the plugin, for Dask lets plugins be replaced without a word to them; gone with the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from dask_otel.core.life.generations import Generations
from dask_otel.core.life.summaries import Summaries

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


class Past(NamedTuple):
    """What was exported, in bounded tables of plain data (``otel.spans.remember``)."""

    generations: Generations
    summaries: Summaries
    #: How many of Dask's spans were there when the bridge was taken off; Dask adds at the end.
    seen: int


_PASTS: Final[WeakKeyDictionary[Scheduler, Past]] = WeakKeyDictionary()


def leave(scheduler: Scheduler, past: Past) -> None:
    """Leave behind what the next bridge must know."""
    _PASTS[scheduler] = past


def past_of(scheduler: Scheduler) -> Past | None:
    """Return what the last bridge has left; None if there was none."""
    return _PASTS.get(scheduler)
