"""A span as bytes, and back: compact JSON that is read by any version of Python.

What is read is not trusted: a damaged row is a ValueError, and never a record that would spoil a
whole request later.

JSON keeps all but a few things: tuples, which come back from arrays, as nothing else makes arrays;
whole numbers of thousands of digits, which Python refuses to write in decimal; and texts with lone
surrogates, which are written as UTF-8 would write them if they were allowed there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast

from dask_otel.core.context import Traceparent
from dask_otel.core.records import Attributes, AttributeValue, Event, Link, Origin, SpanRecord
from dask_otel.core.trace import Trace

_Kind: TypeAlias = Literal["server", "internal"]
_KINDS: Final = ("server", "internal")
#: The only key of an object that stands for a whole number, in hexadecimal.
_HUGE: Final = "x"
#: Bits of what OTLP has.
_TRACE_BITS: Final = 128
_SPAN_BITS: Final = 64
#: Arrays within arrays; the core makes none.
_DEEPEST: Final = 16


def encode(record: SpanRecord) -> bytes:
    """Return a record as bytes, without its origin.

    Raises
    ------
    TypeError, ValueError
        If it holds what is neither text nor number.
    """
    trace = record.trace_id
    body: dict[str, Any] = {
        "t": f"{trace:032x}",
        "s": f"{record.span_id:016x}",
        "n": record.name,
        "k": record.kind,
        "b": record.start_ns,
        "e": record.end_ns,
        "r": record.root_name,
    }
    if record.parent_span_id is not None:
        body["p"] = f"{record.parent_span_id:016x}"
    if record.remote_parent:
        body["f"] = True
    if record.error is not None:
        body["w"] = record.error
    if record.attributes:
        body["a"] = _plain(record.attributes)
    if record.events:
        body["v"] = [(event.name, event.time_ns, _plain(event[2])) for event in record.events]
    if record.links:
        body["l"] = [
            (f"{link.trace_id:032x}", f"{link.span_id:016x}", _plain(link.attributes))
            for link in record.links
        ]
    if isinstance(trace, Trace):
        if trace.state:
            body["z"] = trace.state
        if trace.caller is not None:
            caller = trace.caller
            body["c"] = (f"{caller.trace_id:032x}", f"{caller.span_id:016x}", caller.flags)
    return _to_bytes(body)


def decode(body: bytes, origin: Origin | None = None) -> SpanRecord:
    """Return the record that the bytes hold.

    Its trace is sampled: nothing else is kept.

    Raises
    ------
    ValueError
        If they are damaged.
    """
    try:
        return _record(_Reader(_from_bytes(body)), origin)
    except ValueError:
        raise
    except (TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"no span: {error!r}") from error


def encode_attributes(attributes: Mapping[str, Any]) -> bytes:
    """Return the attributes of a resource as bytes."""
    return _to_bytes(_plain(attributes))


def decode_attributes(body: bytes) -> dict[str, Any]:
    """Return what `encode_attributes` was given, with tuples for all sequences.

    Raises
    ------
    ValueError
        If it is damaged.
    """
    try:
        return dict(_attributes(_from_bytes(body)))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"no attributes: {error!r}") from error


def name_of(body: bytes) -> str:
    """Return the name of the span that the bytes hold, and nothing else of it.

    Raises
    ------
    ValueError
        If they are damaged.
    """
    return _Reader(_from_bytes(body)).text("n")


def whole(value: Any) -> int:
    """Return the number in a column of a row; 0 where it is damaged and something else."""
    return value if isinstance(value, int) else 0


# ----------------------------------------------------------------------------------- writing


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return attributes if type(attributes) is dict else dict(attributes)


def _to_bytes(body: Any) -> bytes:
    try:
        text = _dumps(body)
    except ValueError:
        # Python writes no number of more than 4300 digits in decimal.
        text = _dumps(_without_huge(body, 0))
    return text.encode("utf-8", "surrogatepass")


def _foreign(value: Any) -> int | float | str:
    """Return what a number or text of somebody else's type is: nothing else is expected here."""
    for convert in ("__index__", "__float__"):
        if hasattr(value, convert):
            return cast("int | float", getattr(value, convert)())
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    raise TypeError(f"{type(value).__name__} is neither text nor number")


_dumps: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), default=_foreign, check_circular=False
).encode


def _without_huge(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        small = value.bit_length() <= _TRACE_BITS
        return value if small else {_HUGE: hex(value)}
    if isinstance(value, dict):
        return {key: _without_huge(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_huge(item, depth + 1) for item in value]
    return value


# ----------------------------------------------------------------------------------- reading


def _from_bytes(body: bytes) -> Any:
    if not isinstance(body, bytes):
        raise ValueError("no bytes")
    try:
        return json.loads(body.decode("utf-8", "surrogatepass"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


class _Reader:
    """Takes typed parts out of an object; raises ValueError for any other."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise ValueError("no object")
        self._body = body

    def text(self, key: str) -> str:
        value = self._body.get(key)
        if not isinstance(value, str):
            raise ValueError(f"{key} is no text")
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if key in self._body else None

    def time(self, key: str) -> int:
        return _time(self._body.get(key))

    def identity(self, key: str, bits: int) -> int:
        return _identity(self._body.get(key), bits)

    def flag(self, key: str) -> bool:
        value = self._body.get(key, False)
        if not isinstance(value, bool):
            raise ValueError(f"{key} is no flag")
        return value

    def has(self, key: str) -> bool:
        return key in self._body

    def attributes(self, key: str) -> Attributes:
        return _attributes(self._body.get(key, {}))

    def items(self, key: str) -> list[Any]:
        value = self._body.get(key, [])
        if not isinstance(value, list):
            raise ValueError(f"{key} is no list")
        return value


def _record(read: _Reader, origin: Origin | None) -> SpanRecord:
    root_name = read.text("r")
    trace = Trace(read.identity("t", _TRACE_BITS), root_name)
    trace.sampled = True
    trace.state = read.optional_text("z") or ""
    if read.has("c"):
        trace_id, span_id, flags = read.items("c")
        caller = Traceparent(
            _identity(trace_id, _TRACE_BITS), _identity(span_id, _SPAN_BITS), _time(flags)
        )
        trace.caller = caller
    kind = read.text("k")
    if kind not in _KINDS:
        raise ValueError(f"no kind: {kind!r}")
    return SpanRecord(
        trace_id=trace,
        span_id=read.identity("s", _SPAN_BITS),
        parent_span_id=read.identity("p", _SPAN_BITS) if read.has("p") else None,
        name=read.text("n"),
        kind=cast("_Kind", kind),
        start_ns=read.time("b"),
        end_ns=read.time("e"),
        attributes=read.attributes("a"),
        events=tuple([_event(item) for item in read.items("v")]),
        links=tuple([_link(item) for item in read.items("l")]),
        error=read.optional_text("w"),
        root_name=root_name,
        remote_parent=read.flag("f"),
        origin=origin,
    )


def _event(item: Any) -> Event:
    name, time_ns, attributes = item
    if not isinstance(name, str):
        raise ValueError("an event's name is no text")
    return Event(name, _time(time_ns), _attributes(attributes))


def _link(item: Any) -> Link:
    trace_id, span_id, attributes = item
    return Link(
        _identity(trace_id, _TRACE_BITS), _identity(span_id, _SPAN_BITS), _attributes(attributes)
    )


def _identity(text: Any, bits: int) -> int:
    if not isinstance(text, str) or len(text) != bits // 4:
        raise ValueError("no id")
    number = int(text, 16)
    if number <= 0:
        # OpenTelemetry has no such id.
        raise ValueError("no id")
    return number


def _time(value: Any) -> int:
    # OTLP's times have 64 bits, and no encoder takes others.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**64:
        raise ValueError("no time")
    return value


def _attributes(found: Any) -> dict[str, AttributeValue]:
    if not isinstance(found, dict):
        raise ValueError("no attributes")
    return {key: _value(value, 0) for key, value in found.items()}


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, list) and depth < _DEEPEST:
        return tuple([_value(item, depth + 1) for item in value])
    if isinstance(value, dict) and value.keys() == {_HUGE} and isinstance(value[_HUGE], str):
        return int(value[_HUGE], 16)
    raise ValueError("no value of an attribute")
