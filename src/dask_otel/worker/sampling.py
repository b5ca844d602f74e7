"""Samples a worker's tasks, by span and prefix, for the scheduler.

Not Dask's own profiler: it has no span, and samples on the worker's event loop.
"""

from __future__ import annotations

import sys
import threading
from time import monotonic, sleep
from typing import Any, Final

from distributed import worker as dask_worker
from distributed.metrics import thread_time, time
from distributed.worker import Worker

from dask_otel._dask.workers.asynchronous import add_asynchronous
from dask_otel._frames import reading_frames
from dask_otel.core.events.lines import Rate
from dask_otel.core.profiles.frames import Stacks
from dask_otel.core.profiles.stacks import LAST, TOPIC, packed

#: Seconds after which samples are sent, so that a kill loses at most ten seconds of them; and
#: between two looks: a span without a task between them is at its end here, and its samples are
#: sent early, once a second at most.
LONGEST: Final = 8.0
_QUIET: Final = 0.25
_EARLY: Final = (1.0, 3.0)
#: The part of a CPU that the thread may take. Where it needs more for a sample, it takes samples
#: less often, down to five a second: each stands for the time since the one before. So many of
#: them pay for one that takes long, such as one after which samples are sent.
_PART: Final = 0.005
_RARELY: Final = 0.2
_PAY: Final = 16
#: Most messages at once.
_MOST: Final = 4
#: Dask's functions below those that run a task: that of most tasks first; none if they are renamed.
_BASES: Final = tuple(
    getattr(dask_worker, name).__code__
    for name in ("_run_task_simple", "_run_task_async")
    if hasattr(dask_worker, name)
)
_NOTHING: Final = (None, None)


class Sampler:
    """Samples one worker, in a thread of its own, until `stop`.

    A sample stands for the time since the one before, for which its task ran: while C code holds
    the GIL, no other thread can take samples.
    """

    def __init__(self, worker: Worker, interval: float) -> None:
        self._worker = worker
        #: Least seconds between two samples, and those before the next one.
        self._interval = self._pause = interval
        #: Whether the worker has said good-bye.
        self._stopped = False
        self._stacks = Stacks(_BASES)
        #: By thread: the task that it ran in a sample since the last look, its span and its prefix.
        self._known: dict[Any, tuple[Any, tuple[str, str] | None]] = {}
        #: By span of samples that have not been sent: the look that follows its last task.
        self._seen: dict[str, float] = {}
        #: When the last sample was, the first one that has not been sent, and the next look is.
        self._at = self._since = self._look = monotonic()
        self._early = Rate(*_EARLY)
        #: The samples since the last look, the thread's clock then, and the mean cost of a sample.
        self._taken, self._spent, self._cost = 0, 0.0, 0.0

    def start(self) -> None:
        """Begin to sample."""
        threading.Thread(target=self._run, name="dask-otel-profiles", daemon=True).start()

    def stop(self) -> None:
        """Send the rest. Called on the worker's event loop."""
        self._stopped = True
        self._send(last=True)

    def _run(self) -> None:
        self._spent = thread_time()
        while not self._stopped:
            try:  # noqa: SIM105 - `suppress` takes a twentieth of a sample
                self._sample(monotonic())
            except Exception:
                # Dask goes on; the coverage shows the gap.
                pass
            # An event with a timeout takes twice as much of the CPU.
            sleep(self._pause)

    def _sample(self, now: float) -> None:
        """Count what the tasks do. The caches are cold: all that can wait is done at a look."""
        if now >= self._look:
            self._looks(now)
        self._taken += 1
        took, self._at = now - self._at, now
        running: dict[Any, Any] = self._worker.active_threads.copy()
        # They wait for their thread, are in another process, or run on the event loop.
        elsewhere = self._worker.active_keys.difference(running.values())
        if running or elsewhere:
            with reading_frames:
                frames: Any = sys._current_frames()  # noqa: SLF001
                if elsewhere:
                    add_asynchronous(self._worker, elsewhere, running, frames)
                for thread, key in running.items():
                    ran, (known, of) = took, self._known.get(thread, _NOTHING)
                    if known is not key:
                        of, ran = self._begun(key, took)
                        self._known[thread] = key, of
                    if of is not None and (frame := frames.get(thread)) is not None:
                        self._stacks.add(of, frame, ran)

    def _begun(self, key: Any, took: float) -> tuple[tuple[str, str] | None, float]:
        """Return the span and the prefix of a task, and for how long a first sample stands."""
        task = self._worker.state.tasks.get(key)
        if task is None or task.span_id is None:
            return None, 0.0
        if not self._seen:
            self._since = self._at
        self._seen[task.span_id] = self._look
        clock = time()
        # A short task is found as rarely as it is short.
        ran = max(self._pause, clock - (task.start_time or clock))
        return (task.span_id, task.prefix), min(took, ran)

    def _looks(self, now: float) -> None:
        """Adapt the pause to the cost of samples, and send them if it is time."""
        taken, self._taken, spent, self._spent = self._taken, 0, self._spent, thread_time()
        self._cost += (self._spent - spent - taken * self._cost) / max(_PAY, taken)
        self._pause = max(self._interval, min(_RARELY, self._cost / _PART))
        look, self._look, self._known = self._look, now + _QUIET, {}
        if self._seen and (
            now - self._since >= LONGEST
            or (min(self._seen.values()) < look and self._early.allows(now))
        ):
            self._send()

    def _send(self, last: bool = False) -> None:
        with reading_frames:
            found, self._seen = self._stacks.take(), {}
        messages = packed(found, _MOST)
        messages[-1][LAST] = last
        for message in messages:
            self._worker.log_event(TOPIC, message)
