"""The directive ``command-line``: what each command of ``dask-otel`` says of itself.

So a page has every command that there is, with the options that it takes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING
from unittest.mock import patch

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from dask_otel import cli

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class CommandLine(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        return [self._section(name, parser) for name, parser in _commands(cli._parser())]

    def _section(self, name: str, parser: argparse.ArgumentParser) -> nodes.section:
        section = nodes.section(
            ids=[name.replace(" ", "-")], names=[name], classes=["command-line"]
        )
        # As wide as a page.
        with patch.dict(os.environ, {"COLUMNS": "92"}):
            text = parser.format_help()
        section += nodes.title("", "", nodes.literal("", f"dask-otel {name}"))
        section += nodes.literal_block(text, text, language="text")
        return section


def _commands(
    parser: argparse.ArgumentParser, before: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Return each command, and then those within it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in sorted(action.choices.items()):
                yield f"{before}{name}", command
                yield from _commands(command, f"{before}{name} ")
