"""All scenarios, in the order of the page."""

from __future__ import annotations

from chaos import (  # noqa: F401 (they put themselves on the list)
    collectors,
    processes,
    spool_kills,
)
from chaos.scenario import SCENARIOS

__all__ = ["SCENARIOS"]
