"""Samples the threads that run a worker's tasks, by span and prefix, for the scheduler.

Not Dask's own profiler: it has no span, and samples on the worker's event loop.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from itertools import islice
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from distributed import worker as dask_worker
from distributed.metrics import time

from dask_otel.core.events.lines import Rate
from dask_otel.core.profiles.frames import Found, walked
from dask_otel.core.profiles.stacks import (
    LAST,
    LEFT_OUT,
    SAMPLES,
    TOPIC,
    packed,
)

if TYPE_CHECKING:
    from distributed.worker import Worker
    from distributed.worker_state_machine import TaskState

#: Seconds after which samples are sent, so that a kill loses at most ten seconds of them; and after
#: which a span that runs no task is at its end here: then its samples are sent early, once a second
#: at most.
LONGEST: Final = 8.0
_QUIET: Final = 0.25
_EARLY: Final = (1.0, 3.0)
#: Most messages at once.
_MOST: Final = 4
#: Dask's functions below those that run a task; those of the supported releases that there are.
_BASES: Final = frozenset(
    id(getattr(dask_worker, name).__code__)
    for name in ("_run_task_simple", "_run_actor", "apply_function_simple", "apply_function_actor")
    if hasattr(dask_worker, name)
)


class Sampler:
    """Samples one worker, in a thread of its own, until `stop`.

    A sample stands for the time since the one before, for which its task ran: while C code holds
    the GIL, no other thread can take samples.
    """

    def __init__(self, worker: Worker, interval: float) -> None:
        self._worker = worker
        self._interval = interval
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        #: By span, prefix, current line and addresses of code.
        self._found: dict[tuple[Any, ...], Found] = {}
        #: By span of these: when it ran a task last.
        self._seen: dict[str, float] = {}
        #: When the last sample was, and the first of these.
        self._at = self._since = monotonic()
        self._early = Rate(*_EARLY)
        self._thread = threading.Thread(target=self._run, name="dask-otel-profiles", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Send the rest. Called on the worker's event loop."""
        self._stopped.set()
        self._send(last=True)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            # Dask goes on; the coverage shows the gap.
            with suppress(Exception):
                self._sample(monotonic())

    def _sample(self, now: float) -> None:
        """Count what the threads with tasks do, and send that if it is time."""
        took, self._at = now - self._at, now
        if running := dict(self._worker.active_threads):
            frames, tasks = sys._current_frames(), self._worker.state.tasks  # noqa: SLF001
            with self._lock:
                clock = time()
                for thread, key in running.items():
                    task, frame = tasks.get(key), frames.get(thread)
                    if task is not None and frame is not None and task.span_id is not None:
                        # A short task is found as rarely as it is short.
                        ran = max(self._interval, clock - (task.start_time or clock))
                        self._count(task, frame, now, min(took, ran))
            # They hold the user's variables.
            del frames
        if self._seen and (
            now - self._since >= LONGEST
            or (now - min(self._seen.values()) >= _QUIET and self._early.allows(now))
        ):
            self._send()

    def _count(self, task: TaskState, frame: FrameType, now: float, seconds: float) -> None:
        line, codes = walked(frame)
        key = (task.span_id, task.prefix, line, *map(id, codes))
        found = self._found.get(key)
        if found is None:
            if not self._found:
                self._since = now
            found = self._found[key] = Found(codes)
        found.add(seconds)
        self._seen[str(task.span_id)] = now

    def _send(self, last: bool = False) -> None:
        with self._lock:
            taken, self._found, self._seen = self._found, {}, {}
        stacks = [
            one.stack(span, prefix, line, _BASES) for (span, prefix, line, *_), one in taken.items()
        ]
        # If there are too many, the rarest are left out.
        stacks.sort(key=lambda one: -one.micros)
        messages = [*islice(packed(stacks), _MOST)] or [*packed([])]
        sent = sum(message[SAMPLES] for message in messages)
        messages[-1][LEFT_OUT] = sum(one.samples for one in stacks) - sent
        messages[-1][LAST] = last
        for message in messages:
            self._worker.log_event(TOPIC, message)
