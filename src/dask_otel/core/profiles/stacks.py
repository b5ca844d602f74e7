"""The stacks that a worker sampled: its messages to the scheduler, and how a thread reads them.

A message has the ids of its spans, so that the event loop can say which spans these are, and one
blob of bytes, which it does not read.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

#: The topic of workers' messages, and the fields of a message.
TOPIC: Final = "dask-otel-profiles"
BLOB: Final = "blob"
SPANS: Final = "spans"
SAMPLES: Final = "samples"
LEFT_OUT: Final = "left_out"
LAST: Final = "last"
#: Most bytes of a blob, packed and unpacked, and most frames of a stack.
MOST_BYTES: Final = 32_768
_UNPACKED: Final = 8 * 2**20
DEEPEST: Final = 128
#: Most characters of a name.
_LONGEST: Final = 200
#: The part of a file's path before the package, or before a module of Python's.
_ABOVE: Final = re.compile(r".*/(?:(?:site|dist)-packages|lib/python3\.\d+t?)/")


class Frame(NamedTuple):
    """A function, with the first line of its code."""

    function: str
    file: str = ""
    line: int = 0


class Stack(NamedTuple):
    """How often a stack was found, and for how many microseconds it stands."""

    #: The Dask id of the span.
    span: str
    prefix: str
    #: The outermost one first.
    frames: tuple[Frame, ...]
    #: The current line of the innermost frame.
    line: int
    samples: int
    micros: int

    @property
    def path(self) -> tuple[Frame, ...]:
        """Its frames below its prefix."""
        return (Frame(self.prefix), *self.frames)


#: Stands for the outer frames of a stack that is too deep.
DEEPER: Final = Frame("…")


def short_file(path: str) -> str:
    """Return a file's path from the package on, or its last two parts."""
    plain = path.replace("\\", "/")
    inside = _ABOVE.sub("", plain)
    return (inside if inside != plain else "/".join(plain.split("/")[-2:]))[-_LONGEST:]


def packed(stacks: Sequence[Stack]) -> Iterator[dict[str, Any]]:
    """Yield messages with all stacks, in their order; a stack that fits into none is left out."""
    spans: dict[str, int] = {}
    names: dict[str, int] = {}
    frames: dict[Frame, int] = {}
    rows = [
        [
            spans.setdefault(one.span, len(spans)),
            names.setdefault(one.prefix[:_LONGEST], len(names)),
            one.line,
            one.samples,
            one.micros,
            *[frames.setdefault(frame, len(frames)) for frame in one.frames],
        ]
        for one in stacks
    ]
    cut = [(frame.function[:_LONGEST], frame.file, frame.line) for frame in frames]
    blob = zlib.compress(json.dumps([[*names], cut, rows], separators=(",", ":")).encode(), 1)
    if len(blob) <= MOST_BYTES:
        yield {BLOB: blob, SPANS: [*spans], SAMPLES: sum(one.samples for one in stacks)}
    elif len(stacks) > 1:
        half = len(stacks) // 2
        yield from packed(stacks[:half])
        yield from packed(stacks[half:])


def unpacked(blob: bytes, spans: Sequence[str]) -> list[Stack]:
    """Return the stacks of a message.

    Raises
    ------
    ValueError, TypeError, LookupError
        If it is no message of a worker's: any client may send anything.
    """
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(blob, _UNPACKED)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof:
        raise ValueError("the blob is too long, or was cut off")
    names, table, rows = json.loads(data)
    frames = [Frame(str(function), str(file), int(line)) for function, file, line in table]
    found = []
    for span, prefix, line, samples, micros, *numbers in rows:
        if min(span, prefix, line, samples, micros, *numbers) < 0 or len(numbers) > DEEPEST + 1:
            raise ValueError("a negative number, or a stack that is too deep")
        stack = tuple([frames[number] for number in numbers])
        found.append(
            Stack(spans[span], str(names[prefix]), stack, int(line), int(samples), int(micros))
        )
    return found
