"""Asks the nanny of a lost worker how the process ended.

The scheduler learns it from nobody else, and the nanny sends it to nobody. But the nanny writes it
into its log, which Dask serves at the nanny's address: the scheduler restarts workers there.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any, Final

from distributed.core import rpc
from distributed.scheduler import Scheduler, WorkerState

from dask_otel import semconv

#: Most nannies that are asked at once: a lost machine has many, and none answers.
AT_ONCE: Final = 32
#: Seconds after which a nanny knows the end of its worker.
_MOMENT: Final = 0.5


async def add_exit_code(facts: dict[str, Any], scheduler: Scheduler, ws: WorkerState) -> None:
    """Set the exit code of a lost worker's process; negative for a signal, as in `subprocess`.

    It stays as it is if the nanny does not know it: it may be gone, too. Cancel it after a while.
    """
    with suppress(Exception):
        await asyncio.sleep(_MOMENT)
        async with rpc(ws.nanny, connection_args=scheduler.connection_args) as nanny:
            # The last ones; nannies of one process have one log.
            lines = await nanny.get_logs(n=200)
        end = rf"Worker process {ws.pid} (?:exited with status (\d+)|was killed by signal (\d+))"
        if found := re.search(end, "\n".join([text for _, text in lines])):
            facts[semconv.WORKER_EXIT_CODE] = int(found[1]) if found[1] else -int(found[2])
