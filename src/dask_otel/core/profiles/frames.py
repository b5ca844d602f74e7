"""Stacks of threads: noted quickly, as code; counted and named when they are sent."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Final, TypeAlias

from dask_otel.core.profiles.stacks import DEEPEST, LONGEST, Frame, Sampled, short_file

#: One for each frame that is looked at.
_DEPTHS: Final = range(DEEPEST)
#: Stands for the outer frames of a stack that is too deep.
DEEPER: Final = Frame("…")
#: Dask's own frames around the code of a task.
_AROUND: Final = "dask/_task_spec.py"
#: So many samples are counted at once, while caches are warm: together they take a fourth as long.
_AT_ONCE: Final = 64
#: A span, a prefix, and the current line.
_Place: TypeAlias = tuple[str, str, int | None]


class _Found:
    """A place, and the code of the frames there, from the innermost on; its samples and seconds."""

    __slots__ = ("codes", "place", "samples", "seconds")

    def __init__(self, place: _Place, codes: list[CodeType]) -> None:
        # The code must live: its address is the key.
        self.place, self.codes = place, codes
        self.samples, self.seconds = 0, 0.0


class Stacks:
    """Counts stacks by span, prefix and current line.

    `bases` are the addresses of the code that runs tasks; it is left out with all outside of it.
    """

    def __init__(self, bases: frozenset[int] = frozenset()) -> None:
        self._bases = bases
        #: Samples that are not counted yet.
        self._new: list[tuple[float, _Place, list[CodeType]]] = []
        self._found: dict[tuple[object, ...], _Found] = {}

    def add(self, span: str, prefix: str, frame: FrameType, seconds: float) -> None:
        """Count a sample that stands for some seconds, and keep no frame of it."""
        # The hot loop: checks are made when the stack is sent.
        codes = list[CodeType]()
        append, place = codes.append, (span, prefix, frame.f_lineno)
        for _ in _DEPTHS:
            append(frame.f_code)
            if (outer := frame.f_back) is None:
                break
            frame = outer
        self._new.append((seconds, place, codes))
        if len(self._new) >= _AT_ONCE:
            self._count()

    def _count(self) -> None:
        for seconds, place, codes in self._new:
            key = (place, *map(id, codes))
            found = self._found.get(key)
            if found is None:
                found = self._found[key] = _Found(place, codes)
            found.samples += 1
            found.seconds += seconds
        self._new.clear()

    def take(self) -> list[Sampled]:
        """Return what was counted since the last call."""
        self._count()
        taken, self._found = [*self._found.values()], {}
        codes = {id(code): code for one in taken for code in one.codes}
        # Each name is made once, not for each stack.
        frames = {address: _frame(code) for address, code in codes.items()}
        return [
            Sampled(one.place[0], self._stack(one, frames), one.samples, round(1e6 * one.seconds))
            for one in taken
        ]

    def _stack(self, found: _Found, frames: dict[int, Frame]) -> tuple[Frame, ...]:
        (_, prefix, line), addresses = found.place, [*map(id, found.codes)]
        bases = (addresses.index(one) for one in self._bases if one in addresses)
        base = min(bases, default=len(addresses))
        stack = [frames[one] for one in reversed(addresses[:base])]
        first = next((n for n, one in enumerate(stack) if one.file != _AROUND), 0)
        if stack:
            stack[-1] = stack[-1]._replace(at=line or 0)
        if base == DEEPEST:
            stack[first] = DEEPER
        return (Frame(prefix[:LONGEST]), *stack[first:])


def _frame(code: CodeType) -> Frame:
    name = getattr(code, "co_qualname", code.co_name)[:LONGEST]
    return Frame(name, short_file(code.co_filename), code.co_firstlineno)
