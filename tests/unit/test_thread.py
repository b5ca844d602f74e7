"""A slow call in a thread: whatever it raises, whoever awaits it gets an answer."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dask_otel.pump.thread import apart


def outcome(make) -> object:
    async def awaited() -> object:
        return await asyncio.wait_for(asyncio.wrap_future(apart(make, "made by a test")), 60)

    return asyncio.run(awaited())


def test_the_answer_comes_from_a_daemon_thread():
    name, daemon = outcome(
        lambda: (threading.current_thread().name, threading.current_thread().daemon)
    )
    assert (name, daemon) == ("made by a test", True)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (LookupError, LookupError),
        # What would end the loop, or be lost.
        *((error, RuntimeError) for error in (SystemExit, KeyboardInterrupt, GeneratorExit)),
        (asyncio.CancelledError, RuntimeError),
        (StopIteration, RuntimeError),
    ],
)
def test_an_error_is_raised_as_it_is_or_as_an_error_like_any_other(
    error: type[BaseException], raised: type[BaseException]
):
    def fail() -> None:
        raise error("of a constructor")

    with pytest.raises(raised, match="of a constructor") as caught:
        outcome(fail)
    assert type(caught.value) is raised
    assert error is raised or error.__name__ in str(caught.value)
