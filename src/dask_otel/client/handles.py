"""In the client: a Dask span as its user holds it, with the way to its trace."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from dask_otel.client.roots import Root
from dask_otel.core import identity
from dask_otel.core.text import Sanitizer, span_path
from dask_otel.core.traces.link import anchor, fill, span_hex, trace_hex


class SpanHandle(str):
    """The id of a Dask span, as ``distributed.span`` yields it, and where its trace is.

    It is that text: it compares, hashes, formats and travels as it, and becomes plain text where
    it is pickled.

    Parameters
    ----------
    dask_id
        Dask's id.
    name
        Its tags and those of its ancestors, outermost first.
    root
        What is known of its root.

    Notes
    -----
    The trace is the scheduler's to decide, when the first work below the root reaches it. What
    is told here is what that decision will be, as far as this process can know it: the trace of
    the caller's span under which the first work was submitted (until then: the block entered), if
    contexts travel and ``otel.propagation`` is ``adopt`` here, too; else the one that follows from
    the root's id. `dask_otel.trace_context` asks the scheduler.
    """

    _name: tuple[Hashable, ...]
    _root: Root

    def __new__(cls, dask_id: str, name: tuple[Hashable, ...], root: Root) -> SpanHandle:
        """Return the text with what belongs to it."""
        handle = super().__new__(cls, dask_id)
        handle._name = name
        handle._root = root
        return handle

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Become plain text: nobody else needs this package to read it."""
        return str, (str(self),)

    def __copy__(self) -> SpanHandle:
        """Return itself, as text does."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SpanHandle:
        """Return itself, as text does."""
        return self

    @property
    def id(self) -> str:
        """Dask's id, plain text."""
        return str(self)

    @property
    def root_id(self) -> str:
        """Dask's id of the root of its tree."""
        return self._root.dask_id

    @property
    def trace_id(self) -> str:
        """The trace, 32 hex digits."""
        from dask_otel.settings.reading import setting

        return trace_hex(self._root.trace_id(setting("otel.propagation") == "adopt"))

    @property
    def span_id(self) -> str:
        """The OpenTelemetry span, 16 hex digits."""
        return span_hex(identity.span_id(str(self)))

    @property
    def url(self) -> str | None:
        """Where to look at it; None without a setting ``otel.trace-url``."""
        from dask_otel.settings.reading import setting

        return fill(setting("otel.trace-url"), self.trace_id, self.span_id)

    @property
    def may_be_adopted(self) -> bool:
        """Whether the scheduler may have put it into the trace of a caller."""
        return self._root.may_be_adopted

    def _repr_html_(self) -> str:
        url = self.url
        name = span_path(self._name, Sanitizer())
        if url is None:
            return f"{anchor(None, name)} <code>{anchor(None, str(self))}</code>"
        return anchor(url, name)
