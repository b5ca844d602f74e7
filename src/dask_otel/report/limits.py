"""The limits of the alerts, which are those of the report's advice.

The rules in ``deploy/prometheus/rules`` have the same numbers; a test compares them.
"""

from __future__ import annotations

from typing import Final

#: By alert, what its expression is compared with.
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

#: Thread-seconds, and bytes read, below which the alerts do not judge.
ENOUGH_SECONDS: Final = 60.0
ENOUGH_BYTES: Final = 1e9

#: What the addresses of the alerts' pages begin with.
RUNBOOKS: Final = "https://github.com/dask-otel/dask-otel/blob/main/docs/runbooks/"


def runbook(alert: str) -> str:
    """Return the address of an alert's page."""
    return f"{RUNBOOKS}{alert}.md"
