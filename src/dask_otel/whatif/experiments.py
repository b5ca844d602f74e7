"""What a replay changes in a recorded run. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

#: What a replay can leave out of a run.
CAUSES: Final = ("restrictions", "failures", "gaps", "transfers", "stealing")
#: The name for the longest task in `Experiment.split`.
LONGEST: Final = "longest"


@dataclass(frozen=True)
class Experiment:
    """A change of a recorded run; what is not given stays as it was.

    Attributes
    ----------
    name
        The change in words.
    workers
        The number of threads of each worker. They are there from the start to the end.
    bandwidth
        Bytes a second between two workers.
    without
        Some of `CAUSES`.
    faster
        By prefix, how many times as fast its tasks compute.
    split
        By prefix, or for the `LONGEST` task, the number of pieces that run side by side instead.
    """

    name: str
    workers: tuple[int, ...] | None = None
    bandwidth: float | None = None
    without: frozenset[str] = frozenset()
    faster: Mapping[str, float] = field(default_factory=dict)
    split: Mapping[str, int] = field(default_factory=dict)
