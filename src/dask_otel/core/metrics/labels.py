"""What users decide about the labels of metrics: patterns, rules for names, tags.

Only labels: spans keep the names that Dask has. Nothing here loses a number, as what a
pattern does not let through is booked under ``_OTHER``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Final, Literal, NamedTuple

from dask_otel import semconv
from dask_otel.core.text import LABEL_LIMIT, Sanitizer, label_text, plain_text, span_path

#: Characters of a tag that the rules see: the time that a pattern needs grows with them.
RULE_LIMIT: Final = LABEL_LIMIT


@dataclass(frozen=True, slots=True)
class NameRule:
    """A regular expression and what each of its matches in a tag is replaced by."""

    pattern: str
    replace: str = ""


class SpanTexts(NamedTuple):
    """A Dask span as label values."""

    #: Values of `semconv.SPAN_KEYS`, then one for each tag label.
    values: tuple[str, ...]
    #: Whether the patterns for span names do not let it through.
    denied: bool


class Patterns:
    """Glob patterns (``*``, ``?``, ``[a-z]``) that a whole text must match, or must not.

    Parameters
    ----------
    allow
        Without any, everything is allowed.
    deny
        Wins over `allow`.
    """

    __slots__ = ("_allow", "_deny")

    def __init__(self, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> None:
        self._allow = _compiled(allow)
        self._deny = _compiled(deny)

    def let_through(self, text: str) -> bool:
        """Return whether the text is allowed and not denied. Case matters."""
        if self._deny is not None and self._deny.match(text):
            return False
        return self._allow is None or self._allow.match(text) is not None


def _compiled(globs: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join([translate(glob) for glob in globs])) if globs else None


class LabelRules:
    """How raw tags and prefixes become label values.

    Parameters
    ----------
    names, prefixes
        Which span names (as they are after the rules) and task prefixes keep their label.
    span_label
        ``root`` gives every span below a root the root's name.
    rules
        Applied to each tag, one after the other. A tag that becomes empty is left out of
        the name.
    tags
        Keys of ``key:value`` tags that become a label ``dask.tag.<key>``.
    """

    __slots__ = ("_by_root", "_names", "_prefixes", "_rules", "_tags", "tag_labels")

    def __init__(
        self,
        *,
        names: Patterns | None = None,
        prefixes: Patterns | None = None,
        span_label: Literal["full", "root"] = "full",
        rules: Sequence[NameRule] = (),
        tags: Sequence[str] = (),
    ) -> None:
        self._names = names or Patterns()
        self._prefixes = prefixes or Patterns()
        self._by_root = span_label == "root"
        self._rules = [(re.compile(rule.pattern), rule.replace) for rule in rules]
        self._tags = [f"{tag}:" for tag in tags]
        self.tag_labels = tuple([f"{semconv.TAG}.{tag}" for tag in tags])

    def span(self, tags: tuple[Hashable, ...], sanitizer: Sanitizer) -> SpanTexts:
        """Return the label values of a span with these tags."""
        shown: Sequence[object] = tags[:1] if self._by_root else tags
        root = tags[0] if tags else ""
        if self._rules:
            shown = [self._ruled(tag, sanitizer) for tag in shown]
            root = shown[0] if shown else ""
            shown = [tag for tag in shown if tag]
        name = label_text(span_path(shown, sanitizer), sanitizer)
        values = [name, label_text(root, sanitizer)]
        values += [label_text(self._value(key, tags), sanitizer) for key in self._tags]
        return SpanTexts(tuple(values), not self._names.let_through(name))

    def allows_prefix(self, prefix: str) -> bool:
        """Return whether a prefix keeps its label; that there is none is always told."""
        return prefix == semconv.EMPTY or self._prefixes.let_through(prefix)

    def _ruled(self, tag: object, sanitizer: Sanitizer) -> str:
        text = plain_text(tag, sanitizer)
        head, rest = text[:RULE_LIMIT], text[RULE_LIMIT:]
        for pattern, replace in self._rules:
            # A replacement can make it longer again.
            head = pattern.sub(replace, head)[:RULE_LIMIT]
        return head + rest

    @staticmethod
    def _value(key: str, tags: tuple[Hashable, ...]) -> str:
        """Return the value of the innermost tag ``key:value``."""
        for tag in reversed(tags):
            if isinstance(tag, str) and tag.startswith(key):
                return tag[len(key) :]
        return ""
