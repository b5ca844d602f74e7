"""What the caller's context costs a submission, in the client.

The CPU time of the hook alone in µs: around a
method that does nothing, over that method unhooked, the least of many runs. A submission itself
takes a few hundred.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import dask
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import dask_otel
from benchmarks.results import least
from dask_otel.client import carriers
from dask_otel.client.hook import hook_submissions

CALLS = 5000
RUNS = 25


class Submitter:
    """A client whose submissions do nothing."""

    def _graph_to_futures(self, *args: Any, **kwargs: Any) -> None:
        pass

    def submit(self) -> None:
        """Submit, as ``Client.submit`` does."""
        self._graph_to_futures({}, [], span_metadata={})


def a_span(span_id: int) -> NonRecordingSpan:
    """Return a caller's span."""
    return NonRecordingSpan(SpanContext(0xABC, span_id, False, TraceFlags(1)))


def measure() -> dict[str, float]:
    """Return µs of CPU of the hook for each case."""
    client = Submitter()
    bare = least(client.submit, CALLS, RUNS)
    original = Submitter.__dict__["_graph_to_futures"]
    carriers.prepare()
    hook_submissions(Submitter, carriers.annotations_for)
    cases: dict[str, list[AbstractContextManager[Any]]] = {
        "no span": [nullcontext()],
        "no span, inside dask_otel.span": [dask_otel.span("block")],
        "a span": [use_span(a_span(1))],
        "a span, inside dask_otel.span": [use_span(a_span(1)), dask_otel.span("block")],
    }
    found = {}
    for name, contexts in cases.items():
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            found[name] = least(client.submit, CALLS, RUNS) - bare
    with dask.config.set({"otel.client.span-per-caller": True}), use_span(a_span(1)):
        one_more = Submitter()
        found["a span, and a Dask span for it"] = least(one_more.submit, CALLS, RUNS) - bare
    Submitter._graph_to_futures = original  # type: ignore[method-assign]
    return found
