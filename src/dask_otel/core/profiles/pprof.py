"""Profiles as files of pprof, and back: the format of ``go tool pprof``, which many tools read.

The format is https://github.com/google/pprof/blob/main/proto/profile.proto; no package has it. Of
a stack, only the innermost frame has its current line; the others have the first line of their
function.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core.profiles.stacks import Frame
from dask_otel.core.profiles.tree import Node
from dask_otel.core.text import Sanitizer
from dask_otel.core.traces.redact import Redact, redacted_tags

#: The end of the files' names.
SUFFIX: Final = "-profile.pb.gz"
#: Most bytes of a file, unpacked.
_MOST: Final = 256 * 2**20

_TRACE, _SPAN = "trace_id", "span_id"
#: Of a profile: fields of the format, by number.
_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRING, _TIME, _DURATION = 1, 2, 4, 5, 6, 9, 10
_PERIOD_TYPE, _PERIOD, _COMMENT = 11, 12, 13


@dataclass
class SpanStacks:
    """The stacks of one span; the first frame of each is the task's prefix."""

    #: Hex digits.
    trace_id: str
    span_id: str
    dask_id: str
    #: The full name.
    name: str
    tree: Node = field(default_factory=Node)


@dataclass
class Profile:
    """The stacks of a root span and of the spans below it.

    `about` has what else is known, as plain data; see docs/profiles.md.
    """

    about: dict[str, Any]
    start_ns: int = 0
    seconds: float = 0.0
    spans: list[SpanStacks] = field(default_factory=list)


# ------------------------------------------------------------------------------- to bytes


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(key: int, value: int) -> bytes:
    return _varint(key << 3) + _varint(value)


def _block(key: int, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return _varint(key << 3 | 2) + _varint(len(data)) + data


def encoded(
    profile: Profile,
    breathe: Callable[[], object] = bool,
    redact: Redact | None = None,
) -> bytes:
    """Return a profile as a file.

    Parameters
    ----------
    profile
        Not changed.
    breathe
        Called after each short step.
    redact
        The operator's function for users' texts, called once for each; the names of spans are
        redacted already.
    """
    strings: dict[str, int] = {"": 0}
    shown: dict[tuple[str, str], int] = {}
    functions: dict[Frame, int] = {}
    locations: dict[tuple[Frame, int], int] = {}

    def string(value: str) -> int:
        return strings.setdefault(value, len(strings))

    def clean(name: str, value: str) -> int:
        key = name, value
        if key not in shown:
            # What it changes is counted with the span.
            (seen,) = redacted_tags(redact, (value,), Sanitizer(), name)
            shown[key] = string(str(seen))
        return shown[key]

    def label(key: str, value: int) -> bytes:
        return _block(3, _number(1, string(key)), _number(2, value))

    def unit(key: int, kind: str, its: str) -> bytes:
        return _block(key, _number(1, string(kind)), _number(2, string(its)))

    out = [unit(_TYPE, "samples", "count"), unit(_TYPE, "wall", "nanoseconds")]
    for span in profile.spans:
        own = [
            label(_TRACE, string(span.trace_id)),
            label(_SPAN, string(span.span_id)),
            label(semconv.SPAN_ID, string(span.dask_id)),
            label(semconv.SPAN_NAME, string(span.name)),
        ]
        for stack, line, cost in span.tree.stacks():
            # Without room even for its prefix, a sample has none.
            prefix, *frames = stack or (Frame(semconv.FOLDED),)
            places = [(frame, frame.line) for frame in frames[:-1]]
            places += [(frame, line) for frame in frames[-1:]]
            numbers = [_varint(locations.setdefault(one, len(locations) + 1)) for one in places]
            of_task = label(semconv.TASK_PREFIX, clean(semconv.TASK_PREFIX, prefix.function))
            values = _block(2, _varint(cost.samples), _varint(1000 * cost.micros))
            out.append(_block(_SAMPLE, _block(1, *numbers[::-1]), values, *own, of_task))
            breathe()
    for (frame, line), number in locations.items():
        function = functions.setdefault(frame, len(functions) + 1)
        at = _block(4, _number(1, function), _number(2, line))
        out.append(_block(_LOCATION, _number(1, number), at))
        breathe()
    for frame, number in functions.items():
        name = clean(semconv.CODE_FUNCTION_NAME, frame.function)
        file = clean(semconv.CODE_FILE_PATH, frame.file)
        parts = (_number(1, number), _number(2, name), _number(4, file), _number(5, frame.line))
        out.append(_block(_FUNCTION, *parts))
        breathe()
    about = string(json.dumps(profile.about))
    out += [
        _number(_TIME, profile.start_ns),
        _number(_DURATION, int(profile.seconds * 1e9)),
        unit(_PERIOD_TYPE, "wall", "nanoseconds"),
        _number(_PERIOD, int(profile.about.get("interval", 0.0) * 1e9)),
        _number(_COMMENT, about),
        *[_block(_STRING, one.encode("utf-8", "replace")) for one in strings],
    ]
    packer = zlib.compressobj(wbits=31)
    pieces = []
    for first in range(0, len(out), 500):
        pieces.append(packer.compress(b"".join(out[first : first + 500])))
        breathe()
    return b"".join([*pieces, packer.flush()])


# ------------------------------------------------------------------------------ from bytes


def _read(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: numbers, and blocks of bytes."""
    at = 0
    while at < len(data):
        key, at = _read(data, at)
        value, at = _read(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value  # type: ignore[assignment]
        elif key & 7:
            raise ValueError("a field of a type that profiles have not")
        yield key >> 3, value


def _message(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for key, value in _fields(data):
        found.setdefault(key, []).append(value)
    return found


def _numbers(values: list[Any]) -> Iterator[int]:
    for value in values:
        at = 0
        while isinstance(value, bytes) and at < len(value):
            one, at = _read(value, at)
            yield one
        if isinstance(value, int):
            yield value


def decoded(data: bytes) -> Profile:
    """Return the profile in a file.

    Raises
    ------
    ValueError
        If it is none of ours.
    """
    try:
        unpacker = zlib.decompressobj(wbits=31)
        whole = _message(unpacker.decompress(data, _MOST))
        if not unpacker.eof:
            raise ValueError("it is cut off, or too long")
        return _decoded(whole)
    except (zlib.error, LookupError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is no profile of dask-otel ({error})") from error


def _decoded(whole: dict[int, list[Any]]) -> Profile:
    strings = [one.decode() for one in whole[_STRING]]
    functions, locations = {}, {}
    for one in map(_message, whole.get(_FUNCTION, ())):
        first = one.get(5, [0])[0]
        functions[one[1][0]] = Frame(strings[one[2][0]], strings[one[4][0]], first)
    for one in map(_message, whole.get(_LOCATION, ())):
        at = _message(one[4][0])
        locations[one[1][0]] = functions[at[1][0]], at[2][0]
    spans: dict[str, SpanStacks] = {}
    for one in map(_message, whole.get(_SAMPLE, ())):
        labels = {strings[its[1][0]]: strings[its[2][0]] for its in map(_message, one.get(3, ()))}
        span = spans.setdefault(
            labels[_SPAN],
            SpanStacks(
                labels[_TRACE], labels[_SPAN], labels[semconv.SPAN_ID], labels[semconv.SPAN_NAME]
            ),
        )
        samples, nanos = _numbers(one[2])
        places = [locations[number] for number in _numbers(one.get(1, []))][::-1]
        frames = (Frame(labels[semconv.TASK_PREFIX]), *[frame for frame, _ in places])
        line = places[-1][1] if places else 0
        span.tree.add(frames, line, samples, nanos // 1000)
    about = json.loads(strings[whole[_COMMENT][0]])
    start, nanos = whole.get(_TIME, [0])[0], whole.get(_DURATION, [0])[0]
    return Profile(dict(about), start, nanos / 1e9, [*spans.values()])
