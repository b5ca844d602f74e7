"""A network before a server, which can be made to fail: a TCP proxy with a mode."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tests.backends.processes import bound

#: Seconds between two bytes of an answer that drips.
_DRIP = 1.0
_CHUNK = 65536
#: Closes a connection with a reset, as a process that is killed does.
_RESET = struct.pack("ii", 1, 0)


class Gate:
    """A fixed address before a server that may change; closed until it gets another mode.

    Modes: ``pass``; ``closed`` (connections are refused, open ones are reset); ``silent``
    (connections are accepted, and everything is swallowed); ``drip`` (requests pass, answers
    come one byte a second); ``cut`` (requests pass, and the connection breaks within the answer to
    the first one).

    Parameters
    ----------
    target
        Port of the server on this machine.
    taken
        Returns the number of requests that the server has taken: ``cut`` waits for one.
    """

    def __init__(self, target: int, taken: Callable[[], int] = lambda: 0) -> None:
        self.target = target
        #: What clients have sent, if it is to be recorded.
        self.heard: bytearray | None = None
        self._taken = taken
        self._mode = "closed"
        self._open: set[socket.socket] = set()
        self._forgotten: set[socket.socket] = set()
        self._listener = bound()
        self.port: int = self._listener.getsockname()[1]

    @property
    def mode(self) -> str:
        """How the network behaves now."""
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        before, self._mode = self._mode, mode
        if mode == "closed" != before:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            # Bound, and not listening: refused, and no other process gets the port.
            self._listener = bound(self.port)
        if mode == "closed" or before == "silent" != mode:
            # What was swallowed is lost.
            for connection in list(self._open):
                self._reset(connection)
        if before == "closed" != mode:
            self._listener.listen(64)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def forget(self) -> None:
        """Swallow what comes on the present connections; new ones are served."""
        self._forgotten |= self._open

    def close(self) -> None:
        """End everything."""
        self.mode = "closed"
        self._listener.close()

    def _reset(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.target), 5)
                except OSError:
                    self._reset(near)
                    continue
                far.settimeout(None)
                self._open |= {near, far}
                for pump in (self._requests, self._answers):
                    threading.Thread(target=self._run, args=(pump, near, far), daemon=True).start()

    def _run(
        self,
        pump: Callable[[socket.socket, socket.socket], None],
        near: socket.socket,
        far: socket.socket,
    ) -> None:
        with suppress(OSError):
            pump(near, far)
        for connection in (near, far):
            self._open.discard(connection)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _requests(self, near: socket.socket, far: socket.socket) -> None:
        while data := near.recv(_CHUNK):
            if self.heard is not None:
                self.heard += data
            if self._mode != "silent" and near not in self._forgotten:
                far.sendall(data)

    def _answers(self, near: socket.socket, far: socket.socket) -> None:
        before = self._taken()
        while data := far.recv(_CHUNK):
            if self._mode == "cut" and self._taken() > before:
                near.sendall(data[:10])
                self._reset(near)
                return
            while data and self._mode == "drip":
                near.sendall(data[:1])
                data = data[1:]
                time.sleep(_DRIP)
            if self._mode != "silent" and near not in self._forgotten:
                near.sendall(data)
