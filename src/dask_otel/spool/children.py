"""A forked child never closes the spool of its parent.

It has a copy of SQLite's connection, which believes to be in the middle of whatever the parent's
thread did at that moment. Python would close it at the child's end, and SQLite would roll back
what is not the child's. So the copy is never let go of.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from contextlib import suppress

try:
    import ctypes
except ImportError:  # some Pythons are built without it
    ctypes = None  # type: ignore[assignment]


class _Connection(sqlite3.Connection):
    """One that can be referred to weakly."""


_connections: weakref.WeakSet[_Connection] = weakref.WeakSet()


def connect(uri: str, timeout: float) -> sqlite3.Connection:
    """Return a connection of which forked children never close their copy.

    Parameters
    ----------
    uri
        Of the file.
    timeout
        Seconds to wait for others that are in the way.
    """
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=timeout, factory=_Connection
    )
    _connections.add(connection)
    return connection


def _after_fork() -> None:
    if ctypes is not None:
        for connection in list(_connections):
            with suppress(Exception):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
