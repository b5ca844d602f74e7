"""Profiles as files of pprof, and back: the format of ``go tool pprof``, which many tools read.

The format is https://github.com/google/pprof/blob/main/proto/profile.proto; no package has it. Of
a stack, only the innermost frame has its current line; the others have the first line of their
function.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core.profiles.stacks import Frame, Stack
from dask_otel.core.protobuf import encoded_fields, varint

#: The end of the files' names.
SUFFIX: Final = "-profile.pb.gz"
#: Most bytes of a file, unpacked.
_MOST: Final = 256 * 2**20

#: A sample's labels of its span, in the order of `SpanStacks`.
_LABELS: Final = ("trace_id", "span_id", semconv.SPAN_ID, semconv.SPAN_NAME)


@dataclass
class SpanStacks:
    """The stacks of one span, with their microseconds."""

    #: Hex digits.
    trace_id: str
    span_id: str
    dask_id: str
    #: The full name.
    name: str
    stacks: Counter[Stack] = field(default_factory=Counter)


@dataclass
class Profile:
    """The stacks of a root span and of the spans below it.

    `about` has what else is known, as plain data; see docs/profiles.md. Before the root has ended,
    its start is that of its first message, and its seconds are unknown: 0.
    """

    about: dict[str, Any]
    start_ns: int = 0
    seconds: float = 0.0
    spans: list[SpanStacks] = field(default_factory=list)


def encoded(profile: Profile, breathe: Callable[[], object] = bool) -> bytes:
    """Return a profile as a file; `breathe` is called after each short step."""
    strings: dict[str, int] = {"": 0}
    functions: dict[tuple[str, str, int], int] = {}
    locations: dict[Frame, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    def pair(key: str, value: str) -> bytes:
        return encoded_fields((1, text(key)), (2, text(value)))

    wall = pair("wall", "nanoseconds")
    out = [(1, wall)]
    for span in profile.spans:
        values = (span.trace_id, span.span_id, span.dask_id, span.name)
        labels = [(3, pair(*one)) for one in zip(_LABELS, values, strict=True)]
        for (prefix, *frames), micros in (+span.stacks).items():
            numbers = [locations.setdefault(one, len(locations) + 1) for one in reversed(frames)]
            of_task = (3, pair(semconv.TASK_PREFIX, prefix.function))
            places, cost = b"".join(map(varint, numbers)), varint(1000 * micros)
            out.append((2, encoded_fields((1, places), (2, cost), *labels, of_task)))
            breathe()
    for (name, file, line, at), number in locations.items():
        its = functions.setdefault((name, file, line), len(functions) + 1)
        out.append((4, encoded_fields((1, number), (4, encoded_fields((1, its), (2, at or line))))))
        breathe()
    for (name, file, line), number in functions.items():
        out.append((5, encoded_fields((1, number), (2, text(name)), (4, text(file)), (5, line))))
        breathe()
    comment, period = text(json.dumps(profile.about)), profile.about.get("interval", 0.0)
    out += [(6, one.encode("utf-8", "replace")) for one in strings]
    times: list[tuple[int, int | bytes]] = [
        (9, profile.start_ns), (10, int(profile.seconds * 1e9)), (11, wall),
        (12, int(period * 1e9)), (13, comment),
    ]  # fmt: skip
    packer = zlib.compressobj(wbits=31)
    pieces = []
    for first in range(0, len(out), 500):
        pieces.append(packer.compress(encoded_fields(*out[first : first + 500])))
        breathe()
    return b"".join([*pieces, packer.compress(encoded_fields(*times)), packer.flush()])


def _numbers(data: Iterable[int]) -> Iterator[int]:
    """Yield numbers; bytes behind the last one stay in the iterator."""
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


def _fields(data: bytes) -> dict[int, list[Any]]:
    """Return the fields of a message by number."""
    found = defaultdict[int, list[Any]](list)
    left = iter(data)
    numbers = _numbers(left)
    for key in numbers:
        value = next(numbers, 0)
        found[key >> 3].append(bytes(islice(left, value)) if key & 7 == 2 else value)
    return found


def _last(data: bytes) -> dict[int, Any]:
    return {key: values[-1] for key, values in _fields(data).items()}


def decoded(data: bytes) -> Profile:
    """Return the profile in a file.

    Raises
    ------
    ValueError
        If it is none of ours.
    """
    try:
        unpacker = zlib.decompressobj(wbits=31)
        whole = _fields(unpacker.decompress(data, _MOST))
        if not unpacker.eof:
            raise ValueError("it is cut off, or too long")
        return _profile(whole)
    except (zlib.error, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is no profile of dask-otel ({error})") from error


def _profile(whole: dict[int, list[Any]]) -> Profile:
    texts = [one.decode() for one in whole[6]]
    functions = {
        one[1]: Frame(texts[one[2]], texts[one[4]], one[5]) for one in map(_last, whole[5])
    }
    locations = {one[1]: _last(one[4]) for one in map(_last, whole[4])}
    spans: dict[str, SpanStacks] = {}
    for sample in map(_fields, whole[2]):
        labels = {texts[one[1]]: texts[one[2]] for one in map(_last, sample[3])}
        places = [locations[number] for number in _numbers(sample[1][0])][::-1]
        stack = [Frame(labels[semconv.TASK_PREFIX]), *[functions[place[1]] for place in places]]
        if places:
            stack[-1] = stack[-1]._replace(at=places[-1][2])
        own = [labels[name] for name in _LABELS]
        span = spans.setdefault(own[1], SpanStacks(*own))
        (nanos,) = _numbers(sample[2][0])
        span.stacks[tuple(stack)] += nanos // 1000
    about = dict(json.loads(texts[whole[13][0]]))
    return Profile(about, whole[9][0], whole[10][0] / 1e9, [*spans.values()])
