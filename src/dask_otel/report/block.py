"""The block of a program that a report is about, among all that its cluster did."""

from __future__ import annotations

from dataclasses import replace

from dask_otel import semconv
from dask_otel.report.telemetry.model import Block, Session, subtree, tree_of


def within(session: Session, block: Block) -> Session:
    """Return a run with a block: its spans are a tree of their own, and marked if there are others.

    A run without the block's span has no work of it.
    """
    _, below = tree_of(session.spans)
    found = [one for one in session.of_type("span") if one.text(semconv.SPAN_ID) == block.span_id]
    name = found[0].full_name if found else block.name
    own = subtree(found, below)
    for span in own:
        span.attributes[semconv.SPAN_ROOT_ID] = block.span_id
        span.attributes[semconv.SPAN_ROOT_NAME] = name
        if len(own) < len(session.spans) and span.type == "span":
            span.mark = " (this block)"
    keys = frozenset(span.key for span in own)
    return replace(session, block=replace(block, name=name), own=keys)
