"""The life of spans under random histories: whatever happens, what is exported is true."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant

from tests.limits import make_limits
from tests.unit.histories import Histories


class Forgetful(Histories):
    """The same with a memory for two exported spans only."""

    limits = make_limits(linger=2.0, settle_timeout=10.0, remember=2, trace_gap=100.0)

    @invariant()
    def memory_is_bounded(self) -> None:
        generations = self.sim.lifecycle.generations
        assert len(generations._exported) <= 2
        assert len(generations._traces) <= 2

    def check_continuation(self, first, before, after) -> None:
        # The one before may have been forgotten: then numbers are skipped, and the trace is new.
        assert after.identity.generation > before.identity.generation
        if after.identity.generation > before.identity.generation + 1:
            assert after.identity.trace_id != first.trace_id
            assert after.identity.parent_span_id is None
        assert after.identity.first == (first.trace_id, first.span_id)


# Deterministic, so that a red build is red for everybody; loosen both to hunt for more.
run = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestHistories = Histories.TestCase
TestHistories.settings = run
TestForgetful = Forgetful.TestCase
TestForgetful.settings = run
