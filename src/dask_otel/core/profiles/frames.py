"""The stack of a thread, read quickly: its code now, its names when it is sent."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Final

from dask_otel.core.profiles.stacks import DEEPER, DEEPEST, Frame, Stack, short_file

#: One for each frame that is looked at.
_DEPTHS: Final = range(DEEPEST + 1)
#: Dask's own frames around the code of a task.
_AROUND: Final = "dask/_task_spec.py"


class Found:
    """A stack: how often it was found, the seconds for which it stands, and its code."""

    __slots__ = ("codes", "samples", "seconds")

    def __init__(self, codes: list[CodeType]) -> None:
        # The code must live: its address is the key.
        self.codes = codes
        self.samples, self.seconds = 0, 0.0

    def add(self, seconds: float) -> None:
        """Count a sample that stands for some seconds."""
        self.samples += 1
        self.seconds += seconds

    def stack(
        self, span: str, prefix: str, line: int, bases: frozenset[int] = frozenset()
    ) -> Stack:
        """Return it for a message; see `frames_of`."""
        frames = frames_of(self.codes, bases)
        return Stack(span, prefix, frames, line, self.samples, round(1e6 * self.seconds))


def walked(frame: FrameType) -> tuple[int, list[CodeType]]:
    """Return the current line of a stack, and its code, the innermost one first."""
    # The hot loop: checks are made when the stack is sent.
    codes = list[CodeType]()
    append, outer = codes.append, frame
    for _ in _DEPTHS:
        append(outer.f_code)
        if (above := outer.f_back) is None:
            break
        outer = above
    return frame.f_lineno or 0, codes


def frames_of(codes: list[CodeType], bases: frozenset[int] = frozenset()) -> tuple[Frame, ...]:
    """Return the frames of a stack, the outermost one first, without Dask's around a task.

    `bases` are the addresses of the code that runs tasks; it is left out with all outside of it.
    """
    inner = codes[:DEEPEST]
    base = next((n for n, code in enumerate(inner) if id(code) in bases), len(inner))
    found = [
        Frame(getattr(code, "co_qualname", code.co_name), short_file(code.co_filename),
              code.co_firstlineno)
        for code in reversed(inner[:base])
    ]  # fmt: skip
    first = next((n for n, one in enumerate(found) if one.file != _AROUND), 0)
    is_cut = base == len(inner) < len(codes)
    return (DEEPER,) * is_cut + tuple(found[first:])
