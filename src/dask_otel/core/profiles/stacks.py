"""Stacks, and the messages in which a worker sends them.

A message has the ids of its spans, so that the event loop can say which spans these are, and one
blob of bytes, which it does not read.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

#: The topic of workers' messages, and the fields of a message.
TOPIC: Final = "dask-otel-profiles"
BLOB: Final = "blob"
SPANS: Final = "spans"
SAMPLES: Final = "samples"
LEFT_OUT: Final = "left_out"
LAST: Final = "last"
#: Most bytes of a blob, packed and unpacked, and most frames of a stack below its prefix.
MOST_BYTES: Final = 32_768
_UNPACKED: Final = 8 * 2**20
_NO_STACKS: Final = zlib.compress(b"[[],[]]")
#: Most spans of a message.
MOST_SPANS: Final = 1000
DEEPEST: Final = 128
#: Most characters of a name.
LONGEST: Final = 200
#: The part of a file's path before the package, or before a module of Python's.
_ABOVE: Final = re.compile(r".*/(?:(?:site|dist)-packages|lib(?:64)?/python3\.\d+t?)/")


class Frame(NamedTuple):
    """A function."""

    function: str
    file: str = ""
    #: Its first line.
    line: int = 0
    #: Its current line, if it is the innermost one of its stack.
    at: int = 0


#: The prefix of a task, then the frames below it, the innermost one last.
Stack: TypeAlias = tuple[Frame, ...]


class Sampled(NamedTuple):
    """How often a stack was found, and for how many microseconds it stands."""

    #: The Dask id of the span.
    span: str
    stack: Stack
    samples: int
    micros: int


def short_file(path: str) -> str:
    """Return a file's path from the package on, or its last two parts."""
    plain = path.replace("\\", "/")
    inside = _ABOVE.sub("", plain)
    return (inside if inside != plain else "/".join(plain.split("/")[-2:]))[-LONGEST:]


def packed(found: Iterable[Sampled], most: int) -> list[dict[str, Any]]:
    """Return messages with stacks, the longest first, and one with the spans of the rest."""
    stacks = sorted(found, key=lambda one: -one.micros)
    sent = [*islice(_packed(stacks), most)]
    rest = stacks[sum(count for _, count in sent) :]
    messages = [message for message, _ in sent]
    return [*messages, _left_out(rest)] if rest or not messages else messages


def _left_out(stacks: Sequence[Sampled]) -> dict[str, Any]:
    spans = [*dict.fromkeys(one.span for one in stacks)][:MOST_SPANS]
    samples = sum(one.samples for one in stacks)
    return {BLOB: _NO_STACKS, SPANS: spans, SAMPLES: 0, LEFT_OUT: samples, LAST: False}


def _packed(stacks: Sequence[Sampled]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield messages, and of how many stacks they are."""
    spans: dict[str, int] = {}
    frames: dict[Frame, int] = {}
    rows = [
        [spans.setdefault(one.span, len(spans)), one.samples, one.micros,
         *[frames.setdefault(frame, len(frames)) for frame in one.stack]]
        for one in stacks
    ]  # fmt: skip
    blob = zlib.compress(json.dumps([[*frames], rows], separators=(",", ":")).encode(), 1)
    if len(blob) <= MOST_BYTES and len(spans) <= MOST_SPANS:
        samples = sum(one.samples for one in stacks)
        message = {BLOB: blob, SPANS: [*spans], SAMPLES: samples, LEFT_OUT: 0, LAST: False}
        yield message, len(stacks)
    elif len(stacks) > 1:
        half = len(stacks) // 2
        yield from _packed(stacks[:half])
        yield from _packed(stacks[half:])
    else:
        yield _left_out(stacks), 1


def unpacked(blob: bytes, spans: Sequence[str]) -> list[Sampled]:
    """Return the stacks of a message.

    Raises
    ------
    ValueError, TypeError, LookupError, zlib.error
        If it is no message of a worker's: any client may send anything.
    """
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(blob, _UNPACKED)
    if not unpacker.eof:
        raise ValueError("the blob is too long, or was cut off")
    table, rows = json.loads(data)
    frames = [Frame(str(name), str(file), int(line), int(at)) for name, file, line, at in table]
    found = []
    for span, samples, micros, *numbers in rows:
        if min(span, samples, micros, *numbers) < 0 or not 0 < len(numbers) <= DEEPEST + 1:
            raise ValueError("a negative number, or a stack that is empty or too deep")
        stack = tuple([frames[number] for number in numbers])
        found.append(Sampled(spans[span], stack, int(samples), int(micros)))
    return found
