"""A rule for a value of a setting, or of a standard variable."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """The values that a setting may have."""

    #: In words.
    allowed: str
    #: As JSON schema. Its choices, limits and pattern are checked here, too.
    schema: Mapping[str, Any]
    #: Converts a value from YAML, Dask's parser of environment variables or Python code into the
    #: type of the schema.
    read: Callable[[Any], Any]
    #: The limits in a few words, if there are two.
    limits: str = ""

    def parse(self, value: Any) -> Any:
        """Return the value in the bridge's form; raise only ValueError, if it is not valid."""
        if value is None and "null" in self.schema.get("type", ()):
            return None
        try:
            parsed = self.read(value)
        except (ArithmeticError, LookupError, RecursionError, re.error) as error:
            # A number too large for a float, an unknown unit, an invalid regular expression.
            raise ValueError from error
        require(_fits(parsed, self.schema))
        return parsed


def require(allowed: bool) -> None:
    """Raise a ValueError unless something is allowed."""
    if not allowed:
        raise ValueError


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a value matches a schema's choices, limits and pattern."""
    size = len(value) if isinstance(value, str) else value
    least = schema.get("minimum", schema.get("minLength"))
    most = schema.get("maximum", schema.get("maxLength"))
    return (
        value in schema.get("enum", (value,))
        and (least is None or size >= least)  # NaN is not
        and (most is None or size <= most)
        and ("pattern" not in schema or re.fullmatch(schema["pattern"], value) is not None)
    )
