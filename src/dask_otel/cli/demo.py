"""``dask-otel demo``: its arguments and exit codes. The steps are in `showcase`."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dask_otel.cli.command import Command
from dask_otel.cli.terminal import Failed

#: The demo's dependencies besides the bridge's; dask.dataframe needs pandas and pyarrow.
_EXTRA: Final = ("rich", "numpy", "pandas", "pyarrow")

COMMAND: Final = Command(
    help="see traces and metrics of a real workflow within a minute",
    description="""\
Start a local Dask cluster with the bridge, run a workflow on it (dataframes, arrays, a
peer-to-peer shuffle), and show its trace and where its time went, as a backend receives them.
""",
    epilog="""\
If the standard variables name an OTLP endpoint (OTEL_EXPORTER_OTLP_ENDPOINT and so on), or
something listens at localhost:4317, the demo sends the telemetry there; otherwise it writes files
of OTLP/JSON. Jaeger's UI can open the traces (upload); the Collector reads traces and metrics
(otlp_json_file receiver).

exit codes: 0 all went well (with --fail: the workflow failed as it should), even if an endpoint
rejects the telemetry (a message says so); 1 a step failed; 2 wrong arguments; 130 interrupted
""",
    arguments={
        "--quick": {"action": "store_true", "help": "use only a little data"},
        "--fail": {
            "action": "store_true",
            "help": "put an impossible price into the data, to see what a failure looks like",
        },
        "--output": {
            "type": Path,
            "metavar": "DIR",
            "help": "write the files into DIR, even if the telemetry also goes to an endpoint"
            " (default: dask-otel-demo, without an endpoint)",
        },
    },
)


def run(arguments: argparse.Namespace) -> None:
    """Run the demo."""
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        raise Failed(f"the demo needs {names}; try: pip install 'dask-otel[demo]'")
    from dask_otel.cli import showcase

    showcase.perform(quick=arguments.quick, fail=arguments.fail, output=arguments.output)
