"""Stacks of threads, counted quickly: their code now, their names when they are sent."""

from __future__ import annotations

from array import array
from types import CodeType, FrameType
from typing import Final

from dask_otel.core.profiles.stacks import DEEPEST, LONGEST, Frame, Sampled, short_file

#: One for each frame that is looked at.
_DEPTHS: Final = range(DEEPEST)
#: Stands for the outer frames of a stack that is too deep.
DEEPER: Final = Frame("…")
#: Dask's own frames around the code of a task.
_AROUND: Final = "dask/_task_spec.py"


class _Found:
    """The code of a stack, the innermost one first; its samples and seconds."""

    __slots__ = ("codes", "samples", "seconds")

    def __init__(self, codes: list[CodeType]) -> None:
        # The code must live: its address is the key.
        self.codes = codes
        self.samples, self.seconds = 0, 0.0


class Stacks:
    """Counts stacks by span, prefix and current line.

    `bases` are the addresses of the code that runs tasks; it is left out with all outside of it.
    """

    def __init__(self, bases: frozenset[int] = frozenset()) -> None:
        self._bases = bases
        self._found: dict[tuple[str, str, int | None, bytes], _Found] = {}

    def add(self, span: str, prefix: str, frame: FrameType, seconds: float) -> None:
        """Count a sample that stands for some seconds, and keep no frame of it."""
        # The hot loop: checks are made when the stack is sent.
        codes = list[CodeType]()
        append, outer = codes.append, frame
        for _ in _DEPTHS:
            append(outer.f_code)
            if (above := outer.f_back) is None:
                break
            outer = above
        # Bytes are compared at once, where numbers would be looked up in memory one by one.
        key = (span, prefix, frame.f_lineno, array("Q", map(id, codes)).tobytes())
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _Found(codes)
        found.samples += 1
        found.seconds += seconds

    def take(self) -> list[Sampled]:
        """Return what was counted since the last call."""
        taken, self._found = self._found, {}
        return [
            Sampled(
                span, self._stack(prefix, line, one.codes), one.samples, round(1e6 * one.seconds)
            )
            for (span, prefix, line, _), one in taken.items()
        ]

    def _stack(self, prefix: str, line: int | None, codes: list[CodeType]) -> tuple[Frame, ...]:
        base = next((n for n, code in enumerate(codes) if id(code) in self._bases), len(codes))
        found = [
            Frame(getattr(code, "co_qualname", code.co_name)[:LONGEST],
                  short_file(code.co_filename), code.co_firstlineno)
            for code in reversed(codes[:base])
        ]  # fmt: skip
        first = next((n for n, one in enumerate(found) if one.file != _AROUND), 0)
        if found:
            found[-1] = found[-1]._replace(at=line or 0)
        if base == DEEPEST:
            found[first] = DEEPER
        return (Frame(prefix[:LONGEST]), *found[first:])
