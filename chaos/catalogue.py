"""All scenarios, in the order of the page."""

from __future__ import annotations

from chaos import collectors, processes, spooling  # noqa: F401 (they put themselves on the list)
from chaos.scenario import SCENARIOS

__all__ = ["SCENARIOS"]
