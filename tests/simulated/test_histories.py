"""Random programs: what the bridge says of them is what happened.

Every span is exported once, its path tiles it, values are Dask's own key by key, sums close, and
idle, unused, lost and excess seconds are the truth's; see `Simulated.compare`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulated.histories import faults

#: Seeds in a test: some seconds.
EACH = 10


@pytest.mark.parametrize("first", range(0, 160, EACH))
def test_random_programs(first: int) -> None:
    found = faults(range(first, first + EACH))
    assert not found, "\n\n".join(found)


LOG = """
import lab; lab.install()
import hashlib, logging
logging.disable()
from lab.cluster import simulate
from lab.programs import draw, run
from lab.truth import Truth

def log(seed):
    made, program = [], draw(seed)
    async def prepare(cluster):
        made.append(Truth(cluster))
        made[0].attach()
    def whole(cluster):
        run(program, cluster)
        return [vars(run) for run in cluster.runs], cluster.scheduler.transition_log
    runs, transitions = simulate(whole, prepare=prepare, **program.options())
    kept = [(*one[:3], *one[4:]) for one in transitions]
    return repr((runs, kept, made[0].seconds()))

print(*[hashlib.sha256(log(seed).encode()).hexdigest() for seed in (3, 5, 3)])
"""


def test_a_seed_is_the_same_history_each_time() -> None:
    """Also in another process, after other histories, and without the bridge."""
    ran = [
        subprocess.run(
            [sys.executable, "-c", LOG],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert ran[0] == ran[1]
    first, other, again = ran[0]
    assert first == again != other
