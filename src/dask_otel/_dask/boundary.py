"""What Dask's side needs of the error boundary, which is the scheduler's room's."""

from __future__ import annotations

from typing import Protocol


class Boundary(Protocol):
    """Where the bridge's own errors end."""

    def failed(self, kind: str) -> None:
        """Count the exception that is being handled, and log the first of its kind."""
