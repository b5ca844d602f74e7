"""Stacks of threads, counted quickly: their code now, their names when they are sent."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any, Final

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
        # The code must live: its address is in the key.
        self.codes = codes
        self.samples, self.seconds = 0, 0.0


class Stacks:
    """Counts stacks by span, prefix and current line.

    `bases` are the addresses of the code that runs tasks; it is left out with all outside of it.
    """

    def __init__(self, bases: frozenset[int] = frozenset()) -> None:
        self._bases = bases
        #: By span, prefix, current line, and the addresses of the code.
        self._found: dict[tuple[Any, ...], _Found] = {}

    def add(self, span: str, prefix: str, frame: FrameType, seconds: float) -> None:
        """Count a sample that stands for some seconds, and keep no frame of it."""
        # The hot loop: checks are made when the stack is sent.
        codes = list[CodeType]()
        append, line = codes.append, frame.f_lineno
        for _ in _DEPTHS:
            append(frame.f_code)
            if (outer := frame.f_back) is None:
                break
            frame = outer
        key = (span, prefix, line, *map(id, codes))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _Found(codes)
        found.samples += 1
        found.seconds += seconds

    def take(self) -> list[Sampled]:
        """Return what was counted since the last call."""
        taken, self._found = self._found, {}
        codes = {id(code): code for one in taken.values() for code in one.codes}
        # Each name is made once, not for each stack.
        frames = {address: _frame(code) for address, code in codes.items()}
        return [
            Sampled(
                span,
                self._stack(prefix, line, where, frames),
                one.samples,
                round(1e6 * one.seconds),
            )
            for (span, prefix, line, *where), one in taken.items()
        ]

    def _stack(
        self, prefix: str, line: int | None, where: list[int], frames: dict[int, Frame]
    ) -> tuple[Frame, ...]:
        bases = (where.index(one) for one in self._bases if one in where)
        base = min(bases, default=len(where))
        stack = [frames[one] for one in reversed(where[:base])]
        first = next((n for n, one in enumerate(stack) if one.file != _AROUND), 0)
        if stack:
            stack[-1] = stack[-1]._replace(at=line or 0)
        if base == DEEPEST:
            stack[first] = DEEPER
        return (Frame(prefix[:LONGEST]), *stack[first:])


def _frame(code: CodeType) -> Frame:
    name = getattr(code, "co_qualname", code.co_name)[:LONGEST]
    return Frame(name, short_file(code.co_filename), code.co_firstlineno)
