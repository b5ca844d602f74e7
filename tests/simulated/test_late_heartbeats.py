"""Random programs whose heartbeats come late, some at once, from workers with wrong clocks.

Which of two runs of a task a cut lists, and which of its seconds are in which heartbeat, is then
known long after the scheduler has heard of their ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import cycle

import pytest
from lab.programs import draw, run

from tests.simulated.observed import QUICK, Simulated

#: Seconds by which a heartbeat may be late: two are on their way then. If it were 3 s, idle seconds
#: of the last work could count as unused.
LATE = 1.2


class Delays(dict[str, Callable[[], float | None]]):
    """The delays of each worker's heartbeats, by its name; the first one is on time."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def get(self, name: str, default: object = None) -> Callable[[], float | None]:  # type: ignore[override]
        """Return what gives the next delay of a worker."""
        if name not in self:
            late = self._chance.choices([0.0, LATE], [3, 1], k=self._chance.randint(1, 9))
            self[name] = cycle([0.0, *late]).__next__
        return self[name]


@pytest.mark.parametrize("seed", range(20))
def test_idle_is_true_where_heartbeats_are_late(seed: int) -> None:
    program = draw(seed)
    # Clocks are estimated by messages.
    within = 0.02 + 6 * program.latency
    o = Simulated(limits=QUICK, within=within, longest=300.0, **program.options())

    def late() -> None:
        o.cluster.heartbeats, chance = Delays(seed), random.Random(seed)
        for name in o.cluster.workers:
            o.cluster.machines[name].shift = chance.uniform(-5.0, 5.0)
        run(program, o.cluster)

    o.run(late)
