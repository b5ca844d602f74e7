"""Whether tasks take longer on one worker than on others, and not by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import sqrt
from operator import add
from typing import Final, TypeAlias, TypeVar

#: The number of some runs, their seconds, and the sum of the squares of these.
Runs: TypeAlias = Sequence[float]
Worker = TypeVar("Worker")

#: A worker is slow if its runs take so many times as long as the others' on average; and if the
#: difference is so many standard errors. Runs vary by at least this share of their mean: a few can
#: be alike by chance. Of fewer runs in all, one worker often has all long ones.
_TIMES: Final = 1.5
_ERRORS: Final = 4.0
_LEAST_SPREAD: Final = 0.2
_FEWEST: Final = 6


def runs_of(seconds: Sequence[float]) -> Runs:
    """Return the sums of some runs."""
    return len(seconds), sum(seconds), sum(one * one for one in seconds)


def slow_of(runs: Mapping[Worker, Runs]) -> tuple[list[Worker], Runs, Runs]:
    """Return the slow workers, at most half of all, and the sums of their runs and of the others'.

    Only workers with two runs count. The slowest one is the first; each is slow beside those that
    are faster than all of them.
    """
    known = sorted(
        (worker for worker, one in runs.items() if one[0] > 1),
        key=lambda worker: runs[worker][1] / runs[worker][0],
    )
    sums = [*accumulate((runs[one] for one in known), lambda *two: [*map(add, *two)])]
    for fast in range(len(known) - len(known) // 2, len(known)):
        others = sums[fast - 1]
        if others[1] and is_slow(runs[known[fast]], others):
            slow = [one for one in known[: fast - 1 : -1] if is_slow(runs[one], others)]
            return slow, [*map(sum, zip(*(runs[one] for one in slow), strict=True))], others
    return [], (), ()


def is_slow(own: Runs, others: Runs) -> bool:
    """Return whether a worker is slow, by its own runs and those of others: two or more each."""
    if own[0] + others[0] < _FEWEST:
        return False
    mean, usual = own[1] / own[0], others[1] / others[0]
    spread = max(_LEAST_SPREAD, _spread(own), _spread(others))
    error = spread * sqrt(mean**2 / own[0] + usual**2 / others[0])
    return mean - usual > max((_TIMES - 1.0) * usual, _ERRORS * error)


def _spread(runs: Runs) -> float:
    """Return the standard deviation of some runs, as a share of their mean."""
    count, seconds, squares = runs
    if not seconds:
        return 0.0
    return sqrt(max(0.0, squares - seconds**2 / count) / (count - 1.0)) * count / seconds
