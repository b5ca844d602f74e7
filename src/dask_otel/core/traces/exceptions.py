"""What an exception said, as Python would print it.

Dask sends its ``repr`` and its traceback without the last line, and nothing else that could be
read without unpickling, which would run the user's code here. Of built-in exceptions, whose
``repr`` has one string in it, that string is what they said. Of others, nobody knows what
their ``repr`` means: it stays.
"""

from __future__ import annotations

import builtins
import re
from ast import literal_eval
from typing import Final

from dask_otel import semconv
from dask_otel.core.records import Failure
from dask_otel.core.text import ATTRIBUTE_LIMIT, Sanitizer, attribute_text, plain_text

#: What comes before the arguments or the message in an exception's text:
#: ``pkg.mod.Err`` of ``pkg.mod.Err('x')``. Other texts have no type in them.
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
#: Characters of a text in which a string is looked for. Dask cuts exceptions at 10,000.
_LONGEST: Final = 65536
_HEADER: Final = "Traceback (most recent call last):\n"


def error_type(failure: Failure, sanitizer: Sanitizer) -> str:
    """Return the name of what failed.

    What the scheduler decided has its own name; otherwise it is the leading dotted name
    of the exception's text, and `semconv.FOLDED` where the text begins with none.
    """
    if failure.scheduler_error:
        return attribute_text(failure.scheduler_error, sanitizer)
    text = failure.text
    if not isinstance(text, str):
        return semconv.FOLDED
    # A type's name is short: no need to look through a message of megabytes.
    found = _TYPE_NAME.match(text[:ATTRIBUTE_LIMIT].strip())
    return attribute_text(found[0], sanitizer) if found else semconv.FOLDED


def said(text: object) -> str | None:
    """Return what a built-in exception said, from its ``repr``; None if that is not known."""
    if not isinstance(text, str) or len(text) > _LONGEST:
        return None
    found = _ONE_STRING.fullmatch(text)
    if found is None or found["type"] not in _BUILT_IN:
        return None
    # KeyError says the repr of its key, with quotes.
    return found["string"] if found["type"] == "KeyError" else str(literal_eval(found["string"]))


def message(text: object) -> object:
    """Return an exception's message; its ``repr`` where nothing else is known."""
    words = said(text)
    return text if words is None else words


def last_line(failure: Failure, shown: str | None, sanitizer: Sanitizer) -> str:
    """Return the line with which Python ends a traceback: type and message.

    The type alone where messages must not be shown (`shown` is None).
    """
    kind = error_type(failure, sanitizer)
    if shown is None:
        return "" if kind == semconv.FOLDED else kind
    # A repr begins with the type, if there is one in it.
    return shown if said(failure.text) is None else f"{kind}: {shown}"


def stacktrace(failure: Failure, shown: str | None, sanitizer: Sanitizer) -> str:
    """Return a traceback as Python prints it; `shown` is the message."""
    frames = plain_text(failure.traceback, sanitizer)
    header = _HEADER if frames.startswith("  File ") else ""
    end = "" if not frames or frames.endswith("\n") else "\n"
    # What had to be changed in the message was counted where the message is.
    return f"{header}{frames}{end}{last_line(failure, shown, Sanitizer())}"
