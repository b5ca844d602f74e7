"""What `make chaos` calls worse, and what its checks say: its rules, without a cluster."""

from __future__ import annotations

import pytest
from chaos import page
from chaos.ratios import NO_WORSE, TASKS, UNDECIDED, WORSE, Middle, cost, ratio, verdict

SAME = (1.0, 0.98, 1.02)
#: More of a core: next to nothing, and a lot.
BIT, LOT = (0.005, -0.01, 0.015), (0.05, 0.03, 0.07)


@pytest.mark.parametrize(
    ("cpu", "core", "rate", "expected"),
    [
        (SAME, BIT, SAME, NO_WORSE),
        # Much better is no worse.
        ((0.5, 0.4, 0.6), (-0.2, -0.3, -0.1), (2.0, 1.8, 2.2), NO_WORSE),
        ((1.09, 1.07, 1.10), LOT, (0.92, 0.91, 0.95), NO_WORSE),
        ((1.2, 1.11, 1.3), LOT, SAME, WORSE),
        # Little for the clock, and for each of the few tasks of a busy machine much.
        ((1.2, 1.11, 1.3), BIT, SAME, NO_WORSE),
        (SAME, BIT, (0.8, 0.7, 0.9), WORSE),
        # Wholly beyond in one of them decides, whatever the other one.
        ((1.3, 0.9, 1.5), LOT, (0.8, 0.7, 0.9), WORSE),
        ((1.2, 1.05, 1.3), LOT, SAME, UNDECIDED),
        ((1.2, 1.11, 1.3), (0.03, 0.01, 0.05), SAME, UNDECIDED),
        (SAME, BIT, (0.95, 0.85, 1.0), UNDECIDED),
    ],
)
def test_a_fault_is_worse_if_an_interval_lies_wholly_beyond(
    cpu: Middle, core: Middle, rate: Middle, expected: str
) -> None:
    assert verdict(cpu, core, rate) == expected


def test_rounds_are_compared_in_pairs_so_that_what_slows_a_round_slows_all_of_it() -> None:
    # A machine that gets ten times as slow: no two rounds are alike, and all ratios are.
    slow = [1.0 + 9.0 * n / 11 for n in range(12)]
    assert ratio([1.25 * s for s in slow], slow) == (1.25, 1.25, 1.25)
    # One round that something else disturbed decides nothing.
    times = [1.0, 1.01, 0.99] * 4
    median, low, high = ratio([50.0, *times[1:]], times)
    assert (median, low) == (1.0, 1.0)
    assert high < 1.1


def test_a_cost_is_beside_no_fault_and_beside_no_bridge() -> None:
    found = cost(
        {"fault": [3e-4] * 12, "healthy": [2e-4] * 12, "bare": [1e-4] * 12},
        {"fault": [900.0] * 12, "healthy": [1000.0] * 12, "bare": [1800.0] * 12},
        [TASKS / 1000] * 12,
    )
    assert found["cpu"] == {"by no fault": (1.5,) * 3, "by no bridge": (3.0,) * 3}
    assert found["rate"] == {"by no fault": (0.9,) * 3, "by no bridge": (0.5,) * 3}
    assert found["core"] == (0.1,) * 3
    assert (found["rounds"], found["verdict"]) == (12, WORSE)
    said = page.cost_in_words({"cost": found})
    assert said.startswith("; worse: CPU 1.50 [1.50, 1.50], tasks per second 0.90")
    shown = page.evidence({"machine": {}, "results": {"silent HTTP": {
        "verdict": "broken", "observed": "it hangs", "cost": found}}})  # fmt: skip
    assert "| `silent`, HTTP | 1.50 [1.50, 1.50] | 10.0% [10.0%, 10.0%] | 3.00 " in shown
    assert "## What a fault costs" not in page.evidence({"machine": {}, "results": {}})
