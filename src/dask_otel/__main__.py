"""``python -m dask_otel``: the same as the console script ``dask-otel``."""

from __future__ import annotations

import sys

from dask_otel.cli import main

# Worker processes of the demo's cluster import this module again: only the first may run.
if __name__ == "__main__":
    sys.exit(main())
