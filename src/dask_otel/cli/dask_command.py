"""``dask otel …``: the command ``dask-otel`` as a part of Dask's own command line.

Dask imports this with each of its commands: nothing else is imported before it runs.
"""

from __future__ import annotations

import sys

import click


@click.command(
    "otel",
    # Options, --help among them, are for the command itself.
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="OpenTelemetry for Dask: a demo, reports, help with endpoints",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def otel(arguments: tuple[str, ...]) -> None:
    """Run dask-otel with the arguments as they are."""
    from dask_otel.cli import main

    sys.exit(main(arguments))
