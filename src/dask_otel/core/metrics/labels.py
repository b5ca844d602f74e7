"""Users' rules for the labels of metrics: patterns, rules for names, tags.

Only for labels: spans keep Dask's names. No number is lost: denied names are booked under
``_OTHER``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Final, Literal

from dask_otel import semconv
from dask_otel.core.text import LABEL_LIMIT, Sanitizer, label_text, plain_text, span_path

#: Characters of a tag that the rules see: a pattern's time grows with them.
RULE_LIMIT: Final = LABEL_LIMIT


@dataclass(frozen=True, slots=True)
class NameRule:
    """A regular expression, and the replacement of each of its matches in a tag."""

    pattern: str
    replace: str = ""


def patterns(allow: Sequence[str] = (), deny: Sequence[str] = ()) -> Callable[[str], bool]:
    """Return a function that says whether a whole text is allowed; case-sensitive.

    Parameters
    ----------
    allow
        Glob patterns (``*``, ``?``, ``[a-z]``); one of them must match. Any text if empty.
    deny
        Glob patterns; none of them may match.
    """
    allowed, denied = (re.compile("|".join(map(translate, globs))) for globs in (allow, deny))
    return lambda text: bool(
        (not allow or allowed.match(text)) and not (deny and denied.match(text))
    )


class LabelRules:
    """How raw tags and prefixes become label values.

    Parameters
    ----------
    names, prefixes
        Whether a span name (after the rules) or a task prefix keeps its label; see `patterns`.
    span_label
        ``root`` gives every span below a root the root's name.
    rules
        Applied to each tag, in order. An empty result is left out of the name.
    tags
        Keys of ``key:value`` tags that become a label ``dask.tag.<key>``.
    """

    def __init__(
        self,
        *,
        names: Callable[[str], bool] = bool,
        prefixes: Callable[[str], bool] = bool,
        span_label: Literal["full", "root"] = "full",
        rules: Sequence[NameRule] = (),
        tags: Sequence[str] = (),
    ) -> None:
        self._names, self.prefixes = names, prefixes
        self._by_root = span_label == "root"
        self._rules = [(re.compile(rule.pattern), rule.replace) for rule in rules]
        self._tags = [f"{tag}:" for tag in tags]
        self.tag_labels = tuple([f"{semconv.TAG}.{tag}" for tag in tags])

    def span(
        self, tags: tuple[Hashable, ...], sanitizer: Sanitizer
    ) -> tuple[tuple[str, ...], bool]:
        """Return the label values of a span with these tags, and whether its name is denied.

        The values are those of `semconv.SPAN_KEYS`, then one for each tag label.
        """
        parts: Sequence[object] = tags[:1] if self._by_root else tags
        root = tags[0] if tags else ""
        if self._rules:
            parts = [self._ruled(tag, sanitizer) for tag in parts]
            root = parts[0] if parts else ""
            parts = [tag for tag in parts if tag]
        name = label_text(span_path(parts, sanitizer), sanitizer)
        values = [name, label_text(root, sanitizer)]
        values += [label_text(self._value(key, tags), sanitizer) for key in self._tags]
        return tuple(values), not self._names(name)

    def _ruled(self, tag: object, sanitizer: Sanitizer) -> str:
        text = plain_text(tag, sanitizer)
        head, rest = text[:RULE_LIMIT], text[RULE_LIMIT:]
        for pattern, replace in self._rules:
            # A replacement can lengthen it.
            head = pattern.sub(replace, head)[:RULE_LIMIT]
        return head + rest

    @staticmethod
    def _value(key: str, tags: tuple[Hashable, ...]) -> str:
        """Return the value of the innermost tag ``key:value``."""
        for tag in reversed(tags):
            if isinstance(tag, str) and tag.startswith(key):
                return tag[len(key) :]
        return ""
