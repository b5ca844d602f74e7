"""The message of an exception, as Python would print it.

Dask sends the ``repr`` of an exception and its traceback without the last line. Everything else
needs unpickling, which would run the user's code here. If the ``repr`` of a built-in exception
has exactly one string, that string is the message. The ``repr`` of any other exception stays.
"""

from __future__ import annotations

import builtins
import re
from ast import literal_eval
from typing import Final

from dask_otel import semconv
from dask_otel.core.records import Failure
from dask_otel.core.text import ATTRIBUTE_LIMIT, Sanitizer, attribute_text, plain_text

#: The type before the arguments or the message in an exception's text: ``pkg.mod.Err`` in
#: ``pkg.mod.Err('x')``. Other texts have no type.
_TYPE_NAME: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*(?=\(|:|$)")

_BUILT_IN: Final = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)
_ESCAPE: Final = r"\\(?:[\\'\"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
#: One string that is not empty, as ``repr`` writes it.
_ONE_STRING: Final = re.compile(
    rf"""(?P<type>\w+)\((?P<string>'(?:[^'\\\n]|{_ESCAPE})+'|"(?:[^"\\\n]|{_ESCAPE})+")\)"""
)
#: Characters of a text to search for a string. Dask truncates exceptions at 10,000.
_LONGEST: Final = 65536
_HEADER: Final = "Traceback (most recent call last):\n"


def error_type(failure: Failure, sanitizer: Sanitizer) -> str:
    """Return the type of a failure.

    A scheduler's decision has its own type; otherwise it is the leading dotted name of the
    exception's text, or `semconv.FOLDED` if there is none.
    """
    if failure.scheduler_error:
        return attribute_text(failure.scheduler_error, sanitizer)
    text = failure.text
    if not isinstance(text, str):
        return semconv.FOLDED
    # A type's name is short, so megabytes of message need not be searched.
    found = _TYPE_NAME.match(text[:ATTRIBUTE_LIMIT].strip())
    return attribute_text(found[0], sanitizer) if found else semconv.FOLDED


def built_in_message(text: object) -> str | None:
    """Return the message of a built-in exception, from its ``repr``; None if unknown."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        return None
    found = _ONE_STRING.fullmatch(text)
    if found is None or found["type"] not in _BUILT_IN:
        return None
    # Python prints the repr of a KeyError's key, with quotes.
    return found["string"] if found["type"] == "KeyError" else str(literal_eval(found["string"]))


def last_line(failure: Failure, message: str | None, sanitizer: Sanitizer) -> str:
    """Return the last line of a traceback: type and message; only the type without `message`."""
    kind = error_type(failure, sanitizer)
    if message is None:
        return "" if kind == semconv.FOLDED else kind
    # A repr already begins with the type, if it has one.
    return message if built_in_message(failure.text) is None else f"{kind}: {message}"


def stacktrace(failure: Failure, message: str | None, sanitizer: Sanitizer) -> str:
    """Return a traceback as Python prints it."""
    frames = plain_text(failure.traceback, sanitizer)
    header = _HEADER if frames.startswith("  File ") else ""
    end = "" if not frames or frames.endswith("\n") else "\n"
    # Changes of the message were counted with the message.
    return f"{header}{frames}{end}{last_line(failure, message, Sanitizer())}"
