"""The wires between machines: Dask's transport `lab://`.

A message arrives after the latency of its way, in the order of its connection. The connections of a
machine that is killed break, as those of a killed process do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any, Final

from distributed.comm.core import BaseListener, Comm, CommClosedError, Connector
from distributed.comm.registry import Backend, backends
from distributed.protocol.serialize import _nested_deserialize

from dask_otel.lab.clock import Loop, Machine, present

_END: Final = object()

#: Returns the seconds that a message takes; raises OSError if it is lost, as its sender sees it.
Latency = Callable[[Machine, Machine, Any], float]


class Wires:
    """All connections of one simulation."""

    def __init__(self, loop: Loop, latency: Latency) -> None:
        self.loop = loop
        self.latency = latency
        self.listeners: dict[str, Listener] = {}
        self.comms: dict[Machine, dict[Wire, None]] = {}

    def cut(self, machine: Machine) -> None:
        """Break all connections of a machine, and let it accept no more."""
        for comm in [*self.comms.pop(machine, {})]:
            comm.abort()
        for address, listener in [*self.listeners.items()]:
            if listener.machine is machine:
                del self.listeners[address]


#: Of the simulation that runs. There is one at a time in a process.
_current: list[Wires] = []


def use(wires: Wires | None) -> None:
    """Let connections be made by these wires, or by none."""
    _current[:] = [] if wires is None else [wires]


class Wire(Comm):  # type: ignore[misc]
    """One end of a connection."""

    _local_addr = _peer_addr = ""

    def __init__(self, wires: Wires, address: str, peer: str, deserialize: bool) -> None:
        super().__init__(deserialize=deserialize)
        self.machine = present()
        self.other: Wire
        self._wires = wires
        self._local_addr, self._peer_addr = address, peer
        self._came: deque[Any] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._closed = False
        #: The arrival of the last message that was sent.
        self._last = 0.0
        wires.comms.setdefault(self.machine, {})[self] = None

    local_address = property(lambda self: self._local_addr)
    peer_address = property(lambda self: self._peer_addr)
    same_host = True

    async def read(self, deserializers: Any = None) -> Any:
        """See ``Comm.read``."""
        if not self._came and not self._closed:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if self._closed or self._came[0] is _END:
            self._over()
            raise CommClosedError("the connection is closed")
        return _nested_deserialize(self._came.popleft(), self.deserialize)

    async def write(self, msg: Any, serializers: Any = None, on_error: Any = None) -> int:
        """See ``Comm.write``."""
        if self.closed():
            raise CommClosedError("the connection is closed")
        self._send(msg, self._wires.latency(self.machine, self.other.machine, msg))
        return 1

    def _send(self, message: Any, seconds: float) -> None:
        loop = self._wires.loop
        self._last = max(self._last, loop.time() + seconds)
        loop.call_at(self._last, self.other.arrive, message, context=Context())

    def arrive(self, message: Any) -> None:
        """Take a message from the wire."""
        if not self._closed:
            self._came.append(message)
            self._wake()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    async def close(self) -> None:
        """See ``Comm.close``."""
        self.abort()

    def abort(self) -> None:
        """See ``Comm.abort``: the other end hears of it."""
        if not self._closed:
            self._send(_END, self._wires.latency(self.machine, self.other.machine, None))
            self._over()
            self._wake()

    def _over(self) -> None:
        self._closed = True
        self._wires.comms.get(self.machine, {}).pop(self, None)

    def closed(self) -> bool:
        """See ``Comm.closed``."""
        return self._closed or (bool(self._came) and self._came[0] is _END)


class Listener(BaseListener):  # type: ignore[misc]
    """Where a server accepts connections."""

    prefix = "lab"

    def __init__(self, handle: Callable[[Comm], Awaitable[None]], deserialize: bool) -> None:
        super().__init__()
        self.machine = present()
        self.handle = handle
        self.deserialize = deserialize

    # The only server of a machine.
    listen_address = contact_address = property(lambda self: f"lab://{self.machine.name}")

    async def start(self) -> None:
        """See ``Listener.start``."""
        _current[0].listeners[self.listen_address] = self

    def stop(self) -> None:
        """See ``Listener.stop``."""
        for wires in _current:
            wires.listeners.pop(self.listen_address, None)

    async def accept(self, comm: Wire) -> None:
        """Serve a new connection. Runs on this machine."""
        try:
            await self.on_connection(comm)
        except CommClosedError:
            return
        await self.handle(comm)


class _Connector(Connector):  # type: ignore[misc]
    async def connect(self, address: str, deserialize: bool = True, **kwargs: Any) -> Comm:
        (wires,) = _current
        listener = wires.listeners.get(f"lab://{address}")
        if listener is None:
            raise OSError(f"nobody listens at lab://{address}")
        machine = listener.machine
        here = Wire(wires, "lab://", listener.listen_address, deserialize)
        there = machine.run(Wire, wires, listener.listen_address, "lab://", listener.deserialize)
        here.other, there.other = there, here
        machine.run(asyncio.ensure_future, listener.accept(there))
        return here


class _Backend(Backend):  # type: ignore[misc]
    def get_connector(self) -> Connector:
        return _Connector()

    def get_listener(
        self, loc: str, handle_comm: Any, deserialize: bool, **kwargs: Any
    ) -> Listener:
        return Listener(handle_comm, deserialize)

    def get_address_host(self, loc: str) -> str:
        return loc

    resolve_address = get_local_address_for = get_address_host


backends["lab"] = _Backend()
