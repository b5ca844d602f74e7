"""Predicts the traces of this process's Dask spans before the scheduler decides.

A root gets the trace of the caller of its first submission. Most roots get that submission from
the process that made them, so this process knows the caller. It does not know whether a bridge
runs on the scheduler, or the bridge's ``otel.propagation``.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from dask_otel.core import identity
from dask_otel.core.context import Traceparent


class Root:
    """The root of a tree of Dask spans; exists while this process refers to it."""

    __slots__ = ("__weakref__", "caller", "dask_id", "submitted")

    def __init__(self, dask_id: str, caller: Traceparent | None) -> None:
        self.dask_id = dask_id
        #: The caller at its first submission; before that, at the entry of its block.
        self.caller = caller
        #: Whether work has been submitted, so that `caller` is final.
        self.submitted = False

    def trace_id(self, adopts: bool) -> int:
        """Return its expected trace; `adopts` is whether the scheduler adopts callers' traces."""
        if adopts and self.caller is not None:
            return self.caller.trace_id
        return identity.trace_id(self.dask_id)


class Roots:
    """Roots by Dask span id; thread-safe."""

    def __init__(self) -> None:
        #: Those to which anything refers.
        self.alive: WeakValueDictionary[str, Root] = WeakValueDictionary()
        #: Whether submissions carry the caller's context.
        self.callers_travel = False

    def enter(self, dask_id: str, caller: Traceparent | None) -> Root:
        """Return the root with this id, made if it is new here.

        `caller` is current where the block is entered.
        """
        return self.alive.setdefault(dask_id, Root(dask_id, caller))

    def submitted(self, dask_id: str, caller: Traceparent | None) -> None:
        """Record a submission below a root; the first one decides its caller."""
        root = self.alive.get(dask_id)
        if root is not None and not root.submitted:
            root.caller = caller
            root.submitted = True


#: The roots of this process.
ROOTS = Roots()
