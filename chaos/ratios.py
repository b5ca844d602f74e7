"""What a fault costs, in ratios of pairs, and whether that is worse than no fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from benchmarks.results import interval

#: Tasks of a block.
TASKS = 300
#: How often it is looked whether the rounds are enough. Each look has a chance of its own to be
#: wrong, so that there are few.
LOOKS = 4
#: How much worse than without the fault still counts as no worse: less is within the noise of a
#: machine in some seconds.
ALLOWANCE = 1.10
#: The same as a part of a core. What tries again does so by the clock: on a machine that is busy
#: with other things there are more tries for each task, and no more in a second.
ALLOWED_CORE = 0.02
NO_WORSE, UNDECIDED, WORSE = "no worse", "undecided", "worse"
#: Median, and the ends of an interval.
Middle: TypeAlias = tuple[float, float, float]
#: The clusters that take turns.
FAULT, HEALTHY, BARE = "fault", "healthy", "bare"


def middle(values: Sequence[float]) -> Middle:
    """Return the median of the rounds' values, and an interval for the true one (95 %).

    Raises
    ------
    ValueError
        If there are too few rounds for an interval.
    """
    within = interval(values)
    if within is None:
        raise ValueError(f"{len(values)} rounds are too few for an interval")
    return round(median(values), 4), round(within[0], 4), round(within[1], 4)


def ratio(above: Sequence[float], below: Sequence[float]) -> Middle:
    """Return the middle of the ratios of pairs; see `middle`."""
    return middle([a / b for a, b in zip(above, below, strict=True)])


def verdict(cpu: Middle, core: Middle, rate: Middle) -> str:
    """Return whether a fault is worse than no fault.

    Parameters
    ----------
    cpu
        CPU seconds for each task, with the fault by without it.
    core
        How much more of a core is used with the fault than without it.
    rate
        Tasks per second, with the fault by without it.
    """
    if (cpu[1] > ALLOWANCE and core[1] > ALLOWED_CORE) or rate[2] < 1 / ALLOWANCE:
        return WORSE
    if (cpu[2] <= ALLOWANCE or core[2] <= ALLOWED_CORE) and rate[1] >= 1 / ALLOWANCE:
        return NO_WORSE
    return UNDECIDED


def cost(
    cpu: Mapping[str, Sequence[float]],
    rate: Mapping[str, Sequence[float]],
    seconds: Sequence[float],
) -> dict[str, Any]:
    """Return what goes into the results.

    Parameters
    ----------
    cpu
        CPU seconds of each cluster's scheduler for each task, by round.
    rate
        Tasks per second of each cluster, by round.
    seconds
        What each round took.
    """
    more = zip(cpu[FAULT], cpu[HEALTHY], seconds, strict=True)
    found: dict[str, Any] = {"rounds": len(cpu[FAULT])}
    for name, figures in (("cpu", cpu), ("rate", rate)):
        found[name] = {
            "by no fault": ratio(figures[FAULT], figures[HEALTHY]),
            "by no bridge": ratio(figures[FAULT], figures[BARE]),
        }
    found["core"] = middle([TASKS * (fault - healthy) / took for fault, healthy, took in more])
    found["verdict"] = verdict(
        found["cpu"]["by no fault"], found["core"], found["rate"]["by no fault"]
    )
    return found
