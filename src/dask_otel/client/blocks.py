"""In the client: tell the scheduler when a ``with span()`` block is entered and left.

With that help a span ends exactly with its block, and pauses inside it do not split it. It is
given by `span`, a drop-in for ``distributed.span``, or, where the client loads the preload, by
``distributed.span`` itself.

Nothing here waits for the network or raises into the user's code: what cannot be sent is
forgotten, and the scheduler decides as it does without help.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from types import CellType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

from dask_otel.client.handles import SpanHandle
from dask_otel.client.roots import ROOTS
from dask_otel.core.attributes import RESERVED, bounded_attributes
from dask_otel.core.life.blocks import ATTRIBUTES, BLOCKS, CLIENT, ENTERED, LEFT, TOPIC

if TYPE_CHECKING:
    import asyncio

    from distributed import Client

    from dask_otel.core.context import Caller
    from dask_otel.core.records import Attributes

logger = logging.getLogger("distributed.dask_otel")

#: Messages that may wait while the scheduler does not answer; beyond, the oldest are forgotten.
WAITING: Final = 1000


@contextmanager
def span(*tags: str, attributes: Mapping[str, Any] | None = None) -> Iterator[SpanHandle]:
    """Tag the work submitted inside as one span, and tell the scheduler when it is over.

    A drop-in for ``distributed.span``. The block is one span from here to its end, however
    long it pauses between computations, and also where it does work of its own.

    Parameters
    ----------
    tags
        As for ``distributed.span``.
    attributes
        For the OpenTelemetry span, the innermost one if there are several tags: texts, numbers,
        booleans, and lists of them, under your own keys (``dask.`` and ``otel.`` are taken). At
        most 32, and 8192 characters together; what does not fit is left out, with a warning. They
        are no metric labels.

    Yields
    ------
    SpanHandle
        The span's id, the text that ``distributed.span`` yields, with ``id``, ``trace_id``,
        ``span_id`` and ``url``. A notebook shows it as a link.

    Notes
    -----
    The scheduler hears of it through the client that is current when the block is entered. It
    needs the bridge, too; without it, this is ``distributed.span`` and no more.

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
        handle = _handle(span_id, tags)
        # Where distributed.span is helped, it tells the scheduler itself.
        with nullcontext() if _patch is not None else _announced(span_id):
            if attributes:
                _describe(span_id, attributes)
            yield handle


def _handle(span_id: str, tags: tuple[str, ...]) -> SpanHandle:
    # Here and not above: dask is not imported with this module.
    import dask

    annotation = dask.get_annotations()["span"]
    caller: Caller | None = None
    if ROOTS.callers_travel:
        from dask_otel.client.carriers import current_caller

        with suppress(Exception):
            caller = current_caller()
    parent = None if caller is None else caller.parent
    ids = annotation["ids"]
    return SpanHandle(
        span_id, annotation["name"], ROOTS.enter(ids[0], parent, len(ids) == len(tags))
    )


def _describe(span_id: str, attributes: Mapping[str, Any]) -> None:
    kept, left_out = bounded_attributes(attributes)
    if left_out:
        _say_left_out(left_out)
    messenger = _current_messenger()
    if kept and messenger is not None:
        messenger.describe(span_id, kept)


@cache
def _say_left_out(count: int) -> None:
    # Once for each count: the same span is mostly opened by the same line, again and again.
    logger.warning(
        "dask-otel leaves out %d of the attributes given to a span: they are no attributes, too "
        "many or too large, or their keys are taken (%s)",
        count,
        ", ".join(f"{namespace}*" for namespace in RESERVED),
    )


@contextmanager
def _announced(span_id: str) -> Iterator[None]:
    messenger = _current_messenger()
    if messenger is None:
        yield
        return
    messenger.announce(ENTERED, span_id)
    try:
        yield
    finally:
        messenger.announce(LEFT, span_id)


# -------------------------------------------------------------------------- the messages


class _Messenger:
    """Sends what happens to one client's blocks, in order, from the client's event loop."""

    def __init__(self, client: Client) -> None:
        self._client = ref(client)
        #: What happened to which span, or the attributes of one.
        self._waiting: deque[tuple[str | Attributes, str]] = deque(maxlen=WAITING)
        self._sending: asyncio.Task[None] | None = None

    def announce(self, what: str, span_id: str) -> None:
        """Have it sent; from any thread, without waiting."""
        self._put((what, span_id))

    def describe(self, span_id: str, attributes: Attributes) -> None:
        """Have a span's attributes sent, in the same way."""
        self._put((attributes, span_id))

    def _put(self, entry: tuple[str | Attributes, str]) -> None:
        with suppress(Exception):
            client = self._client()
            if client is not None and client.status == "running":
                self._waiting.append(entry)
                client.loop.add_callback(self._wake)

    def _wake(self) -> None:
        # Here and not above, so that importing dask_otel imports nothing heavy.
        import asyncio

        if self._sending is None and self._waiting:
            self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        try:
            while self._waiting and (client := self._client()) is not None:
                entries = [self._waiting.popleft() for _ in range(len(self._waiting))]
                blocks = [entry for entry in entries if isinstance(entry[0], str)]
                message: dict[str, Any] = {CLIENT: client.id, BLOCKS: blocks}
                described = {i: what for what, i in entries if not isinstance(what, str)}
                if described:
                    message[ATTRIBUTES] = described
                await client.scheduler.log_event(topic=TOPIC, msg=message)
                if any(what == LEFT for what, _ in blocks):
                    # On the stream of the graphs, behind them all: see _dask_blocks.
                    client._heartbeat()
        except Exception:
            logger.debug("dask-otel could not tell the scheduler of a block", exc_info=True)
        finally:
            self._sending = None


_messengers: WeakKeyDictionary[Client, _Messenger] = WeakKeyDictionary()


def _current_messenger() -> _Messenger | None:
    """Return the current client's messenger; None without a client."""
    from distributed import Client

    try:
        client = Client.current()
        return _messengers.setdefault(client, _Messenger(client))
    except Exception:
        return None


# ------------------------------------------------------------- distributed.span itself


class _Patch:
    """``distributed.span`` with our help in it, for as long as any client wants it.

    ``from distributed import span`` may have run before, so the function itself is changed and
    not a name that refers to it: it is a generator function in the closure of
    `contextlib.contextmanager`, which is exchanged. A client's preload runs after the imports of
    its script: other names set in `distributed` would help none of those that most scripts use.
    """

    def __init__(self, cell: CellType) -> None:
        self.clients = 0
        self._cell = cell
        self._original: Callable[..., Any] = cell.cell_contents
        self._ours = _helping(self._original)
        cell.cell_contents = self._ours

    def undo(self) -> None:
        """Put the original back, unless somebody else has exchanged ours."""
        if self._cell.cell_contents is self._ours:
            self._cell.cell_contents = self._original


_patch: _Patch | None = None


def _helping(original: Callable[..., Any]) -> Callable[..., Any]:
    dask_span = contextmanager(original)

    def span(*tags: str) -> Iterator[str]:
        with dask_span(*tags) as span_id, _announced(span_id):
            yield span_id

    return span


def help_distributed_span() -> None:
    """Make ``distributed.span`` tell the scheduler of its blocks, in this process."""
    global _patch
    if _patch is None:
        cell = _generator_cell()
        if cell is None:
            logger.warning(
                "dask-otel cannot help distributed.span with this release of distributed; "
                "use dask_otel.span instead to have spans end with their blocks"
            )
            return
        _patch = _Patch(cell)
    _patch.clients += 1


def leave_distributed_span() -> None:
    """Undo one `help_distributed_span`; the last one puts the original back."""
    global _patch
    if _patch is not None:
        _patch.clients -= 1
        if not _patch.clients:
            _patch.undo()
            _patch = None


def _generator_cell() -> CellType | None:
    # Not from distributed itself, which may be in the middle of its import.
    from distributed.spans import span as dask_span

    try:
        index = dask_span.__code__.co_freevars.index("func")
        cell: CellType = dask_span.__closure__[index]
    except (AttributeError, ValueError, IndexError, TypeError):
        return None
    return cell if callable(cell.cell_contents) else None
