"""Collects the facts from a scheduler and its workers, or from this process alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

import dask.config

from dask_otel._wire import examine
from dask_otel.scheduler.examination import process_facts, versions

Answer = TypeVar("Answer")

#: Most workers whose packages are read.
MOST: Final = 200
#: Seconds besides the scheduler's time for the test.
_MORE: Final = 40.0
#: Seconds for a connection, and for the workers' answers.
_CONNECT: Final = 10.0

#: Evaluated in processes that may lack this package and have any version of Python.
_INSTALLED: Final = (
    "{'installed': __import__('importlib.util').util.find_spec('dask_otel') is not None,"
    " 'version': next((d.version for d in"
    " __import__('importlib.metadata').metadata.distributions(name='dask-otel')), None)}"
)


class NotExamined(RuntimeError):
    """The scheduler could not be examined; the message has the reason."""


def here() -> dict[str, Any]:
    """Return the facts of this process, which may make graphs."""
    return {
        "versions": versions(),
        "fusion": dask.config.get("optimization.fuse.active", None),
    }


def facts_of_this_process(seconds: float) -> dict[str, Any]:
    """Return the facts of a scheduler that would start here."""
    return {
        "here": here(),
        "scheduler": None,
        "packages": None,
        "process": process_facts(None, {}, seconds),
    }


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Any]:
    """Yield a client of a scheduler.

    Raises
    ------
    NotExamined
        If no scheduler answers.
    """
    from distributed import Client
    from distributed.comm import resolve_address

    async with AsyncExitStack() as stack:
        try:
            # A client with an invalid address does not close cleanly.
            resolve_address(address)
            client = Client(
                address,
                asynchronous=True,
                timeout=_CONNECT,
                set_as_default=False,
                name="dask-otel",
            )
            # Also one that can't connect: else its collection would warn about coroutines that
            # nobody awaited.
            stack.push_async_callback(client.close, 2)
            # Dask sets no limit to the greetings of both sides: another server may say none.
            await asyncio.wait_for(client, _CONNECT + 1)
        except Exception as error:
            # Any error: an invalid address, no listener, TLS, another protocol.
            raise NotExamined(
                f"no scheduler answers at {address}: {_words(error)}.\nnext: Compare the address "
                'with "Scheduler at:" in the scheduler\'s log, and see whether its port is open '
                "from here, and whether both sides use TLS (distributed.comm.tls in Dask's "
                "configuration). Or run `dask-otel doctor` on the scheduler's machine, without "
                "--scheduler."
            ) from error
        yield client


async def facts_of_scheduler(address: str, seconds: float) -> dict[str, Any]:
    """Return the facts of a scheduler and its workers.

    `seconds` is the scheduler's longest wait for the endpoints' answers.

    Raises
    ------
    NotExamined
        If the scheduler cannot be examined.
    """
    async with connected(address) as client:
        scheduler = await answered(
            client.run_on_scheduler(eval, _INSTALLED), _CONNECT, "the scheduler does not answer"
        )
        try:
            workers: Any = await asyncio.wait_for(_workers(client), _CONNECT)
        except asyncio.TimeoutError:
            # One that hangs holds up the answers of all.
            workers = None
        process = (
            await answered(
                client.run_on_scheduler(examine, seconds=seconds),
                seconds + _MORE,
                f"the scheduler's dask-otel ({scheduler['version']}) could not be examined",
            )
            if scheduler["installed"]
            else None
        )
    return {
        "here": here(),
        "scheduler": address,
        "packages": {"scheduler": scheduler, "workers": workers},
        "process": process,
    }


async def _workers(client: Any) -> dict[str, Any]:
    """Return some workers' packages; None for a worker that failed."""
    addresses = sorted(await client.ncores())[:MOST]
    if not addresses:
        return {}
    answers = await client.run(eval, _INSTALLED, workers=addresses, on_error="return")
    return {
        address: answer if isinstance(answer, dict) else None for address, answer in answers.items()
    }


async def answered(question: Awaitable[Answer], seconds: float, otherwise: str) -> Answer:
    """Await a scheduler's answer.

    Raises
    ------
    NotExamined
        If it is late or an error; the message begins with `otherwise`.
    """
    try:
        return await asyncio.wait_for(question, seconds)
    except asyncio.TimeoutError as error:
        raise NotExamined(f"{otherwise} within {seconds:g} s") from error
    except Exception as error:
        # The client raises the remote exception unchanged.
        raise NotExamined(f"{otherwise}: {_words(error)}") from error


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0][:300]
