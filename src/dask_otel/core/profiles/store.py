"""What workers have sampled, by root span and span, within limits: for the thread that writes it.

Each sample is either in the profile of its root, or counted as dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dask_otel import semconv
from dask_otel._version import __version__
from dask_otel.core.profiles.pprof import Profile, SpanStacks
from dask_otel.core.profiles.stacks import Frame, unpacked
from dask_otel.core.records import SpanIdentity
from dask_otel.core.text import Sanitizer
from dask_otel.core.traces.redact import Redact, redacted_name, redacted_tags

#: Most stacks of a span, and of all spans; a prefix is a stack, too, and so is a span.
MOST_OF_SPAN: Final = 5_000
MOST_IN_ALL: Final = 50_000
#: Seconds for which late samples are awaited after the end of a root.
GRACE: Final = 30.0
#: Most workers in the list of a root.
_MOST_CUT_OFF: Final = 20
#: Most frames of which a root knows the redaction; then it begins again.
_MOST_FRAMES: Final = 100_000
#: For redaction: the attributes of a frame's function and file.
_OF_PREFIX: Final = semconv.TASK_PREFIX, ""
_OF_CODE: Final = semconv.CODE_FUNCTION_NAME, semconv.CODE_FILE_PATH
#: Stands for stacks without room, even for their prefix.
_FOLDED: Final = (Frame(semconv.FOLDED),)


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
class RootProfile:
    """The samples of one root and of the spans below it."""

    root: SpanIdentity
    profile: Profile
    #: By Dask's id.
    spans: dict[str, SpanStacks] = field(default_factory=dict)
    #: Frames after redaction.
    frames: dict[tuple[str, Frame], Frame] = field(default_factory=dict)
    senders: set[str] = field(default_factory=set)
    ended: float | None = None
    #: Whether it differs from its file, and by how many samples.
    changed: bool = True
    unwritten: int = 0


def _ids(span: SpanIdentity) -> tuple[str, str]:
    return f"{span.trace_id:032x}", f"{span.span_id:016x}"


class Profiles:
    """All samples that wait for their file, by the id of the root's generation.

    `interval` are the seconds between two samples, `redact` is the operator's function for texts.
    """

    def __init__(
        self, interval: float, redact: Redact | None = None, room: int = MOST_IN_ALL
    ) -> None:
        self.roots: dict[int, RootProfile] = {}
        #: By Dask's id of a span: its root.
        self._of: dict[str, RootProfile] = {}
        self._interval, self._redact, self._room = interval, redact, room
        #: Samples that were dropped, by reason.
        self.dropped: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Profiles of {len(self.roots)} root spans, room for {self._room} stacks>"

    def take(self, item: Batch | CutOff | Ended, now: float) -> Iterator[None]:
        """Add what has come; each item is a short step."""
        match item:
            case Batch():
                yield from self._add(item, now)
            case CutOff(worker):
                known = any(worker in root.senders for root in self.roots.values())
                for root in self.roots.values():
                    cut_off = root.profile.about["cut_off"]
                    concerned = worker in root.senders or not known
                    if root.ended is None and concerned and len(cut_off) < _MOST_CUT_OFF:
                        cut_off.append(worker)
                        root.changed = True
            case Ended(identity):
                if (found := self.roots.get(identity.span_id)) is not None:
                    found.ended, found.changed = now, True
                    found.profile.about["complete"] = True

    def _add(self, batch: Batch, now: float) -> Iterator[None]:
        try:
            found = unpacked(batch.blob, batch.ids) if batch.blob else []
        except Exception:  # noqa: BLE001 - any client may send anything
            self.dropped["untranslatable"] += batch.samples
            found = []
        known = dict(zip(batch.ids, batch.spans, strict=True))
        for dask_id, frames, samples, micros in found:
            root = self._root_of(dask_id, known[dask_id], now)
            if isinstance(root, str):
                self.dropped[root] += samples
                continue
            prefix, *inner = frames
            stack = (
                self._shown(root, _OF_PREFIX, prefix),
                *[self._shown(root, _OF_CODE, frame) for frame in inner],
            )
            stacks = root.spans[dask_id].stacks
            before = len(stacks)
            if stack in stacks or min(self._room, MOST_OF_SPAN - before) > 0:
                # The place of later stacks without room.
                stacks[stack[:1]] += 0
            else:
                stack = stack[:1] if stack[:1] in stacks else _FOLDED
                root.profile.about["folded_seconds"] += micros / 1e6
            stacks[stack] += micros
            self._room -= len(stacks) - before
            root.changed, root.unwritten = True, root.unwritten + samples
            root.profile.seconds = now - root.profile.start_ns / 1e9
            root.senders.add(batch.worker)
            yield
        if batch.left_out:
            self.dropped["over_limit"] += batch.left_out
            for root in {id(one): one for one in map(self._of.get, batch.ids) if one}.values():
                root.profile.about["left_out"] += batch.left_out
                root.changed = True

    def _shown(self, root: RootProfile, names: tuple[str, str], frame: Frame) -> Frame:
        """Return a frame after redaction, equal ones as one object."""
        key = names[0], frame
        shown = root.frames.get(key)
        if shown is None:
            # What that changes is counted with the span.
            texts = [
                str(redacted_tags(self._redact, (text,), Sanitizer(), name)[0]) if text else ""
                for name, text in zip(names, frame, strict=False)
            ]
            if len(root.frames) >= _MOST_FRAMES:
                root.frames.clear()
            shown = root.frames[key] = Frame(texts[0], texts[1], frame.line, frame.at)
        return shown

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
            if found is None:
                found = self.roots[root.span_id] = RootProfile(root, self._begun(root, now))
            own = found.spans[dask_id] = SpanStacks(*_ids(span), dask_id, self._name(span))
            found.profile.spans.append(own)
        self._of[dask_id] = found
        return found

    def _begun(self, root: SpanIdentity, now: float) -> Profile:
        trace_id, span_id = _ids(root)
        about = {
            "made_by": f"dask-otel {__version__}",
            "root": self._name(root),
            "trace_id": trace_id,
            "span_id": span_id,
            "interval": self._interval,
            "complete": False,
            "folded_seconds": 0.0,
            "left_out": 0,
            "cut_off": [],
        }
        return Profile(about, int(now * 1e9))

    def _name(self, span: SpanIdentity) -> str:
        # What that changes is counted with the span.
        return redacted_name(self._redact, span.tags, Sanitizer())

    def seconds(self, span: SpanIdentity) -> tuple[SpanIdentity, float] | None:
        """Return the root of a span that was sampled, and its own seconds; None without samples."""
        root = self._of.get(span.dask_id)
        if root is None or root.spans[span.dask_id].span_id != _ids(span)[1]:
            return None
        return root.root, root.spans[span.dask_id].stacks.total() / 1e6

    def forget(self, now: float) -> None:
        """Forget the roots that ended long ago, and have been written."""
        for number, root in [*self.roots.items()]:
            if root.ended is not None and now - root.ended > GRACE and not root.changed:
                del self.roots[number]
                self._room += sum(1 + len(one.stacks) for one in root.spans.values())
                for dask_id in root.spans:
                    if self._of.get(dask_id) is root:
                        del self._of[dask_id]
