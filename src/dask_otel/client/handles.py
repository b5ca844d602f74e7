"""In the client: the handle of a Dask span, which leads to its trace."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from dask_otel.client.roots import Root
from dask_otel.core import identity
from dask_otel.core.text import Sanitizer, span_path
from dask_otel.core.traces.address import anchor, fill


class SpanHandle(str):
    """The id of a Dask span, as ``distributed.span`` yields it, with its trace.

    It is a string: it compares, hashes and formats as the id, and is pickled as a plain string.

    Parameters
    ----------
    dask_id
        The Dask id.
    name
        Its tags and those of its ancestors, outermost first.
    root
        Its root.

    Notes
    -----
    The scheduler decides the trace when the first work below the root arrives. The handle predicts
    that decision from this process's knowledge. If contexts travel and ``otel.propagation`` is
    ``adopt`` here too, it is the trace of the caller's span at the first submission (before that,
    at the entry of the block); otherwise it is computed from the root's id.
    `dask_otel.trace_context` asks the scheduler.
    """

    _name: tuple[Hashable, ...]
    _root: Root

    def __new__(cls, dask_id: str, name: tuple[Hashable, ...], root: Root) -> SpanHandle:
        """Return the handle of a span."""
        handle = super().__new__(cls, dask_id)
        handle._name = name
        handle._root = root
        return handle

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle as a plain string, readable without this package."""
        return str, (str(self),)

    def __copy__(self) -> SpanHandle:
        """Return itself, as text does."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SpanHandle:
        """Return itself, as text does."""
        return self

    @property
    def id(self) -> str:
        """The Dask id as a plain string."""
        return str(self)

    @property
    def root_id(self) -> str:
        """The Dask id of its root."""
        return self._root.dask_id

    @property
    def trace_id(self) -> str:
        """The trace id, 32 hex digits."""
        from dask_otel.settings.reading import setting

        adopts = setting("otel.propagation") == "adopt"
        return f"{self._root.trace_id(adopts):032x}"

    @property
    def span_id(self) -> str:
        """The OpenTelemetry span id, 16 hex digits."""
        return f"{identity.span_id(str(self)):016x}"

    @property
    def url(self) -> str | None:
        """The address of its trace; None without the setting ``otel.trace-url``."""
        from dask_otel.settings.reading import setting

        return fill(setting("otel.trace-url"), self.trace_id, self.span_id)

    def _repr_html_(self) -> str:
        url = self.url
        name = span_path(self._name, Sanitizer())
        if url is None:
            return f"{anchor(None, name)} <code>{anchor(None, str(self))}</code>"
        return anchor(url, name)
