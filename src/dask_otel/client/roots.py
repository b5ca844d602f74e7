"""What this process knows of the traces of its Dask spans, before the scheduler decides.

The scheduler gives a root the trace of whoever submitted its first work. The first submission
of most roots comes from the process that made them, so what it carried tells what will be
decided, as far as it can be known here: not whether a bridge runs there, nor what its
``otel.propagation`` is.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from dask_otel.core import identity
from dask_otel.core.context import Traceparent


class Root:
    """The root of a tree of Dask spans, as long as anybody here holds on to it."""

    __slots__ = ("__weakref__", "caller", "dask_id", "ours", "submitted")

    def __init__(self, dask_id: str, caller: Traceparent | None, ours: bool) -> None:
        self.dask_id = dask_id
        #: Whether all that was submitted below it is known here.
        self.ours = ours
        #: Under whose span its first work was submitted; until then, its block entered.
        self.caller = caller
        #: Whether anything has been submitted, so that the above is the last word.
        self.submitted = False

    def trace_id(self, adopts: bool) -> int:
        """Return the trace that it will be in.

        Parameters
        ----------
        adopts
            Whether the scheduler takes up the trace of a caller.
        """
        if adopts and self.caller is not None:
            return self.caller.trace_id
        return identity.trace_id(self.dask_id)

    @property
    def may_be_adopted(self) -> bool:
        """Whether anything may have been submitted with a caller's context."""
        return not self.ours or (self.submitted and self.caller is not None)


class Roots:
    """The roots by Dask span id. Threads may share it."""

    def __init__(self) -> None:
        self._roots: WeakValueDictionary[str, Root] = WeakValueDictionary()
        #: Whether the caller's context travels with what is submitted.
        self.callers_travel = False

    def __bool__(self) -> bool:
        return len(self._roots) > 0

    def enter(self, dask_id: str, caller: Traceparent | None, ours: bool) -> Root:
        """Return the root with this id, which is made if it is new here.

        Parameters
        ----------
        dask_id
            Of the root.
        caller
            Under whose span the block is entered.
        ours
            Whether this very block makes the root.
        """
        root = self._roots.get(dask_id)
        if root is None:
            root = self._roots[dask_id] = Root(dask_id, caller, ours)
        return root

    def submitted(self, dask_id: str, caller: Traceparent | None) -> None:
        """Take note of a submission below a root: the first one decides."""
        root = self._roots.get(dask_id)
        if root is not None and not root.submitted:
            root.caller = caller
            root.submitted = True


#: Those of this process.
ROOTS = Roots()
