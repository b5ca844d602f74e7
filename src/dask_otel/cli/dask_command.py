"""``dask otel …``: the command ``dask-otel`` as a subcommand of Dask's command line.

Dask imports this module with each of its commands, so it imports nothing else before it runs.
"""

from __future__ import annotations

import sys

import click


@click.command(
    "otel",
    # All options, even --help, are for the command itself.
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="OpenTelemetry for Dask: a demo, reports, help with endpoints",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def otel(arguments: tuple[str, ...]) -> None:
    """Run dask-otel with unchanged arguments."""
    from dask_otel.cli import main

    sys.exit(main(arguments))
