"""``python -m dask_otel``: the same as the console script ``dask-otel``."""

from __future__ import annotations

import sys

from dask_otel.cli import main

# The demo's worker processes import this module again: only the first process may run it.
if __name__ == "__main__":
    sys.exit(main())
