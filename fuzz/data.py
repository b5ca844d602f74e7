"""Make values of a fuzzer's bytes: usual ones, and hostile ones.

Without a fuzzer, for the tests, any bytes do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: Characters that have caused trouble anywhere: NUL, a lone surrogate, a pair of them, what turns
#: the direction of text, what ends a line for Python alone, a combining mark.
_CHARACTERS: Final = (
    "ab/\\ \t\n\r\0'\"<>&{}[]()=,;:%|~#@.-_09é\u0301\u202e\u2028\x85\ud800\udfff😀\ufffd"
)
#: Texts that mean something somewhere.
_WORDS: Final = (
    "", "_OTHER", "_EMPTY", "default", "execute", "seconds", "bytes", "compute", "p2p",
    "ValueError('x')", "KeyError(1)", "Traceback (most recent call last):\n", "  File \"a.py\"",
    "null", "true", "off", "nan", "inf", "-1", "1e999", "0x10", "١", "9" * 5000, "x" * 70000,
    "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01", "http://u:p@h:4317/x", "{trace_id}", "${A}",
)  # fmt: skip
_NUMBERS: Final = (
    0, 1, -1, 2**31, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400, 0.0, -0.0, 1e-320, 1.5, 1e308,
    math.nan, math.inf, -math.inf, 1_700_000_000.0, 1.7e18,
)  # fmt: skip


class Broken:
    """A user's object: hashable, and nothing else works."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class Pretender(str):
    """A text that lies about its type."""

    def __str__(self) -> str:
        return 7  # type: ignore[return-value]

    __slots__ = ()


class Data:
    """Values out of bytes. When these are used up, everything is 0, short, and ends."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes are not used yet."""
        return len(self._raw) - self._at

    def byte(self) -> int:
        """Return the next byte."""
        if self._at >= len(self._raw):
            return 0
        self._at += 1
        return self._raw[self._at - 1]

    def integer(self, least: int, most: int) -> int:
        """Return a whole number; both limits are possible."""
        span = most - least + 1
        value = self.byte() if span <= 256 else self.byte() << 8 | self.byte()
        return least + value % span

    def flag(self) -> bool:
        """Return one bit."""
        return bool(self.byte() & 1)

    def choice(self, options: Sequence[T]) -> T:
        """Return one of them."""
        return options[self.integer(0, len(options) - 1)]

    def many(self, make: Callable[[], T], most: int = 4) -> list[T]:
        """Return some of them."""
        return [make() for _ in range(self.integer(0, most))]

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        rest, self._at = self._raw[self._at :], len(self._raw)
        return rest

    # --------------------------------------------------------------------------------- values

    def text(self) -> str:
        """Return a text: one that means something, or one of characters that cause trouble."""
        kind = self.integer(0, 3)
        if kind == 0:
            return self.choice(_WORDS)
        if kind == 1:
            return self.choice(_WORDS) + self.choice(_CHARACTERS) + self.choice(_WORDS)
        return "".join(self.many(lambda: self.choice(_CHARACTERS), 12))

    def number(self) -> Any:
        """Return a number of any kind."""
        return self.choice(_NUMBERS) if self.flag() else self.integer(-30000, 30000) / 8

    def key(self, depth: int = 2) -> Any:
        """Return anything that is hashable."""
        kind = self.integer(0, 9)
        if kind <= 4:
            return self.text()
        if kind == 5:
            return self.number()
        if kind == 6 and depth:
            return tuple(self.many(lambda: self.key(depth - 1), 5))
        return self.choice((None, True, b"\xff\0", Broken(), Pretender("p"), frozenset({1}), "k"))

    def value(self, depth: int = 3) -> Any:
        """Return anything."""
        kind = self.integer(0, 5) if depth else 5
        if kind == 0:
            return self.many(lambda: self.value(depth - 1))
        if kind == 1:
            return {self.key(1): self.value(depth - 1) for _ in range(self.integer(0, 4))}
        return self.key(depth and 1)

    def plain(self, depth: int = 3) -> Any:
        """Return anything that JSON has."""
        kind = self.integer(0, 6) if depth else self.integer(2, 6)
        if kind == 0:
            return self.many(lambda: self.plain(depth - 1))
        if kind == 1:
            return {self.text(): self.plain(depth - 1) for _ in range(self.integer(0, 4))}
        if kind <= 3:
            return self.text()
        return self.number() if kind == 4 else self.choice((None, True, False, "1", 1))
