"""In the client: notify the scheduler when the user's code enters and leaves a span's block.

A span then ends exactly with its block, and pauses inside it do not split it. `span`, a drop-in for
``distributed.span``, sends the messages. Dask has no hook for this: `dask.annotate`, which
``distributed.span`` calls, does not know which annotations belong to a span.

Nothing here waits for the network or raises into the user's code. A message that cannot be sent is
discarded, and the scheduler decides without it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from dask_otel._log import logger
from dask_otel.client.handles import SpanHandle
from dask_otel.client.roots import ROOTS
from dask_otel.core.attributes import RESERVED, bounded_attributes
from dask_otel.core.life.blocks import ATTRIBUTES, BLOCKS, CLIENT, ENTERED, LEFT, TOPIC

if TYPE_CHECKING:
    from distributed import Client

    from dask_otel.core.context import Traceparent
    from dask_otel.core.records import Attributes

#: Longest queue while the scheduler does not answer; beyond it, the oldest messages are discarded.
WAITING: Final = 1000


@contextmanager
def span(*tags: str, attributes: Mapping[str, Any] | None = None) -> Iterator[SpanHandle]:
    """Tag the work submitted inside as one span, and notify the scheduler when the block ends.

    A drop-in for ``distributed.span``. The whole block is one span, with all pauses between
    computations and with the work that it does locally.

    Parameters
    ----------
    tags
        As for ``distributed.span``.
    attributes
        Attributes of the OpenTelemetry span, the innermost one if there are several tags:
        strings, numbers, booleans, and lists of them, under your own keys (``dask.`` and
        ``otel.`` are reserved). At most 32, and 8192 characters together; the rest is omitted,
        with a warning. They do not become metric labels.

    Yields
    ------
    SpanHandle
        The span's id, the string that ``distributed.span`` yields, with ``id``, ``trace_id``,
        ``span_id`` and ``url``. A notebook shows it as a link.

    Notes
    -----
    The client that is current when the block begins notifies the scheduler. Without a bridge
    on the scheduler, this function is the same as ``distributed.span``.

    Examples
    --------
    >>> with dask_otel.span("etl", attributes={"tenant": "acme"}) as s:
    ...     client.submit(sum, [1, 2]).result()
    3
    >>> s.trace_id  # doctest: +ELLIPSIS
    '...'
    """
    from distributed.spans import span as dask_span

    with dask_span(*tags) as span_id:
        handle = _handle(span_id)
        client = _send(ENTERED, span_id)
        try:
            if attributes:
                _describe(span_id, attributes)
            yield handle
        finally:
            if client is not None:
                _send(LEFT, span_id, client)


def _handle(span_id: str) -> SpanHandle:
    # Imported here, so that importing this module does not import dask.
    import dask

    annotation = dask.get_annotations()["span"]
    parent: Traceparent | None = None
    if ROOTS.callers_travel:
        from dask_otel.client.carriers import current_parent

        with suppress(Exception):
            parent = current_parent()
    return SpanHandle(span_id, annotation["name"], ROOTS.enter(annotation["ids"][0], parent))


def _describe(span_id: str, attributes: Mapping[str, Any]) -> None:
    kept, left_out = bounded_attributes(attributes)
    if left_out:
        _warn_left_out(left_out)
    if kept:
        _send(kept, span_id)


@cache
def _warn_left_out(count: int) -> None:
    # Warn once for each count: one line of code often opens the same span many times.
    logger.warning(
        "dask-otel leaves out %d of the attributes given to a span: they are not valid attributes, "
        "too many or too large, or their keys are reserved (%s)",
        count,
        ", ".join(f"{namespace}*" for namespace in RESERVED),
    )


# -------------------------------------------------------------------------- the messages


class _Messenger:
    """The messages about one client's blocks, which its event loop sends in order."""

    def __init__(self) -> None:
        #: A span's attributes, or the event of its block.
        self.waiting: deque[tuple[str | Attributes, str]] = deque(maxlen=WAITING)
        self.sending = False

    async def send(self, client: Client) -> None:
        """Send the messages, unless another call is sending them."""
        if self.sending:
            return
        self.sending = True
        try:
            while self.waiting:
                entries = [self.waiting.popleft() for _ in range(len(self.waiting))]
                blocks = [entry for entry in entries if isinstance(entry[0], str)]
                described = {i: what for what, i in entries if not isinstance(what, str)}
                more = {ATTRIBUTES: described} if described else {}
                message = {CLIENT: client.id, BLOCKS: blocks, **more}
                await client.scheduler.log_event(topic=TOPIC, msg=message)
                if any(what == LEFT for what, _ in blocks):
                    # On the stream of the graphs, after all of them: see `dask_otel._dask.clients`.
                    client._heartbeat()
        except Exception:
            logger.debug("dask-otel could not notify the scheduler of a block", exc_info=True)
        finally:
            self.sending = False


_messengers: WeakKeyDictionary[Client, _Messenger] = WeakKeyDictionary()


def _send(what: str | Attributes, span_id: str, client: Client | None = None) -> Client | None:
    """Queue a message, from any thread, without waiting; return the client that will send it.

    By default it is the current client; None if there is none.
    """
    with suppress(Exception):
        from distributed import Client

        client = client or Client.current()
        messenger = _messengers.setdefault(client, _Messenger())
        if client.status == "running":
            messenger.waiting.append((what, span_id))
            client.loop.add_callback(messenger.send, client)
    return client
