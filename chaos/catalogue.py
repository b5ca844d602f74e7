"""All scenarios, in the order of the page."""

from __future__ import annotations

from importlib import import_module

from chaos import scenario

#: Modules with scenarios, in the order of the page.
_MODULES = [
    f"chaos.{name}"
    for name in (
        "collectors",
        "network",
        "processes",
        "spool_kills",
        "spooling",
        "forks",
        "long.million",
        "long.month",
    )
]

# A module puts its scenarios on the list when it is imported, which others may have done before.
for _module in _MODULES:
    import_module(_module)

SCENARIOS = {
    name: found
    for module in _MODULES
    for name, found in scenario.SCENARIOS.items()
    # A partial application knows its function, which has a module.
    if getattr(found.run, "func", found.run).__module__ == module
}
