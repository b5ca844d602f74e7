"""All scenarios, in the order of the page."""

from __future__ import annotations

from importlib import import_module

from chaos.scenario import SCENARIOS

__all__ = ["SCENARIOS"]

# They put themselves on the list.
for _name in (
    "collectors",
    "network",
    "processes",
    "spool_kills",
    "spooling",
    "machine.forks",
    "machine.memory",
    "long.million",
    "long.month",
):
    import_module(f"chaos.{_name}")
