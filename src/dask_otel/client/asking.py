"""In the client: requests to the scheduler, whose version may be another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from distributed import Client

from dask_otel._wire import Refusal

_CLOSED: Final = "the client is closed: close it later"


def pending(client: Client) -> bool:
    """Return whether graphs may still be on their way, which a request overtakes."""
    return any(one.status == "pending" for one in list(client.futures.values()))


def answer(
    client: Client,
    function: str,
    request: Callable[..., Any],
    asynchronous: bool | None,
    **asked: Any,
) -> Any:
    """Return the answer to a public function's request, or an awaitable of it; see `ask`."""

    async def call() -> Any:
        return await ask(client, request, **asked)

    # Python's warning "… was never awaited" names it.
    call.__qualname__ = f"dask_otel.{function}"
    check_open(client)
    return client.sync(call, asynchronous=asynchronous)


def check_open(client: Client) -> None:
    """Raise a `RuntimeError` for a closed client: its event loop may have ended, too."""
    if client.status == "closed":
        raise RuntimeError(_CLOSED)


async def ask(client: Client, request: Callable[..., Any], **arguments: Any) -> Any:
    """Return the scheduler's answer to a request of `dask_otel._wire`.

    Raises
    ------
    RuntimeError
        If it refuses, its version is too old, or the client was closed.
    """
    if client.scheduler is None:
        raise RuntimeError(_CLOSED)
    try:
        answer = await client.run_on_scheduler(request, **arguments)
    except (ImportError, AttributeError) as error:
        message = f"to answer, the scheduler needs dask-otel, as new as here or newer ({error})"
        raise RuntimeError(message) from error
    if isinstance(answer, Refusal):
        raise answer.error()
    return answer
