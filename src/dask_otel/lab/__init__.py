"""Real Dask in simulated time: scheduler, workers, clients in one event loop whose clock jumps.

Nothing of Dask is imitated. Messages, heartbeats, stealing, queuing, retries, the state machines of
scheduler and workers are Dask's own code; only the clock, the threads that run tasks, and the wires
between the processes are ours. A history of minutes takes milliseconds, the same seed gives the
same history, and its times are exact: a busy machine changes nothing.

========== ==========================================================================
`clock`    machines, and the loop whose clock jumps
`threads`  threads in simulated time; one runs at a time
`patches`  Python's clocks, sleep, ids and waiting, for code on such machines
`wires`    messages between machines: latency, loss, broken connections
`executor` runs tasks on such threads, and knows when each thread ran
`cluster`  a cluster, and what can happen to it
========== ==========================================================================

`install` must be called before `distributed` is imported, since Dask binds Python's clocks by
name. It changes nothing for code outside of a simulation. A page on how to write a history is in
docs/laboratory.md.
"""

from __future__ import annotations

from dask_otel.lab.clock import Stuck
from dask_otel.lab.patches import install

__all__ = ["Stuck", "install"]
