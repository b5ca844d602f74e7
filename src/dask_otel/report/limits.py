"""The limits of the alerts, which the report's advice uses too.

The rules in ``deploy/prometheus/rules`` have the same numbers; a test compares them.
"""

from __future__ import annotations

from typing import Final

#: The threshold of each alert's expression.
LIMITS: Final[dict[str, tuple[float, ...]]] = {
    "DaskClusterIdle": (0.5,),
    "DaskClusterUnused": (0.95,),
    "DaskTimeLost": (0.05,),
    "DaskEventLoopBlocked": (0.1, 0.1),
    "DaskNetworkSlow": (0.5, 0.25),
    "DaskSpanIdle": (0.5,),
    "DaskThreadsWait": (0.5,),
    "DaskSpilling": (0.1,),
    "DaskCacheMisses": (0.9,),
    "DaskWorkWasted": (0.1,),
    "DaskQueueLong": (300.0,),
    "DaskOtelDropping": (0.0,),
}

#: Fewest thread-seconds, and fewest bytes read, for the alerts.
ENOUGH_SECONDS: Final = 60.0
ENOUGH_BYTES: Final = 1e9

#: The common prefix of the addresses of the alerts' pages.
RUNBOOKS: Final = "https://dask-otel.readthedocs.io/en/stable/runbooks/"
