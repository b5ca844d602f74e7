"""What a fault costs, in ratios of pairs, and whether that is worse than no fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.results import interval

#: Tasks of a block.
TASKS = 300
#: How much worse than without the fault may still be called no worse: less can't be told apart
#: from the noise of a machine in some seconds.
ALLOWANCE = 1.10
NO_WORSE, UNDECIDED, WORSE = "no worse", "undecided", "worse"
#: The clusters that take turns.
FAULT, HEALTHY, BARE = "fault", "healthy", "bare"


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of the ratios of pairs, and an interval that holds the true one (95 %).

    Raises
    ------
    ValueError
        If there are too few pairs for an interval.
    """
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    within = interval(ratios)
    if within is None:
        raise ValueError(f"{len(ratios)} pairs are too few for an interval")
    return round(median(ratios), 3), round(within[0], 3), round(within[1], 3)


def verdict(
    cpu: tuple[float, float, float], rate: tuple[float, float, float], allowance: float = ALLOWANCE
) -> str:
    """Return whether a fault is worse than no fault.

    Parameters
    ----------
    cpu
        CPU seconds for each task, with the fault by without it: median and interval.
    rate
        Tasks per second, likewise.
    """
    if cpu[1] > allowance or rate[2] < 1 / allowance:
        return WORSE
    if cpu[2] <= allowance and rate[1] >= 1 / allowance:
        return NO_WORSE
    return UNDECIDED


def cost(cpu: Mapping[str, Sequence[float]], rate: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return what goes into the results.

    Parameters
    ----------
    cpu
        CPU seconds of each cluster's scheduler for each task, by round.
    rate
        Tasks per second of each cluster, by round.
    """
    found: dict[str, Any] = {"rounds": len(cpu[FAULT])}
    for name, figures in (("cpu", cpu), ("rate", rate)):
        found[name] = {
            "by no fault": ratio(figures[FAULT], figures[HEALTHY]),
            "by no bridge": ratio(figures[FAULT], figures[BARE]),
        }
    found["microseconds"] = {name: round(1e6 * median(cpu[name]), 1) for name in cpu}
    found["verdict"] = verdict(found["cpu"]["by no fault"], found["rate"]["by no fault"])
    return found
