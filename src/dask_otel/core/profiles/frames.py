"""Stacks of threads, counted quickly: their code now, their names when they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType, CoroutineType, FrameType
from typing import Any, Final, NamedTuple

from dask_otel.core.profiles.stacks import DEEPEST, LONGEST, Frame, Sampled, short_file

#: Stands for the outer frames of a stack that is too deep.
DEEPER: Final = Frame("…")
#: Dask's own frames around the code of a task.
_AROUND: Final = "dask/_task_spec.py"
_DEPTHS: Final = range(DEEPEST)


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


class Stacks:
    """Counts stacks by span, prefix and current line.

    `bases` are the code that runs tasks, the usual one first; it is left out with all outside of
    it. So many frames are counted `at_once`: the stacks of a second, often.
    """

    def __init__(self, bases: Sequence[CodeType] = (), at_once: int = 4096) -> None:
        self._bases, self._usual = frozenset(map(id, bases)), next(iter(bases), None)
        self._at_once = at_once
        #: Samples to count: span and prefix, current line, seconds, and where in the list of codes
        #: its own begin, the innermost one first.
        self._samples: list[tuple[tuple[str, str], int, float, int]] = []
        self._codes: list[CodeType] = []
        #: Samples and seconds by span, prefix, current line, and the addresses of the codes, which
        #: live as long.
        self._found: dict[tuple[Any, ...], list[float]] = {}
        self._at: dict[int, CodeType] = {}

    def add(self, task: tuple[str, str], at: FrameType | Awaiting, seconds: float) -> None:
        """Count a sample of a task's span and prefix for some seconds, and keep no frame of it."""
        # The caches are cold after a pause: this only collects, and many are counted at once.
        codes, usual = self._codes, self._usual
        self._samples.append((task, at.f_lineno or 0, seconds, len(codes)))
        for _ in _DEPTHS:
            codes.append(code := at.f_code)
            if code is usual or (back := at.f_back) is None:
                break
            at = back
        if len(codes) >= self._at_once:
            self._count()

    def _count(self) -> None:
        samples, codes, self._samples, self._codes = self._samples, self._codes, [], []
        ids, last = [*map(id, codes)], len(codes)
        for task, line, seconds, first in reversed(samples):
            key = (*task, line, *ids[first:last])
            if (found := self._found.get(key)) is None:
                found = self._found[key] = [0, 0.0]
                self._at.update(zip(ids[first:last], codes[first:last], strict=True))
            found[0] += 1
            found[1] += seconds
            last = first

    def take(self) -> list[Sampled]:
        """Return what was counted since the last call."""
        self._count()
        taken, self._found, codes, self._at = self._found, {}, self._at, {}
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
                int(samples),
                round(1e6 * seconds),
            )
            for (span, prefix, line, *where), (samples, seconds) in taken.items()
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
