"""A stretch of network before a server, that can be made to fail: a TCP proxy with a mode."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

#: Seconds between two bytes of an answer that drips.
_DRIP = 1.0
_CHUNK = 65536
#: Closes a connection with a reset, as a process that is killed does.
_RESET = struct.pack("ii", 1, 0)


class Gate:
    """A fixed address, whatever is behind it.

    Modes: ``pass``; ``closed`` (connection refused, and what was open is reset); ``silent``
    (connections are accepted, nothing is passed on or answered); ``hold`` (nothing is passed on
    while it lasts, and nothing gets lost); ``drip`` (requests get through,
    answers come one byte a second); ``drip-content`` (the same, after the head of an HTTP
    answer); ``cut`` (requests get through, and the connection breaks within the answer to the
    first one).

    Parameters
    ----------
    target
        Port of the server on this machine.
    taken
        How many requests the server has had so far: what ``cut`` goes by.
    """

    def __init__(self, target: int, taken: Callable[[], int]) -> None:
        self.target = target
        #: Connections that were accepted.
        self.connections = 0
        #: What was said to the server so far, for who wants to hear it.
        self.heard: bytearray | None = None
        self._taken = taken
        self._mode = "closed"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = self._bound(0)
        self.port: int = self._listener.getsockname()[1]

    @staticmethod
    def _bound(port: int) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", port))
        return made

    @property
    def mode(self) -> str:
        """What the network does now."""
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        before, self._mode = self._mode, mode
        if (before == "closed") == (mode == "closed"):
            if before == "silent":
                # What was swallowed can't be passed on any more.
                self._hang_up()
            return
        if mode == "closed":
            self._stop_listening()
            self._hang_up()
            # Bound, and not listening: refused, and nobody else gets the port.
            self._listener = self._bound(self.port)
        else:
            self._listener.listen(64)
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """End everything."""
        self._mode = "closed"
        self._stop_listening()
        self._hang_up()

    def _stop_listening(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _hang_up(self) -> None:
        with self._lock:
            connections, self._open = self._open, set()
        for connection in connections:
            self._reset(connection)

    @staticmethod
    def _reset(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                far = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                self._reset(near)
                continue
            far.settimeout(None)
            with self._lock:
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
            with self._lock:
                self._open.discard(connection)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _wait(self) -> None:
        while self._mode == "hold":
            time.sleep(0.02)

    def _requests(self, near: socket.socket, far: socket.socket) -> None:
        while data := near.recv(_CHUNK):
            self._wait()
            if self.heard is not None:
                self.heard += data
            if self._mode != "silent":
                far.sendall(data)

    def _answers(self, near: socket.socket, far: socket.socket) -> None:
        before = self._taken()
        while data := far.recv(_CHUNK):
            self._wait()
            if self._mode == "cut" and self._taken() > before:
                near.sendall(data[:10])
                self._reset(near)
                return
            if self._mode == "drip-content" and data.startswith(b"HTTP/"):
                head, end, data = data.partition(b"\r\n\r\n")
                near.sendall(head + end)
            while data and self._mode in ("drip", "drip-content"):
                near.sendall(data[:1])
                data = data[1:]
                time.sleep(_DRIP)
            if self._mode != "silent":
                near.sendall(data)
