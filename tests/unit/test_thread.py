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
    thread = outcome(threading.current_thread)
    assert (thread.name, thread.daemon) == ("made by a test", True)


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (LookupError, LookupError, "of a constructor"),
        # What would end the loop or be lost is an error like any other.
        *(
            (error, RuntimeError, f"{error.__name__}.*of a constructor")
            for error in (
                *(SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError),
                StopIteration,
            )
        ),
    ],
)
def test_an_error_is_raised(error, raised, said):
    def fail() -> None:
        raise error("of a constructor")

    with pytest.raises(raised, match=said) as found:
        outcome(fail)
    assert type(found.value) is raised
