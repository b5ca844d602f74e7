"""Stacks of threads, counted quickly: their code now, their names when they are sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from types import CodeType, CoroutineType, FrameType
from typing import Any, Final, NamedTuple

from dask_otel.core.profiles.stacks import DEEPEST, LONGEST, Frame, Sampled, short_file

#: Stands for the outer frames of a stack that is too deep.
DEEPER: Final = Frame("…")
#: Dask's own frames around the code of a task.
_AROUND: Final = "dask/_task_spec.py"


class Awaiting(NamedTuple):
    """A frame of an asynchronous task, named as a thread's: while it waits, nothing links it."""

    f_code: CodeType
    f_lineno: int | None
    f_back: Awaiting | None


def innermost(coroutine: Any, on_loop: list[FrameType], base: CodeType | None) -> Awaiting | None:
    """Return the innermost frame of a coroutine, from `base` on; None if it has not called that.

    `on_loop` has the frames of its event loop's thread, the innermost one first: with the
    coroutine's if it runs now. If not, it is in the innermost of the coroutines that it awaits.
    """
    frames, outermost, found = list[FrameType](), getattr(coroutine, "cr_frame", None), None
    if outermost in on_loop:
        frames, coroutine = on_loop[on_loop.index(outermost) :: -1], None
    while isinstance(coroutine, CoroutineType) and (frame := coroutine.cr_frame) is not None:
        frames.append(frame)
        # Before Python 3.13, a running coroutine may not be asked for what it awaits.
        coroutine = None if coroutine.cr_running else coroutine.cr_await
    for frame in frames:
        if found is not None or frame.f_code is base:
            found = Awaiting(frame.f_code, frame.f_lineno, found)
    return found


class _Found:
    """The code of a task's stack, the innermost one first; samples and seconds by current line."""

    __slots__ = ("codes", "is_cut", "samples", "seconds", "task")

    def __init__(self, task: tuple[str, str], codes: list[CodeType], is_cut: bool) -> None:
        # The code must live: its address is in the key.
        self.task, self.codes, self.is_cut = task, codes, is_cut
        self.samples, self.seconds = defaultdict[int, int](int), defaultdict[int, float](float)

    def is_of(self, task: tuple[str, str], frame: FrameType | Awaiting) -> bool:
        """Whether a frame is the innermost one of this stack."""
        at = frame if self.task == task else None
        for code in self.codes:
            # Equal code may be of another file.
            if at is None or at.f_code is not code:
                return False
            at = at.f_back
        return at is None or self.is_cut


class Stacks:
    """Counts stacks by span, prefix and current line.

    `bases` are the code that runs tasks, the usual one first; it is left out with all outside of
    it.
    """

    def __init__(self, bases: Sequence[CodeType] = ()) -> None:
        self._bases, self._usual = frozenset(map(id, bases)), next(iter(bases), None)
        #: By span, prefix, and the addresses of the code.
        self._found: dict[tuple[Any, ...], _Found] = {}
        #: By thread, or asynchronous task: where it was found last, and most often is again. Frames
        #: are compared with it quicker than they are collected.
        self._last: dict[int | str, _Found] = {}

    def add(
        self,
        thread: int | str,
        task: tuple[str, str],
        frame: FrameType | Awaiting,
        seconds: float,
    ) -> None:
        """Count a sample of a task's span and prefix for some seconds, and keep no frame of it."""
        # The hot loop: checks are made when the stack is sent.
        line, found = frame.f_lineno or 0, self._last.get(thread)
        if found is None or not found.is_of(task, frame):
            found = self._last[thread] = self._of(task, frame)
        found.samples[line] += 1
        found.seconds[line] += seconds

    def _of(self, task: tuple[str, str], at: FrameType | Awaiting | None) -> _Found:
        codes, usual = list[CodeType](), self._usual
        while at is not None and len(codes) < DEEPEST:
            codes.append(code := at.f_code)
            at = None if code is usual else at.f_back
        key = (*task, *map(id, codes))
        if (found := self._found.get(key)) is None:
            # Of a task, or too deep.
            is_cut = codes[-1] is usual or len(codes) == DEEPEST
            found = self._found[key] = _Found(task, codes, is_cut)
        return found

    def take(self) -> list[Sampled]:
        """Return what was counted since the last call."""
        taken, self._found, self._last = self._found, {}, {}
        codes = {id(code): code for one in taken.values() for code in one.codes}
        # Each name is made once, not for each stack.
        frames = {
            address: Frame(
                getattr(code, "co_qualname", code.co_name)[:LONGEST],
                short_file(code.co_filename),
                code.co_firstlineno,
            )
            for address, code in codes.items()
        }
        return [
            Sampled(
                span,
                self._stack(prefix, line, where, frames),
                samples,
                round(1e6 * one.seconds[line]),
            )
            for (span, prefix, *where), one in taken.items()
            for line, samples in one.samples.items()
        ]

    def _stack(
        self, prefix: str, line: int, where: list[int], frames: dict[int, Frame]
    ) -> tuple[Frame, ...]:
        bases = (where.index(one) for one in self._bases if one in where)
        base = min(bases, default=len(where))
        stack = [frames[one] for one in reversed(where[:base])]
        first = next((n for n, one in enumerate(stack) if one.file != _AROUND), 0)
        if stack:
            stack[-1] = stack[-1]._replace(at=line)
        if base == DEEPEST:
            stack[first] = DEEPER
        return (Frame(prefix[:LONGEST]), *stack[first:])
