"""What the command line knows of a command before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Command(NamedTuple):
    """The help texts and the arguments of a command."""

    #: For the list of commands, and before and after the command's own arguments.
    help: str
    description: str
    epilog: str
    #: Names of each argument, and its options for `argparse`.
    arguments: Mapping[str, Mapping[str, Any]]
