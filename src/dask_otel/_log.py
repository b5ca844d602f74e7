"""The logger of the whole package, below Dask's, whose configuration of logging applies."""

from __future__ import annotations

import logging
from typing import Final

logger: Final = logging.getLogger("distributed.dask_otel")
