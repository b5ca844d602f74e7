"""User code for the tests of trace context: it knows OpenTelemetry's API, and not the bridge.

Workers without the package must be able to import it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, NoReturn

from distributed import get_client, get_worker, rejoin, secede, worker_client
from opentelemetry import trace

#: Trace id, span id, flags; None without a current span.
Ids = tuple[int, int, int]


def current(*_: Any) -> Ids | None:
    """Return what is current here."""
    span = trace.get_current_span().get_span_context()
    return (span.trace_id, span.span_id, int(span.trace_flags)) if span.is_valid else None


def current_by_default() -> Ids | None:
    """Return what is current here, in a group of its own: Dask has one for each function."""
    return current()


def annotations() -> dict[str, Any]:
    """Return this task's annotations, as its worker has them."""
    worker = get_worker()
    return dict(worker.state.tasks[worker.get_current_task()].annotations)


async def current_async(*_: Any) -> Ids | None:
    """Return what is current in an async task."""
    return current()


def seceded() -> list[Ids | None]:
    """Return what is current after seceding, and after coming back."""
    secede()
    away = current()
    rejoin()
    return [away, current()]


def by_worker_client() -> list[Ids | None]:
    """Return what is current inside the block, in a task submitted there, and after it."""
    with worker_client() as client:
        inside = [current(), client.submit(current, "nested").result()]
    return [*inside, current()]


def by_get_client() -> list[Ids | None]:
    """Return what is current in a task that this one submits."""
    client = get_client()
    future = client.submit(current, "nested by get_client")
    secede()
    return [future.result(), current()]


def in_own_thread() -> Ids | None:
    """Return what is current in a thread that the user starts."""
    found: list[Ids | None] = []
    thread = threading.Thread(target=lambda: found.append(current()))
    thread.start()
    thread.join()
    return found[0]


def logs(message: str) -> None:
    """Log in a task."""
    logging.getLogger("user").warning(message)


async def logs_async(message: str) -> None:
    """Log in an async task."""
    logs(message)


def logs_and_fails(message: str) -> None:
    """Log, and make Dask log."""
    logs(message)
    raise ValueError(message)


def with_span_of_own() -> tuple[Ids | None, Ids | None, Ids | None]:
    """Return the parent and the ids of a span that the user's own provider makes, and after it."""
    from opentelemetry.sdk.trace import TracerProvider

    with TracerProvider().get_tracer("user").start_as_current_span("mine") as span:
        parent = span.parent
        inside = current()
    assert parent is not None
    assert parent.is_remote
    return (parent.trace_id, parent.span_id, int(parent.trace_flags)), inside, current()


def nap(seconds: float, *after: Any) -> float:
    """Sleep."""
    time.sleep(seconds)
    return seconds


def double(x: int) -> int:
    """Compute a little."""
    time.sleep(0.02)
    return 2 * x


def fail(x: int) -> int:
    """Raise."""
    time.sleep(0.1)
    raise KeyError(x)


def note(path: str) -> Exception:
    """Take the place of an exception's class when it is unpickled: write down where."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    return ValueError("unpickled")


class Trap(Exception):
    """Tells who unpickles it."""

    def __reduce__(self) -> Any:
        return note, (self.args[0],)


def be_trapped(path: str) -> NoReturn:
    """Fail with it."""
    raise Trap(path)


class Counter:
    """An actor."""

    def __init__(self) -> None:
        self.made = current()

    def when_made(self) -> Ids | None:
        """Return what was current in the constructor."""
        return self.made

    def sync(self) -> Ids | None:
        """Return what is current in a method."""
        return current()

    async def asynchronous(self) -> Ids | None:
        """Return what is current in an async method."""
        return current()

    def other(self, counter: Any) -> Ids | None:
        """Return what is current in the method of another actor."""
        found: Ids | None = counter.sync().result()
        return found

    def fails(self) -> None:
        """Raise."""
        raise ValueError("as asked")


def hooked(dask_worker: Any) -> dict[str, bool]:
    """Return which places of a worker have one hook, over Dask's own. Runs by `Client.run`."""
    own = dask_worker.handlers["actor_execute"]
    under = getattr(dask_worker.execute, "__wrapped__", None)
    return {
        "execute": getattr(under, "__func__", None) is type(dask_worker).execute,
        "actor_execute": getattr(own, "__self__", None) is not dask_worker,
        "submit": "submit" in vars(dask_worker.executors["actor"]),
    }


def name_of(dask_worker: Any) -> str:
    """Return the worker's name, for a client that has only its address."""
    return str(dask_worker.name)


def plugins(dask_worker: Any) -> list[str]:
    """Return the names of our plugins, and their kinds. Runs by `Client.run`."""
    return sorted(
        f"{name}: {type(plugin).__name__}"
        for name, plugin in dask_worker.plugins.items()
        if name.startswith("dask-otel")
    )


def nested_carrier() -> object:
    """Submit from a task; return the carrier that the scheduler got with it."""
    client = get_client()
    kept = client.submit(abs, -1, key="nested")
    kept.result()
    return client.run_on_scheduler(_carrier_of, key="nested")


def _carrier_of(key: str, dask_scheduler: Any) -> object:
    return (dask_scheduler.tasks[key].annotations or {}).get("dask_otel.context")
