"""The standard variables of this process, with the defaults in ``otel.environment``."""

from __future__ import annotations

import os
from collections.abc import Mapping


def environment_of(defaults: Mapping[str, str], win: bool = False) -> dict[str, str]:
    """Return the process's ``OTEL_*`` variables, with defaults for the others.

    A blank variable of the process counts as not set, as specified. With `win`, the defaults
    override the process's variables, which belong to an application.
    """
    own = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("OTEL_") and value.strip()
    }
    return {**own, **defaults} if win else {**defaults, **own}
