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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CellType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

from dask_otel.core.life.blocks import ENTERED, LEFT, TOPIC

if TYPE_CHECKING:
    import asyncio

    from distributed import Client

logger = logging.getLogger("dask_otel")

#: Messages that may wait while the scheduler does not answer; beyond, the oldest are forgotten.
WAITING: Final = 1000


@contextmanager
def span(*tags: str) -> Iterator[str]:
    """Tag the work submitted inside as one span, and tell the scheduler when it is over.

    A drop-in for ``distributed.span``. The block is one span from here to its end, however
    long it pauses between computations, and also where it does work of its own.

    Parameters
    ----------
    tags
        As for ``distributed.span``.

    Yields
    ------
    str
        The span's id.

    Notes
    -----
    The scheduler hears of it through the client that is current when the block is entered. It
    needs the bridge, too; without it, this is ``distributed.span`` and no more.
    """
    from distributed import span as dask_span

    with dask_span(*tags) as span_id:
        if _patch is not None:
            # Then it tells the scheduler itself.
            yield span_id
        else:
            with _told(span_id):
                yield span_id


@contextmanager
def _told(span_id: str) -> Iterator[None]:
    messenger = _current_messenger()
    if messenger is None:
        yield
        return
    messenger.tell(ENTERED, span_id)
    try:
        yield
    finally:
        messenger.tell(LEFT, span_id)


# -------------------------------------------------------------------------- the messages


class _Messenger:
    """Sends what happens to one client's blocks, in order, from the client's event loop."""

    def __init__(self, client: Client) -> None:
        self._client = ref(client)
        self._waiting: deque[tuple[str, str]] = deque(maxlen=WAITING)
        self._sending: asyncio.Task[None] | None = None

    def tell(self, what: str, span_id: str) -> None:
        """Have it sent; from any thread, without waiting."""
        with suppress(Exception):
            client = self._client()
            if client is not None and client.status == "running":
                self._waiting.append((what, span_id))
                client.loop.add_callback(self._wake)

    def _wake(self) -> None:
        # Here and not above, so that importing dask_otel imports nothing heavy.
        import asyncio

        if self._sending is None and self._waiting:
            self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        try:
            while self._waiting and (client := self._client()) is not None:
                blocks = [self._waiting.popleft() for _ in range(len(self._waiting))]
                message = {"client": client.id, "blocks": blocks}
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
    `contextlib.contextmanager`, which is exchanged.
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
        with dask_span(*tags) as span_id, _told(span_id):
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
    from distributed import span as dask_span

    try:
        index = dask_span.__code__.co_freevars.index("func")
        cell: CellType = dask_span.__closure__[index]
    except (AttributeError, ValueError, IndexError, TypeError):
        return None
    return cell if callable(cell.cell_contents) else None
