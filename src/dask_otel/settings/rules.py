"""The rules for settings' values, one for each kind of value, as data if possible."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from numbers import Integral, Real
from typing import Any, Final

from dask.utils import parse_bytes, parse_timedelta

from dask_otel.core.attributes import KEY_LIMIT, RESERVED
from dask_otel.core.metrics.labels import NameRule
from dask_otel.core.traces.address import TRACE_ID
from dask_otel.settings.rule import Rule, require

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
YEAR: Final = 365 * DAY

# --------------------------------------------------------------------------- words and texts


def _flag(value: Any) -> Any:
    require(isinstance(value, bool))
    return value


def _text(value: Any) -> Any:
    require(isinstance(value, str))
    text = str.__str__(value)  # of a subclass, such as a member of an enum
    text.encode()  # a lone surrogate raises here and not in the OTLP encoder
    return text


def one_of(*choices: str) -> Rule:
    """Return the rule for one of a few words, in upper or lower case."""
    known = {choice.lower(): choice for choice in choices}
    return Rule(
        " or ".join(choices),
        {"enum": list(choices)},
        lambda value: known.get(_text(value).lower(), value),
    )


FLAG: Final = Rule("true or false", {"type": "boolean"}, _flag)


def _or_off(*choices: str) -> Rule:
    rule = one_of(*choices, "off")
    # In YAML, an unquoted off means false.
    return rule._replace(read=lambda value: rule.read("off" if value is False else value))


PROPAGATION: Final = _or_off("adopt", "link")
LEVEL: Final = _or_off("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
CLUSTER_NAME: Final = Rule(
    "null, or a text of 1 to 1024 characters (digits in quotes)",
    {"type": ["string", "null"], "maxLength": 1024, "pattern": r"^[\s\S]*\S[\s\S]*$"},
    _text,
)
FILE_PATH: Final = Rule(
    # Logs and terminals show it. An address would be a folder "s3:" below the working directory.
    "null, or a path on the scheduler's machine (no address, such as s3://bucket) of 1 to 4096 "
    "characters, none of them a control character",
    {
        "type": ["string", "null"],
        "minLength": 1,
        "maxLength": 4096,
        "pattern": r"^(?!.*://)(?=.*\S)[^\x00-\x1f\x7f-\x9f]+$",
    },
    _text,
)
#: This does not check that the function exists.
FUNCTION_NAME: Final = Rule(
    "null, or module:function",
    {
        "type": ["string", "null"],
        "pattern": "^[A-Za-z_][A-Za-z0-9_.]{0,499}:[A-Za-z_][A-Za-z0-9_.]{0,199}$",
    },
    _text,
)
#: A character that stays within an attribute of HTML.
_PLAIN: Final = r"""[^\s"'<>\\`\x00-\x1f\x7f-\x9f]"""
TRACE_URL: Final = Rule(
    f"null (no links), or an http or https address with {TRACE_ID} in it, at most 2000 "
    "characters without blanks or quotes",
    {
        "type": ["string", "null"],
        "pattern": f"^[Hh][Tt][Tt][Pp][Ss]?://(?![/?#]){_PLAIN}*\\{{trace_id\\}}{_PLAIN}*$",
        "maxLength": 2000,
    },
    _text,
)

# ----------------------------------------------------------------- numbers, durations, sizes


def _whole(value: Any) -> int:
    # Dask reads 1e4 in an environment variable as a float; in Python, a bool is an int.
    whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
    require(whole and not isinstance(value, bool))
    return int(value)


def _number(value: Any) -> float:
    require(isinstance(value, (int, float)) and not isinstance(value, bool))
    return float(value)


def _seconds(value: Any) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    return float(parse_timedelta(_quantity(value)))


def _bytes(value: Any) -> int:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return int(parse_bytes(value if number else _quantity(value)))


def _quantity(value: Any) -> Any:
    # Dask prepends a 1 to text that does not begin with a digit: ".5s" would be 1.5 s.
    require(isinstance(value, str) and value.strip()[:1].isdigit())
    return value


def _readable(seconds: float) -> str:
    # Spelled so that Dask could read it, too; "15m" alone looks like metres.
    for unit, size in (("d", DAY), ("h", HOUR), (" minutes", 60.0)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit[:-1] if seconds == 60.0 else unit}"
    return f"{seconds:g}s"


RATIO: Final = Rule(
    "a number from 0 to 1", {"type": "number", "minimum": 0, "maximum": 1}, _number, "0 to 1"
)


def count(least: int, most: int) -> Rule:
    """Return the rule for a whole number; both limits are allowed."""
    return Rule(
        f"a whole number from {least} to {most}",
        {"type": "integer", "minimum": least, "maximum": most},
        _whole,
        f"{least:,} to {most:,}",
    )


def duration(least: float, most: float) -> Rule:
    """Return the rule for a duration, parsed to seconds; both limits are allowed."""
    limits = f"{_readable(least)} to {_readable(most)}"
    return Rule(
        f"a duration from {limits}: a number of seconds, "
        "or a number and a unit, such as 500ms, 2s or 1h",
        {"type": ["string", "number"], "minimum": int(least) or least, "maximum": int(most)},
        _seconds,
        limits,
    )


def duration_or_never(least: float, most: float) -> Rule:
    """Return the rule for a duration or null, which is parsed to None."""
    rule = duration(least, most)
    schema = {**rule.schema, "type": [*rule.schema["type"], "null"]}
    return rule._replace(allowed=f"null (never), or {rule.allowed}", schema=schema)


def size(least: int, most: int) -> Rule:
    """Return the rule for a number of bytes; both limits are allowed."""
    limits = f"{least:,} to {most:,} bytes"
    return Rule(
        f"a size from {limits}: a number of bytes, or a number and a unit, such as 100 MB",
        {"type": ["string", "integer"], "minimum": least, "maximum": most},
        _bytes,
        limits,
    )


# ------------------------------------------------------------------------------------- lists

#: Most elements of a list, and characters of each: every span name is compared with all of them.
MAX_LISTED: Final = 100
MAX_PATTERN: Final = 200


def _list(allowed: str, item: Rule, most: int, **more: Any) -> Rule:
    def read(value: Any) -> tuple[Any, ...]:
        # A single string, as in an environment variable, is a list of one.
        parts = [value] if isinstance(value, str) else value
        require(isinstance(parts, (list, tuple)) and len(parts) <= most)
        parsed = tuple([item.parse(part) for part in parts])
        # Prometheus writes a - as _.
        distinct = {part.replace("-", "_") for part in parsed} if "uniqueItems" in more else parsed
        require(len(distinct) == len(parsed))
        return parsed

    schema = {"type": "array", "maxItems": most, **more, "items": item.schema}
    return Rule(allowed, schema, read)


_PATTERN: Final = Rule("", {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN}, _text)
PATTERNS: Final = _list(
    f"a list of at most {MAX_LISTED} glob patterns, texts of 1 to {MAX_PATTERN} characters "
    "such as 'etl/*'",
    _PATTERN,
    MAX_LISTED,
)

TAG_KEYS: Final = _list(
    "a list of at most 8 different keys of letters, digits, _ and - (which are the same to "
    "Prometheus)",
    Rule("", {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}, _text),
    8,
    uniqueItems=True,
)

#: Most baggage keys that become attributes.
MAX_BAGGAGE_KEYS: Final = 16
_RESERVED: Final = "|".join(map(re.escape, RESERVED))
BAGGAGE_KEYS: Final = _list(
    f"a list of at most {MAX_BAGGAGE_KEYS} keys, letters, digits and signs without blanks, "
    f"at most {KEY_LIMIT} characters, and none below {'* or '.join(RESERVED)}*",
    Rule(
        "",
        # A token according to W3C Baggage, no longer than an attribute's key.
        {
            "type": "string",
            "pattern": rf"^(?!(?:{_RESERVED}))[A-Za-z0-9!#$%&'*+.^_`|~-]{{1,{KEY_LIMIT}}}$",
        },
        _text,
    ),
    MAX_BAGGAGE_KEYS,
)

TOPICS: Final = _list(
    f"a list of at most {MAX_LISTED} topics, texts of 1 to {MAX_PATTERN} characters",
    _PATTERN,
    MAX_LISTED,
)

# -------------------------------------------------------------- replacements in span names

#: A group that may be repeated more than eight times. If what it holds matches a text in several
#: ways, a match takes time exponential in the length of the text, and Python's matching blocks
#: every thread: ``(a+)+$`` on 22 letters took 0.2 to 0.8 s, twice as long for each further letter.
#: In verbose patterns, spaces and comments could hide it.
_REPEATED_GROUP: Final = re.compile(
    r"(?<!\\)(?:\\\\)*\)(?:[*+]|\{(?!,?[0-8]\}|[0-8],[0-8]\}))|\(\?[aiLmsu]*x"
)
_REPLACEMENT: Final = Rule("", {"type": "string", "maxLength": MAX_PATTERN}, _text)


def _name_rule(entry: Any) -> NameRule:
    require(isinstance(entry, Mapping) and {"pattern"} <= {*entry} <= {"pattern", "replace"})
    pattern = _PATTERN.parse(entry["pattern"])
    replace = _REPLACEMENT.parse(entry.get("replace", ""))
    # Substituting also checks the replacement, which may refer to missing groups.
    re.compile(pattern).sub(replace, "")
    require(not _REPEATED_GROUP.search(pattern))
    return NameRule(pattern, replace)


NAME_RULES: Final = _list(
    f"a list of at most {MAX_LISTED} mappings, each with pattern, a regular expression of 1 "
    f"to {MAX_PATTERN} characters without a group that is repeated more than 8 times (it can "
    "take for ever), and replace, a text",
    Rule(
        "",
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["pattern"],
            "properties": {"pattern": _PATTERN.schema, "replace": _REPLACEMENT.schema},
        },
        _name_rule,
    ),
    MAX_LISTED,
)

# ------------------------------------------------------------------------- OTEL_* variables

VARIABLE_NAME: Final = re.compile(r"OTEL_[A-Z0-9_]+")


def _variable_text(value: Any) -> Any:
    # YAML and Dask convert texts that look like numbers or booleans.
    if isinstance(value, float) and value.is_integer():
        # 1e4 means 10000, and the SDK's int() rejects "10000.0".
        value = int(value)
    if isinstance(value, (int, float)) and math.isfinite(value):
        return str(value).lower()
    text = _text(value)
    require("\0" not in text)  # not possible in an environment
    return text


VARIABLE: Final = Rule(
    "text, a number, true or false; Dask reads an unquoted none in an environment variable "
    "as null, so put it in quotes within quotes, \"'none'\"",
    {"type": ["string", "number", "boolean"]},
    _variable_text,
)
#: The section of environment variables, without fixed names.
ENVIRONMENT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "propertyNames": {"pattern": f"^{VARIABLE_NAME.pattern}$"},
    "additionalProperties": VARIABLE.schema,
}
