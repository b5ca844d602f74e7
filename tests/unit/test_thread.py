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


def test_an_error_is_raised_as_it_is():
    error = LookupError("there is none")

    def fail() -> None:
        raise error

    with pytest.raises(LookupError) as raised:
        outcome(fail)
    assert raised.value is error


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, StopIteration]
)
def test_what_would_end_the_loop_or_be_lost_is_an_error_like_any_other(
    error: type[BaseException],
):
    def fail() -> None:
        raise error("of a constructor")

    with pytest.raises(RuntimeError, match=f"{error.__name__}.*of a constructor"):
        outcome(fail)
