"""All scenarios, in the order of the page."""

from __future__ import annotations

# They put themselves on the list.
from chaos import collectors, network, processes, spool_kills, spooling  # noqa: F401
from chaos.scenario import SCENARIOS

__all__ = ["SCENARIOS"]
