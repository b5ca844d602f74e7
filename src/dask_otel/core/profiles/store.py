"""What workers have sampled, by root span and span, within limits: for the thread that writes it.

Each sample is either in the profile of its root, or counted as dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dask_otel._version import __version__
from dask_otel.core.profiles.pprof import Profile, SpanStacks, encoded
from dask_otel.core.profiles.stacks import unpacked
from dask_otel.core.profiles.tree import Node
from dask_otel.core.records import SpanIdentity
from dask_otel.core.text import Sanitizer
from dask_otel.core.traces.redact import Redact, redacted_name

#: Most nodes of a span, and of all spans; a span is a node, too.
MOST_OF_SPAN: Final = 5_000
MOST_IN_ALL: Final = 100_000
#: Seconds for which late samples are awaited after the end of a root.
GRACE: Final = 30.0
#: Most workers in the list of a root.
_MOST_CUT_OFF: Final = 20


class Batch(NamedTuple):
    """A message of a worker's, with the open spans that it is about."""

    worker: str
    blob: bytes
    #: Dask's ids, and for each that is open the span and its root.
    ids: tuple[str, ...]
    spans: tuple[tuple[SpanIdentity, SpanIdentity] | None, ...]
    #: All samples of it, and those that the worker has left out.
    samples: int
    left_out: int


class CutOff(NamedTuple):
    """A worker has ended without its last message."""

    worker: str


class Ended(NamedTuple):
    """A root span has ended."""

    root: SpanIdentity


@dataclass
class _Stacks:
    identity: SpanIdentity
    tree: Node = field(default_factory=Node)
    nodes: int = 0
    micros: int = 0


@dataclass
class RootProfile:
    """The samples of one root and of the spans below it."""

    root: SpanIdentity
    #: When its first samples and its last ones came.
    since: float
    until: float
    spans: dict[str, _Stacks] = field(default_factory=dict)
    senders: set[str] = field(default_factory=set)
    cut_off: list[str] = field(default_factory=list)
    #: Microseconds without a frame of their own, and samples that a worker left out.
    folded: int = 0
    left_out: int = 0
    ended: float | None = None
    #: Whether it has changed since `taken`.
    changed: bool = True

    @property
    def samples(self) -> int:
        """The number of its samples."""
        return sum(one.tree.total().samples for one in self.spans.values())

    def profile(self, interval: float, redact: Redact | None = None) -> Profile:
        """Return it for a file, with the names of its spans redacted."""

        def name(identity: SpanIdentity) -> str:
            # What that changes is counted with the span.
            return redacted_name(redact, identity.tags, Sanitizer())

        about = {
            "made_by": f"dask-otel {__version__}",
            "root": name(self.root),
            "trace_id": f"{self.root.trace_id:032x}",
            "span_id": f"{self.root.span_id:016x}",
            "interval": interval,
            "complete": self.ended is not None,
            "folded_seconds": self.folded / 1e6,
            "left_out": self.left_out,
            "cut_off": self.cut_off,
        }
        spans = [
            SpanStacks(
                f"{one.identity.trace_id:032x}",
                f"{one.identity.span_id:016x}",
                one.identity.dask_id,
                name(one.identity),
                one.tree,
            )
            for one in self.spans.values()
        ]
        return Profile(about, int(self.since * 1e9), self.until - self.since, spans)


def file_of(
    root: RootProfile,
    breathe: Callable[[], object],
    interval: float,
    redact: Redact | None = None,
) -> bytes:
    """Return the content of the file of a root; see `encoded`."""
    return encoded(root.profile(interval, redact), breathe, redact)


class Profiles:
    """All samples that wait for their file, by the id of the root's generation."""

    def __init__(self, room: int = MOST_IN_ALL) -> None:
        self.roots: dict[int, RootProfile] = {}
        #: By Dask's id of a span: its root.
        self._of: dict[str, RootProfile] = {}
        self._room = room
        #: Samples that were dropped, by reason.
        self.dropped: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Profiles of {len(self.roots)} root spans, room for {self._room} nodes>"

    def take(self, item: Batch | CutOff | Ended, now: float) -> Iterator[None]:
        """Add what has come; each item is a short step."""
        match item:
            case Batch():
                yield from self._add(item, now)
            case CutOff(worker):
                known = any(worker in root.senders for root in self.roots.values())
                for root in self.roots.values():
                    concerned = worker in root.senders or not known
                    if root.ended is None and concerned and len(root.cut_off) < _MOST_CUT_OFF:
                        root.cut_off.append(worker)
                        root.changed = True
            case Ended(root):
                if (found := self.roots.get(root.span_id)) is not None:
                    found.ended, found.changed = now, True

    def _add(self, batch: Batch, now: float) -> Iterator[None]:
        try:
            stacks = unpacked(batch.blob, batch.ids) if batch.blob else []
        except Exception:  # noqa: BLE001 - any client may send anything
            self.dropped["untranslatable"] += batch.samples
            return
        known = dict(zip(batch.ids, batch.spans, strict=True))
        for stack in stacks:
            root = self._root_of(stack.span, known[stack.span], now)
            if isinstance(root, str):
                self.dropped[root] += stack.samples
                continue
            own = root.spans[stack.span]
            room = min(self._room, MOST_OF_SPAN - own.nodes)
            made, fits = own.tree.add(stack.path, stack.line, stack.samples, stack.micros, room)
            own.nodes += made
            self._room -= made
            own.micros += stack.micros
            root.folded += 0 if fits else stack.micros
            root.until, root.changed = now, True
            root.senders.add(batch.worker)
            yield
        if batch.left_out:
            self.dropped["over_limit"] += batch.left_out
            for root in {id(one): one for one in map(self._of.get, batch.ids) if one}.values():
                root.left_out, root.changed = root.left_out + batch.left_out, True

    def _root_of(
        self, dask_id: str, known: tuple[SpanIdentity, SpanIdentity] | None, now: float
    ) -> RootProfile | str:
        """Return the profile that has room for a span, or why there is none."""
        if known is None:
            return self._of.get(dask_id, "late")
        span, root = known
        found = self.roots.get(root.span_id)
        if found is None or dask_id not in found.spans:
            if self._room <= 0:
                return "over_limit"
            self._room -= 1
            found = self.roots.setdefault(root.span_id, RootProfile(root, now, now))
            found.spans[dask_id] = _Stacks(span, nodes=1)
        self._of[dask_id] = found
        return found

    def seconds(self, span: SpanIdentity) -> tuple[SpanIdentity, float] | None:
        """Return the root of a span that was sampled, and its own seconds; None without samples."""
        root = self._of.get(span.dask_id)
        own = None if root is None else root.spans.get(span.dask_id)
        if root is None or own is None or own.identity.span_id != span.span_id:
            return None
        return root.root, own.micros / 1e6

    def forget(self, now: float) -> Iterator[RootProfile]:
        """Forget the roots that ended long ago, and have been written; yield them."""
        for number, root in [*self.roots.items()]:
            if root.ended is not None and now - root.ended > GRACE and not root.changed:
                del self.roots[number]
                self._room += sum(one.nodes for one in root.spans.values())
                for dask_id in root.spans:
                    if self._of.get(dask_id) is root:
                        del self._of[dask_id]
                yield root
