"""A parent covers its children: what it says of its time holds for what is below it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def uncovered(spans: Iterable[Any]) -> list[str]:
    """Return which spans begin before their parents, or end after them.

    Parameters
    ----------
    spans
        Records of the core or received spans; parents that are not among them are not asked for.

    Notes
    -----
    A span that is late, or a continuation, came after its parent was exported. A sign of life tells
    of work until it was made: that the last task had ended just before, the scheduler hears later.
    What took no time is shown with a nanosecond, which may be one more than its parent has.
    """
    spans = list(spans)
    known = {(int(span.trace_id), span.span_id): span for span in spans}
    found = []
    for span in spans:
        parent = known.get((int(span.trace_id), _parent_of(span)))
        came_later = span.attributes.get("dask.span.generation", 1) > 1
        if parent is None or came_later or span.attributes.get("dask.span.late"):
            continue
        sign = span.attributes["dask.span.type"] == "progress"
        if span.start_ns < parent.start_ns or (span.end_ns > parent.end_ns + 1 and not sign):
            before, after = parent.start_ns - span.start_ns, span.end_ns - parent.end_ns
            found.append(
                f"{span.name}: {before / 1e9:f} s before {parent.name}, {after / 1e9:f} s after it"
            )
    return found


def _parent_of(span: Any) -> Any:
    return span.parent_id if hasattr(span, "parent_id") else span.parent_span_id
