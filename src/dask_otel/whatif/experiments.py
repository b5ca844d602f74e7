"""What a replay changes in a recorded run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Final

from dask_otel.core.figures import counted
from dask_otel.whatif.graph import Graph

#: What a replay can leave out of a run.
CAUSES: Final = (
    "restrictions", "failures", "gaps", "transfers", "stealing", "unevenness", "slow-worker",
)  # fmt: skip
#: The name for the longest task in `Experiment.split`.
LONGEST: Final = "longest"
#: How many times as many workers are tried unless others are asked for.
_FACTORS: Final = (0.5, 1.5, 2.0, 4.0)


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
    cluster
        Another run, whose workers and network it has, as they were there.
    """

    name: str
    workers: tuple[int, ...] | None = None
    bandwidth: float | None = None
    without: Collection[str] = ()
    faster: Mapping[str, float] = field(default_factory=dict)
    split: Mapping[str, int] = field(default_factory=dict)
    cluster: Graph | None = None


def each(
    threads: Iterable[tuple[int, int]] = (),
    bandwidth: float | None = None,
    without: Iterable[str] = (),
    faster: Iterable[tuple[str, float]] = (),
    split: Iterable[tuple[str, int]] = (),
) -> Iterator[Experiment]:
    """Yield an experiment of its own for each change.

    Parameters
    ----------
    threads
        Numbers of workers, and the threads of each.
    bandwidth, without, faster, split
        See `Experiment`; prefixes and their numbers.

    Raises
    ------
    ValueError
        If a number or a name is none of those that are allowed.
    """
    for workers, of_each in threads:
        require(workers, 1, 10_000, "the number of workers", whole=True)
        require(of_each, 1, 1_000, "the number of threads of a worker", whole=True)
        yield with_workers([int(of_each)] * int(workers))
    if bandwidth is not None:
        require(bandwidth, 1_000, 1e15, "the bandwidth in bytes a second")
        yield Experiment(f"{bandwidth / 1e6:,g} MB/s between workers", bandwidth=float(bandwidth))
    for cause in without:
        if cause not in CAUSES:
            raise ValueError(f"without {cause!r}: allowed are {', '.join(CAUSES)}")
        yield Experiment(f"without {cause}", without=(cause,))
    for prefix, factor in faster:
        require(factor, 0.001, 1_000, f"the factor for {prefix}")
        yield Experiment(
            f"tasks of {prefix} {factor:g} times as fast", faster={prefix: float(factor)}
        )
    for prefix, pieces in split:
        require(pieces, 2, 1_000, f"the number of pieces of {prefix}", whole=True)
        what = "the longest task" if prefix == LONGEST else f"tasks of {prefix}"
        yield Experiment(f"{what} split in {pieces}", split={prefix: int(pieces)})


def require(value: float, least: float, most: float, what: str, whole: bool = False) -> None:
    """Raise ValueError unless a value is a number, or a whole one, within limits."""
    if not isinstance(value, Integral if whole else Real) or not least <= value <= most:
        number = "a whole number " * whole
        raise ValueError(f"{what} must be {number}from {least:,g} to {most:,g}, and not {value!r}")


def with_workers(workers: Sequence[int]) -> Experiment:
    """Return the experiment with other workers, given by their numbers of threads."""
    are_alike = len({*workers}) == 1
    shape = f"{len(workers)} x {workers[0]}" if are_alike else f"{len(workers)} workers"
    return Experiment(f"{counted(sum(workers), 'thread')} ({shape})", tuple(workers))


def usual(workers: Sequence[int], causes: Iterable[str]) -> Iterator[Experiment]:
    """Yield what is worth a try: half to four times as many workers, and each cure.

    Parameters
    ----------
    workers
        The number of threads of each worker of the run.
    causes
        Those of `CAUSES` that cost the run time.
    """
    count = len(workers)
    if count == 1 < workers[0]:
        yield with_workers([workers[0] // 2])
    for other in sorted({max(1, round(factor * count)) for factor in _FACTORS} - {count}):
        yield with_workers([workers[place % count] for place in range(other)])
    yield from each(without=causes, split=[(LONGEST, 2)])
