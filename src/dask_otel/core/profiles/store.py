"""What workers have sampled, by root span and span, within limits: for the thread that writes it.

Each sample is either in the profile of its root, or counted as dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
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
#: Most workers in the list of a root, and of those that are remembered.
_MOST_CUT_OFF, _MOST_GONE = 20, 1000
#: Most frames whose redaction is kept.
_MOST_FRAMES: Final = 20_000
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
    #: Of the messages before it that had no room, by the id of their root span.
    missed: Mapping[int, int] = {}

    @property
    def weight(self) -> int:
        """The bytes that it takes while it waits, about."""
        return len(self.blob) + 200


class CutOff(NamedTuple):
    """The last message of a worker has not come, and will not."""

    worker: str
    #: The ids of the root spans whose tasks it runs, if it still does.
    roots: frozenset[int] = frozenset()


class Ended(NamedTuple):
    """A root span has ended; its times are in seconds since the epoch."""

    root: SpanIdentity
    start: float
    stop: float
    #: The workers that ran its tasks.
    workers: frozenset[str]


@dataclass
class RootProfile:
    """The samples of one root and of the spans below it."""

    root: SpanIdentity
    profile: Profile
    senders: set[str] = field(default_factory=set)
    ended: float | None = None
    #: Whether it differs from its file, and by how many samples.
    changed: bool = True
    unwritten: int = 0


class Profiles:
    """All samples that wait for their file, by the id of the root's generation.

    `interval` are the seconds between two samples, `redact` is the operator's function for texts.
    """

    def __init__(
        self, interval: float, redact: Redact | None = None, room: int = MOST_IN_ALL
    ) -> None:
        self.roots: dict[int, RootProfile] = {}
        #: By Dask's id of a span: its latest generation, and the root of that.
        self._of: dict[str, tuple[SpanStacks, RootProfile]] = {}
        self._interval, self._redact, self._room = interval, redact, room
        #: Equal frames are one object.
        self._shown = lru_cache(_MOST_FRAMES)(self._redacted)
        #: The last workers that were cut off, and when.
        self._gone: dict[str, float] = {}
        #: Samples that were dropped, by reason.
        self.dropped: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Profiles of {len(self.roots)} root spans, room for {self._room} stacks>"

    def take(self, item: Batch | CutOff | Ended, now: float) -> Iterator[None]:
        """Add what has come; each item is a short step."""
        match item:
            case Batch():
                yield from self._add(item, now)
            case CutOff(worker, roots):
                self._gone = dict([*self._gone.items(), (worker, now)][-_MOST_GONE:])
                for number, root in self.roots.items():
                    if root.ended is None and (worker in root.senders or number in roots):
                        self._cut_off(root, {worker})
            case Ended(identity, start, stop, workers):
                if (found := self.roots.get(identity.span_id)) is not None:
                    # It may have sent nothing of this root before.
                    gone = {one for one, when in self._gone.items() if when >= start}
                    self._cut_off(found, gone & workers)
                    found.ended, found.changed = now, True
                    found.profile.about["complete"] = True
                    found.profile.start_ns = int(start * 1e9)
                    found.profile.seconds = stop - start

    @staticmethod
    def _cut_off(root: RootProfile, workers: set[str]) -> None:
        about = root.profile.about
        about["cut_off"] = [*dict.fromkeys([*about["cut_off"], *sorted(workers)])][:_MOST_CUT_OFF]
        root.changed = True

    def _add(self, batch: Batch, now: float) -> Iterator[None]:
        known = dict(zip(batch.ids, batch.spans, strict=True))
        try:
            found = unpacked(batch.blob, batch.ids)
        except Exception:  # noqa: BLE001 - any client may send anything
            self._leave_out(batch.samples, "untranslatable", known)
            found = []
        for dask_id, frames, samples, micros in found:
            place = self._place(dask_id, known[dask_id], now)
            if isinstance(place, str):
                self._leave_out(samples, place, {dask_id: known[dask_id]})
                continue
            stacks, root = place[0].stacks, place[1]
            prefix, *inner = frames
            stack = (
                self._shown(_OF_PREFIX, prefix),
                *[self._shown(_OF_CODE, frame) for frame in inner],
            )
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
            root.senders.add(batch.worker)
            yield
        if batch.left_out:
            self._leave_out(batch.left_out, "over_limit", known)
        self._missed(batch.missed)

    def _leave_out(
        self,
        samples: int,
        reason: str,
        spans: Mapping[str, tuple[SpanIdentity, SpanIdentity] | None],
    ) -> None:
        """Count samples that have no place, and say it in the profiles of their roots."""
        self.dropped[reason] += samples
        numbers = {
            pair[1].span_id if pair else self._of[one][1].root.span_id
            for one, pair in spans.items()
            if pair or one in self._of
        }
        self._missed(dict.fromkeys(numbers, samples))

    def _missed(self, samples: Mapping[int, int]) -> None:
        for number in samples.keys() & self.roots.keys():
            self.roots[number].profile.about["left_out"] += samples[number]
            self.roots[number].changed = True

    def _redacted(self, names: tuple[str, str], frame: Frame) -> Frame:
        function, file = (
            str(redacted_tags(self._redact, (text,), Sanitizer(), name)[0]) if text else ""
            for name, text in zip(names, (frame.function, frame.file), strict=True)
        )
        return frame._replace(function=function, file=file)

    def _place(
        self, dask_id: str, known: tuple[SpanIdentity, SpanIdentity] | None, now: float
    ) -> tuple[SpanStacks, RootProfile] | str:
        """Return where the stacks of a span are, or why they have no place."""
        place = self._of.get(dask_id)
        if known is None:
            return place or "late"
        span, root = known
        if place is not None and place[1].root.span_id == root.span_id:
            return place
        if self._room <= 0:
            return "over_limit"
        self._room -= 1
        found = self.roots.get(root.span_id)
        if found is None:
            about = {
                "made_by": f"dask-otel {__version__}",
                "root": self._name(root),
                "trace_id": f"{root.trace_id:032x}",
                "span_id": f"{root.span_id:016x}",
                "interval": self._interval,
                "complete": False,
                "folded_seconds": 0.0,
                "left_out": 0,
                "cut_off": [],
            }
            found = self.roots[root.span_id] = RootProfile(root, Profile(about, int(now * 1e9)))
        own = SpanStacks(f"{span.trace_id:032x}", f"{span.span_id:016x}", dask_id, self._name(span))
        found.profile.spans.append(own)
        self._of[dask_id] = own, found
        return own, found

    def _name(self, span: SpanIdentity) -> str:
        # What that changes is counted with the span.
        return redacted_name(self._redact, span.tags, Sanitizer())

    def seconds(self, span: SpanIdentity) -> tuple[SpanIdentity, float] | None:
        """Return the root of a span that was sampled, and its own seconds; None without samples."""
        own, root = self._of.get(span.dask_id, (None, None))
        if own is None or root is None or own.span_id != f"{span.span_id:016x}":
            return None
        return root.root, own.stacks.total() / 1e6

    def forget(self, now: float) -> None:
        """Forget the roots that ended long ago, and have been written."""
        for number, root in [*self.roots.items()]:
            if root.ended is not None and now - root.ended > GRACE and not root.changed:
                del self.roots[number]
                for one in root.profile.spans:
                    self._room += 1 + len(one.stacks)
                    if self._of.get(one.dask_id, (None,))[0] is one:
                        del self._of[one.dask_id]
