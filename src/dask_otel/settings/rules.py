"""Which values a setting may have: one rule for each kind of value.

A rule reads what YAML, Dask's parser of environment variables or Python code gives, and
raises ValueError, and nothing else, for what is not allowed.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

from dask.utils import parse_bytes, parse_timedelta

from dask_otel.core.attributes import KEY_LIMIT, RESERVED
from dask_otel.core.metrics.labels import NameRule
from dask_otel.core.traces.link import TEMPLATE_LIMIT, TRACE_ID, is_template

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
YEAR: Final = 365 * DAY


class Rule(NamedTuple):
    """What is allowed, for people, and the parser, which raises ValueError for all else."""

    allowed: str
    parse: Callable[[Any], Any]
    #: The same as JSON schema, as far as that can say it.
    schema: Mapping[str, Any]
    #: The limits in a few words, where there are two.
    limits: str = ""


def flag() -> Rule:
    """Return the rule for a boolean."""

    def parse(value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    return Rule("true or false", parse, {"type": "boolean"})


def one_of(*choices: str) -> Rule:
    """Return the rule for a word out of a few."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError
        return value

    return Rule(" or ".join(choices), parse, {"enum": list(choices)})


def propagation() -> Rule:
    """Return the rule for what becomes of the caller's context."""
    rule = one_of("adopt", "link", "off")

    def parse(value: Any) -> str:
        # An unquoted off is false to YAML.
        return str(rule.parse("off" if value is False else value))

    return rule._replace(parse=parse)


def count(least: int, most: int) -> Rule:
    """Return the rule for a whole number; both limits are allowed."""

    def parse(value: Any) -> int:
        # 1e4 in an environment variable is a float to Dask; a bool is an int to Python.
        whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or not least <= value <= most:
            raise ValueError
        return int(value)

    return Rule(
        f"a whole number from {least} to {most}",
        parse,
        {"type": "integer", "minimum": least, "maximum": most},
        f"{least:,} to {most:,}",
    )


def ratio() -> Rule:
    """Return the rule for a part of a whole."""

    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ValueError
        return float(value)

    return Rule(
        "a number from 0 to 1", parse, {"type": "number", "minimum": 0, "maximum": 1}, "0 to 1"
    )


def duration(least: float, most: float) -> Rule:
    """Return the rule for a duration, parsed to seconds; both limits are allowed."""

    def parse(value: Any) -> float:
        seconds = _seconds(value)
        if not least <= seconds <= most:  # also true for NaN
            raise ValueError
        return seconds

    limits = f"{_readable(least)} to {_readable(most)}"
    return Rule(
        f"a duration from {limits}: a number of seconds, "
        "or a number and a unit, such as 500ms, 2s or 1h",
        parse,
        {"type": ["string", "number"], "minimum": int(least), "maximum": int(most)},
        limits,
    )


def duration_or_never(least: float, most: float) -> Rule:
    """Return the rule for a duration that may be left out (null), parsed to None."""
    rule = duration(least, most)

    def parse(value: Any) -> float | None:
        return None if value is None else float(rule.parse(value))

    schema = {**rule.schema, "type": [*rule.schema["type"], "null"]}
    return Rule(f"null (never), or {rule.allowed}", parse, schema, rule.limits)


def _seconds(value: Any) -> float:
    try:
        if isinstance(value, Real) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, timedelta):
            return value.total_seconds()
        # Dask puts a 1 before what does not begin with a digit: ".5s" would be 1.5 s.
        if isinstance(value, str) and value.strip()[:1].isdigit():
            return float(parse_timedelta(value))
    except (ArithmeticError, KeyError) as error:  # too large for a float; an unknown unit
        raise ValueError from error
    raise ValueError


def _readable(seconds: float) -> str:
    # Spelt so that Dask would read it, too; "15m" alone looks like metres.
    for unit, size in (("d", DAY), ("h", HOUR), (" minutes", 60.0)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def cluster_name() -> Rule:
    """Return the rule for a name that may be left to the deployment (null)."""

    def parse(value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or len(value) > 1024:
            raise ValueError
        value.encode()  # a lone surrogate raises here and not in the OTLP encoder
        return value

    return Rule(
        "null, or a text of 1 to 1024 characters (digits in quotes)",
        parse,
        {"type": ["string", "null"], "minLength": 1, "maxLength": 1024},
    )


def file_path() -> Rule:
    """Return the rule for a path that may be left out (null)."""

    def parse(value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or len(value) > 4096:
            raise ValueError
        if "\0" in value:  # no system has such a path
            raise ValueError
        value.encode()
        return value

    return Rule(
        "null, or a path of 1 to 4096 characters",
        parse,
        {
            "type": ["string", "null"],
            "minLength": 1,
            "maxLength": 4096,
            "pattern": r"^[^\x00]+$",
        },
    )


_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]{0,499}:[A-Za-z_][\w.]{0,199}", re.ASCII)


def function_name() -> Rule:
    """Return the rule for a function of somebody's, or none (null). It is not looked for here."""

    def parse(value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or not _FUNCTION.fullmatch(value):
            raise ValueError
        return value

    return Rule(
        "null, or module:function",
        parse,
        {"type": ["string", "null"], "pattern": f"^{_FUNCTION.pattern}$"},
    )


def size(least: int, most: int) -> Rule:
    """Return the rule for a number of bytes; both limits are allowed."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError
        # Dask puts a 1 before what does not begin with a digit.
        if isinstance(value, str) and not value.strip()[:1].isdigit():
            raise ValueError
        try:
            read = int(parse_bytes(value))
        except (ArithmeticError, IndexError) as error:  # no number; one that is too large
            raise ValueError from error
        if not least <= read <= most:
            raise ValueError
        return read

    limits = f"{least:,} to {most:,} bytes"
    return Rule(
        f"a size from {limits}: a number of bytes, or a number and a unit, such as 100 MB",
        parse,
        {"type": ["string", "integer"], "minimum": least, "maximum": most},
        limits,
    )


def trace_url() -> Rule:
    """Return the rule for the template of links to traces."""

    def parse(value: Any) -> str | None:
        if value is not None and not is_template(value):
            raise ValueError
        return value  # type: ignore[no-any-return]

    return Rule(
        f"null (no links), or an http or https address with {TRACE_ID} in it, at most "
        f"{TEMPLATE_LIMIT} characters without blanks or quotes",
        parse,
        {
            "type": ["string", "null"],
            "pattern": r"""^https?://[^\s"'<>\\`]*\{trace_id\}[^\s"'<>\\`]*$""",
            "maxLength": TEMPLATE_LIMIT,
        },
    )


#: Elements of a list, and characters of each: every span name meets every one of them.
MAX_LISTED: Final = 100
MAX_PATTERN: Final = 200


def _texts(value: Any, most: int = MAX_LISTED) -> tuple[str, ...]:
    if isinstance(value, str):  # one alone, as in an environment variable
        value = [value]
    if not isinstance(value, (list, tuple)) or len(value) > most:
        raise ValueError
    for text in value:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_PATTERN:
            raise ValueError
        text.encode()
    return tuple(value)


def patterns() -> Rule:
    """Return the rule for a list of glob patterns."""
    return Rule(
        f"a list of at most {MAX_LISTED} glob patterns, texts of 1 to {MAX_PATTERN} characters "
        "such as 'etl/*'",
        _texts,
        {
            "type": "array",
            "maxItems": MAX_LISTED,
            "items": {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN},
        },
    )


_TAG_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_TAG_KEYS: Final = 8


def tag_keys() -> Rule:
    """Return the rule for the keys of tags that become labels."""

    def parse(value: Any) -> tuple[str, ...]:
        keys = _texts(value, _MAX_TAG_KEYS)
        # Prometheus writes both as _.
        different = {key.replace("-", "_") for key in keys}
        if len(different) < len(keys) or not all(_TAG_KEY.fullmatch(key) for key in keys):
            raise ValueError
        return keys

    return Rule(
        f"a list of at most {_MAX_TAG_KEYS} different keys of letters, digits, _ and - (which are "
        "the same to Prometheus)",
        parse,
        {
            "type": "array",
            "maxItems": _MAX_TAG_KEYS,
            "uniqueItems": True,
            "items": {"type": "string", "pattern": f"^{_TAG_KEY.pattern}$"},
        },
    )


#: Keys of the baggage that may become attributes.
MAX_BAGGAGE_KEYS: Final = 16
#: A token, as W3C Baggage wants it; no longer than an attribute's key may be.
_BAGGAGE_KEY: Final = re.compile(rf"[A-Za-z0-9!#$%&'*+.^_`|~-]{{1,{KEY_LIMIT}}}")


def baggage_keys() -> Rule:
    """Return the rule for the keys of the baggage that become attributes."""

    def parse(value: Any) -> tuple[str, ...]:
        keys = _texts(value, MAX_BAGGAGE_KEYS)
        if not all(_BAGGAGE_KEY.fullmatch(key) and not key.startswith(RESERVED) for key in keys):
            raise ValueError
        return keys

    return Rule(
        f"a list of at most {MAX_BAGGAGE_KEYS} keys, letters, digits and signs without blanks, "
        f"at most {KEY_LIMIT} characters, and none that begins with {' or '.join(RESERVED)}",
        parse,
        {
            "type": "array",
            "maxItems": MAX_BAGGAGE_KEYS,
            "items": {
                "type": "string",
                "pattern": rf"^(?!(?:{'|'.join(map(re.escape, RESERVED))})){_BAGGAGE_KEY.pattern}$",
            },
        },
    )


def name_rules() -> Rule:
    """Return the rule for a list of replacements in span names."""

    def parse(value: Any) -> tuple[NameRule, ...]:
        if not isinstance(value, (list, tuple)) or len(value) > MAX_LISTED:
            raise ValueError
        return tuple([_name_rule(entry) for entry in value])

    return Rule(
        f"a list of at most {MAX_LISTED} mappings, each with pattern, a regular expression of 1 "
        f"to {MAX_PATTERN} characters without a choice or a repetition inside a repetition (these "
        "can take for ever), and replace, a text",
        parse,
        {
            "type": "array",
            "maxItems": MAX_LISTED,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["pattern"],
                "properties": {
                    "pattern": {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN},
                    "replace": {"type": "string", "maxLength": MAX_PATTERN},
                },
            },
        },
    )


def _name_rule(entry: Any) -> NameRule:
    if not isinstance(entry, Mapping) or not {"pattern"} <= {*entry} <= {"pattern", "replace"}:
        raise ValueError
    (pattern,) = _texts([entry["pattern"]])
    replace = entry.get("replace", "")
    if replace != "":
        (replace,) = _texts([replace])
    try:
        # Substituting checks the replacement, too: it can refer to groups that are not there.
        re.compile(pattern).sub(replace, "")
        parsed = _REGEX_PARSER.parse(pattern)
    except (re.error, IndexError, OverflowError, RecursionError) as error:
        raise ValueError from error
    if _backtracks(parsed, repeated=False):
        raise ValueError
    return NameRule(pattern, replace)


#: Python's own parser of regular expressions: there is no public one, and a pattern's text alone
#: does not tell what repeats inside what.
_REGEX_PARSER: Final[Any] = importlib.import_module(
    "re._parser" if sys.version_info >= (3, 11) else "sre_parse"
)
#: More repetitions than this are many.
_FEW: Final = 8


def _backtracks(pattern: Any, repeated: bool) -> bool:
    """Return whether a match may take time exponential in the length of the text.

    That needs a repetition whose inside can match in more than one way: another repetition,
    or a choice. Python's matching cannot be interrupted, and holds up every thread. One
    tag is enough: ``(a+)+$`` on 22 letters took 0.2 to 0.8 s, and twice as long with each more.
    """
    for operation, argument in pattern:
        name = str(operation)
        inside = repeated
        if name.endswith("REPEAT"):
            least, most = argument[:2]
            if repeated and least != most:
                return True
            inside = repeated or most > _FEW
        elif repeated and name in ("BRANCH", "GROUPREF", "GROUPREF_EXISTS"):
            return True
        if any(_backtracks(part, inside) for part in _parts(argument)):
            return True
    return False


def _parts(argument: Any) -> Iterator[Any]:
    if isinstance(argument, _REGEX_PARSER.SubPattern):
        yield argument
    elif isinstance(argument, (list, tuple)):
        for part in argument:
            yield from _parts(part)


VARIABLE_NAME: Final = re.compile(r"OTEL_[A-Z0-9_]+")

#: The section of variables, whose names are not fixed.
ENVIRONMENT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "propertyNames": {"pattern": f"^{VARIABLE_NAME.pattern}$"},
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}


def variable() -> Rule:
    """Return the rule for the value of an OTEL_* variable, parsed to text."""
    return Rule(
        "text, a number, true or false; Dask reads an unquoted none in an environment variable "
        "as null, so put it in quotes within quotes, \"'none'\"",
        _variable_text,
        {"type": ["string", "number", "boolean"]},
    )


def _variable_text(value: Any) -> str:
    # YAML and Dask make numbers and booleans of texts that look like them.
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value):
        # 1e4 is meant as 10000, and the SDK's int() takes no "10000.0".
        return str(int(value)) if value.is_integer() else str(value)
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str) or "\0" in value:
        raise ValueError
    value.encode()  # what no environment can hold
    return value
